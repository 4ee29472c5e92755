"""Variants: federations of one run that differ in some settings, and the participants of each.

Weights of losses, fractions and learning rates may differ between the rows of a stack. Anything else determines tensor
shapes or the steps of training, and needs its own run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from consilience.config.config import Config
from consilience.errors import ConfigurationError
from consilience.method import Method
from consilience.methods import build_method
from consilience.simulation.setup.participants import Model, Participant, build_participants

_FREE = {"lr", "method", "groups", "variants"}  # the parts of them that determine shapes are in the stacking keys


@dataclass(frozen=True)
class Variants:
    """The variants of a run: the participants of each."""

    participants: tuple[tuple[Participant, ...], ...]  # of each variant: learners in each of their roles
    names: tuple[str, ...] = ()  # the settings of each variant, as text; empty if there are no variants

    @property
    def count(self) -> int:
        """How many variants there are."""
        return len(self.participants)

    @property
    def learners(self) -> int:
        """How many learners there are."""
        return len({participant.learner for participant in self.participants[0]})

    @property
    def all(self) -> list[Participant]:
        """The participants of all variants."""
        return [participant for participants in self.participants for participant in participants]

    @property
    def labeled(self) -> bool:
        """Whether every learner's classifier is trained: otherwise its predictions mean nothing."""
        return all(participant.role.objective.labeled for participant in self.all)


def variants_of(config: Config, method: Method, models: Sequence[Model]) -> Variants:
    """The variants a configuration asks for; refuses settings that cannot differ within a run."""
    if not config.variants:
        return Variants((tuple(build_participants(config, method, models)),))
    first, found = shared_run_key(config, method, models), []
    for i, changes in enumerate(config.variants):
        own = config.variant(i)
        chosen = build_method(own.method.name, own.method.settings)
        if shared_run_key(own, chosen, models) != first:
            raise ConfigurationError(
                f"{_describe_changes(changes)} changes more than weights and rates, so it cannot share a run with the "
                f"others; sweep over it with `consilience sweep`, which gives it its own run"
            )
        found.append(tuple(build_participants(own, chosen, models)))
    return Variants(tuple(found), tuple(map(_describe_changes, config.variants)))


def shared_run_key(config: Config, method: Method, models: Sequence[Model] | None = None) -> str:
    """Everything that determines shapes and steps of a run: settings with the same key can share one run."""
    settings = {key: value for key, value in config.settings(exclude_none=False).items() if key not in _FREE}
    participants = build_participants(config, method, models or config.model_name.split(","))
    overrides = {
        who: (group.joins, group.shift, group.samples, group.attack, group.partners)
        for who, (_, group) in config.groups_by_learner().items()
    }
    shares = [
        (group.numbers(name, config.federation.learners), group.participation) for name, group in config.groups.items()
    ]
    participation = [share for share in shares if share[1] is not None]
    return repr(
        (
            settings,
            method.name,
            [(each.stacking_key, each.role.never_share, each.role.sample_epsilons) for each in participants],
            overrides,
            participation,
        )
    )


def _describe_changes(changes: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in changes.items())
