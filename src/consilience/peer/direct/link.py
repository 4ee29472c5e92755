"""A member's link to the other members: it signs and publishes what it uploads, and aggregates what it holds."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from consilience.errors import ConsilienceError, RelayError, WireError
from consilience.peer.direct.aggregate import OwnAnswers
from consilience.peer.direct.expiry import FirstUsed
from consilience.peer.direct.mailbox import Mailbox, Refused, describe_refusal
from consilience.peer.direct.requests import (
    ACCEPTED,
    FetchRequest,
    encode_messages,
    encode_refusal,
    parse_fetch,
    parse_messages,
    parse_refusal,
)
from consilience.peer.direct.transport import Transport
from consilience.peer.link import AnswersMessage
from consilience.relay.repeat_filter import RepeatFilter
from consilience.wire.charter import Charter
from consilience.wire.headers import Parts
from consilience.wire.signed_message import SignedMessage, sign_message

log = logging.getLogger("consilience.peer")
LARGEST_REPLY = 2**20
"""Bytes of messages in one reply, unless a single message is longer; for more, the question is asked again."""
_REPEATED = ("older-round", "other-bytes")  # refusals after which a member continues after the round that others know


class DirectLink:
    """What a member asks of the others, and what it answers them; a `Link` without a relay.

    name: this member's. folder: where messages are saved, if anywhere.
    """

    def __init__(self, charter: Charter, name: str, key: Ed25519PrivateKey, folder: Path | None) -> None:
        self.url, self.epoch = f"federation {charter.name!r}", 0
        self.bytes_sent = self.bytes_received = self.largest_answer = 0
        self.charter, self.name, self._key = charter, name, key
        self.numbers = {member.name: number for number, member in enumerate(charter.members)}
        self.mailbox = Mailbox(charter, folder)
        self.other_charters: dict[str, str] = {}
        """Members that said they have another charter, and its fingerprint."""
        self._answers = OwnAnswers(charter, self.mailbox.messages, self.numbers[name])
        self._transport: Transport | None = None
        self._repeats = RepeatFilter()
        self._first_used = FirstUsed(folder if charter.rules.expire else None)

    @property
    def others(self) -> list[str]:
        """Names of the other members."""
        return [name for name in self.numbers if name != self.name]

    def start(self, transport: Transport) -> None:
        """Use a transport from now on."""
        self._transport = transport

    def present(self) -> set[str]:
        """The other members that are connected now, as they call themselves."""
        return self._transport.present() & set(self.others) if self._transport is not None else set()

    def close(self) -> None:
        """Close all connections."""
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    # -- what others ask -----------------------------------------------------------------------------------------------

    def answer(self, request: bytes) -> bytes:
        """The reply to another member's request; an error within it is logged, and others are answered all the same."""
        try:
            return self._answer(request)
        except Exception:
            log.exception("a request of %d bytes could not be answered", len(request))
            return encode_refusal("internal-error", "it could not be answered; the log of who was asked says why")

    def _answer(self, request: bytes) -> bytes:
        try:
            question = parse_fetch(request)
            if question is None:
                self._receive(request)
                return ACCEPTED
            self._check_question(question)
        except ConsilienceError as error:
            return encode_refusal(*describe_refusal(error))
        self._note_charter(question.member, question.charter)
        wanted = {name: rounds for name, rounds in question.rounds.items() if name in self.numbers}
        same = question.charter == self.charter.fingerprint
        found = self.mailbox.missing_in(wanted) if same else []
        return encode_messages(self.charter.fingerprint, found, LARGEST_REPLY)

    def _check_question(self, question: FetchRequest) -> None:
        """Refuse, and log, a question that no member has signed."""
        try:
            question.check(self.mailbox.keys, self.charter.name, self.name)
        except WireError as error:
            if (held := self._repeats.count((error.code, question.member))) is not None:
                more = f" (and {held} more)" if held else ""
                log.warning("refused a question of %s (%s): %s%s", question.member, error.code, error, more)
            raise

    def _receive(self, data: bytes) -> None:
        """Hold a message of another member; one that is refused is logged."""
        try:
            if self.mailbox.accept(data):
                self.bytes_received += len(data)
        except (*Refused, ConsilienceError) as error:
            code, why = describe_refusal(error)
            if (held := self._repeats.count((code, data[:400]))) is not None:
                log.warning("refused a message (%s): %s%s", code, why, f" (and {held} more)" if held else "")
            raise

    # -- what this member asks -----------------------------------------------------------------------------------------

    def fetch(self, names: Collection[str], seconds: float) -> bool:
        """Ask the members that are connected for what they have of some members; whether any came.

        They are asked one after the other, so that nothing comes twice; each has an equal share of the time left.
        """
        assert self._transport is not None
        end, before, present = time.monotonic() + seconds, self.mailbox.revision, sorted(self.present())
        for still, member in zip(range(len(present), 0, -1), present, strict=True):
            until = time.monotonic() + (end - time.monotonic()) / still
            while (left := until - time.monotonic()) > 0 and self._fetch_from(member, names, left):
                pass
        return self.mailbox.revision != before

    def _fetch_from(self, member: str, names: Collection[str], seconds: float) -> bool:
        """Ask one member; whether there may be more."""
        assert self._transport is not None
        held = self.mailbox.rounds()
        identity = self.charter.name, self.charter.fingerprint, self.name
        question = FetchRequest(*identity, member, {name: held[name] for name in names})
        reply = self._transport.ask(question.sign(self._key), seconds, member).get(member)
        if reply is None:
            return False
        if (refusal := parse_refusal(reply)) is not None:
            if self._repeats.count(("question", member, refusal[0])) is not None:
                log.warning("%s refuses a question of this member (%s): %s", member, *refusal)
            return False
        try:
            fingerprint, messages = parse_messages(reply)
        except WireError as error:
            log.warning("%s does not answer as a member does: %s", member, error)
            return False
        self._note_charter(member, fingerprint)
        before = self.mailbox.revision
        for message in messages:
            try:
                self._receive(message)
            except ConsilienceError:
                return False  # it was logged
        return self.mailbox.revision != before

    def _note_charter(self, member: str, fingerprint: str) -> None:
        if fingerprint == self.charter.fingerprint:
            self.other_charters.pop(member, None)
        elif self.other_charters.get(member) != fingerprint:
            self.other_charters[member] = fingerprint
            log.warning("%s", self.describe_other_charter(member))

    def describe_other_charter(self, member: str) -> str:
        """What is wrong where a member has another charter."""
        return (
            f"{member} has another charter of {self.charter.name!r}: its fingerprint is "
            f"{self.other_charters[member][:16]}, and yours is {self.charter.fingerprint[:16]}; give all members the "
            f"same file"
        )

    def upload(self, round_: int, parts: Parts, body: bytes, seconds: float) -> dict[str, Any]:
        """Sign an upload, hold it, and send it to all that are connected; others get it when they ask for it."""
        assert self._transport is not None
        identity = self.charter.name, self.charter.fingerprint, self.name
        message = sign_message(self._key, *identity, round_, parts, body)
        try:
            self.mailbox.accept(message.data)
        except WireError as error:
            raise RelayError(f"round {round_} cannot be published: {error}", code=error.code) from error
        refusals = {}
        for member, reply in self._transport.ask(message.data, seconds).items():
            if reply == ACCEPTED:
                self.bytes_sent += len(message.data)
            elif (refusal := parse_refusal(reply)) is not None:
                refusals[member] = refusal
        self._report(refusals, round_, seconds)
        return {"round": round_, "sha256": message.sha256, "epoch": self.epoch}

    def _report(self, refusals: Mapping[str, tuple[str, str]], round_: int, seconds: float) -> None:
        """Log who refuses a message; where others know a newer round of this member, continue after it."""
        for member, (code, why) in refusals.items():
            if self._repeats.count(("refused", member, code)) is not None:
                log.warning("%s refuses round %d of this member (%s): %s", member, round_, code, why)
        known = [(code, why) for code, why in refusals.values() if code in _REPEATED]
        if known and self.fetch([self.name], seconds) and self.mailbox.newest_round(self.name) > round_:
            raise RelayError(f"the others have newer rounds of this member: {known[0][1]}", code="older-round")

    # -- the rest of a link --------------------------------------------------------------------------------------------

    def federation(self, seconds: float) -> dict[str, Any]:
        """This member's newest round, and those of the others."""
        rounds = {str(number): self.mailbox.newest_round(name) for name, number in self.numbers.items()}
        member = {"number": self.numbers[self.name], "name": self.name, "round": rounds[str(self.numbers[self.name])]}
        return {"member": member, "rounds": rounds, "versions": {}, "waiting": {}, "revision": self.mailbox.revision}

    def counted(self, channel: str, round_: int) -> dict[str, SignedMessage]:
        """Of each member, the message that counts for a channel in a round; without those that have expired."""
        expire, found = self.charter.rules.expire, self.mailbox.newest_with(channel, round_)
        if not expire:
            return found
        since = self._first_used.since(channel, {name: message.round for name, message in found.items()}, round_)
        return {name: m for name, m in found.items() if name == self.name or round_ - since[name] <= expire}

    def answers(
        self,
        round_: int,
        channels: Sequence[str],
        have: Mapping[str, int],
        draw: Mapping[str, int],
        etag: str,
        seconds: float,
        partners: Sequence[int] = (),
    ) -> AnswersMessage | None:
        """Answers of some channels from the messages held; None where they are those of `etag`."""
        used_of = {self.name, *(n for n, number in self.numbers.items() if not partners or number in partners)}
        counted = {c: {n: m for n, m in self.counted(c, round_).items() if n in used_of} for c in channels}
        used = [(channel, sorted((n, m.round) for n, m in found.items())) for channel, found in counted.items()]
        now = hashlib.sha256(repr((used, sorted(draw.items()), round_)).encode()).hexdigest()[:32]
        if now == etag:
            return None
        by_number = {c: {self.numbers[name]: m for name, m in found.items()} for c, found in counted.items()}
        parts, body = self._answers.build(channels, by_number, round_, draw)
        return AnswersMessage(parts, body, now)

    def reply(self, channel: str, version: int, seconds: float) -> bytes:
        """Never called: without a relay there are no moving means."""
        raise RelayError(f"{channel} is not a moving mean", code="no-such-reply")

    def wait_for_change(self, revision: int, seconds: float) -> int:
        """Wait until a message has come; the newest revision."""
        return self.mailbox.wait(revision, seconds)
