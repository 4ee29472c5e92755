"""Backups while a relay serves, and restores after which no member mistakes the new history for the old one."""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from consilience.errors import ConfigurationError, StorageError
from consilience.peer.connection import RelayConnection, connect_to_relay
from consilience.relay import admin
from consilience.relay.app import Limits, Relay
from consilience.relay.restore import back_up, restore
from consilience.relay.store import LAYOUT, Store, lock_store
from tests.relay_tools import Federation, create_federation, in_a_thread, often, upload_headers

MEMBERS = 2
RESTORES = often(4, 200)


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return create_federation(tmp_path, MEMBERS)


@contextlib.contextmanager
def relay_of(federation: Federation) -> Iterator[tuple[Relay, str]]:
    relay = Relay(federation.store, Limits(rate=0))
    with in_a_thread(relay) as url:
        yield relay, url


def play(federation: Federation, relay: Relay, url: str, rounds: range) -> None:
    """Rounds in which every member uploads to every channel; the moving mean moves in each."""
    for round_ in rounds:
        version = relay.writer.federations[1].snapshot.moving["weights"].version
        for member in range(MEMBERS):
            upload = federation.upload(member, round_, version)
            put = httpx.put(
                f"{url}/v1/rounds/{round_}", content=upload.body, headers=upload_headers(federation, member, upload)
            )
            assert put.status_code == 200 and not put.json()["refused"], put.text


def values_of(relay: Relay) -> dict[str, np.ndarray]:
    return dict(relay.writer.federations[1].snapshot.moving["weights"].common)


def means_of(relay: Relay) -> np.ndarray:
    return np.asarray(relay.writer.federations[1].snapshot.standing["prototypes"].answer().tensors["mean"])


def has_what_the_relay_has(peer: RelayConnection, relay: Relay) -> None:
    peer.inbox.download(["weights", "prototypes"], {}, 5.0)
    held, common = peer.state.answers, values_of(relay)
    assert all(np.array_equal(held["weights"].tensors[name], common[name]) for name in common)
    assert np.array_equal(held["prototypes"].tensors["mean"], means_of(relay))


def test_after_a_restore_no_peer_keeps_values_of_the_other_history(federation: Federation, tmp_path: Path) -> None:
    rng, backup, next_round = random.Random(4), tmp_path / "backup.db", 0
    for number in range(RESTORES):
        before, lost, after = rng.randint(1, 2), rng.randint(0, 2), rng.randint(0, 2)
        with contextlib.ExitStack() as stack:
            relay, url = stack.enter_context(relay_of(federation))
            play(federation, relay, url, range(next_round, next_round + before))
            backup.unlink(missing_ok=True)
            back_up(federation.store, backup)  # while the relay serves
            play(federation, relay, url, range(next_round + before, next_round + before + lost))
            folders = [tmp_path / f"peer-{number}-{member}" for member in range(MEMBERS)]
            for member, folder in enumerate(folders):
                with contextlib.closing(connect_to_relay(url, federation.tokens[member], folder)) as peer:
                    has_what_the_relay_has(peer, relay)
        restore(backup, federation.store)
        next_round += 100  # other uploads than before, at versions that have the same numbers without an epoch
        with relay_of(federation) as (relay, url):
            play(federation, relay, url, range(next_round, next_round + after))
            for member, folder in enumerate(folders):
                with contextlib.closing(connect_to_relay(url, federation.tokens[member], folder)) as peer:
                    has_what_the_relay_has(peer, relay)
        next_round += after
        shutil.rmtree(tmp_path / f"peer-{number}-0")


