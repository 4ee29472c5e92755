"""New numbers for a history that continues from older values, so that no member takes it for the one it knows."""

from __future__ import annotations

import secrets

import numpy as np
from safetensors.numpy import load

from consilience.relay.store import Store

_FIRST_STEP, _LAST_STEP = 2**20, 2**32


def next_number(*used: int) -> int:
    """A version or revision above all that were used, by more than members can be ahead, and another each time."""
    return max(used) + _FIRST_STEP + secrets.randbelow(_LAST_STEP)


def renumber(store: Store, federation: int, channel: str, used: int = 0) -> int:
    """Give the newest common values, and contributions that wait for them, a version above `used`; drop replies."""
    rows = store.channel_states.select("federation = ? AND channel = ?", (federation, channel), "version DESC LIMIT 1")
    state = load(next(rows)[3])
    before = int(state["version"][0])
    version = next_number(before, used)
    store.channel_states.delete(federation, channel, before)
    # Versions before it stay until the next aggregation, so that a rollback can go further back.
    store.channel_states.save(federation, channel, {**state, "version": np.array([version])}, keep_older=True)
    store.sql.execute("DELETE FROM replies WHERE federation = ? AND channel = ?", (federation, channel))
    for waiting in store.contributions.all(federation, channel):
        renumbered = waiting._replace(version=waiting.version - before + version)
        store.contributions.save(federation, channel, renumbered, waiting)
    return version
