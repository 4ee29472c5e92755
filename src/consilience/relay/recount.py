"""Sums counted again from what lies in the store, beside the work, and put right where they are off."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from consilience.channels import RunningMean
from consilience.channels.base import broadcast_rows
from consilience.relay.federation import LIKE, FederationService
from consilience.relay.snapshot import Snapshot
from consilience.relay.store import Store
from consilience.wire import schema

TOLERANCE = 1e-9
"""How far kept sums may be from recounted ones, as a share of the sum of magnitudes, before they are corrected."""


def recount(hall: FederationService, store: Store) -> dict[str, dict[str, np.ndarray]]:
    """By how much kept sums are wrong, of standing means that are off by more than `TOLERANCE`; of one moment."""
    wrong: dict[str, dict[str, np.ndarray]] = {}
    with store.reading():
        for name, channel in hall.channels.items():
            state = store.state(hall.id, name) if name in hall.sight.standing else None
            if state is None:
                continue
            assert isinstance(channel, schema.Mean)
            counted = RunningMean(channel, LIKE)
            scale = {k: np.zeros(t.shape) for k, t in channel.tensors.items()}
            for entry in store.entries(hall.id, name):
                fresh, weights = hall.contribution(store, name, entry)
                nothing, none = hall.contribution(store, name, None)
                counted.exchange(fresh, weights, nothing, none)
                for k, total in scale.items():
                    total += np.abs(broadcast_rows(weights, fresh[k]) * fresh[k])[0]
            right = counted.state()
            off = {k: right[k] - state[k] for k in right}
            far = [np.abs(off[f"sums.{k}"]) > TOLERANCE * (1 + scale[k]) for k in scale]
            weighed = np.abs(off["count"]) > TOLERANCE * (1 + np.abs(right["count"]))
            if any(f.any() for f in far) or weighed.any() or np.any(off["holders"] != 0):
                wrong[name] = off
    return wrong


def correct(draft: Snapshot, wrong: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    """Add what a recount has found missing."""
    for name, off in wrong.items():
        running = draft.running(name)
        running.load({k: v + off[k] for k, v in running.state().items()})
        running.clear()
        draft.changes(name)
