"""Uploads on their way to the writer, and receipts on their way back."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from consilience.relay import upload_queue
from consilience.relay.pending_receipts import PendingReceipts
from consilience.relay.rejections import Rejection
from consilience.relay.upload_queue import QueuedUpload, UploadQueue


def upload(member: int) -> QueuedUpload:
    return QueuedUpload(member, 1, "", b"")


def members(batch: list[QueuedUpload]) -> list[int]:
    return [each.member for each in batch]


def test_batch_has_what_waits_in_order_up_to_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload_queue, "BATCH", 3)
    waiting = UploadQueue()
    for member in range(5):
        waiting.add(upload(member))
    assert (len(waiting), members(waiting.next_batch(0.1)), members(waiting.next_batch(0.1))) == (5, [0, 1, 2], [3, 4])
    assert waiting.next_batch(0.001) == []


def test_cancelled_upload_is_left_out_and_wake_ends_the_wait() -> None:
    waiting = UploadQueue()
    cancelled = upload(1)
    assert cancelled.receipt.cancel()
    waiting.add(cancelled)
    waiting.add(upload(2))
    assert members(waiting.next_batch(0.1)) == [2]
    waiting.wake()
    began = time.monotonic()
    assert waiting.next_batch(30) == [] and time.monotonic() - began < 20


def test_too_many_waiting_uploads_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload_queue, "_WAITING", 2)
    waiting = UploadQueue()
    for member in range(2):
        waiting.add(upload(member))
    with pytest.raises(Rejection, match="too many uploads wait"):
        waiting.add(upload(2))
    assert len(waiting) == 2


def test_uploads_gather_only_after_a_batch_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """One member that uploads by itself never waits for others."""
    paused: list[float] = []
    waiting = UploadQueue()

    def pause(seconds: float) -> None:
        paused.append(seconds)
        if len(paused) <= 2:  # two more arrive, one in each pause; none in the third
            waiting.add(upload(10 + len(paused)))

    monkeypatch.setattr(upload_queue, "_GATHER", 60.0)
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=pause)
    monkeypatch.setattr(upload_queue, "time", clock)
    for member in range(3):
        waiting.add(upload(member))
        assert members(waiting.next_batch(0.1)) == [member]
    assert paused == []
    waiting.add(upload(3))
    waiting.add(upload(4))
    assert members(waiting.next_batch(0.1)) == [3, 4] and paused == []
    waiting.add(upload(5))
    assert members(waiting.next_batch(0.1)) == [5, 11, 12] and len(paused) == 3


# Receipts


def receive(set_results: Any, count: int = 3) -> list[Any]:
    """What requests get that wait for receipts, which a thread sets."""

    async def run() -> list[Any]:
        receipts = PendingReceipts(asyncio.get_running_loop())
        uploads: list[Future[str]] = [Future() for _ in range(count)]
        thread = threading.Thread(target=set_results, args=(uploads, receipts))
        waiting = [asyncio.ensure_future(receipts.wait(each)) for each in uploads]
        thread.start()
        try:
            return await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 10)
        finally:
            thread.join()

    return asyncio.run(run())


def test_receipts_of_a_batch_come_with_one_call() -> None:
    def set_results(uploads: list[Future[str]], receipts: PendingReceipts) -> None:
        uploads[1].set_exception(Rejection("revoked", "no"))
        for i in (2, 0):
            uploads[i].set_result(f"receipt {i}")
        receipts.deliver()

    first, second, third = receive(set_results)
    assert (first, third) == ("receipt 0", "receipt 2")
    assert isinstance(second, Rejection)


def test_receipt_that_was_set_before_anybody_waited_is_returned_at_once() -> None:
    async def run() -> str:
        receipts, done = PendingReceipts(asyncio.get_running_loop()), Future[str]()
        done.set_result("there")
        return await asyncio.wait_for(receipts.wait(done), 10)

    assert asyncio.run(run()) == "there"


def test_request_that_ends_cancels_its_upload_and_no_other() -> None:
    async def run() -> tuple[bool, str]:
        receipts = PendingReceipts(asyncio.get_running_loop())
        gone, stays = Future[str](), Future[str]()
        leaving, staying = asyncio.ensure_future(receipts.wait(gone)), asyncio.ensure_future(receipts.wait(stays))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        stays.set_result("written")
        receipts.deliver()
        return gone.cancelled(), await asyncio.wait_for(staying, 10)

    assert asyncio.run(run()) == (True, "written")
