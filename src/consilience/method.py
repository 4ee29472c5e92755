"""What a method is: one or more roles, each with an objective and a tuple of exchanges, under a name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from consilience.errors import ConfigurationError, UnknownName
from consilience.exchanges.base import Exchange
from consilience.objectives import CrossEntropy, Objective


@dataclass(frozen=True)
class Role:
    """Who does what: a local objective, what is traded and on which terms, and how to train in a round.

    gives, listens: names of the exchanges to which it puts something up, and of those whose answers it takes; None
    means all. One that gives to a moving mean without listening hears the common values, for its change is measured
    from them, but keeps its own. withheld: classes whose samples never enter what is put up. epochs, batch_size, lr:
    of local training; None leaves it to the run's setting.
    """

    objective: Objective = field(default_factory=CrossEntropy)
    exchanges: tuple[Exchange, ...] = ()
    gives: tuple[str, ...] | None = None
    listens: tuple[str, ...] | None = None
    withheld: tuple[int | str, ...] = ()
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
        for name in (*(self.gives or ()), *(self.listens or ())):
            if name not in names[1:]:
                raise UnknownName("exchange", name, names[1:], of="the role")

    @property
    def giving(self) -> frozenset[str]:
        """Names of the exchanges it puts something up to."""
        names = {e.name for e in self.exchanges if e.contributes}
        return frozenset(names if self.gives is None else names & set(self.gives))

    @property
    def listening(self) -> frozenset[str]:
        """Names of the exchanges whose answers change what it learns."""
        names = {e.name for e in self.exchanges}
        return frozenset(names if self.listens is None else names & set(self.listens))


@dataclass(frozen=True)
class Method:
    """A way to learn together.

    roles: in the order they act in a round. members: the role of particular learners by number; the others have the
    first role. pooled: all data in the hands of one learner, the yardstick and not a federation. settings: what
    `build_method` made it with, kept with a run so that it can be made again.
    """

    name: str
    roles: Mapping[str, Role]
    members: Mapping[int, str] = field(default_factory=dict)
    pooled: bool = False
    summary: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.roles:
            raise ConfigurationError(f"method {self.name!r} has no role")
        strangers = sorted(set(self.members.values()) - set(self.roles))
        if strangers:
            raise ConfigurationError(f"method {self.name!r} gives members the role {strangers[0]!r} it does not have")

    def role_of(self, learner: int) -> str:
        """The role of a learner by its number."""
        return self.members.get(learner, next(iter(self.roles)))

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """Every exchange of every role."""
        return tuple(e for role in self.roles.values() for e in role.exchanges)

    def leaves(self) -> str:
        """In a few words: what leaves a learner."""
        if self.pooled:
            return "all data"
        parts = {e.name: e.leaves() for e in self.exchanges if getattr(e, "scope", "everybody") == "everybody"}
        return "; ".join(parts.values()) or "nothing"
