"""Sums of standing means, recounted from the stored contributions in a thread of their own and corrected if wrong.

Running sums lose digits when a very large contribution is removed from them, and a disk may be damaged.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from consilience.channels import RunningMean
from consilience.channels.base import broadcast_rows
from consilience.channels.robust import for_sums
from consilience.relay.checksums import DamagedRecord
from consilience.relay.federation import LIKE, FederationService
from consilience.relay.logs import event
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


class Correction(NamedTuple):
    """The differences of one federation's sums, and how often records had been repaired when they were counted."""

    federation: int
    wrong: Differences
    repairs: int


def recount(service: FederationService, store: Store) -> Differences:
    """The differences of standing means whose saved sums are wrong by more than `TOLERANCE`."""
    wrong: Differences = {}
    with store.reading():
        for name in service.snapshot.standing:
            counted, scale = _count(service, store, name)
            state, correct = store.channel_states.get(service.id, name), counted.state()
            state = RunningMean(counted.channel, LIKE).state() if state is None else state
            difference = {k: correct[k] - state[k] for k in correct}
            near = [np.abs(difference[f"sums.{k}"]) <= TOLERANCE * (1 + scale[k]) for k in scale]  # false for NaN
            near.append(np.abs(difference["count"]) <= TOLERANCE * (1 + np.abs(correct["count"])))
            if not all(each.all() for each in near) or np.any(difference["holders"] != 0):
                wrong[name] = difference
    return wrong


def _count(service: FederationService, store: Store, name: str) -> tuple[RunningMean, dict[str, np.ndarray]]:
    """A standing mean counted from its stored contributions, and the sums of their magnitudes."""
    channel = service.channels[name]
    assert isinstance(channel, schema.Mean)
    counted = RunningMean(channel, LIKE)
    scale = {k: np.zeros(t.shape) for k, t in channel.tensors.items()}
    no_tensors, no_weight = service.read_contribution(store, name, None)
    for stored in store.contributions.all(service.id, name):
        tensors, weights = service.read_contribution(store, name, stored)
        counted.exchange(tensors, weights, no_tensors, no_weight)
        summed, weights = for_sums(channel, tensors, weights)
        for k, total in scale.items():
            total += np.abs(broadcast_rows(weights, summed[k]) * summed[k])[0]
    return counted, scale


def recount_now(service: FederationService, store: Store, draft: Snapshot) -> None:
    """Replace all sums of a draft by those of the stored contributions."""
    for name in draft.standing:
        draft.standing[name] = _count(service, store, name)[0]
        draft.count_change(name)


def apply_correction(draft: Snapshot, wrong: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    """Add the differences that a recount has found."""
    for name, difference in wrong.items():
        running = draft.copy_standing_mean(name)
        running.load({k: v + difference[k] for k, v in running.state().items()})
        running.zero_empty_rows()
        draft.count_change(name)


def is_finite(wrong: Mapping[str, Mapping[str, np.ndarray]]) -> bool:
    """Whether differences can be added: not if the saved sums were NaN or infinite."""
    return all(np.isfinite(array).all() for difference in wrong.values() for array in difference.values())


class Recounter:
    """A thread that checks all uploads once and recounts: every federation at the start, later those requested.

    corrections: differences by federation, which the writer applies and removes. on_damage: called if a record is
    damaged.
    """

    def __init__(
        self, path: Path, federations: Mapping[int, FederationService], on_damage: Callable[[], None] = lambda: None
    ) -> None:
        self.path, self.federations, self.on_damage = path, federations, on_damage
        self.corrections: list[Correction] = []
        self.repairs = 0
        """How often records were repaired; corrections from before the last time do not fit the sums any more."""
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
        self._check_uploads()
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                self.recount_requested()
            except DamagedRecord as error:  # the writer drops it, and recounts
                log.warning("%s", error, extra=event("damage-found"))
                self.on_damage()
            except Exception:  # the disk cannot be read now: the next request or the next start tries again
                log.exception("sums were not recounted")
            self._stopping.wait(_PAUSE_FACTOR * (time.monotonic() - began) + _WAIT)  # never keeps a core busy
            self._wake.wait()
            self._wake.clear()

    def _check_uploads(self) -> None:
        """Read every stored upload once, and what happened: most are not read again."""
        try:
            with contextlib.closing(Store(self.path)) as store:
                for table in (store.uploads, store.audit, store.public_sets):
                    for row in table.select_raw():
                        if self._stopping.is_set():
                            return
                        table.checked(row)
        except (DamagedRecord, sqlite3.DatabaseError) as error:
            log.warning("%s", error, extra=event("damage-found"))
            self.on_damage()

    def recount_requested(self) -> None:
        """Recount what was requested, once the writer has applied all earlier corrections."""
        while self.corrections and not self._stopping.wait(_WAIT):
            pass
        store = Store(self.path)
        try:
            while self._requested and not self._stopping.is_set():
                service, repairs = self.federations.get(self._requested.pop()), self.repairs
                wrong = {} if service is None else recount(service, store)
                if service is not None and wrong:
                    said = "%s: sums of %s were wrong and are corrected"
                    log.warning(said, service.charter.name, ", ".join(wrong), extra=event("sums-corrected"))
                    self.corrections.append(Correction(service.id, wrong, repairs))
        finally:
            store.close()
