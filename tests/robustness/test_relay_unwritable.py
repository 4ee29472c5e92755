"""A store that is locked or cannot be written: each command says what is wrong, and never that the store is damaged."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from consilience.errors import ConsilienceError, StorageError
from consilience.relay import admin
from consilience.relay.operators import add_operator
from consilience.relay.rotate import rotate
from consilience.relay.store import Store
from consilience.relay.store_errors import explain
from consilience.relay.writer import Writer
from tests.relay_tools import FULL, Federation, create_federation, serving, upload_headers, wait_until


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return create_federation(tmp_path, 2)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait a moment for another program's lock, not ten seconds."""
    configure = Store._configure

    def configured(store: Store) -> None:
        configure(store)
        store.sql.execute("PRAGMA busy_timeout = 50")

    monkeypatch.setattr(Store, "_configure", configured)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another program writes, and does not end."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as sql:
        sql.execute("BEGIN IMMEDIATE")
        yield


@pytest.mark.usefixtures("impatient")
def test_locked_store_is_named_by_every_command_that_writes(federation: Federation) -> None:
    path = federation.store
    with locked(path):
        for act in (
            lambda: admin.invite(path, "x"),
            lambda: admin.revoke(path, "m0"),
            lambda: rotate(path, "m0"),
            lambda: add_operator(path, "anna"),
            lambda: Writer(path),
        ):
            with pytest.raises(StorageError, match=r"another program has been writing to it.*close that program"):
                act()
        assert [each["name"] for each in admin.status(path)[0]["members"]] == ["m0", "m1"]  # reading works
    admin.invite(path, "x")


@pytest.mark.skipif(not FULL, reason="the relay waits ten seconds for the lock")
def test_served_store_that_gets_locked_refuses_uploads_and_recovers(federation: Federation) -> None:
    upload = federation.upload(0, 1)
    with serving(federation.store) as relay, httpx.Client(base_url=relay.url, timeout=30) as client:
        with locked(federation.store):
            answer = client.put("/v1/rounds/1", content=upload.body, headers=upload_headers(federation, 0, upload))
            assert (answer.status_code, answer.json()["code"]) == (503, "cannot-write")
            ready = client.get("/ready")
            assert (ready.status_code, ready.json()) == (503, {"status": "cannot write"})
        wait_until(lambda: client.get("/ready").status_code == 200, 30)
        answer = client.put("/v1/rounds/1", content=upload.body, headers=upload_headers(federation, 0, upload))
        assert answer.status_code == 200


def test_read_only_disk_is_named(tmp_path: Path) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(place)], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a file system cannot be mounted here: {mounted.stderr.strip()[:100]}")
    try:
        federation = create_federation(place, 1)
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        for act in (lambda: admin.invite(federation.store, "x"), lambda: Writer(federation.store)):
            with pytest.raises(ConsilienceError) as refused:
                act()
            assert "damaged" not in str(refused.value)
            assert str(federation.store) in str(refused.value) or "read-only" in str(refused.value).lower()
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_errors_that_may_be_damage_are_not_explained_away() -> None:
    with contextlib.closing(sqlite3.connect(":memory:")) as sql, pytest.raises(sqlite3.Error) as wrong:
        sql.execute("SELECT nothing FROM nowhere")
    assert explain(Path("relay.db"), wrong.value) is None
    assert explain(Path("relay.db"), OSError("no")) is None
