"""Downloads of a member: the newest answer of each channel, fetched where it is new and held from then on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from consilience.channels import LAST_MOVE, Answer
from consilience.errors import RelayError, RelayUnreachable, WireError
from consilience.peer.backoff import Backoff, seconds_left
from consilience.peer.link import AnswersMessage, Link
from consilience.peer.state import Arrays, PeerState
from consilience.wire import schema
from consilience.wire.charter import message_of
from consilience.wire.codec import Codec
from consilience.wire.headers import Part

log = logging.getLogger("consilience.peer")


class Inbox:
    """The answers that one member holds, and how new ones reach it."""

    def __init__(
        self,
        client: Link,
        backoff: Backoff,
        channels: Mapping[str, schema.Channel],
        state: PeerState,
        save: Callable[[], None],
    ) -> None:
        self._client, self._backoff, self._channels, self._state, self._save = client, backoff, channels, state, save
        self._revision = 0
        self.partners: tuple[int, ...] = ()
        """Members by number, whose uploads alone means and observations are of, beside its own; none: everybody's."""
        self.last_moves: frozenset[str] = frozenset()
        """Moving means of which exchanges also need the last move: answers have it under `LAST_MOVE` names."""

    def largest_answer(self) -> int:
        """Bytes of the largest answer: of all channels, with the common values of every moving mean."""
        parts = {name: Part(entries=getattr(c, "draw", None), full=c.moves) for name, c in self._channels.items()}
        return Codec(message_of(self._channels, "down", parts)).size

    def download(
        self, names: Collection[str], draws: Mapping[str, int], seconds: float, round_: int | None = None
    ) -> dict[str, Answer]:
        """New answers of some channels, where they arrive within the seconds; they are held from now on.

        draws: how many entries of each pool. round_: for which the relay draws them; by default the newest one.
        """
        end = time.monotonic() + seconds
        wanted = [name for name in self._channels if name in names]
        if not wanted or not self._backoff.wait_until_allowed(end):
            return {}
        asked = max(self._state.round, 0) if round_ is None else round_
        held = self._state.answers
        have = {name: held[name].version for name in wanted if self._channels[name].moves and name in held}
        try:
            try:
                found = self._request(asked, wanted, have, draws, end)
            except RelayError as error:
                if error.code != "no-such-reply":
                    raise
                found = self._request(asked, wanted, {}, draws, end)  # replies are gone: the common values themselves
        except (RelayUnreachable, WireError) as error:
            self._revision = 0  # the next wait ends at once, so that this is tried again
            self._backoff.report(error)
            return {}
        self._backoff.succeeded()
        if found is None:
            return {}
        for name, answer in found.items():
            held[name] = answer
            if self._state.awaiting.get(name, answer.version) != answer.version:
                del self._state.awaiting[name]
        self._save()
        return found

    def wait(self, seconds: float) -> bool:
        """Wait until anything is new at the relay, at most for the seconds; whether it is."""
        end, before = time.monotonic() + seconds, self._revision
        while time.monotonic() < end and self._revision == before and self._backoff.wait_until_allowed(end):
            try:
                self._revision = self._client.wait_for_change(before, seconds_left(end))
                self._backoff.succeeded()
            except RelayUnreachable as error:
                self._backoff.report(error)
        return self._revision != before

    def aggregated(self, names: Collection[str], end: float, timeout: float) -> bool:
        """Whether some moving means have aggregated this member's upload; False where that is not known."""
        status, awaiting = self.status(end, timeout), self._state.awaiting
        if status is None:
            return False
        return all(status["versions"].get(n, -1) > awaiting[n] for n in names if n in awaiting)

    def status(self, end: float, timeout: float) -> dict[str, Any] | None:
        """The federation's status; None where the relay does not answer by the time `end`."""
        if not self._backoff.wait_until_allowed(end):
            return None
        try:
            status = self._client.federation(min(seconds_left(end), timeout))
        except RelayUnreachable as error:
            self._backoff.report(error)
            return None
        self._backoff.succeeded()
        self._revision = int(status["revision"])
        if lost := self._state.notice_loss(self._client.epoch, int(status["member"]["round"])):
            log.warning("%s", lost)
        self._state.forget_aggregated(status)
        return status

    # -- reading answers ---------------------------------------------------------------------------------------------

    def _request(
        self, round_: int, wanted: list[str], have: Mapping[str, int], draws: Mapping[str, int], end: float
    ) -> dict[str, Answer] | None:
        """Answers of the wanted channels; None where nothing has changed."""
        message = self._client.answers(round_, wanted, have, draws, self._state.etag, seconds_left(end), self.partners)
        if message is None:
            return None
        for name, part in message.parts.items():
            if name not in wanted or not self._fits(name, part, have, draws):
                raise WireError(f"{self._client.url} answers what was not asked: {name}{part}", code="malformed-answer")
        found = self._decode(message, have, end)
        self._state.etag = message.etag
        return found

    def _fits(self, name: str, part: Part, have: Mapping[str, int], draws: Mapping[str, int]) -> bool:
        """Whether part of an answer fits the question: the number of entries, no reply to a version not held."""
        channel = self._channels[name]
        if isinstance(channel, schema.Pool):
            return part.entries == draws.get(name, channel.draw)
        return not channel.moves or bool(part.full) or name in have

    def _decode(self, message: AnswersMessage, have: Mapping[str, int], end: float) -> dict[str, Answer]:
        """Answers from a body; missed replies of a moving mean are downloaded first, in order."""
        tensors = Codec(message_of(self._channels, "down", message.parts)).decode(message.body)
        found = {}
        for name, part in message.parts.items():
            channel = self._channels[name]
            own = channel.own_tensors(tensors)
            if channel.moves:
                version = part.version or 0
                values = own if part.full else self._move(name, have[name], version, own, end)
                last = (self._last_reply(name, version, end) if part.full else own) if name in self.last_moves else {}
                shown = {f"{LAST_MOVE}{k}": v for k, v in last.items()}
                found[name] = Answer({**values, **shown}, np.array(float(version)), version)
                continue
            if channel.rows:
                count = own.pop("count")
            elif isinstance(channel, schema.Pool):  # the weight is how many of the entries are there
                count = np.arange(part.entries or 0) < (part.weight or 0.0)
            else:
                count = np.full((), part.weight or 0.0)
            found[name] = Answer(own, count.astype(np.float64))
        return found

    def _move(self, name: str, have: int, version: int, last: Arrays, end: float) -> Arrays:
        """Common values after every reply since the version held, added one at a time as all other members do."""
        held = self._state.answers[name].tensors
        values = {k: v for k, v in held.items() if not k.startswith(LAST_MOVE)}
        codec = Codec(message_of(self._channels, "down", {name: Part(version=version)}))
        for missed in range(have + 1, version + 1):
            reply = last
            if missed < version:
                body = self._client.reply(name, missed, seconds_left(end))
                reply = self._channels[name].own_tensors(codec.decode(body))
            values = {k: v + reply[k] for k, v in values.items()}
        return values

    def _last_reply(self, name: str, version: int, end: float) -> Arrays:
        """By how much common values that came in full moved last; zeros where the relay does not know it any more."""
        channel = self._channels[name]
        unmoved = {k: np.zeros(tensor.shape, np.float32) for k, tensor in channel.tensors.items()}
        if version < 1:
            return unmoved
        codec = Codec(message_of(self._channels, "down", {name: Part(version=version)}))
        try:
            return channel.own_tensors(codec.decode(self._client.reply(name, version, seconds_left(end))))
        except RelayError as error:
            if error.code != "no-such-reply":
                raise
            return unmoved
