"""A member or an unauthenticated client that uses more than its share does not affect other members."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest

from consilience.errors import ConfigurationError
from consilience.relay import admin
from consilience.relay.recount import apply_correction, recount
from consilience.relay.store import LAYOUT, Store
from consilience.relay.tables import StoredReceipt
from tests.relay_tools import Federation, create_federation, manual_writer, serving, upload_headers


def open_connection(url: str) -> socket.socket:
    host, port = urlsplit(url).hostname, urlsplit(url).port
    assert host is not None and port is not None
    return socket.create_connection((host, port), timeout=5)


def started_upload(federation: Federation, url: str, member: int) -> socket.socket:
    """An upload of which only the head is sent."""
    upload = federation.upload(member, 1)
    lines = [f"{name}: {value}" for name, value in upload_headers(federation, member, upload).items()]
    head = ["PUT /v1/rounds/1 HTTP/1.1", "Host: relay", f"Content-Length: {len(upload.body)}", *lines, "", ""]
    line = open_connection(url)
    line.sendall("\r\n".join(head).encode())
    return line


def test_member_has_one_upload_in_progress_at_a_time(tmp_path: Path) -> None:
    federation = create_federation(tmp_path, 2)
    upload = federation.upload(0, 1)
    with serving(federation.store) as relay, contextlib.closing(started_upload(federation, relay.url, 0)) as slow:
        for _ in range(50):
            again = httpx.put(
                f"{relay.url}/v1/rounds/1", content=upload.body, headers=upload_headers(federation, 0, upload)
            )
            if again.status_code == 429:
                break
        assert (again.status_code, again.json()["code"]) == (429, "over-quota")
        assert int(again.headers["retry-after"]) >= 1
        other = federation.upload(1, 1)
        taken = httpx.put(f"{relay.url}/v1/rounds/1", content=other.body, headers=upload_headers(federation, 1, other))
        assert taken.status_code == 200
        slow.sendall(upload.body)
        assert slow.recv(4096).startswith(b"HTTP/1.1 200")
        known = httpx.put(
            f"{relay.url}/v1/rounds/1", content=upload.body, headers=upload_headers(federation, 0, upload)
        )
        assert known.json()["sha256"] == upload.sha256


def test_event_streams_are_counted_before_they_start(tmp_path: Path) -> None:
    federation = create_federation(tmp_path, 1)

    async def ask(url: str) -> list[int]:
        async with httpx.AsyncClient(base_url=url, timeout=10) as client, contextlib.AsyncExitStack() as held:
            calls = [client.stream("GET", "/v1/events", headers=federation.head(0)) for _ in range(30)]
            answers = await asyncio.gather(*(held.enter_async_context(call) for call in calls))
            return [answer.status_code for answer in answers]

    with serving(federation.store) as relay:
        first, again = asyncio.run(ask(relay.url)), asyncio.run(ask(relay.url))
    assert (first.count(200), first.count(429)) == (4, 26)
    assert again.count(200) > 0, "those that ended are given back"


def test_unauthenticated_answers_close_the_connection(tmp_path: Path) -> None:
    federation = create_federation(tmp_path, 1)
    with serving(federation.store) as relay:
        for path in ("/health", "/openapi.json", "/nowhere", "/v1/federation"):
            with contextlib.closing(open_connection(relay.url)) as line:
                line.sendall(f"GET {path} HTTP/1.1\r\nHost: relay\r\n\r\n".encode() * 50)
                said = b"".join(iter(lambda line=line: line.recv(65536), b""))  # type: ignore[misc]
            assert said.count(b"HTTP/1.1 ") == 1, path


def test_recount_requested_twice_is_applied_once(tmp_path: Path) -> None:
    federation = create_federation(tmp_path, 2)
    with manual_writer(federation) as at:
        for member in range(2):
            at.upload(member, 1).result(0)
        with at.writer.store.writing():
            state = at.writer.store.channel_states.get(1, "prototypes")
            assert state is not None
            wrong = {**state, "sums.mean": state["sums.mean"] + 5}
            at.writer.store.channel_states.save(1, "prototypes", wrong)
        at.service.snapshot.standing["prototypes"].load(wrong)
        at.writer.recounter.request(1)
        at.writer.recounter.recount_requested()
        at.poll()
        at.writer.recounter.request(1)
        at.writer.recounter.recount_requested()
        at.poll()
        assert np.allclose(at.service.snapshot.standing["prototypes"].sums["mean"], state["sums.mean"])
        assert recount(at.service, at.writer.store) == {}


def test_correction_leaves_classes_without_samples_at_zero(tmp_path: Path) -> None:
    federation = create_federation(tmp_path, 2)
    with manual_writer(federation) as at:
        at.upload(0, 1).result(0)
        draft = at.service.snapshot.draft()
        state = draft.standing["prototypes"].state()
        off = {k: np.ones_like(v) if k == "sums.mean" else v * 0 for k, v in state.items()}
        apply_correction(draft, {"prototypes": off})
        empty = state["holders"] == 0
        assert empty.any(), "the drawn counts leave a class out"
        assert not draft.standing["prototypes"].sums["mean"][empty].any()


def test_database_of_another_program_is_not_modified(tmp_path: Path) -> None:
    file = tmp_path / "mine.db"
    with contextlib.closing(sqlite3.connect(file)) as mine:
        mine.execute("CREATE TABLE mine(x)")
        mine.commit()
    before = file.read_bytes()
    for command in (["status"], ["serve", "--port", "0"], ["invite", "me"]):
        done = subprocess.run(
            [sys.executable, "-m", "consilience", "relay", *command, "--store", str(file)],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode != 0
        assert "is not a relay's store" in done.stderr and "Traceback" not in done.stderr
    assert file.read_bytes() == before


@pytest.mark.parametrize(("layout", "age"), [(1, "an older"), (LAYOUT + 1, "a newer")])
def test_store_of_another_layout_is_refused(tmp_path: Path, layout: int, age: str) -> None:
    federation = create_federation(tmp_path, 1)
    with contextlib.closing(sqlite3.connect(federation.store)) as other:
        other.execute(f"PRAGMA user_version = {layout}")
    with pytest.raises(ConfigurationError) as refused:
        Store(federation.store)
    message = str(refused.value)
    assert f"{federation.store} is a store of layout {layout}, which {age} version" in message
    assert f"reads layout {LAYOUT}" in message and "create the federation again" in message


def test_second_relay_on_one_store_fails_with_one_line(tmp_path: Path) -> None:
    federation = create_federation(tmp_path, 1)
    with serving(federation.store):
        done = subprocess.run(
            [sys.executable, "-m", "consilience", "relay", "serve", "--store", str(federation.store), "--port", "0"],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "served by another relay" in done.stderr


def test_only_the_newest_receipts_are_kept(tmp_path: Path) -> None:
    federation = create_federation(tmp_path, 1)
    with contextlib.closing(Store(federation.store)) as store, store.writing():
        for round_ in range(0, 3 * 12_000, 3):
            member = store.members.get(1)
            assert member is not None
            store.receipts.add(store.members.count_upload(member, round_, 10), StoredReceipt("0" * 64, "{}"), 10)
        kept = [round_ for (round_,) in store.sql.execute("SELECT round FROM receipts ORDER BY round")]
        member = store.members.get(1)
    assert member is not None
    assert (member.uploads, member.bytes, member.round) == (12_000, 120_000, 3 * 11_999)
    assert kept == list(range(3 * 2_000, 3 * 12_000, 3))


def test_store_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    federation = create_federation(tmp_path, 1)
    assert federation.store.stat().st_mode & 0o077 == 0
    with contextlib.closing(Store(federation.store)):
        admin.status(federation.store)
