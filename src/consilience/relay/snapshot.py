"""The state of a federation at one moment: sums, pool members, common values. It never changes once readers have it."""

from __future__ import annotations

from collections.abc import Collection
from copy import copy
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import ref

import numpy as np

from consilience.channels import MovingMean, RunningMean, available_entries
from consilience.wire import schema
from consilience.wire.headers import Part

_NO_WEIGHTS = np.zeros(0)


class AvailableEntries(NamedTuple):
    """The entries of a pool that can be drawn, for each row, and the arrays they were computed from."""

    present: np.ndarray
    weights: np.ndarray
    entries: list[np.ndarray]


class KnownMean(NamedTuple):
    """A standing mean as it is sent, by tensor name, and the sums it was computed from."""

    running: ref[RunningMean]  # weak: they must not outlive the snapshot
    part: Part
    tensors: dict[str, np.ndarray]


@dataclass
class Snapshot:
    """What readers see. The writer changes a draft of it, which replaces it when the change is on disk."""

    revision: int = 0
    """Counts all changes."""
    round: int = -1
    """The federation's round: an upload of a newer round advances it by one."""
    advanced_by: int = -1
    """The member whose upload advanced the round last. It cannot do so twice in a row: else one member alone could make
    the contributions of all others expire."""
    expected: int = 0
    """How many members take part: invited, not revoked, not away."""
    uploaders: dict[str, int] = field(default_factory=dict)
    """How many of them each moving mean waits for: all, or those whose role uploads to it."""
    standing: dict[str, RunningMean] = field(default_factory=dict)
    moving: dict[str, MovingMean] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)
    """Contributions to each moving mean since its last aggregation."""
    present: dict[str, np.ndarray] = field(default_factory=dict)
    """For each pool, which entries each member has, (members, keep)."""
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    """For each pool that is drawn by row, the weights of the entries, (members, keep, *rows)."""
    changed: dict[str, int] = field(default_factory=dict)
    """The revision of each channel's last change."""
    has_public_set: bool = False
    """Whether the public set is stored."""
    needs_recount: bool = False
    """Whether a contribution was removed that was so large that the sums may have lost digits to it."""
    available: dict[str, AvailableEntries] = field(default_factory=dict)
    """For each pool, its entries as they were listed last."""
    means: dict[str, KnownMean] = field(default_factory=dict)
    """For each standing mean, what was sent of it last; computed again when its sums have changed."""

    def draft(self) -> Snapshot:
        """A copy to change: a channel's arrays are copied when that channel changes."""
        mine = copy(self)
        mine.needs_recount = False
        mine.standing, mine.moving, mine.waiting = dict(self.standing), dict(self.moving), dict(self.waiting)
        mine.present, mine.weights, mine.changed = dict(self.present), dict(self.weights), dict(self.changed)
        return mine

    def expect(self, change: int, channels: Collection[str]) -> None:
        """Count one member more or less, who uploads to these channels."""
        self.expected += change
        self.uploaders = {name: count + change * (name in channels) for name, count in self.uploaders.items()}

    def copy_standing_mean(self, channel: str) -> RunningMean:
        """Replace a standing mean by a copy of this draft's own: its sums are replaced and never changed in place."""
        self.standing[channel] = copy(self.standing[channel])
        return self.standing[channel]

    def copy_moving_mean(self, channel: str) -> MovingMean:
        """Replace a moving mean by a copy of this draft's own; the one that readers see stays as it is."""
        theirs = self.moving[channel]
        self.moving[channel] = mine = MovingMean(theirs.channel, theirs.members, theirs.common)
        mine.load(theirs.state())
        return mine

    def set_pool_entries(self, channel: str, number: int, entries: int, weights: np.ndarray | None = None) -> None:
        """Set how many entries a member has in a pool, and their weights by row."""
        present, mine = self.present[channel], np.arange(self.present[channel].shape[1]) < entries
        if number >= len(present) or not np.array_equal(present[number], mine):
            self.present[channel] = present = _copy_with_room(present, number)
            present[number] = mine
        if channel in self.weights:
            self.weights[channel] = copied = _copy_with_room(self.weights[channel], number)
            copied[number] = 0
            if weights is not None:
                copied[number, :entries] = weights

    def entries_to_draw(self, channel: schema.Pool) -> list[np.ndarray]:
        """The entries of a pool that can be drawn; listed again only if entries or weights changed."""
        present, weights = self.present[channel.name], self.weights.get(channel.name, _NO_WEIGHTS)
        known = self.available.get(channel.name)
        if known is None or known.present is not present or known.weights is not weights:
            known = AvailableEntries(present, weights, available_entries(channel, present, weights))
            self.available[channel.name] = known
        return known.entries

    def count_change(self, channel: str) -> None:
        """Count a change of a channel."""
        self.revision += 1
        self.changed[channel] = self.revision


def _copy_with_room(array: np.ndarray, number: int) -> np.ndarray:
    """A copy that has a row for this member."""
    missing = number + 1 - len(array)
    if missing <= 0:
        return array.copy()
    return np.concatenate([array, np.zeros((max(missing, len(array) // 4), *array.shape[1:]), dtype=array.dtype)])
