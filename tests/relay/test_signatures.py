"""What a relay says is signed with its key, which no accident changes; another text has another signature."""

from __future__ import annotations

import base64
import contextlib
import re
import sqlite3
import stat
from pathlib import Path

import httpx
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from consilience.errors import ConfigurationError
from consilience.relay import admin
from consilience.relay.app import Limits, Relay
from consilience.relay.restore import back_up, restore
from consilience.wire.charter import read_charter
from tests.relay_tools import Federation, create_federation, in_a_thread, manual_writer, upload_headers


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return create_federation(tmp_path, 2)


def check(key: str, response: httpx.Response, kind: str, *bound: str) -> str:
    """Check a signature with nothing but docs/protocol.md; the signature's header."""
    header = response.headers["consilience-signature"]
    found = re.fullmatch(r"sig=:(.+):;epoch=(\d+)", header)
    assert found is not None
    lines = ["consilience-signature: 1", f"kind: {kind}", "federation: digits", f"epoch: {found[2]}", *bound]
    lines.append(f"content-digest: {response.headers['content-digest']}")
    public = Ed25519PublicKey.from_public_bytes(base64.b64decode(key.removeprefix("ed25519:")))
    public.verify(base64.b64decode(found[1]), "".join(f"{line}\n" for line in lines).encode())
    return str(header)


def test_everything_a_member_relies_on_is_signed_and_bound(federation: Federation) -> None:
    key = admin.key(federation.store)
    with in_a_thread(Relay(federation.store, Limits(rate=0))) as url, httpx.Client(base_url=url) as client:
        put = []
        for member in (0, 1):
            upload = federation.upload(member, 4)
            head = upload_headers(federation, member, upload)
            put += [client.put("/v1/rounds/4", content=upload.body, headers=head) for _ in range(2)]
        first = check(key, put[0], "receipt", "member: 0", "round: 4")
        assert check(key, put[1], "receipt", "member: 0", "round: 4") == first
        with pytest.raises(InvalidSignature):
            check(key, put[0], "receipt", "member: 1", "round: 4")
        with pytest.raises(InvalidSignature):
            check(key, put[0], "answer", "member: 0", "round: 4")
        answers = [
            client.get("/v1/answers?channel=prototypes&channel=weights", headers=federation.head(member))
            for member in (0, 1)
        ]
        for answer in answers:
            parts = answer.headers["consilience-answer"]
            check(key, answer, "answer", f"etag: {answer.headers['etag']}", f"parts: {parts}")
        same = [answer.headers["consilience-signature"] for answer in answers]
        assert same[0] == same[1], "means are shared, and so is their signature"
        reply = client.get("/v1/channels/weights/replies/1", headers=federation.head(0))
        check(key, reply, "reply", "channel: weights", "version: 1")
        status = client.get("/v1/federation", headers=federation.head(1))
        check(key, status, "federation", "member: 1")
        assert read_charter(status.json()["charter"]).relay_key == key


def test_key_is_of_the_store_alone_and_survives_a_backup(federation: Federation, tmp_path: Path) -> None:
    key = admin.key(federation.store)
    assert stat.S_IMODE(federation.store.stat().st_mode) == 0o600
    back_up(federation.store, tmp_path / "backup.db")
    assert stat.S_IMODE((tmp_path / "backup.db").stat().st_mode) == 0o600
    restore(tmp_path / "backup.db", federation.store)
    assert admin.key(federation.store) == key and stat.S_IMODE(federation.store.stat().st_mode) == 0o600
    (tmp_path / "other").mkdir()
    assert admin.key(create_federation(tmp_path / "other", 1).store) != key


def test_charter_of_another_relay_is_refused(federation: Federation, tmp_path: Path) -> None:
    served = federation.charter.with_relay_key(admin.key(federation.store)).to_toml()
    (tmp_path / "again.toml").write_text(served.replace('name = "digits"', 'name = "again"'))
    (tmp_path / "again.safetensors").write_bytes((tmp_path / "digits.safetensors").read_bytes())
    assert admin.create(federation.store, tmp_path / "again.toml").relay_key == admin.key(federation.store)
    with pytest.raises(ConfigurationError, match="has the relay_key of another relay"):
        admin.create(tmp_path / "new.db", tmp_path / "again.toml")


@pytest.mark.parametrize("which", ["sign", "sign-copy"])
def test_damaged_key_is_written_again_from_its_copy(federation: Federation, which: str) -> None:
    key = admin.key(federation.store)
    with contextlib.closing(sqlite3.connect(federation.store)) as sql, sql:
        sql.execute("UPDATE keys SET secret = zeroblob(32) WHERE purpose = ?", (which,))
    assert admin.key(federation.store) == key
    assert admin.verify(federation.store)["damage"]
    with manual_writer(federation) as at:
        assert any("written again from its copy" in line for line in at.writer.loaded.damage)
    assert admin.key(federation.store) == key and admin.verify(federation.store)["damage"] == []


def test_relay_without_its_key_serves_nothing_and_makes_no_other(federation: Federation) -> None:
    with contextlib.closing(sqlite3.connect(federation.store)) as sql, sql:
        sql.execute("UPDATE keys SET secret = zeroblob(32)")
    with in_a_thread(Relay(federation.store)) as url:
        refused = httpx.get(f"{url}/v1/federation", headers=federation.head(0))
    assert (refused.status_code, refused.json()["code"]) == (503, "damaged")
    assert "the key that signs receipts is damaged" in refused.json()["message"]
    assert "keys: the key that signs receipts and answers is gone" in admin.verify(federation.store)["damage"]