def test_etag_and_version_of_another_history_are_not_up_to_date(federation: Federation, tmp_path: Path) -> None:
    with relay_of(federation) as (relay, url):
        play(federation, relay, url, range(1))
        back_up(federation.store, tmp_path / "backup.db")
        play(federation, relay, url, range(1, 2))
        ask = f"{url}/v1/answers?channel=weights&channel=prototypes&have=weights:2"
        old = httpx.get(ask, headers=federation.head(0))
        epoch = httpx.get(f"{url}/v1/federation", headers=federation.head(0)).json()["epoch"]
    restore(tmp_path / "backup.db", federation.store)
    with relay_of(federation) as (relay, url):
        play(federation, relay, url, range(10, 11))
        ask = f"{url}/v1/answers?channel=weights&channel=prototypes&have=weights:2"
        new = httpx.get(ask, headers=federation.head(0, **{"If-None-Match": old.headers["etag"]}))
        assert new.status_code == 200 and "full=1" in new.headers["consilience-answer"]
        assert httpx.get(f"{url}/v1/federation", headers=federation.head(0)).json()["epoch"] != epoch
        stale = federation.upload(0, 11, version=2, names=("weights",))
        put = httpx.put(f"{url}/v1/rounds/11", content=stale.body, headers=upload_headers(federation, 0, stale))
        assert "weights" in put.json()["refused"]  # made from the other history's version 2


def test_contribution_that_waits_survives_a_restore(federation: Federation, tmp_path: Path) -> None:
    with relay_of(federation) as (relay, url):
        play(federation, relay, url, range(1))
        first = federation.upload(0, 5, version=1)
        httpx.put(f"{url}/v1/rounds/5", content=first.body, headers=upload_headers(federation, 0, first))
        back_up(federation.store, tmp_path / "backup.db")
    restore(tmp_path / "backup.db", tmp_path / "elsewhere.db")
    moved = Federation(tmp_path / "elsewhere.db", federation.charter, federation.starts, federation.tokens)
    with relay_of(moved) as (relay, url):
        version = relay.writer.federations[1].snapshot.moving["weights"].version
        second = federation.upload(1, 5, version=version)
        put = httpx.put(f"{url}/v1/rounds/5", content=second.body, headers=upload_headers(federation, 1, second))
        assert put.json()["refused"] == {}
        assert relay.writer.federations[1].snapshot.moving["weights"].version == version + 1
    moved.sums_are_right()


def test_tokens_revoked_since_the_backup_need_a_decision(federation: Federation, tmp_path: Path) -> None:
    back_up(federation.store, tmp_path / "backup.db")
    admin.revoke(federation.store, "m1")
    with pytest.raises(ConfigurationError, match=r"revoked after the backup was made: m1\. Decide: --revoked revoke"):
        restore(tmp_path / "backup.db", federation.store)
    assert restore(tmp_path / "backup.db", federation.store, "revoke").revoked == ["m1"]
    states = {member["name"]: member["state"] for member in admin.status(federation.store)[0]["members"]}
    assert states == {"m0": "invited", "m1": "revoked"}
    assert restore(tmp_path / "backup.db", federation.store, "keep").revoked == []
    assert admin.status(federation.store)[0]["members"][1]["state"] == "invited"


def test_tokens_revoked_since_are_not_forgotten_where_the_store_is_old_or_unreadable(
    federation: Federation, tmp_path: Path
) -> None:
    back_up(federation.store, tmp_path / "backup.db")
    admin.revoke(federation.store, "m1")
    with contextlib.closing(sqlite3.connect(federation.store)) as sql:
        sql.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        sql.execute("PRAGMA user_version = 2")
    with pytest.raises(ConfigurationError, match="revoked after the backup was made: m1"):
        restore(tmp_path / "backup.db", federation.store)
    federation.store.write_bytes(b"unreadable" * 500)
    with pytest.raises(ConfigurationError, match="nobody can tell which tokens were revoked since the backup"):
        restore(tmp_path / "backup.db", federation.store)
    assert restore(tmp_path / "backup.db", federation.store, "keep").revoked == []


def test_members_invited_since_the_backup_are_named(federation: Federation, tmp_path: Path) -> None:
    back_up(federation.store, tmp_path / "backup.db")
    federation.invite("newcomer")
    federation.invite("gone")
    admin.revoke(federation.store, "gone")
    assert restore(tmp_path / "backup.db", federation.store).unknown == ["newcomer"]
    assert restore(tmp_path / "backup.db", federation.store).unknown == []
    assert restore(tmp_path / "backup.db", tmp_path / "elsewhere.db").unknown == []


