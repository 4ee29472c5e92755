"""Feature dimensions of which others are shared in every round: the plan of a federation, and what travels of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from consilience.errors import ConfigurationError
from consilience.exchanges import Observations, Prototypes
from consilience.exchanges.dimensions import Subspace, shared_width
from consilience.learner.learner import Learner
from consilience.simulation.setup.partners import PartnerPlan
from consilience.wire import schema


@dataclass(frozen=True)
class SubspacePlan:
    """Which dimensions a federation's learners share, as far as it is known before the first round.

    width: of the features; count: how many of their dimensions are shared. channels: those that share them. means: the
    channel of class means by which dimensions are chosen; empty where there is none.
    """

    kind: Subspace
    width: int
    count: int
    channels: tuple[str, ...]
    means: str


def plan_subspace(learners: Iterable[Learner]) -> SubspacePlan | None:
    """The plan of learners who exchange with each other; None where the dimensions are the same in all rounds."""
    found = [
        (learner, e) for learner in learners for e in learner.exchanges if isinstance(e, Prototypes | Observations)
    ]
    kinds = {(e.subspace, e.dimensions) for _, e in found}
    if all(subspace == "first" for subspace, _ in kinds):
        return None
    if len(kinds) > 1:
        given = " and ".join(f"subspace {subspace!r} with dimensions {share}" for subspace, share in sorted(kinds))
        raise ConfigurationError(
            f"learners of one federation have {given}; exchanges whose dimensions change with the rounds must all "
            f"have the same subspace and dimensions"
        )
    (subspace, share), width = kinds.pop(), found[0][0].task.width
    names = tuple(dict.fromkeys(e.name for _, e in found))
    means = [e.name for _, e in found if isinstance(e, Prototypes)]
    return SubspacePlan(subspace, width, shared_width(width, share), names, means[0] if means else "")


def check_subspace(learners: Iterable[Learner], partners: PartnerPlan) -> None:
    """Refuse dimensions that learners would not agree on."""
    plan = plan_subspace(learners)
    if plan is None or plan.kind != "top-variance":
        return
    if not plan.means:
        raise ConfigurationError(
            "subspace is 'top-variance', which is decided by global class means, and no exchange has any; share "
            "prototypes too, or use subspace='random'"
        )
    if partners.scoped:
        raise ConfigurationError(
            "subspace is 'top-variance', and learners use the uploads of partners or neighbors: their class means "
            "differ, and so would the dimensions that they choose; use subspace='random'"
        )


def traveling_channels(learner: Learner) -> dict[str, schema.Channel]:
    """The channels of a learner as wide as their messages are, by which bytes are counted."""
    channels = dict(learner.channels)
    for e in learner.exchanges:
        if isinstance(e, Prototypes | Observations) and e.subspace != "first":
            narrow: Any = replace(e, subspace="first")
            channels[e.name] = narrow.channel(learner.task)
    return channels
