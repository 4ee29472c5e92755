"""Questions for messages: members get answers, and nobody else learns anything."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from consilience.peer.direct.link import DirectLink
from consilience.peer.direct.requests import FetchRequest, parse_messages, parse_refusal
from consilience.wire.charter import Charter
from tests.direct_tools import NAMES, secret_of, signed, small_charter

CHARTER = small_charter()


def key_of(name: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(secret_of(name))


def make_link(name: str = "north", charter: Charter = CHARTER, folder: Path | None = None) -> DirectLink:
    return DirectLink(charter, name, key_of(name), folder)


def question(member: str = "south", to: str = "north", charter: Charter = CHARTER) -> FetchRequest:
    return FetchRequest(charter.name, charter.fingerprint, member, to, {name: () for name in NAMES})


def test_a_member_s_question_is_answered() -> None:
    link, message = make_link(), signed(CHARTER, "west", 1).data
    link.mailbox.accept(message)
    reply = link.answer(question().sign(key_of("south")))
    assert parse_messages(reply) == (CHARTER.fingerprint, [message])


@pytest.mark.parametrize("member", ["south", "east"])
def test_who_is_not_a_member_learns_nothing(member: str, caplog: pytest.LogCaptureFixture) -> None:
    link, message = make_link(), signed(CHARTER, "west", 1).data
    link.mailbox.accept(message)
    asked = question(member)
    unsigned = f"consilience-fetch: 1\ncharter: {'0' * 64}\nwest\n".encode()
    changed = question().sign(key_of("south")).replace(b"\nwest\n", b"\nwest 0\n")
    for request in (asked.sign(key_of("east")), unsigned, changed):
        with caplog.at_level(logging.WARNING, "consilience.peer"):
            reply = link.answer(request)
        refusal = parse_refusal(reply)
        assert refusal is not None and refusal[0] in ("wrong-signature", "malformed-message")
        assert CHARTER.fingerprint[:16].encode() not in reply and message[:60] not in reply
    assert f"refused a question of {member} (wrong-signature)" in caplog.text


def test_a_message_that_no_member_signed_learns_no_fingerprint() -> None:
    reply = make_link().answer(signed(CHARTER, "south", 1, secret=secret_of("east"), fingerprint="0" * 64).data)
    assert reply.startswith(b"refused wrong-signature: ") and CHARTER.fingerprint[:16].encode() not in reply


def test_a_question_for_another_member_or_of_another_time_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    link = make_link()
    passed_on = link.answer(question(to="west").sign(key_of("south")))
    assert passed_on.startswith(b"refused other-recipient: the question is for west in 'wards', and this is north")
    old, now = question().sign(key_of("south")), time.time()
    for apart in (-400, 400):
        monkeypatch.setattr(time, "time", lambda apart=apart: now + apart)
        assert link.answer(old).startswith(b"refused wrong-time: the clock of south differs by ")
    monkeypatch.setattr(time, "time", lambda: now + 200)
    assert link.answer(old).startswith(b"messages: ")


def test_a_member_with_another_charter_gets_its_fingerprint_and_no_messages(caplog: pytest.LogCaptureFixture) -> None:
    link, other = make_link(), small_charter(expire=3)
    link.mailbox.accept(signed(CHARTER, "west", 1).data)
    with caplog.at_level(logging.WARNING, "consilience.peer"):
        reply = link.answer(question(charter=other).sign(key_of("south")))
    assert parse_messages(reply) == (CHARTER.fingerprint, [])
    assert f"south has another charter of 'wards': its fingerprint is {other.fingerprint[:16]}" in caplog.text


class InMemory:
    """A transport within the process; silent members take all the time that they are given."""

    def __init__(self, links: dict[str, DirectLink], silent: str) -> None:
        self.links, self.silent = links, silent

    def present(self) -> set[str]:
        return {*self.links, self.silent}

    def ask(self, request: bytes, seconds: float, member: str | None = None) -> dict[str, bytes]:
        if member == self.silent:
            time.sleep(seconds)
        return {name: link.answer(request) for name, link in self.links.items() if member in (None, name)}

    def close(self) -> None:
        pass


def test_a_silent_member_leaves_time_for_the_others() -> None:
    link, west = make_link(), make_link("west")
    west.mailbox.accept(signed(CHARTER, "west", 1).data)
    link.start(InMemory({"west": west}, silent="south"))  # south is asked first
    began = time.monotonic()
    assert link.fetch(NAMES, 1.0) and link.mailbox.newest_round("west") == 1
    assert time.monotonic() - began < 0.9


def test_a_refusal_s_reason_is_short_and_printable() -> None:
    code, why = parse_refusal(b"refused other-bytes: a\nWARNING b\x1b[31m\xff" + b"x" * 100_000) or ("", "")
    assert code == "other-bytes" and why.startswith("a?WARNING b?[31m") and why.isprintable() and len(why) == 1000


def test_an_error_within_an_answer_is_logged_and_the_next_is_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, message = make_link(folder=tmp_path), signed(CHARTER, "west", 1).data
    with monkeypatch.context() as broken:
        broken.setattr(link.mailbox, "_hold", lambda _: 1 / 0)
        assert link.answer(message).startswith(b"refused internal-error: it could not be answered")
    assert "could not be answered" in caplog.text and "ZeroDivisionError" in caplog.text
    assert link.answer(message) == b"accepted" and link.mailbox.newest_round("west") == 1
