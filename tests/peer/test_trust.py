"""A peer believes what its relay's key has signed, and nothing else; and it notices what a relay has lost."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consilience.errors import ConfigurationError, RelayError
from consilience.peer.connection import RelayConnection, connect_to_relay
from consilience.peer.http import RelayClient
from consilience.peer.state import ChannelUpload
from consilience.relay import admin
from consilience.relay.app import Limits, Relay
from consilience.relay.restore import back_up, restore
from consilience.relay.store import Store
from consilience.wire.charter import read_charter
from consilience.wire.headers import ANSWER_HEADER, upload_sha256
from consilience.wire.signatures import public_key
from tests.relay_tools import Federation, create_federation, in_a_thread

Change = Callable[[Any], Any]


def use_new_key(store: Store) -> None:
    """Sign with another private key, whose public part is in every charter."""
    store.keys.create()
    for record in store.federations.all():
        charter = read_charter(record.charter).with_relay_key(public_key(store.keys.get()))
        store.federations.update_row(record, record._replace(charter=charter.to_toml()))


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return create_federation(tmp_path, 2)


@contextlib.contextmanager
def served(federation: Federation) -> Iterator[str]:
    with in_a_thread(Relay(federation.store, Limits(rate=0))) as url:
        yield url


@contextlib.contextmanager
def peer(federation: Federation, url: str, **more: Any) -> Iterator[RelayConnection]:
    folder = federation.store.parent / "member"
    with contextlib.closing(connect_to_relay(url, federation.tokens[0], folder, **more)) as connection:
        yield connection


def queue(connection: RelayConnection, round_: int) -> None:
    mean = np.random.default_rng(round_).uniform(-1, 1, (3, 4)).astype(np.float32)
    upload = ChannelUpload({"mean": mean}, np.full(3, round_ + 1, dtype=np.int32))
    assert connection.outbox.queue(round_, {"prototypes": upload})


def share(connection: RelayConnection, round_: int) -> bool:
    queue(connection, round_)
    return connection.outbox.flush(10.0)


@contextlib.contextmanager
def changed(connection: RelayConnection, change: Change) -> Iterator[None]:
    """Somebody between relay and member changes what the relay says."""
    client = connection.client
    send = client._request
    client._request = lambda *given: change(send(*given))  # type: ignore[method-assign]
    try:
        yield
    finally:
        client._request = send  # type: ignore[method-assign]
        connection.backoff.succeeded()


def without(name: str) -> Change:
    return lambda r: replace(r, headers={k: v for k, v in r.headers.items() if k != name})


def with_body(edit: Callable[[bytes], bytes], *dropped: str) -> Change:
    def change(response: Any) -> Any:
        headers = {k: v for k, v in response.headers.items() if k not in dropped}
        return replace(response, headers=headers, body=edit(response.body))

    return change


def other_epoch(response: Any) -> Any:
    signature = response.headers["consilience-signature"]
    return replace(response, headers={**response.headers, "consilience-signature": f"{signature}0"})


def flipped(body: bytes) -> bytes:
    return body[:-3] + bytes([body[-3] ^ 1]) + body[-2:]


SPOILED: dict[str, Change] = {
    "no signature": without("consilience-signature"),
    "another body": with_body(flipped),
    "another body without a digest": with_body(
        lambda body: body[:-3] + bytes([body[-3] ^ 1]) + body[-2:], "content-digest"
    ),
    "another epoch": other_epoch,
}


# -- keys -----------------------------------------------------------------------------------------------------------


def test_key_of_the_first_contact_is_kept_and_another_one_refused(federation: Federation) -> None:
    with served(federation) as url:
        with peer(federation, url) as connection:
            assert connection.charter.relay_key == admin.key(federation.store)
        index = federation.store.parent / "member" / "peer" / "state.json"
        kept = index.read_bytes()
    with contextlib.closing(Store(federation.store)) as store, store.writing():
        use_new_key(store)  # another relay at the same address, whose charter names its own key
    with served(federation) as url:
        with pytest.raises(RelayError, match="is not signed with its key ed25519:") as refused, peer(federation, url):
            pass
        assert refused.value.code == "wrong-signature" and index.read_bytes() == kept


def test_key_is_on_disk_after_the_first_contact(federation: Federation) -> None:
    with served(federation) as url:
        connection = connect_to_relay(url, federation.tokens[0], federation.store.parent / "member")
        connection.disconnect()  # killed: nothing is saved from here on
        with peer(federation, url) as again:
            assert again.client.trust.key == admin.key(federation.store)
        with pytest.raises(ConfigurationError, match="was made with a relay whose key is"):
            other = f"ed25519:{'A' * 43}="
            connect_to_relay(url, federation.tokens[0], federation.store.parent / "member", relay_key=other)


def test_given_key_is_checked_from_the_first_contact(federation: Federation) -> None:
    with served(federation) as url:
        for given, error in ((f"ed25519:{'A' * 43}=", RelayError), ("ed25519:short", ConfigurationError)):
            with pytest.raises(error), peer(federation, url, relay_key=given):
                pass
        assert not (federation.store.parent / "member").exists()
        with peer(federation, url, relay_key=admin.key(federation.store)) as connection:
            assert share(connection, 0)


# -- receipts and answers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", SPOILED)
def test_receipt_that_is_not_signed_is_no_acknowledgment(
    federation: Federation, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    with served(federation) as url, peer(federation, url) as connection:
        with changed(connection, SPOILED[how]):
            queue(connection, 3)
            pending = connection.state.pending
            assert not connection.outbox.flush(1.0)
        state = connection.state
        assert "is not the relay that this member knows, or was changed" in caplog.text
        assert state.pending is pending and state.round == -1 and state.receipt == {}
        assert connection.outbox.flush(10.0) and state.round == 3  # the same bytes again


@pytest.mark.parametrize("wrong", [{"round": 9}, {"sha256": "0" * 64}, {"epoch": 1}])
def test_receipt_of_another_upload_is_no_acknowledgment(federation: Federation, wrong: dict[str, Any]) -> None:
    with served(federation) as url, peer(federation, url) as connection:
        trust = connection.client.trust
        check, trust.check_receipt = trust.check_receipt, lambda *given: connection.client.epoch  # type: ignore[method-assign]
        edit = with_body(lambda body: json.dumps({**json.loads(body), **wrong}).encode())
        with changed(connection, edit):
            queue(connection, 3)
            assert not connection.outbox.flush(1.0) and connection.state.pending is not None
        trust.check_receipt = check  # type: ignore[method-assign]
        assert connection.outbox.flush(10.0)
        receipt = connection.state.receipt
        upload = connection.state.receipt["sha256"]
        assert receipt["round"] == 3 and len(upload) == len(upload_sha256("", b""))


@pytest.mark.parametrize("how", [*SPOILED, "another header"])
def test_answer_that_is_not_signed_changes_nothing(federation: Federation, how: str) -> None:
    def other_header(response: Any) -> Any:
        return replace(response, headers={**response.headers, ANSWER_HEADER.lower(): "observations;entries=2"})

    with served(federation) as url, peer(federation, url) as connection:
        assert share(connection, 0)
        with changed(connection, SPOILED.get(how, other_header)):
            assert connection.inbox.download(["prototypes"], {}, 1.0) == {}
        assert connection.state.answers == {} and connection.state.etag == ""
        assert set(connection.inbox.download(["prototypes"], {}, 10.0)) == {"prototypes"}


def test_receipts_are_kept_with_their_signatures(federation: Federation) -> None:
    with served(federation) as url, peer(federation, url) as connection:
        assert share(connection, 0) and share(connection, 1)
    lines = (federation.store.parent / "member" / "peer" / "receipts.jsonl").read_text().splitlines()
    with contextlib.closing(Store(federation.store)) as store:
        chains = {entry.id: entry.chain.hex() for entry in store.audit.entries()}
    kept = [json.loads(line) for line in lines]
    assert [(each["round"], chains[each["entry"]]) for each in kept] == [
        (n, each["chain"]) for n, each in enumerate(kept)
    ]
    assert all(each["signature"].startswith("sig=:") for each in kept)


# -- what a relay has lost ------------------------------------------------------------------------------------------


def lose_last(federation: Federation, more: Callable[[RelayConnection], None], before: int) -> None:
    """Play uploads of a peer, kill the relay, and damage what the log has of everything after upload `before`."""
    wal, folder = federation.store.with_name("relay.db-wal"), federation.store.parent / "killed"
    folder.mkdir()
    with contextlib.closing(Store(federation.store)), served(federation) as url, peer(federation, url) as connection:
        for round_ in range(before):
            assert share(connection, round_)
        size = wal.stat().st_size
        more(connection)
        assert wal.stat().st_size > size
        for name in ("relay.db", "relay.db-wal"):
            shutil.copy(federation.store.with_name(name), folder / name)
    log = bytearray((folder / "relay.db-wal").read_bytes())
    log[size + 100] ^= 4
    for file in (wal, federation.store.with_name("relay.db-shm")):
        file.unlink(missing_ok=True)
    shutil.copy(folder / "relay.db", federation.store)
    wal.write_bytes(log)


def test_peer_notices_an_acknowledged_upload_that_a_damaged_log_has_lost(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    lose_last(federation, _two_more, before=2)
    caplog.set_level(logging.WARNING)
    with served(federation) as url, peer(federation, url) as connection:
        assert "the relay has lost an upload that it acknowledged: it has round 1" in caplog.text
        assert "its receipt is of round 3" in caplog.text
        assert connection.state.round == 3 and connection.state.receipt == {}
        assert share(connection, 4)
        assert connection.state.receipt["round"] == 4 and connection.state.receipt["after"] == 1
    caplog.clear()
    with served(federation) as url, peer(federation, url):
        assert "has lost" not in caplog.text  # said once
    federation.sums_are_right()


def _two_more(connection: RelayConnection) -> None:
    assert share(connection, 2) and share(connection, 3)


def test_peer_that_goes_on_notices_the_loss_with_its_next_receipt(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    with served(federation) as url, peer(federation, url) as connection:
        assert share(connection, 0) and share(connection, 1)
        connection.inbox.download(["prototypes", "weights"], {}, 10.0)
        with contextlib.closing(Store(federation.store)) as store, store.writing():
            store.sql.execute("DELETE FROM receipts WHERE round = 1")
            record = store.members.get(1)
            assert record is not None
            store.members.update_row(record, record._replace(round=0))
        assert share(connection, 2)
        assert "the relay has lost an upload that it acknowledged: it has round 0" in caplog.text
        assert connection.state.etag == "" and connection.state.receipt["round"] == 2


def test_restored_relay_is_no_loss(federation: Federation, caplog: pytest.LogCaptureFixture) -> None:
    with served(federation) as url, peer(federation, url) as connection:
        assert share(connection, 0)
        back_up(federation.store, federation.store.with_name("backup.db"))
        assert share(connection, 1)
    restore(federation.store.with_name("backup.db"), federation.store)
    with served(federation) as url, peer(federation, url) as connection:
        assert share(connection, 2) and connection.state.receipt["epoch"] == connection.client.epoch
    assert "has lost" not in caplog.text


@pytest.mark.parametrize("number", [1, 3])
def test_a_charter_of_another_protocol_is_named_as_such(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A relay of another version is no attack, and the message says what to do."""
    send, other = RelayClient._request, with_body(lambda body: body.replace(b"protocol = 2", b"protocol = %d" % number))
    monkeypatch.setattr(RelayClient, "_request", lambda *given: other(send(*given)))
    said = f"serves a charter that cannot be followed: .*protocol is {number}; this library implements 2"
    with served(federation) as url, pytest.raises(RelayError, match=said) as refused, peer(federation, url):
        pass
    assert "use the version of consilience that the charter was made with, or create" in str(refused.value)
    assert "changed on its way" not in str(refused.value)
    assert not (federation.store.parent / "member").exists()
