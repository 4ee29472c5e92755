"""How a federation stands at one moment: sums, who is in the pools, common values; unchanged once readers see it."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from consilience.channels import MovingMean, RunningMean, available_entries
from consilience.wire import schema

_NONE = np.zeros(0)


class Listed(NamedTuple):
    """The entries of a pool, for each row that is drawn, and what they were listed of."""

    present: np.ndarray
    weights: np.ndarray
    entries: list[np.ndarray]


@dataclass
class Snapshot:
    """What readers see. A writer changes a draft of it, and readers see that when it is on disk."""

    revision: int = 0
    """Counts all changes."""
    newest: int = -1
    """The round the federation has come to: an upload of a newer round moves it by one."""
    newest_by: int = -1
    """Whose upload did; it cannot move it again before somebody else has, or one member could age all others away."""
    expected: int = 0
    """How many members are waited for: invited, not revoked, not away."""
    standing: dict[str, RunningMean] = field(default_factory=dict)
    moving: dict[str, MovingMean] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)
    """Contributions to each moving mean since it closed last."""
    present: dict[str, np.ndarray] = field(default_factory=dict)
    """Who has which entries in a pool, (members, keep)."""
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    """What they weigh, (members, keep, *rows), where a pool is drawn by row."""
    changed: dict[str, int] = field(default_factory=dict)
    """The revision of each channel's last change."""
    doubtful: bool = False
    """Whether something left that was so large that the sums beside it should be counted again."""
    lists: dict[str, Listed] = field(default_factory=dict)
    """The entries of each pool as they were listed last, and of what."""

    def draft(self) -> Snapshot:
        """The same, to be changed: what a channel's change would write into is copied when it is changed."""
        mine = copy(self)
        mine.doubtful = False
        mine.standing, mine.moving, mine.waiting = dict(self.standing), dict(self.moving), dict(self.waiting)
        mine.present, mine.weights, mine.changed = dict(self.present), dict(self.weights), dict(self.changed)
        return mine

    def running(self, channel: str) -> RunningMean:
        """A running mean of this draft alone: its sums are replaced and never written into."""
        self.standing[channel] = copy(self.standing[channel])
        return self.standing[channel]

    def common(self, channel: str) -> MovingMean:
        """A moving mean of this draft alone: whatever becomes of it, the one that readers see is as it was."""
        theirs = self.moving[channel]
        self.moving[channel] = mine = MovingMean(theirs.channel, theirs.members, theirs.common)
        mine.load(theirs.state())
        return mine

    def place(self, channel: str, number: int, entries: int, weights: np.ndarray | None = None) -> None:
        """Say that a member has so many entries in a pool, and what they weigh by row."""
        present, mine = self.present[channel], np.arange(self.present[channel].shape[1]) < entries
        if number >= len(present) or not np.array_equal(present[number], mine):
            self.present[channel] = present = _roomy(present, number)
            present[number] = mine
        if channel in self.weights:
            self.weights[channel] = kept = _roomy(self.weights[channel], number)
            kept[number] = 0
            if weights is not None:
                kept[number, :entries] = weights

    def available_entries(self, channel: schema.Pool) -> list[np.ndarray]:
        """The entries of a pool that there are to draw: listed anew only where members came or left."""
        present, weights = self.present[channel.name], self.weights.get(channel.name, _NONE)
        known = self.lists.get(channel.name)
        if known is None or known.present is not present or known.weights is not weights:
            known = Listed(present, weights, available_entries(channel, present, weights))
            self.lists[channel.name] = known
        return known.entries

    def changes(self, channel: str) -> None:
        """Count a change of a channel."""
        self.revision += 1
        self.changed[channel] = self.revision


def _roomy(array: np.ndarray, number: int) -> np.ndarray:
    """A copy with room for that member."""
    missing = number + 1 - len(array)
    if missing <= 0:
        return array.copy()
    return np.concatenate([array, np.zeros((max(missing, len(array) // 4), *array.shape[1:]), dtype=array.dtype)])
