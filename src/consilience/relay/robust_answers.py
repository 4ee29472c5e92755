"""Standing means that need all contributions at once: read from the stored uploads, and kept until the channel changes.

A trimmed mean, a median, and a limit relative to the median norm cost O(members x size), in time and in memory, after
every change that is read; sums, which other means are answered from, cost O(size).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from consilience.channels import Answer
from consilience.channels.robust import robust_mean
from consilience.errors import ConsilienceError
from consilience.relay.messages import Messages
from consilience.relay.snapshot import Snapshot
from consilience.relay.store import Store
from consilience.wire import schema


class Outdated(ConsilienceError):
    """The federation has changed since the snapshot that an answer is made for."""


@dataclass
class RobustAnswers:
    """The newest answers of one federation's means of this kind, by channel, with the revision they are of."""

    federation: int
    messages: Messages
    _known: dict[str, tuple[int, Answer]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, store: Store, snapshot: Snapshot, channel: schema.Mean) -> Answer:
        """What the channel answers at the snapshot's revision."""
        name, count = channel.name, snapshot.standing[channel.name].count
        return self._once(
            name, snapshot.changed[name], lambda: Answer(self._aggregate(store, snapshot.revision, channel), count)
        )

    def _once(self, name: str, revision: int, build: Callable[[], Answer]) -> Answer:
        """Built once for a revision; others who ask meanwhile wait for it."""
        with self._lock:
            known = self._known.get(name)
            if known is None or known[0] != revision:
                known = self._known[name] = revision, build()
            return known[1]

    def _aggregate(self, store: Store, revision: int, channel: schema.Mean) -> dict[str, np.ndarray]:
        values, weights = self.read_contributions(store, revision, channel)
        return {k: v.astype(np.float32) for k, v in robust_mean(channel, values, weights).items()}

    def read_contributions(
        self, store: Store, revision: int, channel: schema.Mean
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """All contributions to a channel, (members, ...), and their weights, in the order of member numbers.

        Raises `Outdated` if the store has another revision by now: then it is not what the snapshot's ETag names.
        """
        with store.reading():  # all from one moment
            record = store.federations.get(self.federation)
            if record is None or record.revision != revision:
                raise Outdated(f"the federation is not at revision {revision} any more")
            found = store.contributions.all(self.federation, channel.name)
            bodies = [self.messages.read_stored(store.uploads.get(each.upload), channel.name) for each in found]
        empty = {k: np.zeros((0, *t.shape), np.float32) for k, t in channel.tensors.items()}
        if not found:
            return empty, np.zeros((0, *channel.rows))
        values = {k: np.stack([body[f"{channel.name}.{k}"] for body in bodies]) for k in channel.tensors}
        if channel.rows:
            return values, np.stack([body[f"{channel.name}.count"] for body in bodies]).astype(np.float64)
        return values, np.array([each.weight for each in found])
