"""The federations of a store as the writer has them in memory: loaded, changed in drafts, and repaired."""

from __future__ import annotations

import logging
import sqlite3

from consilience.relay.checksums import DamagedRecord
from consilience.relay.federation import FederationService
from consilience.relay.integrity import check_pages, damaged_file
from consilience.relay.logs import event
from consilience.relay.recount import Differences, apply_correction, is_finite, recount_now
from consilience.relay.repair import repair_store
from consilience.relay.snapshot import Snapshot
from consilience.relay.store import Store
from consilience.relay.store_errors import explain
from consilience.relay.tables import FederationRecord

log = logging.getLogger("consilience.relay")
Drafts = dict[int, Snapshot]
_NAMED = 10  # damaged records that the audit trail names for each repair; the log names all


class LoadedFederations:
    """Every federation of a store that can be served; a damaged store is repaired first, or refused."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.services: dict[int, FederationService] = {}
        self.lost: dict[int, str] = {}
        """Federations whose records are damaged beyond repair, and why; they are not served."""
        self.damage: list[str] = []
        """What was found damaged since the start, and what was done about it."""
        try:
            check_pages(store)
            try:
                self._load(bodies=False)
            except DamagedRecord:  # the body of an upload that is needed at the start
                for found in (self.services, self.lost, self.damage):
                    found.clear()
                self._load(bodies=True)
        except sqlite3.DatabaseError as error:
            raise explain(store.path, error) or damaged_file(store, error) from error

    def _load(self, *, bodies: bool) -> None:
        drafts: Drafts = {}
        with self.store.writing():
            self.repair(drafts, bodies=bodies)
            self.save(drafts)
        for federation, draft in drafts.items():
            self.services[federation].snapshot = draft

    def known(self) -> list[FederationRecord]:
        """The federations in the store that are not lost."""
        return [record for record in self.store.federations.sound() if record.id not in self.lost]

    def service(self, federation: int) -> FederationService:
        """A federation, loaded from the store when it is needed first."""
        if federation not in self.services:
            self.services[federation] = FederationService(self.store, federation)
        return self.services[federation]

    def draft(self, federation: int, drafts: Drafts) -> Snapshot:
        """The draft of a federation, begun when it is needed first."""
        if federation not in drafts:
            drafts[federation] = self.service(federation).snapshot.draft()
        return drafts[federation]

    def save(self, drafts: Drafts) -> None:
        """Write the drafts to the store."""
        for federation, draft in drafts.items():
            self.services[federation].save(self.store, draft)

    def correct(self, federation: int, wrong: Differences, drafts: Drafts) -> None:
        """Correct sums that a recount has found to be wrong."""
        if is_finite(wrong):
            apply_correction(self.draft(federation, drafts), wrong)
        else:
            recount_now(self.service(federation), self.store, self.draft(federation, drafts))

    def repair(self, drafts: Drafts, *, bodies: bool) -> bool:
        """Drop or rebuild damaged records, and load the federations as they are then; whether anything was damaged.

        bodies: check uploads and receipts too.
        """
        done = repair_store(self.store, bodies=bodies)
        self.damage += done.messages
        for message in done.messages:
            log.warning("%s", message, extra=event("damage-repaired"))
        if done.messages:
            self.store.audit.append("repaired", damaged=len(done.messages), first=done.messages[:_NAMED])
        self.lost |= done.lost
        for federation, why in done.lost.items():
            self.services.pop(federation, None)
            drafts.pop(federation, None)
            log.error(
                "federation %d is not served: %s; restore a backup", federation, why, extra=event("federation-lost")
            )
        for record in self.known():
            service = self.service(record.id)
            if done.messages:
                drafts[record.id] = draft = service.read_again(self.store)
                if done.dropped:
                    recount_now(service, self.store, draft)
        return bool(done.messages)
