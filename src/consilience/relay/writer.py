"""The only writer of a store: a thread that writes uploads in batches and gives each its receipt once it is on disk."""

from __future__ import annotations

import logging
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from consilience.errors import ConsilienceError
from consilience.relay.activity import Activity
from consilience.relay.checksums import DamagedRecord
from consilience.relay.deadlines import Deadlines
from consilience.relay.federation import FederationService
from consilience.relay.fence import Fence
from consilience.relay.lease import TakenOver
from consilience.relay.loaded import Drafts, LoadedFederations
from consilience.relay.logs import event
from consilience.relay.public_sets import accept_public_set
from consilience.relay.recount import Recounter
from consilience.relay.rejections import Rejection, damaged_federation, damaged_record, taken_over
from consilience.relay.store import Store, is_full
from consilience.relay.tables import StoredUpload
from consilience.relay.upload_queue import QueuedUpload, UploadQueue

_SPARE = 2**20  # bytes that must be free, besides those of the refused uploads, before a full disk has room again
_POLL = 0.2  # seconds between checks for what other processes have written, and for deadlines
log = logging.getLogger("consilience.relay")


@dataclass(frozen=True)
class Callbacks:
    """What a writer calls from its thread; none of it may raise.

    changed: with the id of a federation whose answers have changed. others_wrote: another process has written, such as
    a revocation. receipts_set: after the receipts of a batch are set.
    """

    changed: Callable[[int], None] = lambda federation: None
    others_wrote: Callable[[], None] = lambda: None
    receipts_set: Callable[[], None] = lambda: None


