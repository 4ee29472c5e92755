"""What a member holds of signed messages, and what it refuses before and after it has decoded anything."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from consilience.errors import CheckpointError, ConfigurationError, ConsilienceError, WireError
from consilience.peer.create_charter import with_members
from consilience.peer.direct.mailbox import Mailbox
from consilience.wire.charter import message_of
from consilience.wire.codec import Codec
from consilience.wire.headers import Part
from consilience.wire.signatures import parse_key
from consilience.wire.signed_message import read_message
from tests.direct_tools import CLASSES, WIDTH, parts_of, secret_of, signed, small_charter

CHARTER = small_charter()


def refused(mailbox: Mailbox, data: bytes) -> str:
    """The code with which a message is refused; nothing that is held has changed."""
    before = mailbox.rounds(), mailbox.revision
    with pytest.raises(ConsilienceError) as error:
        mailbox.accept(data)
    assert (mailbox.rounds(), mailbox.revision) == before
    return str(getattr(error.value, "code", ""))


def test_a_message_is_read_as_it_was_signed() -> None:
    message = signed(CHARTER, "north", 3)
    again = read_message(message.data)
    assert again == message and again.round == 3 and again.member == "north"
    assert again.signed.startswith(b"consilience-message: 1\nfederation: wards\ncharter: ")
    assert len(message.data) - len(message.body) < 420


def test_what_is_held_is_the_newest_and_two_rounds_before_it() -> None:
    mailbox = Mailbox(CHARTER, None)
    for round_ in range(6):
        assert mailbox.accept(signed(CHARTER, "north", round_).data)
    assert mailbox.rounds() == {"north": (3, 4, 5), "south": (), "west": ()}
    assert not mailbox.accept(signed(CHARTER, "north", 5).data)  # the same bytes again
    assert refused(mailbox, signed(CHARTER, "north", 2).data) == "older-round"
    assert refused(mailbox, signed(CHARTER, "north", 5, seed=1).data) == "other-bytes"


def test_a_channel_that_is_uploaded_seldom_stays() -> None:
    mailbox = Mailbox(CHARTER, None)
    mailbox.accept(signed(CHARTER, "north", 0).data)
    for round_ in range(1, 7):
        mailbox.accept(signed(CHARTER, "north", round_, only=["prototypes"]).data)
    assert mailbox.rounds()["north"] == (0, 4, 5, 6)
    assert {name: m.round for name, m in mailbox.newest_with("logits", 6).items()} == {"north": 0}
    late = Mailbox(CHARTER, None)
    late.accept(signed(CHARTER, "north", 6, only=["prototypes"]).data)
    sent = mailbox.missing_in(late.rounds())
    assert [read_message(data).round for data in sent] == [0]  # rounds 4 and 5 would add nothing
    assert late.accept(sent[0]) and late.newest_with("logits", 6)["north"].round == 0


def test_members_in_step_count_with_the_same_round() -> None:
    mailbox = Mailbox(CHARTER, None)
    for round_ in (3, 4, 5):
        mailbox.accept(signed(CHARTER, "south", round_).data)
    counted = {mine: mailbox.newest_with("logits", mine)["south"].round for mine in (2, 3, 4, 5, 9)}
    assert counted == {2: 5, 3: 3, 4: 4, 5: 5, 9: 5}  # further behind than members in step, the newest counts


@pytest.mark.parametrize("at", range(0, 1000, 37))
def test_a_changed_byte_is_refused(at: int) -> None:
    mailbox, data = Mailbox(CHARTER, None), bytearray(signed(CHARTER, "north", 1).data)
    data[at % len(data)] ^= 1
    assert refused(mailbox, bytes(data)) in (
        "malformed-message",
        "other-charter",
        "wrong-signature",
        "wrong-digest",
        "unknown-member",
    )


def test_strangers_and_other_charters_are_refused() -> None:
    mailbox = Mailbox(CHARTER, None)
    assert refused(mailbox, signed(CHARTER, "north", 1, secret=secret_of("south")).data) == "wrong-signature"
    assert refused(mailbox, signed(CHARTER, "east", 1).data) == "unknown-member"
    assert refused(mailbox, signed(CHARTER, "north", 1, federation="others").data) == "other-charter"
    assert refused(mailbox, signed(small_charter(expire=3), "north", 1).data) == "other-charter"
    with pytest.raises(WireError, match=r"its charter has the fingerprint [0-9a-f]{16}, and the one here"):
        mailbox.accept(signed(small_charter(expire=3), "north", 1).data)


def test_what_a_relay_would_refuse_is_refused_although_it_is_signed() -> None:
    mailbox, whole = Mailbox(CHARTER, None), signed(CHARTER, "north", 1)
    assert refused(mailbox, signed(CHARTER, "north", 1, body=whole.body + b"\0").data) == "wrong-length"
    assert refused(mailbox, signed(CHARTER, "north", 1, body=whole.body + bytes(20_000)).data) == "too-large"
    assert refused(mailbox, signed(CHARTER, "north", 1, parts={"weights": Part(weight=1)}).data) == "unknown-channel"
    parts = parts_of(CHARTER, ["prototypes"])
    message = message_of(CHARTER.channels, "up", parts)
    far: dict[str, np.ndarray] = {
        "prototypes.mean": np.full((CLASSES, WIDTH), 1.0, np.float32),
        "prototypes.count": np.ones(CLASSES),
    }
    body = bytearray(Codec(message).encode(far))
    at = body.index(np.float16(1.0).tobytes() * WIDTH)
    body[at : at + 2] = np.float16(np.nan).tobytes()
    assert refused(mailbox, signed(CHARTER, "north", 1, parts=parts, body=bytes(body)).data) == "not-finite"
    body[at : at + 2] = np.float16(3.0).tobytes()
    assert refused(mailbox, signed(CHARTER, "north", 1, parts=parts, body=bytes(body)).data) == "out-of-bounds"
    few = small_charter(samples=2)
    assert refused(Mailbox(few, None), signed(few, "north", 1).data) == "absurd-count"
    assert refused(mailbox, b"") == refused(mailbox, bytes(100)) == "malformed-message"


def test_messages_are_saved_and_checked_when_they_are_read_again(tmp_path: Path) -> None:
    mailbox = Mailbox(CHARTER, tmp_path)
    for round_ in range(5):
        mailbox.accept(signed(CHARTER, "north", round_).data)
    mailbox.accept(signed(CHARTER, "south", 1).data)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["north.2", "north.3", "north.4", "south.1"]
    again = Mailbox(CHARTER, tmp_path)
    assert again.rounds() == mailbox.rounds()
    assert refused(again, signed(CHARTER, "north", 1).data) == "older-round"  # a replay, also after a restart
    data = (tmp_path / "south.1").read_bytes()
    (tmp_path / "south.1").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=r"south\.1 is damaged, or of another charter"):
        Mailbox(CHARTER, tmp_path)


def test_a_signature_has_one_text(tmp_path: Path) -> None:
    """The last character before the padding has four bits that mean nothing: with others it is refused."""
    mailbox, data = Mailbox(CHARTER, tmp_path), signed(CHARTER, "north", 1).data
    at = data.index(b"==\n\n") - 1
    letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    other = data[:at] + letters[letters.index(data[at]) + 1 :][:1] + data[at + 1 :]
    assert refused(mailbox, other) == "wrong-signature"
    assert mailbox.accept(data) and not mailbox.accept(data)


def test_a_key_has_one_text() -> None:
    key = CHARTER.members[0].key
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    other = f"{key[:-2]}{letters[letters.index(key[-2]) + 1]}="
    with pytest.raises(ConfigurationError, match="is not a public key"):
        parse_key(other)
    with pytest.raises(ConfigurationError, match="the key of north is not a public key"):
        with_members(CHARTER, [("north", other), ("south", CHARTER.members[1].key)])


def test_only_the_owner_can_list_messages(tmp_path: Path) -> None:
    folder = tmp_path / "messages"
    Mailbox(CHARTER, folder).accept(signed(CHARTER, "north", 1).data)
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    Mailbox(CHARTER, folder)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_file_that_cannot_be_deleted_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mailbox = Mailbox(CHARTER, tmp_path)
    mailbox.accept(signed(CHARTER, "north", 0).data)
    (tmp_path / "north.0").unlink()
    (tmp_path / "north.0").mkdir()  # which unlink refuses
    for round_ in range(1, 5):
        assert mailbox.accept(signed(CHARTER, "north", round_).data)
    assert mailbox.rounds()["north"] == (2, 3, 4) and "north.0 cannot be deleted" in caplog.text
