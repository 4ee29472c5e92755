"""Keeps a second relay from a store: a lock file while both see it, and a lease within the store in any case.

A lock file can be removed, and then a second relay finds no lock. It takes the lease when it starts, and the first one
finds in its next transaction that the lease is another's: nothing of that transaction is written. So at most one relay
writes at any time, and the second one has read everything that the first one has acknowledged.
"""

from __future__ import annotations

import logging
import os
import secrets
from pathlib import Path

from consilience.errors import ConfigurationError
from consilience.files import names_file
from consilience.relay.lease import TakenOver
from consilience.relay.logs import event
from consilience.relay.store import Store, lock_path, lock_store
from consilience.relay.store_errors import explain

log = logging.getLogger("consilience.relay")


class Fence:
    """The lock and the lease of the one writer of a store."""

    def __init__(self, store: Store) -> None:
        self._store, self._holder = store, secrets.token_hex(16)
        self._lock, self._lock_path = lock_store(store.path), lock_path(store.path)
        self._file = _identity(store.path)
        self.lost = ""
        """Why this writer may not write any more; empty while it may."""
        try:
            # A commit syncs the whole log: also what a killed relay wrote and did not sync is on disk from here on.
            with store.writing():
                store.leases.take(self._holder)
        except BaseException as error:
            self.close()
            raise explain(store.path, error) or error from None
        store.check_lease = self._check_lease

    def check_files(self) -> None:
        """Raise `TakenOver` if the store was replaced, or another relay locked it; lock it again if nobody has."""
        path = self._store.path
        if self.lost:
            raise TakenOver(self.lost)
        if _identity(path) != self._file:
            raise self._lose(f"{path} was replaced or removed while it was served")
        if names_file(self._lock_path, self._lock):
            return
        self._lock_path = lock_path(path)  # a folder on the way to it may have been moved
        if names_file(self._lock_path, self._lock):
            return
        try:
            again = lock_store(path)
        except (ConfigurationError, OSError) as error:
            raise self._lose(f"the lock file of {path} was removed, and cannot be locked again: {error}") from error
        self._lock.close()
        self._lock = again
        log.warning(
            "%s was removed while the store was served; it is made and locked again",
            self._lock_path,
            extra=event("lock-removed"),
        )

    def _check_lease(self) -> None:
        """Raise `TakenOver` if another writer has taken the lease; called within a transaction."""
        if self.lost:
            raise TakenOver(self.lost)
        holder = self._store.leases.holder()
        if holder is None:  # damaged: as long as the lock is held, no other relay has started
            self.check_files()
            self._store.leases.take(self._holder)
        elif holder != self._holder:
            raise self._lose(f"another relay has taken over {self._store.path}")

    def _lose(self, why: str) -> TakenOver:
        if not self.lost:
            log.error(
                "%s; this relay writes nothing any more. Stop it, or stop the other one and start it again",
                why,
                extra=event("taken-over"),
            )
        self.lost = self.lost or why
        return TakenOver(self.lost)

    def close(self) -> None:
        """Release the lock; whoever starts next takes the lease."""
        self._lock.close()


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file a path names, however it is linked; None if none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
