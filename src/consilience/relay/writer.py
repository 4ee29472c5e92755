"""The only writer of a store: a thread that writes uploads in batches and gives each its receipt once it is on disk."""

from __future__ import annotations

import contextlib
import logging
import queue
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from consilience.errors import ConsilienceError
from consilience.relay.deadlines import Deadlines
from consilience.relay.federation import FederationService
from consilience.relay.recount import Recounter, apply_correction
from consilience.relay.rejections import Rejection
from consilience.relay.snapshot import Snapshot
from consilience.relay.store import Store, is_full, lock_store
from consilience.relay.tables import StoredUpload

_BATCH = 128  # uploads in one commit
_SPARE = 2**20  # bytes that must be free, besides those of the refused uploads, before a full disk has room again
_POLL = 0.5  # seconds between checks for what other processes have written, and for deadlines
log = logging.getLogger("consilience.relay")
Drafts = dict[int, Snapshot]


@dataclass
class QueuedUpload:
    """An upload that waits to be written; `receipt` is set when it is on disk."""

    member: int
    round: int
    header: str
    body: bytes
    receipt: Future[str] = field(default_factory=Future)


class Writer:
    """A thread with the only connection that writes to the store.

    on_change: called from this thread with the id of a federation whose answers have changed. clock: for deadlines;
    seconds that never go back.
    """

    def __init__(
        self,
        path: Path,
        on_change: Callable[[int], None] = lambda federation: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store, self.on_change = Store(path), on_change
        self._lock = lock_store(path)
        self.federations: dict[int, FederationService] = {}
        self.failing = self.full = False  # whether the last write failed, and whether because the disk was full
        self._refused_bytes = 0  # of the uploads that were refused because the disk was full
        self._queue: queue.Queue[QueuedUpload | None] = queue.Queue(maxsize=4096)
        self._data_version = -1
        self._deadlines = Deadlines(clock)
        self.recounter = Recounter(path, self.federations)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        for record in self.store.federations.all():
            self.federations[record.id] = FederationService(self.store, record.id)

    def start(self) -> None:
        """Start the writer, and the recounting of sums in the background."""
        self._thread.start()
        self.recounter.start()

    def stop(self) -> None:
        """Write what is queued, and end."""
        self._stopping.set()
        self.recounter.stop()
        with contextlib.suppress(queue.Full):  # a full queue wakes the thread anyway
            self._queue.put_nowait(None)
        self._thread.join(timeout=8)
        self.recounter.join(2)
        self.close()

    def close(self) -> None:
        """Close the store and release its lock; for a writer whose thread does not run."""
        self.store.close()
        self._lock.close()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def submit(self, upload: QueuedUpload) -> Future[str]:
        """Queue an upload; its receipt is set when it is on disk."""
        if self._stopping.is_set():
            raise Rejection("stopping", "the relay is about to stop; try again in a moment", retry_after=5)
        try:
            self._queue.put_nowait(upload)
        except queue.Full:
            raise Rejection("busy", "too many uploads wait to be written; try again", retry_after=5) from None
        return upload.receipt

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not (self._stopping.is_set() and self._queue.empty()):
            batch = self._next_batch()
            try:
                self.write(batch)
            except Exception as error:  # nothing may end the only writer
                log.exception("the writer failed")
                self._data_version = -1
                for upload in batch:
                    if not upload.receipt.done():
                        upload.receipt.set_exception(error)

    def _next_batch(self) -> list[QueuedUpload]:
        """The queued uploads, up to a batch; none when it is time to check the deadlines."""
        batch: list[QueuedUpload] = []
        try:
            upload = self._queue.get(timeout=_POLL)
            while upload is not None:
                if upload.receipt.set_running_or_notify_cancel():  # from now on it cannot be cancelled
                    batch.append(upload)
                if len(batch) == _BATCH:
                    break
                upload = self._queue.get_nowait()
        except queue.Empty:
            pass
        return batch

    def write(self, batch: list[QueuedUpload]) -> None:
        """Write a batch in one commit with fsync; readers and uploaders get results only when all of it is on disk."""
        version, corrections = self.store.data_version, self.recounter.corrections
        others_wrote, overdue = version != self._data_version, self._deadlines.overdue(self.federations, {})
        if not (batch or self.failing or others_wrote or corrections or overdue):
            return
        drafts: Drafts = {}
        results: list[tuple[QueuedUpload, str | Exception]] = []
        applied, before = len(corrections), self.store.sql.total_changes
        try:
            with self.store.writing():
                self._data_version = version
                if others_wrote:
                    self._read_membership(drafts)
                for federation, wrong in corrections[:applied]:
                    apply_correction(self._draft(federation, drafts), wrong)
                results = [(upload, self._accept(upload, drafts)) for upload in batch]
                self._aggregate_overdue(drafts)
                for federation, draft in drafts.items():
                    self.federations[federation].save(self.store, draft)
        except sqlite3.Error as error:
            self._refuse_batch(batch, error)
            return
        del corrections[:applied]
        if not self.full or self.store.sql.total_changes > before or self._has_room():
            self.failing = self.full = False
        self._publish(drafts)
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
            service.snapshot = draft
            self._deadlines.note(federation, draft)
            if draft.needs_recount:
                self.recounter.request(federation)
            if changed:
                self.on_change(federation)

    def _refuse_batch(self, batch: list[QueuedUpload], error: sqlite3.Error) -> None:
        """Refuse all uploads of a batch: nothing of it was written."""
        self._data_version = -1
        self.failing, self.full = True, is_full(error)
        self._refused_bytes = sum(len(upload.body) for upload in batch)
        log.error("none of %d uploads was written: %s", len(batch), error)
        code, message = "cannot-write", "the relay's store cannot be written now; nothing was saved"
        if self.full:
            code = "disk-full"
            message = "the relay's disk is full; nothing was saved. It accepts uploads again when there is room"
        for upload in batch:
            upload.receipt.set_exception(Rejection(code, message, retry_after=30))

    def _has_room(self) -> bool:
        """Whether the disk has room now for the uploads that were refused."""
        return shutil.disk_usage(self.store.path.absolute().parent).free > 2 * self._refused_bytes + _SPARE

    def _draft(self, federation: int, drafts: Drafts) -> Snapshot:
        if federation not in drafts:
            drafts[federation] = self._service(federation).snapshot.draft()
        return drafts[federation]

    def _service(self, federation: int) -> FederationService:
        if federation not in self.federations:
            self.federations[federation] = FederationService(self.store, federation)
        return self.federations[federation]

    def _accept(self, upload: QueuedUpload, drafts: Drafts) -> str | Exception:
        """The receipt of an upload, or why it is refused; a refused upload changes nothing."""
        member = self.store.members.get(upload.member)
        if member is None or member.revoked:
            return Rejection("revoked", "this token has been revoked")
        service, draft = self._service(member.federation), self._draft(member.federation, drafts).draft()
        draft.needs_recount = drafts[member.federation].needs_recount
        try:
            with self.store.step():
                stored = StoredUpload(upload.header, upload.body)
                receipt = service.accept_upload(self.store, draft, member, upload.round, stored)
        except ConsilienceError as error:
            return error
        drafts[member.federation] = draft
        return receipt

    def _read_membership(self, drafts: Drafts) -> None:
        """Another process has written: see who was invited, and remove what revoked members contributed."""
        for record in self.store.federations.all():
            service, draft = self._service(record.id), self._draft(record.id, drafts)
            service.count_members(self.store, draft)
            for number in self.store.members.revoked_with_contributions(record.id):
                service.remove_contributions(self.store, draft, number)
            for name in service.moving:
                if draft.waiting[name]:
                    service.aggregate_if_ready(self.store, draft, name)

    def _aggregate_overdue(self, drafts: Drafts) -> None:
        for federation, name in self._deadlines.overdue(self.federations, drafts):
            service, draft = self.federations[federation], self._draft(federation, drafts)
            if service.aggregate_overdue(self.store, draft, name):
                log.info("%s: %s was aggregated at its deadline", service.charter.name, name)
