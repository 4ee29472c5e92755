"""The chain of what happened: every accepted upload and every act of an operator, and what breaks it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from consilience.relay import admin
from consilience.relay.integrity import check_store
from consilience.relay.restore import back_up, restore
from consilience.relay.store import Store
from tests.relay_tools import Federation, create_federation, manual_writer


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    """Entries 1 to 4 are the store, the federation and two invitations; 5 to 7 are uploads."""
    made = create_federation(tmp_path, 2)
    with manual_writer(made) as at:
        for member, round_ in ((0, 0), (1, 0), (0, 1)):
            at.upload(member, round_, names=("prototypes",)).result(0)
    return made


def trail(federation: Federation, *options: str, code: int = 0) -> dict[str, Any]:
    command = [sys.executable, "-m", "consilience", "relay", "audit", "--store", str(federation.store), "--json"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def damage(federation: Federation, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(federation.store)) as sql, sql:
        assert sql.execute(statement).rowcount > 0


def breaks(federation: Federation) -> list[str]:
    with contextlib.closing(Store(federation.store)) as store:
        return list(store.audit.breaks())


def test_every_upload_and_act_has_an_entry_that_anybody_can_chain(federation: Federation) -> None:
    admin.revoke(federation.store, "m1")
    found = trail(federation)["entries"]
    assert [(e["event"], e["member"]) for e in found] == [
        *(("created", ""), ("created", ""), ("invited", "m0"), ("invited", "m1")),
        *(("uploaded", "m0"), ("uploaded", "m1"), ("uploaded", "m0"), ("revoked", "m1")),
    ]
    chain = bytes(32)
    for entry in found:
        chain = hashlib.sha256(chain + entry["hashed"].encode()).digest()
        assert entry["chain"] == chain.hex()
    upload = federation.upload(0, 1, names=("prototypes",))
    assert found[6]["detail"] == {"round": 1, "sha256": upload.sha256} and upload.sha256 in found[6]["hashed"]


def test_receipt_has_the_chain_value_of_its_entry_and_a_repeated_one_adds_none(federation: Federation) -> None:
    with manual_writer(federation) as at:
        receipt = json.loads(at.upload(1, 1, names=("prototypes",)).result(0))
        assert json.loads(at.upload(1, 1, names=("prototypes",)).result(0)) == receipt
        assert at.upload(1, 0, names=("prototypes",)).exception(0) is not None  # refused: nothing is added
        with contextlib.closing(Store(federation.store)) as store:
            entries = store.audit.entries()
    assert len(entries) == 8 and (receipt["entry"], receipt["chain"]) == (8, entries[-1].chain.hex())


def test_filters_and_the_text_for_people(federation: Federation) -> None:
    assert [e["number"] for e in trail(federation, "--member", "m0")["entries"]] == [3, 5, 7]
    assert [e["number"] for e in trail(federation, "--federation", "digits", "--last", "2")["entries"]] == [6, 7]
    command = [sys.executable, "-m", "consilience", "relay", "audit", "--store", str(federation.store)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.count("\n") == 8 and done.stdout.endswith("7 entries, unbroken\n")
    wrong = subprocess.run([*command, "--member", "m9"], capture_output=True, text=True, timeout=120)
    assert wrong.returncode == 2 and "unknown member 'm9'" in wrong.stderr


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("UPDATE audit SET detail = '{}' WHERE id = 6", ["audit, entry 6: it is not the entry"]),
        ("DELETE FROM audit WHERE id = 6", ["audit, entry 6: it is gone", "audit, entry 7: it is not the entry"]),
        ("UPDATE audit SET event = 'invited' WHERE id = 1", ["audit, entry 1: it is not the entry"]),
    ],
)
def test_changed_history_is_named(federation: Federation, statement: str, named: list[str]) -> None:
    damage(federation, statement)
    broken = trail(federation, "--last", "1", code=1)["broken"]
    assert len(broken) == len(named) and all(a.startswith(b) for a, b in zip(broken, named, strict=True))
    assert set(broken) <= set(admin.verify(federation.store)["damage"])


def test_rewritten_history_with_right_checksums_does_not_fit_a_receipt(federation: Federation) -> None:
    with contextlib.closing(Store(federation.store)) as store, store.writing():
        before = store.audit.entries()
        store.sql.execute("DELETE FROM audit WHERE id > 4")
        for entry in before[4:]:
            store.audit.append(entry.event, entry.federation, entry.member, round=99, sha256="0" * 64)
        after = store.audit.entries()
    assert breaks(federation) == []  # whoever can write the store can make another chain,
    assert [a.chain == b.chain for a, b in zip(before, after, strict=True)] == [True] * 4 + [False] * 3


def test_damaged_entry_is_kept_named_and_noted_and_the_relay_goes_on(federation: Federation, tmp_path: Path) -> None:
    damage(federation, "UPDATE audit SET detail = '{\"round\": 5}' WHERE id = 6")
    damage(federation, "UPDATE audit SET chain = zeroblob(3) WHERE id = 7")  # the newest: the chain continues from it
    with manual_writer(federation) as at:
        at.writer.recounter._check_uploads()
        at.upload(0, 2, names=("prototypes",)).result(0)
        assert sum("what it said is lost" in line for line in at.writer.loaded.damage) == 2
        with contextlib.closing(Store(federation.store)) as store:
            events = [entry.event for entry in store.audit.entries()]
            assert check_store(store).damage == []
    assert events[5:] == ["damaged", "damaged", "repaired", "uploaded"]
    lost = [f"audit, entry {number}: it was damaged, and what it said is lost" for number in (6, 7)]
    assert breaks(federation) == lost and admin.verify(federation.store)["damage"] == lost
    back_up(federation.store, tmp_path / "backup.db")  # a store with a broken chain can still be saved


def test_damaged_text_does_not_stop_the_writer(federation: Federation) -> None:
    damage(federation, "UPDATE audit SET time = CAST(x'b2ff00' AS TEXT) WHERE id = 6")  # not UTF-8
    with manual_writer(federation) as at:
        at.writer.recounter._check_uploads()
        assert at.upload(0, 2, names=("prototypes",)).exception(0) is None
    assert breaks(federation) == ["audit, entry 6: it was damaged, and what it said is lost"]


def test_chain_continues_over_a_restore(federation: Federation, tmp_path: Path) -> None:
    back_up(federation.store, tmp_path / "backup.db")
    admin.invite(federation.store, "late")
    restore(tmp_path / "backup.db", federation.store)
    with manual_writer(federation) as at:
        receipt = json.loads(at.upload(0, 2, names=("prototypes",)).result(0))
    with contextlib.closing(Store(federation.store)) as store:
        entries = store.audit.entries()
    assert [entry.event for entry in entries[6:]] == ["uploaded", "restored", "uploaded"]
    assert receipt["entry"] == 9 and breaks(federation) == []


def test_an_entry_takes_about_200_bytes(federation: Federation) -> None:
    with contextlib.closing(Store(federation.store)) as store:
        row = store.audit.find(7)
        assert row is not None and sum(len(str(value)) if value != row[-1] else 32 for value in row) < 220
