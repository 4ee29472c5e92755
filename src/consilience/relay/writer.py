"""The one writer of a store: takes what came, brings it to disk together, and only then says that it is there."""

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

import numpy as np

from consilience.errors import ConsilienceError
from consilience.relay.federation import FederationService
from consilience.relay.recount import correct, recount
from consilience.relay.rejections import Rejection
from consilience.relay.snapshot import Snapshot
from consilience.relay.store import Store, is_full, lock_store

_TOGETHER = 128  # uploads in one commit
_SPARE = 2**20  # bytes that a disk has left, at least, before it is believed to have room again
_LOOK = 0.5  # seconds between looks at what others have written
_SELDOM = 10  # times as long as a recount took, nothing is recounted again
log = logging.getLogger("consilience.relay")


@dataclass
class Putting:
    """An upload on its way to the disk."""

    member: int
    round: int
    put: str
    body: bytes
    receipt: Future[str] = field(default_factory=Future)


Drafts = dict[int, Snapshot]


class Writer:
    """A thread with the store's only writing connection.

    on_news: told the number of a federation whose answers have changed, from this thread. clock: seconds that never go
    back; deadlines are measured with it, so that setting the machine's time changes nothing.
    """

    def __init__(
        self,
        path: Path,
        on_news: Callable[[int], None] = lambda federation: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store, self.clock, self.on_news = Store(path), clock, on_news
        self._lock = lock_store(path)
        self.halls: dict[int, FederationService] = {}
        self.failing = self.full = False  # whether the last write failed, and whether for want of room
        self._wanted = 0  # bytes of what was refused because the disk was full
        self._waits: queue.Queue[Putting | None] = queue.Queue(maxsize=4096)
        self._since: dict[tuple[int, str], tuple[int, float]] = {}  # at which version the first contribution came, when
        self._touched = -1
        self._corrections: list[tuple[int, dict[str, dict[str, np.ndarray]]]] = []
        self._stopping, self._doubt = threading.Event(), threading.Event()
        self._doubted: set[int] = set()  # federations whose sums may have lost digits
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._recounting = threading.Thread(target=self._recount, name="recount", daemon=True)
        for number, *_ in self.store.federations():
            self.halls[number] = FederationService(self.store, number)

    def start(self) -> None:
        """Begin to write; sums are recounted beside it."""
        self._thread.start()
        self._recounting.start()

    def stop(self) -> None:
        """Bring what waits to disk, and end."""
        self._stopping.set()
        self._doubt.set()
        with contextlib.suppress(queue.Full):  # then there is enough to wake it
            self._waits.put_nowait(None)
        self._thread.join(timeout=8)
        self._recounting.join(timeout=2)
        self.store.close()
        self._lock.close()

    @property
    def alive(self) -> bool:
        """Whether it writes."""
        return self._thread.is_alive()

    def put(self, putting: Putting) -> Future[str]:
        """Hand an upload over; its receipt comes when it is on disk."""
        if self._stopping.is_set():
            raise Rejection("stopping", "the relay is about to stop; try again in a moment", retry_after=5)
        try:
            self._waits.put_nowait(putting)
        except queue.Full:
            raise Rejection("busy", "more waits to be written than the relay takes; try again", retry_after=5) from None
        return putting.receipt

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not (self._stopping.is_set() and self._waits.empty()):
            batch = self._next()
            try:
                self._write(batch)
            except Exception as error:  # nothing may end the only writer
                log.exception("the writer stumbled")
                self._touched = -1
                for putting in batch:
                    if not putting.receipt.done():
                        putting.receipt.set_exception(error)

    def _next(self) -> list[Putting]:
        """What has come, up to so many; nothing where it is time to look around."""
        batch: list[Putting] = []
        try:
            came = self._waits.get(timeout=_LOOK)
            while came is not None:
                if came.receipt.set_running_or_notify_cancel():  # from now on nobody can call it off
                    batch.append(came)
                if len(batch) == _TOGETHER:
                    break
                came = self._waits.get_nowait()
        except queue.Empty:
            pass
        return batch

    def _write(self, batch: list[Putting]) -> None:
        """Everything of a batch in one commit: all of it is on disk before anybody hears of any."""
        looked = self.store.touched
        if not (batch or self.failing or looked != self._touched or self._corrections or self._overdue({})):
            return
        drafts: Drafts = {}
        answers: list[tuple[Putting, str | Exception]] = []
        corrections, before = len(self._corrections), self.store.sql.total_changes
        try:
            with self.store.writing():
                self._touched, renewed = looked, looked != self._touched
                if renewed:
                    self._look_around(drafts)
                self._correct(drafts, corrections)
                answers = [(putting, self._taken(putting, drafts)) for putting in batch]
                self._close_overdue(drafts)
                for number, draft in drafts.items():
                    self.halls[number].keep(self.store, draft)
        except sqlite3.Error as error:
            self._failed(batch, error)
            return
        del self._corrections[:corrections]
        if not self.full or self.store.sql.total_changes > before or self._has_room():
            self.failing = self.full = False
        for number, draft in drafts.items():
            changed = draft.revision > self.halls[number].sight.revision
            self.halls[number].sight = draft
            self._note_waiting(number, draft)
            if draft.doubtful:
                self._doubted.add(number)
                self._doubt.set()
            if changed:
                self.on_news(number)
        for putting, answer in answers:
            if isinstance(answer, Exception):
                putting.receipt.set_exception(answer)
            else:
                putting.receipt.set_result(answer)

    def _failed(self, batch: list[Putting], error: sqlite3.Error) -> None:
        """Nothing was written: say so to all who waited."""
        self._touched = -1
        self.failing, self.full = True, is_full(error)
        self._wanted = sum(len(putting.body) for putting in batch)
        log.error("nothing of %d uploads was kept: %s", len(batch), error)
        code, said = "cannot-write", "the relay's store cannot be written now; nothing was kept"
        if self.full:
            code, said = (
                "disk-full",
                "the relay's disk is full; nothing was kept. It takes uploads again when there is room",
            )
        for putting in batch:
            putting.receipt.set_exception(Rejection(code, said, retry_after=30))

    def _has_room(self) -> bool:
        """Whether what was refused for want of room would fit now, by what the disk says."""
        return shutil.disk_usage(self.store.path.absolute().parent).free > 2 * self._wanted + _SPARE

    def _draft(self, number: int, drafts: Drafts) -> Snapshot:
        if number not in drafts:
            drafts[number] = self.halls[number].sight.draft()
        return drafts[number]

    def _taken(self, putting: Putting, drafts: Drafts) -> str | Exception:
        """The receipt of an upload, or why it is refused; a refused one leaves no trace."""
        member = self.store.member(putting.member)
        if member is None or member.revoked:
            return Rejection("revoked", "this token was revoked")
        if member.federation not in self.halls:
            self.halls[member.federation] = FederationService(self.store, member.federation)
        hall, draft = self.halls[member.federation], self._draft(member.federation, drafts)
        mine = draft.draft()
        try:
            with self.store.step():
                receipt = hall.take(self.store, mine, member, putting.round, putting.put, putting.body)
        except ConsilienceError as error:
            return error
        drafts[member.federation] = mine
        return receipt

    def _look_around(self, drafts: Drafts) -> None:
        """Others have written: see who was invited, and take out what revoked members left."""
        for number, *_ in self.store.federations():
            if number not in self.halls:
                self.halls[number] = FederationService(self.store, number)
            hall, draft = self.halls[number], self._draft(number, drafts)
            hall.meet(self.store, draft)
            for gone in self.store.revoked(number):
                hall.withdraw(self.store, draft, gone)
            for name in hall.moving:
                if draft.waiting[name]:
                    hall.shut_if_ready(self.store, draft, name)

    # -- deadlines -----------------------------------------------------------------------------------------------------

    def _note_waiting(self, number: int, sight: Snapshot) -> None:
        for name, waiting in sight.waiting.items():
            version = sight.moving[name].version
            known, _ = self._since.get((number, name), (-1, 0.0))
            if waiting and known != version:
                self._since[number, name] = version, self.clock()
            elif not waiting:
                self._since.pop((number, name), None)

    def _overdue(self, drafts: Drafts) -> list[tuple[int, str]]:
        """Moving means whose deadline has passed; one that has moved since waits anew."""
        now, found = self.clock(), []
        for (number, name), (version, since) in self._since.items():
            hall = self.halls[number]
            rules, sight = hall.charter.rules, drafts.get(number, hall.sight)
            late = now - since >= rules.deadline and sight.moving[name].version == version
            if late and sight.waiting[name] >= rules.least:
                found.append((number, name))
        return found

    def _close_overdue(self, drafts: Drafts) -> None:
        for number, name in self._overdue(drafts):
            draft = self._draft(number, drafts)
            if self.halls[number].overdue(self.store, draft, name):
                log.info("%s: %s closed at its deadline", self.halls[number].charter.name, name)

    # -- recounting ----------------------------------------------------------------------------------------------------

    def _recount(self) -> None:
        """Count sums again, beside the work: all at the start, and those that something very large has left."""
        self._doubted |= set(self.halls)
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                self._recount_doubted()
            except Exception:  # a disk that cannot be read now: another start, or another doubt, tries again
                log.exception("sums were not recounted")
            self._stopping.wait(_SELDOM * (time.monotonic() - began) + _LOOK)  # nobody keeps a core at it
            self._doubt.wait()
            self._doubt.clear()

    def _recount_doubted(self) -> None:
        """What is off is handed to the writer, and nothing is counted again before it is put right."""
        while self._corrections and not self._stopping.wait(_LOOK):
            pass
        store = Store(self.store.path)
        try:
            while self._doubted and not self._stopping.is_set():
                number = self._doubted.pop()
                wrong = recount(self.halls[number], store)
                if wrong:
                    name = self.halls[number].charter.name
                    log.warning("%s: sums of %s were off, and are corrected", name, ", ".join(wrong))
                    self._corrections.append((number, wrong))
        finally:
            store.close()

    def _correct(self, drafts: Drafts, so_many: int) -> None:
        for number, wrong in self._corrections[:so_many]:
            correct(self._draft(number, drafts), wrong)
