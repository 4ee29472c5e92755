"""Groups: learners with settings of their own."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, StrictBool, StrictInt

from consilience.config.attacks import parse_attack
from consilience.config.counts import WithCounts
from consilience.config.schedules import Schedule, scheduled
from consilience.errors import ConfigurationError


def _rate(value: Any) -> Any:
    """A learning rate: a number, or a schedule as text."""
    read = value
    if isinstance(value, str):
        try:
            read = value = float(value)
        except ValueError:
            try:
                read = scheduled(value)
            except ConfigurationError as error:
                raise ValueError(str(error)) from None
    if isinstance(read, str):
        raise ValueError("it must be a number, or a schedule such as 'cosine(0.001, 0, 100)'")
    if isinstance(read, Schedule) and (read.lowest < 0 or not read.highest):
        raise ValueError("a learning rate must not be negative, and not 0 in every round")
    if isinstance(read, int | float) and not 0 < read < math.inf:
        raise ValueError("it must be more than 0, and finite")
    return value


def _known_attack(given: str) -> str:
    parse_attack(given)
    return given


def _epsilon(value: Any) -> Any:
    """The privacy budget of a sample: a finite number, 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError("an epsilon is a finite number, 0 or more; leave the class out where it has none of its own")
    return float(value)


Rate = Annotated[float | str, BeforeValidator(_rate)]
Epsilon = Annotated[float, BeforeValidator(_epsilon)]
ClassName = Annotated[str, BeforeValidator(lambda key: str(key) if type(key) is int else key)]
"""A class by its number or its label, as text: keys of tables are."""
Numbers = StrictInt | str | tuple[StrictInt, ...]
"""Learners by number: 3, [0, 2] or '0-2,5'."""


class GroupConfig(WithCounts):
    """Learners with settings of their own: how they train, what they upload and download."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    learners: Numbers = Field(description="their numbers: 3, [0, 2] or '0-2,5'; the first learner is 0")
    model: str | None = Field(None, min_length=1, description="their model")
    method: dict[str, Any] = Field(default_factory=dict, description="their own settings of the method, such as kd")
    exchanges: tuple[str, ...] | None = Field(None, description="the exchanges they take part in; all where left out")
    uploads: StrictBool | tuple[str, ...] = Field(
        True, description="whether they upload, or the exchanges they upload to"
    )
    downloads: StrictBool | tuple[str, ...] = Field(
        True, description="whether they download, or the exchanges they download from"
    )
    never_share: tuple[StrictInt | str, ...] = Field((), description="classes whose samples never enter an upload")
    sample_epsilons: dict[ClassName, Epsilon] = Field(
        default_factory=dict,
        description="with private, smaller epsilons for samples of these classes: {3 = 1.0}; 0: never drawn",
    )
    epochs: int | None = Field(None, ge=1, description="passes over their data in a round")
    batch_size: int | None = Field(None, ge=1, description="samples in a mini-batch")
    lr: Rate | None = Field(None, description="learning rate")
    joins: StrictInt = Field(1, ge=1, description="the round in which they join")
    participation: float | None = Field(None, gt=0, le=1, description="share of the group that takes part in a round")
    shift: str | None = Field(
        None, min_length=1, description="the shift of their data, at full strength, in place of the run's"
    )
    samples: StrictInt | None = Field(
        None, ge=1, description="training samples of each of them, drawn from all; the others share the rest"
    )
    partners: Numbers | None = Field(
        None, description="with partners = 'listed', whose uploads they use: numbers as in learners"
    )

    attack: Annotated[str, AfterValidator(_known_attack)] | None = Field(
        None,
        description="for studies: sign-flip, scale(K), claim(K), prototype-swap, label-flip, joined by +",
    )

    def numbers(self, name: str, learners: int) -> list[int]:
        """The numbers of the group's learners, sorted; learners: how many there are in all."""
        return parse_numbers(f"groups.{name}.learners", self.learners, learners)

    def partner_numbers(self, name: str, learners: int) -> list[int] | None:
        """The numbers of the listed partners, sorted; None where none are listed."""
        return None if self.partners is None else parse_numbers(f"groups.{name}.partners", self.partners, learners)

    @property
    def flips_labels(self) -> bool:
        """Whether the group's learners label their samples wrongly."""
        return self.attack is not None and parse_attack(self.attack).flips_labels


def parse_numbers(key: str, given: Numbers, learners: int) -> list[int]:
    """Numbers of learners, sorted; refuses those that do not exist."""
    spans = _spans(key, given)
    for span in spans:
        if not 0 <= span[0] <= span[-1] < learners:
            wrong = span[0] if span[0] < 0 else max(span[0], learners) if span[0] >= learners else learners
            raise ConfigurationError(f"{key} names learner {wrong}; there are learners 0 to {learners - 1}")
    return sorted({who for span in spans for who in span})


def _spans(key: str, given: Numbers) -> list[range]:
    """The numbers as ranges, which are not expanded: one may name more learners than memory holds."""
    if isinstance(given, str):
        found = [_span(key, given, part.strip()) for part in given.split(",")]
    else:
        found = [range(who, who + 1) for who in ([given] if isinstance(given, int) else given)]
    if not found:
        raise ConfigurationError(f"{key} is empty; name at least one learner")
    return found


def _span(key: str, whole: str, text: str) -> range:
    first, dash, last = text.partition("-")
    try:
        numbers = range(int(first), int(last if dash else first) + 1)
    except ValueError:
        numbers = range(0)
    if not numbers:
        raise ConfigurationError(f"{key} is {whole!r}; write numbers and spans, such as '0-2,5'")
    return numbers
