"""At most one relay writes to a store: lock files that are removed, links, replaced files, and a lease in any case."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from pathlib import Path

import httpx
import pytest

from consilience.errors import ConfigurationError
from consilience.relay import admin
from consilience.relay.app import Limits, Relay
from consilience.relay.rejections import Rejection
from consilience.relay.restore import back_up, restore
from consilience.relay.store import lock_path
from tests.relay_tools import (
    Federation,
    ManualWriter,
    create_federation,
    in_a_thread,
    manual_writer,
    upload_headers,
    wait_until,
)


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return create_federation(tmp_path, 2)


def refusal(at: ManualWriter, member: int, round_: int) -> str:
    error = at.upload(member, round_).exception(0)
    assert isinstance(error, Rejection), error
    return error.code


def test_second_writer_is_refused_through_a_link(federation: Federation, tmp_path: Path) -> None:
    link = tmp_path / "elsewhere" / "link.db"
    link.parent.mkdir()
    link.symlink_to(federation.store)
    other = Federation(link, federation.charter, federation.starts, federation.tokens)
    with manual_writer(federation), pytest.raises(ConfigurationError, match="served by another relay"):
        ManualWriter(other)
    with manual_writer(other), pytest.raises(ConfigurationError, match="served by another relay"):
        ManualWriter(federation)


def test_removed_lock_file_is_noticed_and_taken_again(federation: Federation, caplog: pytest.LogCaptureFixture) -> None:
    with manual_writer(federation) as at:
        lock_path(federation.store).unlink()
        at.poll()
        assert "was removed while the store was served" in caplog.text
        with pytest.raises(ConfigurationError, match="served by another relay"):
            ManualWriter(federation)
        assert at.upload(0, 0).exception(0) is None


def test_of_two_relays_only_the_newer_one_writes_and_nothing_is_lost(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    with manual_writer(federation) as first:
        kept = first.upload(0, 0).result(0)
        lock_path(federation.store).unlink()
        with manual_writer(federation) as second:
            caplog.set_level(logging.ERROR)
            assert refusal(first, 1, 0) == "taken-over" and refusal(first, 0, 1) == "taken-over"
            first.poll()
            said = [record.message for record in caplog.records if "writes nothing any more" in record.message]
            assert len(said) == 1 and first.writer.fence.lost
            assert second.upload(0, 0).result(0) == kept  # it has read all that the first one acknowledged
            assert second.upload(1, 0).exception(0) is None
            with pytest.raises(Rejection, match="another relay does"):
                first.writer.submit(first.queued(0, 5))
    assert [(member, round_) for member, round_, _ in federation.receipts()] == [(0, 0), (1, 0)]
    federation.sums_are_right()


def test_lease_alone_stops_a_relay_that_sees_its_own_lock(federation: Federation) -> None:
    """As where a file system has no locks: the lock file is in place, and still another writer started."""
    with manual_writer(federation) as first:
        with contextlib.closing(sqlite3.connect(federation.store)) as sql, sql:
            before = sql.execute("SELECT count(*) FROM uploads").fetchone()
        first.writer.store.check_lease = lambda: None
        with first.writer.store.writing():
            first.writer.store.leases.take("another")
        first.writer.store.check_lease = first.writer.fence._check_lease
        assert refusal(first, 0, 0) == "taken-over"
        assert first.writer.store.sql.execute("SELECT count(*) FROM uploads").fetchone() == before


def test_health_and_uploads_say_that_the_store_was_taken_over(federation: Federation) -> None:
    with in_a_thread(Relay(federation.store, Limits(rate=0))) as url:
        assert httpx.get(f"{url}/health").json()["status"] == "ok"
        lock_path(federation.store).unlink()
        with manual_writer(federation):
            wait_until(lambda: httpx.get(f"{url}/health").status_code == 503, 30)
            assert httpx.get(f"{url}/health").json()["status"] == "taken over"
            ready = httpx.get(f"{url}/ready")
            assert (ready.status_code, ready.json()["status"]) == (503, "taken over")
            upload = federation.upload(0, 0)
            put = httpx.put(f"{url}/v1/rounds/0", content=upload.body, headers=upload_headers(federation, 0, upload))
            assert (put.status_code, put.json()["code"]) == (503, "taken-over")
            assert httpx.get(f"{url}/v1/answers", headers=federation.head(0)).status_code == 200
    assert federation.receipts() == []


def test_relay_whose_store_was_replaced_acknowledges_nothing(federation: Federation, tmp_path: Path) -> None:
    back_up(federation.store, tmp_path / "backup.db")
    with manual_writer(federation) as first:
        lock_path(federation.store).unlink()
        restore(tmp_path / "backup.db", federation.store)
        assert refusal(first, 0, 0) == "taken-over"
    with manual_writer(federation) as at:
        other = federation.store.with_name("moved.db")
        federation.store.rename(other)
        assert refusal(at, 0, 0) == "taken-over"


def test_damaged_lease_is_written_again_while_the_lock_is_held(federation: Federation) -> None:
    with manual_writer(federation) as at:
        with contextlib.closing(sqlite3.connect(federation.store)) as sql, sql:
            sql.execute("UPDATE leases SET holder = 'nobody'")  # its checksum does not match
        assert at.upload(0, 0).exception(0) is None
        assert at.writer.store.leases.holder() == at.writer.fence._holder


def test_damaged_lease_under_another_id_is_dropped_at_the_next_start(federation: Federation) -> None:
    with manual_writer(federation):
        pass
    with contextlib.closing(sqlite3.connect(federation.store)) as sql, sql:
        sql.execute("UPDATE leases SET id = 3")
    with manual_writer(federation) as at:
        assert at.upload(0, 0).exception(0) is None
    assert admin.verify(federation.store)["damage"] == []


def test_lease_with_a_damaged_time_is_written_again(federation: Federation, tmp_path: Path) -> None:
    """The holder is right, and the record is damaged all the same: no backup would be made of it."""
    with manual_writer(federation) as at:
        at.writer.store.sql.execute("UPDATE leases SET time = 'x'")
        at.upload(0, 1).result(0)
        back_up(federation.store, tmp_path / "copy.db")


def test_folder_that_is_moved_while_it_is_served_changes_nothing(tmp_path: Path) -> None:
    """The store is reached by a link, which names the moved folder from then on."""
    (tmp_path / "old").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "old")
    federation = create_federation(link, 1)
    with manual_writer(federation) as at:
        at.upload(0, 1).result(0)
        (tmp_path / "old").rename(tmp_path / "new")
        link.unlink()
        link.symlink_to(tmp_path / "new")
        at.upload(0, 2, names=["prototypes"]).result(0)
