"""When members were seen last: noted in memory, and saved by the writer in batches."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import islice

from consilience.relay.store import Store
from consilience.relay.tables import MemberRecord

_EVERY = 60.0  # seconds between two saves, and by how much a saved time may be too old
_BATCH = 500  # members in one commit: uploads wait for it


class LastSeen:
    """The times that are not saved yet. An upload saves its own in the same commit."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._times: dict[int, int] = {}
        self._saving: dict[int, int] = {}
        self._last = clock()
        self._lock = threading.Lock()
        self._hurry = False

    def note(self, member: MemberRecord) -> None:
        """A member has made a request; called from the event loop."""
        now = int(time.time())
        if abs(now - member.seen) >= _EVERY:
            with self._lock:
                self._times[member.id] = now

    def hurry(self) -> None:
        """The relay stops: save everything with the next commit."""
        self._hurry = True

    @property
    def due(self) -> bool:
        """Whether there is something to save now."""
        return bool(self._times) and (self._hurry or self._clock() - self._last >= _EVERY)

    def save(self, store: Store) -> None:
        """Save a batch, within a transaction of the caller; `saved` must follow when that is on disk."""
        self._saving = {}
        if not self.due:
            return
        with self._lock:
            self._saving = dict(self._times if self._hurry else islice(self._times.items(), _BATCH))
        store.members.set_seen(self._saving)

    def saved(self) -> None:
        """The batch is on disk; what is left is saved with the next commits."""
        with self._lock:
            for member, seen in self._saving.items():
                if self._times.get(member) == seen:
                    del self._times[member]
        self._saving = {}
        if not self._times:
            self._last = self._clock()
