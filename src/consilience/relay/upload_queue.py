"""Uploads that wait to be written: the event loop puts them in, and the writer takes them out in batches."""

from __future__ import annotations

import queue
import time
from concurrent.futures import Future
from dataclasses import dataclass, field

from consilience.relay.rejections import Rejection

BATCH = 128
"""Uploads in one batch, at most."""
_WAITING = 4096  # uploads that may wait
_GATHER, _PAUSE = 0.008, 0.001  # seconds: the longest wait for more uploads, and one in which none came ends it


@dataclass
class QueuedUpload:
    """An upload that waits to be written; `receipt` is set when it is on disk.

    is_public_set: the body is the federation's public set, and round and header mean nothing.
    """

    member: int
    round: int
    header: str
    body: bytes
    receipt: Future[str] = field(default_factory=Future)
    is_public_set: bool = False


class UploadQueue:
    """A queue between two threads."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[QueuedUpload | None] = queue.SimpleQueue()
        self._last = 0  # how many uploads the last batch had

    def __len__(self) -> int:
        return self._queue.qsize()

    def add(self, upload: QueuedUpload) -> None:
        """Add an upload; refuses it if too many wait."""
        if len(self) >= _WAITING:
            raise Rejection("busy", "too many uploads wait to be written; try again", retry_after=5)
        self._queue.put(upload)

    def wake(self) -> None:
        """End the wait of `next_batch`."""
        self._queue.put(None)

    def next_batch(self, timeout: float) -> list[QueuedUpload]:
        """The uploads that wait, up to a batch; none if none came within this time."""
        batch: list[QueuedUpload] = []
        try:
            upload = self._queue.get(timeout=timeout)
            if self._last > 1:
                self._let_uploads_gather()
            while upload is not None:
                if upload.receipt.set_running_or_notify_cancel():  # from now on it cannot be cancelled
                    batch.append(upload)
                if len(batch) == BATCH:
                    break
                upload = self._queue.get_nowait()
        except queue.Empty:
            pass
        self._last = len(batch)
        return batch

    def _let_uploads_gather(self) -> None:
        """Wait a few milliseconds while more uploads arrive.

        One commit for all of them costs less than several, and the event loop, which takes turns with the writer in
        the interpreter, can read them undisturbed.
        """
        ends, waiting = time.monotonic() + _GATHER, -1
        while waiting < len(self) < BATCH and time.monotonic() < ends:
            waiting = len(self)
            time.sleep(_PAUSE)
