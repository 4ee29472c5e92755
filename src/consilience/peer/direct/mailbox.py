"""The signed messages that a member holds, its own and the others': each is checked before it is held.

Checked in this order: length, form, member, signature, federation and charter, round, and only then the body, as
strictly as a relay checks an upload. What is refused has a code and is logged by whoever received it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from consilience.errors import CheckpointError, ConsilienceError, WireError
from consilience.files import replace_file, report_write_errors
from consilience.relay.messages import Messages
from consilience.relay.rejections import Rejection
from consilience.wire.charter import Charter
from consilience.wire.headers import Parts
from consilience.wire.signatures import parse_key
from consilience.wire.signed_message import LONGEST_HEAD, SignedMessage, read_message

log = logging.getLogger("consilience.peer")
STEPS_KEPT = 2
"""Messages this many rounds before a member's newest are held: members in step are at most so far apart, and a member
that was killed continues from the round that it saved last."""
Refused = (WireError, Rejection)


class Mailbox:
    """Each member's newest messages; safe to use from several threads. folder: where they are saved, if anywhere."""

    def __init__(self, charter: Charter, folder: Path | None) -> None:
        self.messages = Messages(charter)
        self.largest = self.messages.largest + LONGEST_HEAD
        """The most bytes of a message."""
        self.changed = threading.Condition()
        self.revision = 0
        """Counts the messages that were accepted."""
        self._federation, self._fingerprint = charter.name, charter.fingerprint
        self.keys = {member.name: parse_key(member.key) for member in charter.members}
        self._held: dict[str, dict[int, SignedMessage]] = {name: {} for name in self.keys}
        self._folder = folder
        self._load()

    # -- receiving -----------------------------------------------------------------------------------------------------

    def accept(self, data: bytes) -> bool:
        """Hold a message from now on; False where it is held already. Anything else raises one of `Refused`."""
        if len(data) > self.largest:
            raise WireError(f"it has {len(data)} bytes; the longest here has {self.largest}", code="too-large")
        message = read_message(data)
        self._check_sender(message)
        with self.changed:
            if not self._is_new(message):
                return False
            parts = self.messages.parse_header(message.header)
            self.messages.decode_upload(parts, message.body)
            self._save(message)
            self._hold(message)
            self.revision += 1
            self.changed.notify_all()
        return True

    def _check_sender(self, message: SignedMessage) -> None:
        if message.member not in self.keys:
            raise WireError(f"the charter has no member {message.member!r}", code="unknown-member")
        message.check_signature(self.keys[message.member])
        if message.federation != self._federation:
            raise WireError(
                f"it is of federation {message.federation!r}, not {self._federation!r}", code="other-charter"
            )
        if message.charter != self._fingerprint:
            raise WireError(
                f"its charter has the fingerprint {message.charter[:16]}, and the one here {self._fingerprint[:16]}: "
                f"give all members the same file",
                code="other-charter",
            )

    def _is_new(self, message: SignedMessage) -> bool:
        """Whether a message is newer, in one of its channels at least; refuses replays and other bytes of a round."""
        held = self._held[message.member]
        if message.round in held:
            if held[message.round].signed != message.signed:
                raise WireError(
                    f"{message.member} has signed other bytes for round {message.round} before: is its key used by two "
                    f"processes?",
                    code="other-bytes",
                )
            return False
        covered = self._covered(held.values())
        if all(covered.get(name, -1) >= message.round for name in self.parts(message)):
            newest = max(held, default=-1)
            raise WireError(f"round {message.round} of {message.member} came after round {newest}", code="older-round")
        return True

    def _hold(self, message: SignedMessage) -> None:
        """Hold a message, and forget those that are not needed any more."""
        held = self._held[message.member]
        held[message.round] = message
        newest = max(held)
        needed: set[int] = {round_ for round_ in held if round_ >= newest - STEPS_KEPT}
        before = self._covered(m for r, m in held.items() if r <= newest - STEPS_KEPT)
        needed |= set(before.values())
        for round_ in held.keys() - needed:
            del held[round_]
            self._delete(message.member, round_)

    def parts(self, message: SignedMessage) -> Parts:
        """What a message holds of which channels."""
        return self.messages.parse_header(message.header)

    def _covered(self, messages: Iterable[SignedMessage]) -> dict[str, int]:
        """The newest round of each channel in some messages of one member."""
        covered: dict[str, int] = {}
        for message in messages:
            for name in self.parts(message):
                covered[name] = max(covered.get(name, -1), message.round)
        return covered

    # -- reading -------------------------------------------------------------------------------------------------------

    def newest_round(self, member: str) -> int:
        """The newest round of a member; -1 where nothing of it is held."""
        with self.changed:
            return max(self._held[member], default=-1)

    def rounds(self) -> dict[str, tuple[int, ...]]:
        """The rounds that are held of each member."""
        with self.changed:
            return {name: tuple(sorted(held)) for name, held in self._held.items()}

    def missing_in(self, rounds: Mapping[str, Collection[int]]) -> list[bytes]:
        """The messages, oldest first, that somebody who holds these rounds of some members can use."""
        found = []
        with self.changed:
            for name, known in rounds.items():
                held = self._held.get(name, {})
                covered = self._covered(m for r, m in held.items() if r in known)
                newest = max(known, default=-1)
                for round_ in sorted(held):
                    fresh = any(covered.get(c, -1) < round_ for c in self.parts(held[round_]))
                    if round_ not in known and fresh and (newest in held or round_ > newest):
                        found.append(held[round_].data)
        return found

    def newest_with(self, channel: str, round_: int) -> dict[str, SignedMessage]:
        """Of each member, the message that counts for a channel in a round.

        It is the newest up to that round; of a member that is further ahead than members in step can be, its newest.
        """
        chosen = {}
        with self.changed:
            for name, held in self._held.items():
                most = round_ if max(held, default=-1) <= round_ + STEPS_KEPT else max(held)
                rounds = [r for r, message in held.items() if channel in self.parts(message)]
                usable = [r for r in rounds if r <= most]
                if usable:
                    chosen[name] = held[max(usable)]
        return chosen

    def wait(self, revision: int, seconds: float) -> int:
        """Wait until there is another revision than this one, or until the time is over; the newest revision."""
        with self.changed:
            self.changed.wait_for(lambda: self.revision != revision, max(seconds, 0.0))
            return self.revision

    # -- on disk -------------------------------------------------------------------------------------------------------

    def _file(self, member: str, round_: int) -> Path:
        assert self._folder is not None
        return self._folder / f"{member}.{round_}"

    def _save(self, message: SignedMessage) -> None:
        if self._folder is None:
            return
        with report_write_errors(self._folder, "choose another folder"):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self._file(message.member, message.round), message.data)

    def _delete(self, member: str, round_: int) -> None:
        """Delete a file that is not needed any more; one that stays does no harm."""
        if self._folder is None:
            return
        try:
            self._file(member, round_).unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s cannot be deleted: %s", self._file(member, round_), error.strerror)

    def _load(self) -> None:
        """Hold what was saved; files are checked as messages are when they arrive."""
        if self._folder is None or not self._folder.exists():
            return
        with contextlib.suppress(OSError):  # of another owner
            self._folder.chmod(0o700)
        files = [file for file in self._folder.iterdir() if file.suffix[1:].isdigit()]
        for file in sorted(files, key=lambda file: int(file.suffix[1:])):
            try:
                message = read_message(file.read_bytes())
                self._check_sender(message)
                self.messages.decode_upload(self.parts(message), message.body)
            except (*Refused, OSError) as error:
                raise CheckpointError(
                    f"{file} is damaged, or of another charter: {error}; delete that file, and the others send it again"
                ) from error
            self._held[message.member][message.round] = message


def describe_refusal(error: ConsilienceError) -> tuple[str, str]:
    """The code of a refused message, and why."""
    return str(getattr(error, "code", "cannot-write")), str(error)
