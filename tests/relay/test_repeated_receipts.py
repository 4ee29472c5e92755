"""The same upload again gets its receipt only when the first one is on disk, wherever the first one is on its way."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from consilience.relay.rejections import Rejection
from consilience.relay.store import Store
from tests.relay_tools import Federation, ManualWriter, create_federation, manual_writer, serve


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return create_federation(tmp_path, 2)


class FailingCommit:
    """A connection whose commits fail while `fails` is set, as on a disk that cannot be written."""

    def __init__(self, sql: sqlite3.Connection) -> None:
        self._sql, self.fails, self.seen_at_commit = sql, True, list[bool]()
        self.receipts: list[object] = []

    def execute(self, statement: str, *given: object) -> sqlite3.Cursor:
        if statement == "COMMIT":
            self.seen_at_commit += [receipt.done() for receipt in self.receipts]  # type: ignore[attr-defined]
            if self.fails:
                raise sqlite3.OperationalError("disk I/O error")
        return self._sql.execute(statement, *given)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> object:
        return getattr(self._sql, name)


@contextlib.contextmanager
def failing(at: ManualWriter) -> Iterator[FailingCommit]:
    store, sql = at.writer.store, at.writer.store.sql
    store.sql = spoiled = FailingCommit(sql)  # type: ignore[assignment]
    try:
        yield spoiled
    finally:
        store.sql = sql


def test_within_one_batch_both_receipts_wait_for_the_commit(federation: Federation) -> None:
    with manual_writer(federation) as at, failing(at) as sql:
        pair = [at.queued(0, 0), at.queued(0, 0)]
        sql.receipts = [each.receipt for each in pair]
        refused = [receipt.exception(0) for receipt in at.write(*pair)]
        assert [isinstance(error, Rejection) and error.code for error in refused] == ["cannot-write"] * 2
        assert sql.seen_at_commit == [False, False]
        assert federation.receipts() == []
        sql.fails = False
        again = [at.queued(0, 0), at.queued(0, 0)]
        sql.receipts = [each.receipt for each in again]
        one, two = (receipt.result(0) for receipt in at.write(*again))
        assert one == two and sql.seen_at_commit[2:] == [False, False]
    assert len(federation.receipts()) == 1


def test_after_a_failed_commit_the_same_upload_is_a_new_one(federation: Federation) -> None:
    with manual_writer(federation) as at:
        with failing(at):
            assert at.upload(0, 0).exception(0) is not None
            assert at.upload(0, 0).exception(0) is not None  # not found as an earlier one: nothing was written
        receipt = json.loads(at.upload(0, 0).result(0))
        assert receipt["after"] == -1 and at.upload(0, 0).result(0) == json.dumps(receipt)


def test_another_connection_sees_a_receipt_only_after_its_commit(federation: Federation) -> None:
    with manual_writer(federation) as at, contextlib.closing(Store(federation.store)) as reader:
        with failing(at):
            assert at.upload(0, 0).exception(0) is not None
            assert reader.receipts.get(1, 0) is None
        at.upload(0, 0).result(0)
        assert reader.receipts.get(1, 0) is not None


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_restarted_relay_syncs_what_a_killed_one_may_not_have_synced(federation: Federation, tmp_path: Path) -> None:
    """A killed relay may leave a commit that is in the log and not on disk; it is synced before anybody is served."""
    with contextlib.closing(Store(federation.store)) as holding:  # keeps the log from being merged into the store
        with manual_writer(federation) as at:
            at.upload(0, 0).result(0)
        trace = tmp_path / "trace"
        before = ["strace", "-D", "-f", "-y", "-e", "trace=fsync,fdatasync", "-o", str(trace)]
        try:
            running = serve(federation.store, before=before)
        except AssertionError as error:
            pytest.skip(f"strace cannot be used here: {str(error)[:100]}")
        try:  # it accepts requests now, and no upload has come
            assert re.search(r"(fsync|fdatasync)\(\d+<[^>]*relay\.db-wal>", trace.read_text())
        finally:
            running.kill()
        assert holding.receipts.get(1, 0) is not None
