"""Sums of standing means, recounted from the stored contributions in a thread of their own and corrected if wrong.

Running sums lose digits when a very large contribution is removed from them, and a disk may be damaged.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from consilience.channels import RunningMean
from consilience.channels.base import broadcast_rows
from consilience.relay.federation import LIKE, FederationService
from consilience.relay.snapshot import Snapshot
from consilience.relay.store import Store
from consilience.wire import schema

TOLERANCE = 1e-9
"""How far saved sums may be from recounted ones, as a share of the sum of magnitudes, before they are corrected."""
_PAUSE_FACTOR = 10  # after a recount, pause this many times as long as it took
_WAIT = 0.5  # seconds between checks whether the writer has applied the corrections
log = logging.getLogger("consilience.relay")
Differences = dict[str, dict[str, np.ndarray]]
"""By channel, what must be added to its saved state."""


def recount(service: FederationService, store: Store) -> Differences:
    """The differences of standing means whose saved sums are wrong by more than `TOLERANCE`."""
    wrong: Differences = {}
    with store.reading():
        for name, channel in service.channels.items():
            state = store.channel_states.get(service.id, name) if name in service.snapshot.standing else None
            if state is None:
                continue
            assert isinstance(channel, schema.Mean)
            counted = RunningMean(channel, LIKE)
            scale = {k: np.zeros(t.shape) for k, t in channel.tensors.items()}
            no_tensors, no_weight = service.read_contribution(store, name, None)
            for stored in store.contributions.all(service.id, name):
                tensors, weights = service.read_contribution(store, name, stored)
                counted.exchange(tensors, weights, no_tensors, no_weight)
                for k, total in scale.items():
                    total += np.abs(broadcast_rows(weights, tensors[k]) * tensors[k])[0]
            correct = counted.state()
            difference = {k: correct[k] - state[k] for k in correct}
            far = [np.abs(difference[f"sums.{k}"]) > TOLERANCE * (1 + scale[k]) for k in scale]
            counts_far = np.abs(difference["count"]) > TOLERANCE * (1 + np.abs(correct["count"]))
            if any(f.any() for f in far) or counts_far.any() or np.any(difference["holders"] != 0):
                wrong[name] = difference
    return wrong


def apply_correction(draft: Snapshot, wrong: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    """Add the differences that a recount has found."""
    for name, difference in wrong.items():
        running = draft.copy_standing_mean(name)
        running.load({k: v + difference[k] for k, v in running.state().items()})
        running.zero_empty_rows()
        draft.count_change(name)


class Recounter:
    """A thread that recounts: every federation at the start, later those that are requested.

    corrections: differences by federation, which the writer applies and removes.
    """

    def __init__(self, path: Path, federations: Mapping[int, FederationService]) -> None:
        self.path, self.federations = path, federations
        self.corrections: list[tuple[int, Differences]] = []
        self._requested: set[int] = set()
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="recount", daemon=True)

    def start(self) -> None:
        """Start with all federations."""
        self._thread.start()

    def stop(self) -> None:
        """End after the federation that is being recounted."""
        self._stopping.set()
        self._wake.set()

    def join(self, seconds: float) -> None:
        """Wait for the thread's end."""
        self._thread.join(timeout=seconds)

    def request(self, federation: int) -> None:
        """Recount a federation soon: its sums may have lost digits."""
        self._requested.add(federation)
        self._wake.set()

    def _run(self) -> None:
        self._requested |= set(self.federations)
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                self.recount_requested()
            except Exception:  # the disk cannot be read now: the next request or the next start tries again
                log.exception("sums were not recounted")
            self._stopping.wait(_PAUSE_FACTOR * (time.monotonic() - began) + _WAIT)  # never keeps a core busy
            self._wake.wait()
            self._wake.clear()

    def recount_requested(self) -> None:
        """Recount what was requested, once the writer has applied all earlier corrections."""
        while self.corrections and not self._stopping.wait(_WAIT):
            pass
        store = Store(self.path)
        try:
            while self._requested and not self._stopping.is_set():
                federation = self._requested.pop()
                wrong = recount(self.federations[federation], store)
                if wrong:
                    name = self.federations[federation].charter.name
                    log.warning("%s: sums of %s were wrong and are corrected", name, ", ".join(wrong))
                    self.corrections.append((federation, wrong))
        finally:
            store.close()