class Writer:
    """A thread with the only connection that writes to the store.

    clock: for deadlines; seconds that never go back.
    """

    def __init__(
        self,
        path: Path,
        callbacks: Callbacks | None = None,
        clock: Callable[[], float] = time.monotonic,
        activity: Activity | None = None,
    ) -> None:
        self.store, self.activity = Store(path), activity or Activity()
        self.callbacks = callbacks or Callbacks()
        with self.store.closed_on_error():
            self.fence = Fence(self.store)
        try:
            self.loaded = LoadedFederations(self.store)
        except BaseException:
            self.close()
            raise
        self._repair_requested = False
        self.failing = False  # whether the last write failed
        self.full = 0  # if it failed because the disk is full, how many bytes could not be written
        self._queue = UploadQueue()
        self._data_version = -1
        self._deadlines = Deadlines(clock)
        self.recounter = Recounter(path, self.federations, self.request_repair)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)

    def start(self) -> None:
        """Start the writer, and the recounting of sums in the background."""
        self._thread.start()
        self.recounter.start()

    def stop(self) -> None:
        """Write what is queued, and end."""
        self.activity.seen.hurry()
        self._stopping.set()
        self.recounter.stop()
        self._queue.wake()
        self._thread.join(timeout=8)
        self.recounter.join(2)
        self.close()

    def close(self) -> None:
        """Close the store and release its lock; for a writer whose thread does not run."""
        self.store.close()
        self.fence.close()

    @property
    def federations(self) -> dict[int, FederationService]:
        """The federations that are served, by id."""
        return self.loaded.services

    @property
    def queued(self) -> int:
        """How many uploads wait to be written."""
        return len(self._queue)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def submit(self, upload: QueuedUpload) -> Future[str]:
        """Queue an upload; its receipt is set when it is on disk."""
        if self._stopping.is_set():
            raise Rejection("stopping", "the relay is about to stop; try again in a moment", retry_after=5)
        if self.fence.lost:
            raise taken_over()
        self._queue.add(upload)
        return upload.receipt

    def request_repair(self) -> None:
        """Something damaged was read: before the next upload, drop or rebuild whatever is damaged."""
        self._repair_requested = True

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not (self._stopping.is_set() and not self.queued):
            batch = self._queue.next_batch(_POLL)
            try:
                self.write(batch)
            except Exception as error:  # nothing may end the only writer
                log.exception("the writer failed")
                self._data_version, self.failing = -1, True
                for upload in batch:
                    if not upload.receipt.done():
                        upload.receipt.set_exception(error)
            if batch:
                self.callbacks.receipts_set()

    def write(self, batch: list[QueuedUpload]) -> None:
        """Write a batch in one commit with fsync; readers and uploaders get results only when all of it is on disk."""
        try:
            self.fence.check_files()
            self._write(batch)
        except TakenOver:
            for upload in batch:
                upload.receipt.set_exception(taken_over())

    def _write(self, batch: list[QueuedUpload]) -> None:
        version, corrections = self.store.data_version, self.recounter.corrections
        others_wrote, overdue = version != self._data_version, self._deadlines.overdue(self.federations, {})
        waits = self._repair_requested or self.activity.seen.due
        if not (batch or self.failing or others_wrote or corrections or overdue or waits):
            return
        drafts: Drafts = {}
        results: list[tuple[QueuedUpload, str | Exception]] = []
        applied, before, repairing = len(corrections), self.store.sql.total_changes, self._repair_requested
        try:
            with self.activity.metrics.commit(), self.store.writing():
                self._data_version = version
                if repairing and self.loaded.repair(drafts, bodies=True):
                    self.recounter.repairs += 1
                if others_wrote:
                    self._read_membership(drafts)
                for correction in corrections[:applied]:
                    if correction.federation in self.federations and correction.repairs == self.recounter.repairs:
                        self.loaded.correct(correction.federation, correction.wrong, drafts)
                results = [(upload, self._accept(upload, drafts)) for upload in batch]
                self._aggregate_overdue(drafts)
                self.loaded.save(drafts)
                self.activity.seen.save(self.store)
        except sqlite3.Error as error:
            self._refuse_batch(batch, error)
            return
        except DamagedRecord as error:  # not an upload's own: what a deadline, a revocation or a correction needs
            refusal = self._damaged(error)
            self._data_version = -1
            for upload in batch:
                upload.receipt.set_exception(refusal)
            return
        if repairing:
            self._repair_requested = False
            for federation in self.federations:
                self.recounter.request(federation)
        del corrections[:applied]
        self.activity.seen.saved()
        if not self.full or self.store.sql.total_changes > before or self._has_room():
            self.failing, self.full = False, 0
        self._publish(drafts)
        if others_wrote:
            self.callbacks.others_wrote()
        for upload, result in results:
            if isinstance(result, Exception):
                upload.receipt.set_exception(result)
            else:
                upload.receipt.set_result(result)

    def _publish(self, drafts: Drafts) -> None:
        """Let readers see the drafts, which are on disk now."""
        for federation, draft in drafts.items():
            service = self.federations[federation]
            changed = draft.revision > service.snapshot.revision
            if draft.round > service.snapshot.round:
                self._deadlines.pace.note(federation)
            service.snapshot = draft
            self._deadlines.note(federation, draft)
            if draft.needs_recount:
                self.recounter.request(federation)
            if changed:
                self.callbacks.changed(federation)

    def _refuse_batch(self, batch: list[QueuedUpload], error: sqlite3.Error) -> None:
        """Refuse all uploads of a batch: nothing of it was written."""
        self._data_version = -1
        self.failing = True
        self.full = max(sum(len(upload.body) for upload in batch), 1) if is_full(error) else 0
        log.error("none of %d uploads was written: %s", len(batch), error, extra=event("write-failed"))
        code, message = "cannot-write", "the relay's store cannot be written now; nothing was saved"
        if self.full:
            code = "disk-full"
            message = "the relay's disk is full; nothing was saved. It accepts uploads again when there is room"
        for upload in batch:
            upload.receipt.set_exception(Rejection(code, message, retry_after=30))

    def _has_room(self) -> bool:
        """Whether the disk has room now for the uploads that were refused."""
        return shutil.disk_usage(self.store.path.absolute().parent).free > 2 * self.full + _SPARE

    def _accept(self, upload: QueuedUpload, drafts: Drafts) -> str | Exception:
        """The receipt of an upload, or why it is refused; a refused upload changes nothing."""
        try:
            member = self.store.members.get(upload.member)
        except DamagedRecord as error:
            return self._damaged(error)
        if member is None or member.revoked:
            return Rejection("revoked", "this token has been revoked")
        if member.federation in self.loaded.lost:
            return damaged_federation(self.loaded.lost[member.federation])
        service, draft = self.loaded.service(member.federation), self.loaded.draft(member.federation, drafts).draft()
        draft.needs_recount = drafts[member.federation].needs_recount
        try:
            with self.store.step():
                if upload.is_public_set:
                    receipt = accept_public_set(service, self.store, draft, member, upload.body)
                    drafts[member.federation] = draft
                    return receipt
                stored = StoredUpload(upload.header, upload.body)
                may_advance = self._deadlines.pace.may_advance(service, draft)
                receipt = service.accept_upload(self.store, draft, member, upload.round, stored, may_advance)
        except DamagedRecord as error:
            return self._damaged(error)
        except ConsilienceError as error:
            return error
        drafts[member.federation] = draft
        return receipt

    def _damaged(self, error: DamagedRecord) -> Rejection:
        """An upload needs a record that is damaged: it is repaired before the next one."""
        log.warning("%s", error, extra=event("damage-found"))
        self.request_repair()
        return damaged_record()

    def _read_membership(self, drafts: Drafts) -> None:
        """Another process has written: see who was invited, and remove what revoked members contributed."""
        self.activity.members.note(self.store)
        for record in self.loaded.known():
            service, draft = self.loaded.service(record.id), self.loaded.draft(record.id, drafts)
            for number in self.store.members.revoked_with_contributions(record.id):
                service.remove_contributions(self.store, draft, number)
            self.store.members.settle_reinvited(record.id)
            service.count_members(self.store, draft)
            for name in service.moving:
                if draft.waiting[name]:
                    service.aggregate_if_ready(self.store, draft, name)

    def _aggregate_overdue(self, drafts: Drafts) -> None:
        for federation, name in self._deadlines.overdue(self.federations, drafts):
            service, draft = self.federations[federation], self.loaded.draft(federation, drafts)
            if service.aggregate_overdue(self.store, draft, name):
                said = "%s: %s was aggregated at its deadline"
                log.info(said, service.charter.name, name, extra=event("deadline-passed"))