def test_only_the_same_token_is_revoked_again(federation: Federation, tmp_path: Path) -> None:
    back_up(federation.store, tmp_path / "first.db")
    federation.invite("x")
    back_up(federation.store, tmp_path / "second.db")
    restore(tmp_path / "first.db", federation.store)
    admin.invite(federation.store, "y")  # with the number in the store that x had
    admin.revoke(federation.store, "y")
    assert restore(tmp_path / "second.db", federation.store).revoked == []
    assert {m["name"]: m["state"] for m in admin.status(federation.store)[0]["members"]}["x"] == "invited"


def test_write_ahead_log_of_a_backup_is_restored_too(federation: Federation, tmp_path: Path) -> None:
    source = tmp_path / "crashed.db"
    with contextlib.closing(Store(federation.store)):
        admin.revoke(federation.store, "m1")
        assert federation.store.with_name("relay.db-wal").stat().st_size > 0
        shutil.copy(federation.store, source)
        shutil.copy(federation.store.with_name("relay.db-wal"), tmp_path / "crashed.db-wal")
    restore(source, tmp_path / "new.db")
    assert admin.status(tmp_path / "new.db")[0]["members"][1]["state"] == "revoked"


def test_replaced_store_is_kept(federation: Federation, tmp_path: Path) -> None:
    back_up(federation.store, tmp_path / "backup.db")
    federation.invite("late")
    done = restore(tmp_path / "backup.db", federation.store)
    assert done.replaced is not None and len(admin.status(done.replaced)[0]["members"]) == MEMBERS + 1
    assert len(admin.status(federation.store)[0]["members"]) == MEMBERS
    assert not list(tmp_path.glob("*.restoring*"))


def test_restore_over_a_store_in_use_is_refused_and_changes_nothing(federation: Federation, tmp_path: Path) -> None:
    back_up(federation.store, tmp_path / "backup.db")
    before = federation.store.read_bytes()
    with (
        lock_store(federation.store),
        pytest.raises(ConfigurationError, match="served by another relay; stop that one first"),
    ):
        restore(tmp_path / "backup.db", federation.store)
    assert federation.store.read_bytes() == before and not list(tmp_path.glob("*.restoring*"))


def test_store_in_use_is_refused_by_another_name(federation: Federation, tmp_path: Path) -> None:
    other = tmp_path / "folder" / "other.db"
    other.parent.mkdir()
    other.symlink_to(federation.store)
    with lock_store(federation.store), pytest.raises(ConfigurationError, match="served by another relay"):
        lock_store(other)


def test_backup_that_cannot_be_restored_is_refused(federation: Federation, tmp_path: Path) -> None:
    good, bad = tmp_path / "backup.db", tmp_path / "bad.db"
    back_up(federation.store, good)
    before = federation.store.read_bytes()
    with pytest.raises(ConfigurationError, match="exists; a backup is written to a new file"):
        back_up(federation.store, good)
    with pytest.raises(ConfigurationError, match="no such backup"):
        restore(tmp_path / "none.db", federation.store)
    bad.write_bytes(b"not a store")
    with pytest.raises(StorageError, match=r"bad\.db"):
        restore(bad, federation.store)
    shutil.copy(good, bad)
    with contextlib.closing(sqlite3.connect(bad)) as sql, sql:
        sql.execute("UPDATE members SET name = 'other' WHERE number = 0")
    with pytest.raises(StorageError, match=r"bad\.db: members, id 1: damaged; this backup is damaged"):
        restore(bad, federation.store)
    shutil.copy(good, bad)
    with contextlib.closing(sqlite3.connect(bad)) as sql:
        sql.execute(f"PRAGMA user_version = {LAYOUT + 1}")
    with pytest.raises(ConfigurationError, match=r"bad\.db is a store of layout .*a newer version"):
        restore(bad, federation.store)
    assert federation.store.read_bytes() == before and not list(tmp_path.glob("*.restoring*"))


def test_backup_and_restore_as_commands(federation: Federation, tmp_path: Path) -> None:
    def run(*words: str) -> str:
        command = [sys.executable, "-m", "consilience", "relay", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "backup.db: a sound copy of relay.db" in run("backup", "backup.db")
    assert "relay.db: restored from backup.db, epoch" in run("restore", "backup.db")
    with contextlib.closing(Store(federation.store)) as store:
        reasons = [row[2] for row in store.epochs.select(order="id")]
    assert reasons == ["created", "restored from backup.db"]
