"""What a method is: one or more roles, each with an objective and a tuple of exchanges, under a name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from consilience.errors import ConfigurationError, UnknownName
from consilience.exchanges.base import Exchange, Start
from consilience.objectives import CrossEntropy, Objective


@dataclass(frozen=True)
class Role:
    """Who does what: a local objective, what is traded and on which terms, and how to train in a round.

    uploads, downloads: names of the exchanges to which it puts something up, and of those whose answers it takes; None
    means all. One that gives to a moving mean without listening hears the common values, for its change is measured
    from them, but keeps its own. never_share: classes whose samples never enter what is put up. data: the samples it
    trains on and puts something up of, its own or the public set. start: whether learners begin with the same weights,
    made from the federation's seed, or each with its own, but for what an exchange makes common. epochs, batch_size,
    lr: of local training; None leaves it to the run's setting, and 0 epochs are none.
    """

    objective: Objective = field(default_factory=CrossEntropy)
    exchanges: tuple[Exchange, ...] = ()
    uploads: tuple[str, ...] | None = None
    downloads: tuple[str, ...] | None = None
    never_share: tuple[int | str, ...] = ()
    data: Literal["own", "public"] = "own"
    start: Start = "different"
    epochs: int | None = None
    batch_size: int | None = None
    lr: float | None = None

    def __post_init__(self) -> None:
        names = [self.objective.name, *(e.name for e in self.exchanges)]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise ConfigurationError(
                f"a role holds {twice[0]!r} twice; give one of them another name, such as "
                f"Weights(part='classifier', name='head')"
            )
        for name in (*(self.uploads or ()), *(self.downloads or ())):
            if name not in names[1:]:
                raise UnknownName("exchange", name, names[1:], of="the role")

    @property
    def uploading(self) -> frozenset[str]:
        """Names of the exchanges it puts something up to."""
        names = {e.name for e in self.exchanges if e.contributes}
        return frozenset(names if self.uploads is None else names & set(self.uploads))

    @property
    def downloading(self) -> frozenset[str]:
        """Names of the exchanges whose answers change what it learns."""
        names = {e.name for e in self.exchanges}
        return frozenset(names if self.downloads is None else names & set(self.downloads))


@dataclass(frozen=True)
class Method:
    """A way to learn together.

    roles: in the order they act in a round. members: the roles of particular learners by number; the others have the
    `usual` ones, which is the first role where nothing is said. A learner of several roles plays them one after the
    other in a round and takes its model along. host: the learner whose samples are the public set, and who takes part
    in every round. once: it communicates once, and all epochs of a run are one round's. pooled: all data in the hands
    of one learner, the yardstick and not a federation. settings: what `build_method` made it with, kept with a run so
    that it can be made again.
    """

    name: str
    roles: Mapping[str, Role]
    members: Mapping[int, str | tuple[str, ...]] = field(default_factory=dict)
    usual: tuple[str, ...] = ()
    host: int | None = None
    once: bool = False
    pooled: bool = False
    summary: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.roles:
            raise ConfigurationError(f"method {self.name!r} has no role")
        given = {*self.usual, *(role for who in self.members for role in self.roles_of(who))}
        strangers = sorted(given - set(self.roles))
        if strangers:
            raise ConfigurationError(f"method {self.name!r} gives members the role {strangers[0]!r} it does not have")
        public = [name for name, role in self.roles.items() if role.data == "public"]
        if public and self.host is None:
            raise ConfigurationError(
                f"method {self.name!r}: role {public[0]!r} works on the public set; say whose samples it is, host=0"
            )

    def roles_of(self, learner: int) -> tuple[str, ...]:
        """The roles of a learner by its number, in the order it plays them."""
        usual = self.usual or tuple(self.roles)[:1]
        roles = self.members.get(learner, usual)
        named = {roles} if isinstance(roles, str) else set(roles)
        return (*(role for role in self.roles if role in named), *sorted(named - set(self.roles)))

    def role_of(self, learner: int) -> str:
        """The first role of a learner by its number: where its model lies between rounds."""
        return self.roles_of(learner)[0]

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """Every exchange of every role."""
        return tuple(e for role in self.roles.values() for e in role.exchanges)

    def describe_upload(self) -> str:
        """In a few words: what leaves a learner."""
        if self.pooled:
            return "all data"
        parts: dict[str, str] = {}
        for name, role in self.roles.items():
            whose = f"of the {name}: " if self.usual and name not in self.usual else ""
            given = [e for e in role.exchanges if e.name in role.uploading]
            for e in (e for e in given if getattr(e, "scope", "everybody") == "everybody"):
                parts.setdefault(e.name, f"{whose}{e.describe_upload()}")
        return "; ".join(parts.values()) or "nothing"
