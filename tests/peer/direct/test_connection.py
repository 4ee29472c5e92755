"""Members that join without a relay: what they publish and hold, whom they refuse, and how they resume."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trustme

import consilience
from consilience.errors import CheckpointError, ConfigurationError, RelayUnreachable
from consilience.peer.create_charter import TaskShape, create_charter, with_members
from consilience.peer.direct.connection import DirectConnection, connect_to_peers
from consilience.peer.state import ChannelUpload
from consilience.wire.charter import Charter
from tests.direct_tools import CLASSES, NAMES, WIDTH, Wards, signed, small_charter
from tests.peer_tools import SHAPE, batches, net


@pytest.fixture
def wards(tmp_path: Path) -> Wards:
    found = Wards(tmp_path / "wards")
    found.write(small_charter())
    return found


@contextlib.contextmanager
def joined(wards: Wards, *names: str, **other: Any) -> Iterator[list[DirectConnection]]:
    """Some members, joined at once, as processes would be."""
    folder = wards.folder.parent

    def join(name: str) -> DirectConnection:
        return connect_to_peers(wards.network(name, **other), folder / f"peer-{name}", timeout=2.0)

    with ThreadPoolExecutor(len(names)) as pool:
        connections = list(pool.map(join, names))
    try:
        yield connections
    finally:
        for each in connections:
            each.close()


def publish(connection: DirectConnection, round_: int, value: float = 0.5) -> None:
    means, counts = np.full((CLASSES, WIDTH), value, np.float32), np.full(CLASSES, 2.0)
    both = np.stack([means, means])
    uploads = {
        "prototypes": ChannelUpload({"mean": means}, counts),
        "observations": ChannelUpload({"mean": both}, np.stack([counts, counts])),
        "logits": ChannelUpload({"mean": np.full(CLASSES, value, np.float32)}, np.array(4.0)),
    }
    assert connection.outbox.queue(round_, uploads) and connection.outbox.flush(2.0)


def test_what_a_member_publishes_is_with_all_others(wards: Wards) -> None:
    with joined(wards, *NAMES) as members:
        for value, member in enumerate(members):
            publish(member, 0, value / 2)
        for member in members:
            member.wait_for_others(0, 10.0)
            found = member.inbox.download(["prototypes", "logits"], {}, 2.0)
            assert found["prototypes"].tensors["mean"].ravel().tolist() == [0.5] * (CLASSES * WIDTH)
            assert found["logits"].tensors["mean"].tolist() == [0.5] * CLASSES and found["logits"].count == 12
            assert member.counted_rounds(0) == dict.fromkeys(NAMES, 0)
        sizes = {member.client.bytes_sent for member in members}
        assert min(sizes) > 0 and members[0].client.present() == {"south", "west"}


def test_a_latecomer_gets_what_was_published_also_of_one_that_left(wards: Wards) -> None:
    with joined(wards, "north", "south") as (north, south):
        publish(south, 4)
        publish(north, 4)
        south.close()
        with joined(wards, "west") as (west,):
            assert west.client.mailbox.rounds() == {"north": (4,), "south": (4,), "west": ()}  # south's, from north


def test_a_member_with_an_empty_folder_continues_after_its_newest_round(wards: Wards) -> None:
    with joined(wards, "north", "south") as (north, south):
        publish(south, 7)
        south.close()
        (wards.folder.parent / "peer-south").rename(wards.folder.parent / "lost")
        with joined(wards, "south") as (again,):
            assert again.state.round == 7
            assert again.state.spent["uploads"] == 8 and again.state.spent["lost"], "the privacy budget goes on too"
            publish(again, 8)
            assert north.client.mailbox.newest_round("south") == 8


def test_a_member_that_others_know_better_learns_its_round(wards: Wards, caplog: pytest.LogCaptureFixture) -> None:
    with joined(wards, "north", "south") as (north, south):
        publish(south, 0)
        charter = wards.network("south").read_charter()
        secret = _secret(wards, "south")
        for round_ in (5, 6):
            assert north.client.answer(signed(charter, "south", round_, secret=secret).data) == b"accepted"
        with caplog.at_level(logging.WARNING, "consilience.peer"):
            assert not _try_publish(south, 1)
        assert south.state.round == 6 and "newer rounds of this member" in caplog.text
        publish(south, 7)
        assert north.client.mailbox.newest_round("south") == 7


def _try_publish(connection: DirectConnection, round_: int) -> bool:
    uploads = {"logits": ChannelUpload({"mean": np.zeros(CLASSES, np.float32)}, np.array(4.0))}
    return connection.outbox.queue(round_, uploads) and connection.outbox.flush(2.0)


def _secret(wards: Wards, name: str) -> bytes:
    from consilience.peer.direct.key_file import read_key

    return read_key(wards.folder / f"{name}.key")[0]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"secret": bytes(32)}, "wrong-signature"),
        ({"fingerprint": "0" * 64}, "other-charter"),
        ({"body": bytes(200)}, "wrong-length"),
        ({"body": bytes(50_000)}, "too-large"),
    ],
)
def test_a_bad_message_is_refused_and_logged(
    wards: Wards, caplog: pytest.LogCaptureFixture, change: dict[str, Any], code: str
) -> None:
    charter = wards.network("south").read_charter()
    with joined(wards, "north", "south") as (north, south), caplog.at_level(logging.WARNING, "consilience.peer"):
        data = signed(charter, "south", 1, **{"secret": _secret(wards, "south"), **change}).data
        assert south.client._transport is not None
        reply = south.client._transport.ask(data, 5.0)["north"]
        assert reply.startswith(f"refused {code}: ".encode()), reply
        assert f"refused a message ({code})" in caplog.text
        assert north.client.mailbox.newest_round("south") == -1


def test_a_replay_and_a_changed_byte_are_refused_and_logged(wards: Wards, caplog: pytest.LogCaptureFixture) -> None:
    charter, secret = wards.network("south").read_charter(), _secret(wards, "south")
    with joined(wards, "north", "south") as (north, south), caplog.at_level(logging.WARNING, "consilience.peer"):
        transport = south.client._transport
        assert transport is not None
        for round_ in (1, 2):
            assert transport.ask(signed(charter, "south", round_, secret=secret).data, 5.0) == {"north": b"accepted"}
        old = signed(charter, "south", 0, secret=secret).data
        assert transport.ask(old, 5.0)["north"].startswith(b"refused older-round: round 0 of south came after round 2")
        new = bytearray(signed(charter, "south", 3, secret=secret).data)
        new[-1] ^= 1
        assert transport.ask(bytes(new), 5.0)["north"].startswith(b"refused wrong-digest: ")
        assert "(older-round)" in caplog.text and "(wrong-digest)" in caplog.text
        assert north.client.mailbox.rounds()["south"] == (1, 2)


def test_a_member_with_another_charter_is_refused_by_its_fingerprint(wards: Wards) -> None:
    mine = wards.network("south").read_charter()
    other: Charter = mine.model_copy(update={"seed": 6})
    (wards.folder / "other.toml").write_text(other.to_toml())
    started = threading.Event()

    def serve() -> None:
        with joined(wards, "north", "west"):
            started.set()
            done.wait(30)

    done = threading.Event()
    server = threading.Thread(target=serve)
    server.start()
    try:
        assert started.wait(30)
        with pytest.raises(
            ConfigurationError, match="north has another charter of 'wards': its fingerprint is"
        ) as error:
            connect_to_peers(
                wards.network("south", charter=str(wards.folder / "other.toml")), wards.folder / "peer-south"
            )
        assert mine.fingerprint[:16] in str(error.value) and other.fingerprint[:16] in str(error.value)
    finally:
        done.set()
        server.join()


def test_a_stranger_s_certificate_reaches_nobody(wards: Wards) -> None:
    wards.certify("south", trustme.CA())  # of another authority
    with joined(wards, "north", "west"), pytest.raises(RelayUnreachable, match="no other member of 'wards' could be"):
        connect_to_peers(wards.network("south", wait=2.0), wards.folder / "peer-south")


def test_nobody_else_is_an_error_that_says_where_they_were_sought(wards: Wards) -> None:
    with pytest.raises(RelayUnreachable, match=r"within 0\.5 s, of south, west: tried tls/127\.0\.0\.1"):
        connect_to_peers(wards.network("north", wait=0.5), wards.folder / "peer-north")


def test_a_key_that_two_processes_use_is_noticed(wards: Wards, caplog: pytest.LogCaptureFixture) -> None:
    charter, secret = wards.network("south").read_charter(), _secret(wards, "south")
    with joined(wards, "north", "south") as (north, south), caplog.at_level(logging.WARNING, "consilience.peer"):
        assert (
            north.client.answer(signed(charter, "south", 0, secret=secret).data) == b"accepted"
        )  # of a second process
        publish(south, 0)
        assert "is its key used by two processes?" in caplog.text


def test_a_member_that_does_not_come_is_awaited_once(wards: Wards, caplog: pytest.LogCaptureFixture) -> None:
    with joined(wards, "north", "south") as (north, south), caplog.at_level(logging.WARNING, "consilience.peer"):
        for member in (north, south):
            publish(member, 0)
        north.wait_for_others(0, 0.3)
        assert "nothing of round 0 from west within 0.3 s" in caplog.text
        caplog.clear()
        publish(south, 1)
        publish(north, 1)
        north.wait_for_others(1, 30.0)  # at once: south is there, and west is not awaited again
        assert caplog.text == ""
        assert north.counted_rounds(1) == {"north": 1, "south": 1}


def test_a_folder_of_another_member_is_refused(wards: Wards) -> None:
    with joined(wards, "north", "south"):
        pass
    with pytest.raises(CheckpointError, match="is of another federation or member"):
        connect_to_peers(wards.network("west", wait=0.5), wards.folder.parent / "peer-north")


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"ca_file": None}, "tls/ needs certificates on both sides, and --ca-file is missing"),
        ({"certificate": "nowhere.pem"}, "--certificate nowhere.pem: cannot be read"),
        ({"peers": ["south:7447"]}, "'south:7447' is not an address"),
        ({"peers": [], "listen": []}, "no address is given"),
        ({"peers": ["iroh/south@127.0.0.1:1"]}, "addresses of one transport are needed"),
        ({"peers": ["iroh/east@127.0.0.1:1"], "listen": []}, "the charter has no member 'east'"),
        ({"peers": ["iroh/south"], "listen": []}, "says who, and not where"),
        ({"iroh_relays": ["https://relay.example"]}, "--iroh-relay is for addresses with iroh/"),
        ({"key": "nowhere.key"}, "the key cannot be read"),
        ({"charter": "nowhere.toml"}, "cannot be read"),
    ],
)
def test_what_cannot_work_is_refused_at_once(wards: Wards, other: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        connect_to_peers(wards.network("north", **other), wards.folder / "peer-north")


def test_a_key_that_the_charter_does_not_list_is_refused(wards: Wards, tmp_path: Path) -> None:
    from consilience.peer.direct.key_file import make_key

    make_key(tmp_path / "mine.key")
    with pytest.raises(ConfigurationError, match="is not the key of a member: its public key is ed25519:"):
        connect_to_peers(wards.network("north", key=str(tmp_path / "mine.key")))
    (tmp_path / "mine.key").write_text("something else")
    with pytest.raises(ConfigurationError, match="is not the key of a member; `consilience key FILE` makes one"):
        connect_to_peers(wards.network("north", key=str(tmp_path / "mine.key")))


def test_join_takes_a_network_or_a_relay_and_not_a_mixture(wards: Wards) -> None:
    with pytest.raises(ConfigurationError, match="a PeerNetwork has no relay: leave out token and relay_key"):
        consilience.join(wards.network("north"), "cs1_token")


def test_a_charter_for_a_relay_is_refused(wards: Wards, tmp_path: Path) -> None:
    charter = wards.network("north").read_charter().model_copy(update={"members": ()})
    (tmp_path / "relay.toml").write_text(charter.to_toml())
    with pytest.raises(ConfigurationError, match="lists no members: it is for a relay"):
        connect_to_peers(wards.network("north", charter=str(tmp_path / "relay.toml")))


def test_partners_that_the_charter_does_not_list_are_refused(wards: Wards) -> None:
    with joined(wards, "north", "south") as (north, _):
        with pytest.raises(ConfigurationError, match="'wards' has no member 3, 7; there are 0 north, 1 south, 2 west"):
            north.use_partners([1, 3, 7])
        north.use_partners([2, 1, 1])
        assert north.inbox.partners == (1, 2)


def test_refresh_does_not_wait_for_more_than_what_share_has_downloaded(tmp_path: Path) -> None:
    """The last to share a round finds all others' uploads at once; nothing newer comes before it goes on."""
    wards = Wards(tmp_path / "wards", ("north", "south"))
    charter, _ = create_charter("wards", {"name": "fedproto"}, TaskShape(SHAPE, CLASSES), [net], seed=5)
    wards.write(with_members(charter, []))
    folder = wards.folder.parent

    def member(name: str) -> consilience.Peer:
        return consilience.join(wards.network(name), model=net(), folder=folder / name)

    with ThreadPoolExecutor(2) as pool:
        north, south = pool.map(member, ("north", "south"))
    with north, south:
        for round_ in (1, 2):
            assert north.share(batches(1)) and south.share(batches(2))
            started = time.monotonic()
            assert south.refresh(wait=30) and north.refresh(wait=30), f"round {round_}"
            south.refresh(wait=30)
            assert time.monotonic() - started < 15
