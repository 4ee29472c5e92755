"""Settings in which the federations of one run differ: what may, and who everybody is in each.

Numbers that only weigh something, an exchange's fractions and the learning rate, may differ between the rows of one
stack: each learner carries its own. Whatever else differs decides shapes or the course of the work, and takes a run of
its own.
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

_FREE = {"lr", "method", "groups", "variants"}  # what decides shapes in them is seen in who the learners are


@dataclass(frozen=True)
class Variants:
    """How the federations differ: who the learners are in each."""

    participants: tuple[tuple[Participant, ...], ...]  # of each variant: learners in each of their roles
    names: tuple[str, ...] = ()  # in words; none where there is nothing to choose from

    @property
    def count(self) -> int:
        """How many there are."""
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
    """All that decides shapes and the course of a run: what must be the same for settings to run side by side."""
    settings = {key: value for key, value in config.settings(exclude_none=False).items() if key not in _FREE}
    participants = build_participants(config, method, models or config.model_name.split(","))
    terms = {who: (group.joins, group.shift, group.samples) for who, (_, group) in config.groups_by_learner().items()}
    crowds = [
        (group.numbers(name, config.federation.learners), group.participation) for name, group in config.groups.items()
    ]
    present = [crowd for crowd in crowds if crowd[1] is not None]
    return repr(
        (
            settings,
            method.name,
            [(participant.stacking_key, participant.role.never_share) for participant in participants],
            terms,
            present,
        )
    )


def _describe_changes(changes: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in changes.items())
