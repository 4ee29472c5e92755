"""The participants of a run: each learner's role with its group's settings, its model, and how it trains.

Learners that differ only in weights and rates can be stacked, each with its own numbers. Learners that differ in
anything else are in different cohorts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from torch import nn

from consilience.config.config import Config, GroupConfig
from consilience.config.schedules import Rate, Schedule, scheduled
from consilience.data import Dataset
from consilience.errors import ConfigurationError, UnknownName
from consilience.exchanges.base import Exchange, fixed_fields, varying_fields
from consilience.exchanges.owning import OwningExchange
from consilience.learner.spec import OPTIMIZER
from consilience.method import Method, Role
from consilience.methods import override_settings, settings_of
from consilience.models import build_for, model_factory
from consilience.optimizers import Adam, Optimizer, build_optimizer

Build = Callable[[], nn.Module]
Model = str | Build
"""A model by name, or a function that builds one."""


def learner_build(model: Model, data: Dataset, width: int | None) -> Build:
    """What builds the model of a learner with this data."""
    build = model_factory(model, data.model_shape, data.classes, width) if isinstance(model, str) else model
    return build_for(build, data.fields)


@dataclass(frozen=True)
class Participant:
    """A learner in one of its roles, without its data."""

    learner: int
    role_name: str  # participants of one role act together in a round
    role: Role  # with the settings of the learner's group
    model: Model
    optimizer: Optimizer
    batch_size: int
    epochs: int

    @property
    def stacking_key(self) -> str:
        """Everything that determines tensor shapes and training steps: learners with the same key can be stacked."""
        role = self.role
        exchanges = [(type(e).__name__, fixed_fields(e)) for e in role.exchanges]
        trained = (
            type(self.optimizer).__name__,
            {k: v for k, v in vars(self.optimizer).items() if k not in self.optimizer.varies},
        )
        training = role.data, role.start, role.batch_order, role.turns
        settings = role.objective, training, role.uploads, role.downloads
        return repr((self.role_name, self.model, self.batch_size, self.epochs, trained, settings, exchanges))

    def with_batches(self, batches: int) -> Participant:
        """The participant in a federation whose learners take this number of batches in a round, on average."""
        exchanges = tuple(e.for_batches(batches) if isinstance(e, OwningExchange) else e for e in self.role.exchanges)
        return replace(self, role=replace(self.role, exchanges=exchanges))

    def numbers(self) -> Iterator[tuple[str, str, Rate]]:
        """The numbers in which stacked learners may differ: the owner, the field, and the value or its schedule."""
        for exchange in self.role.exchanges:
            for name in varying_fields(exchange):
                yield exchange.name, name, getattr(exchange, name)
        for name in self.optimizer.varies:
            yield OPTIMIZER, name, getattr(self.optimizer, name)


def build_participants(config: Config, method: Method, models: Sequence[Model]) -> list[Participant]:
    """Every learner in each of its roles, with the settings of its group; a pooled method has one learner.

    A learner's first role comes before its others.
    """
    if method.pooled:
        return [_participant(config, method, 0, "learner", models[0], next(iter(method.roles.values())))]
    if len(models) not in (1, config.federation.learners):
        raise ConfigurationError(
            f"{len(models)} models for {config.federation.learners} learners: give one for all, or one for each"
        )
    members = config.groups_by_learner()
    changed = {name: override_settings(method, group.method) for name, group in config.groups.items()}
    for name, other in changed.items():
        if (other.usual, other.members, list(other.roles)) != (method.usual, method.members, list(method.roles)):
            raise ConfigurationError(
                f"groups.{name}.method changes which learner has which role in {method.name!r}, which cannot differ "
                f"between groups; set it in [method]"
            )
    found = []
    for who in range(config.federation.learners):
        model, roles = models[who % len(models)], method.roles
        if who in members:
            name, group = members[who]
            roles, model = changed[name].roles, group.model or model
            _check_exchange_names([roles[part] for part in method.roles_of(who)], name, group)
        for part in method.roles_of(who):
            role = _with_group_settings(roles[part], members[who][1]) if who in members else roles[part]
            found.append(_participant(config, method, who, part, model, role))
    return found


def _participant(config: Config, method: Method, who: int, part: str, model: Model, role: Role) -> Participant:
    rate = scheduled(config.training.lr) if role.lr is None else role.lr
    asked = config.training
    optimizer = build_optimizer(
        asked.optimizer, rate, asked.momentum, asked.weight_decay, nesterov=asked.nesterov, clip=asked.clip
    )
    if role.turns is not None and isinstance(optimizer, Adam):
        optimizer = replace(optimizer, count_each=True)  # the server takes the steps of all learners
    epochs = asked.epochs if role.epochs is None else role.epochs
    objective = role.objective.for_held_out(config.evaluation.validation > 0)
    exchanges = tuple(e.for_federation(config.federation.learners) for e in role.exchanges)
    role = replace(role, objective=objective, exchanges=exchanges)
    participant = Participant(who, part, role, model, optimizer, role.batch_size or config.training.batch_size, epochs)
    for owner, name, value in participant.numbers():
        if not isinstance(value, Schedule) or value.over <= config.training.rounds:
            continue
        if value not in (settings_of(method.source).values() if method.source else ()):
            setting = "lr" if owner == OPTIMIZER else f"{owner}'s {name}"
            raise ConfigurationError(
                f"method {method.name!r}: {setting} is {value}, over {value.over} rounds, and the run has "
                f"{config.training.rounds}; shorten the schedule, or run more rounds"
            )
    return participant


def _check_exchange_names(roles: Sequence[Role], name: str, group: GroupConfig) -> None:
    """Refuse settings of a group that name an exchange none of its roles has."""
    known = [e.name for role in roles for e in role.exchanges]
    for key in ("exchanges", "uploads", "downloads"):
        named = getattr(group, key)
        for exchange in named if isinstance(named, tuple) else ():
            if exchange not in known:
                raise UnknownName("exchange", exchange, known, of=f"groups.{name}.{key}")


def _with_group_settings(role: Role, group: GroupConfig) -> Role:
    """The role with a group's settings; the epochs, batches and rate on the public set are the same for all groups."""
    own = role.data == "own"
    exchanges = tuple(e for e in role.exchanges if group.exchanges is None or e.name in group.exchanges)
    return replace(
        role,
        exchanges=exchanges,
        uploads=_chosen(group.uploads, exchanges, role.uploads),
        downloads=_chosen(group.downloads, exchanges, role.downloads),
        never_share=(*role.never_share, *group.never_share),
        sample_epsilons=(*role.sample_epsilons, *group.sample_epsilons.items()),
        epochs=(group.epochs if own else None) or role.epochs,
        batch_size=(group.batch_size if own else None) or role.batch_size,
        lr=scheduled(group.lr) if own and group.lr is not None else role.lr,
    )


def _chosen(
    wanted: bool | tuple[str, ...], exchanges: Sequence[Exchange], before: tuple[str, ...] | None
) -> tuple[str, ...] | None:
    """The names of the chosen exchanges; None for all of them."""
    names = [e.name for e in exchanges if before is None or e.name in before]
    if wanted is True:
        return None if before is None else tuple(names)
    return () if wanted is False else tuple(name for name in names if name in wanted)
