"""Hands the receipts of a batch from the writer's thread to the event loop, all at once.

Each call into the event loop from another thread wakes it; one call for each receipt would wake it as often as there
are uploads in a batch, and each time take the processor from the writer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from concurrent.futures import Future


class PendingReceipts:
    """The receipts that requests wait for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[Future[str], asyncio.Future[None]] = {}  # used by the event loop only
        self._done: deque[Future[str]] = deque()

    async def wait(self, receipt: Future[str]) -> str:
        """The receipt of a queued upload, when it is on disk; raises why it was refused."""
        self._waiting[receipt] = woken = self._loop.create_future()
        receipt.add_done_callback(self._done.append)
        if receipt.done():  # before the callback was there, and `deliver` may have been called before it too
            self._wake()
        try:
            await woken
        except asyncio.CancelledError:
            receipt.cancel()  # if it is not being written yet, it is not written
            raise
        finally:
            del self._waiting[receipt]
        return receipt.result()

    def deliver(self) -> None:
        """Called from the writer's thread when the receipts of a batch are set."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        """Wake every request whose receipt is set."""
        while self._done:
            woken = self._waiting.get(self._done.popleft())
            if woken is not None and not woken.done():
                woken.set_result(None)
