"""What lies between a member's exchanges and the relay: answers that were heard, and a contribution that waits.

All of it is kept in one file, so that a member that is stopped goes on where it was. A contribution that the relay may
have and did not acknowledge is put again, the very same, until that is known; one that never left is replaced by the
next.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from consilience.channels import Answer
from consilience.errors import CheckpointError, ConfigurationError, RelayError, RelayUnreachable, WireError
from consilience.peer.http import CERTIFICATE, Backoff, News, RelayClient
from consilience.peer.state_file import keep, kept
from consilience.wire import schema
from consilience.wire.charter import Charter, message_of, read_charter
from consilience.wire.codec import Codec
from consilience.wire.headers import Part, Parts, format_parts, upload_sha256

_FILE = "peer.safetensors"
log = logging.getLogger("consilience.peer")
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class ChannelUpload:
    """A contribution to one channel, as the wire shows it: tensors, what it weighs, and the version it was made from.

    after: what the encoding will have rounded away when it is taken.
    """

    tensors: Mapping[str, np.ndarray]
    weight: np.ndarray
    version: int = 0
    after: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass
class PendingUpload:
    """An upload that waits. doubtful: it left, and whether it arrived is not known."""

    round: int
    parts: dict[str, Part]
    body: bytes
    after: Arrays  # what was rounded away, where a channel takes it
    instead: Arrays  # and where a channel refuses it as too stale: all of it
    may_have_arrived: bool = False


class Outbox:
    """One member's correspondence with its relay."""

    def __init__(self, client: RelayClient, folder: Path | None, timeout: float) -> None:
        self.client, self.folder, self.timeout = client, folder, timeout
        self.backoff = Backoff()
        self.round = -1
        """The newest round the relay has acknowledged."""
        self.held: dict[str, Answer] = {}
        self.waits: dict[str, int] = {}
        """Moving means that have a contribution of this member, and the version it was made from."""
        self.errors: Arrays = {}
        """What encodings have rounded away so far, by channel and tensor."""
        self.pending: PendingUpload | None = None
        self.etag, self.revision = "", 0
        self.number, self.name = 0, ""
        self._unsaved = False
        known = self._load()
        try:
            said = client.federation(timeout)
        except RelayUnreachable as error:
            if known is None:
                raise RelayError(str(error), code=error.code) if error.code == CERTIFICATE else error from error
            log.warning("%s; going on with what it said last", error)
            self.number, self.name = known["number"], known["name"]
            self.charter: Charter = known["charter"]
            self.backoff.failed(error.retry_after)
        else:
            self.charter = read_charter(said["charter"], "the relay's charter")
            self._meet(said, known)
        self.channels: dict[str, schema.Channel] = self.charter.channels
        entire = {
            name: Part(entries=getattr(c, "draw", None), whole=self.channels[name].moves)
            for name, c in self.channels.items()
        }
        client.largest = self._codec("down", entire).size

    def _meet(self, said: Mapping[str, Any], known: Mapping[str, Any] | None) -> None:
        """See who this member is to the relay, and what came of what was on its way."""
        member, waiting = said["member"], self.pending
        if known is not None and (known["charter"] != self.charter or known["number"] != member["number"]):
            raise CheckpointError(
                f"{self._file} is of another federation or member ({known['name']}); choose another folder"
            )
        self.number, self.name = member["number"], member["name"]
        if waiting and member["sha256"] == upload_sha256(format_parts(waiting.parts), waiting.body):
            if self._surely_taken(waiting, said["versions"]):
                self._taken(waiting, ())
            else:
                waiting.may_have_arrived = (
                    True  # it arrived, and its receipt, which comes again, says what was refused of it
                )
        elif waiting and member["round"] >= waiting.round:
            self.pending = None  # of a state that was lost: rounds only go on
        if member["round"] < self.round:
            self.waits.clear()  # the relay has gone back to an earlier state, and may not have them
        self._forget_closed(said)
        self.round = max(self.round, member["round"])

    def _surely_taken(self, waiting: PendingUpload, versions: Mapping[str, int]) -> bool:
        """Whether nothing of an upload that arrived can have been refused: versions only go up."""
        moving = {n: p.version for n, p in waiting.parts.items() if p.version is not None}
        channels = self.charter.channels
        return all(versions[n] - v <= getattr(channels[n], "max_staleness", 0) for n, v in moving.items())

    def _forget_closed(self, said: Mapping[str, Any]) -> None:
        """A moving mean where nobody's contribution waits has closed, even where it did not move."""
        for name, version in list(self.waits.items()):
            if said["waiting"].get(name) == 0 and said["versions"].get(name, -1) <= version:
                del self.waits[name]

    # -- up ------------------------------------------------------------------------------------------------------------

    @property
    def open(self) -> frozenset[str]:
        """Channels that would take a contribution now: a moving mean takes one until it closes."""
        return frozenset(name for name in self.channels if name not in self.waits)

    @property
    def unsettled(self) -> bool:
        """Whether something has left and may have arrived: until that is known, nothing else may leave."""
        return self.pending is not None and self.pending.may_have_arrived

    def queue(self, round_: int, offers: Mapping[str, ChannelUpload]) -> bool:
        """Let this be put up next; False where an earlier one must be settled first, and this one is lost."""
        if self.unsettled:
            return False
        parts: dict[str, Part] = {}
        tensors, after, instead = Arrays(), Arrays(), Arrays()
        for name in (name for name in self.channels if name in offers):
            offer, channel = offers[name], self.channels[name]
            parts[name] = _part(channel, offer)
            tensors |= {f"{name}.{k}": t for k, t in offer.tensors.items()}
            if channel.rows:
                tensors[f"{name}.count"] = offer.weight
            after |= {f"{name}.{k}": e for k, e in offer.after.items()}
            instead |= {f"{name}.{k}": e + offer.tensors[k] for k, e in offer.after.items()}
        if not parts:
            return True
        try:
            body = self._codec("up", parts).encode(tensors)
        except WireError as error:
            raise ConfigurationError(f"federation {self.charter.name!r} cannot take what you share: {error}") from error
        self.pending, self._unsaved = PendingUpload(round_, parts, body, after, instead), True
        return True

    def flush(self, seconds: float) -> bool:
        """Put up what waits, if it can be in so many seconds; whether all of it was acknowledged."""
        end, refused = time.monotonic() + seconds, False
        while self.pending is not None and self._may_try(end):
            waiting, before = self.pending, self.pending.may_have_arrived
            if not before or self._unsaved:
                waiting.may_have_arrived = True  # whoever is stopped from now on cannot know whether it arrived
                self.save()
            try:
                receipt = self.client.put(waiting.round, waiting.parts, waiting.body, _left(end))
            except RelayUnreachable as error:
                waiting.may_have_arrived = before or error.may_have_arrived
                self._failed(error)
            except RelayError as error:
                refused = True
                self._refused(waiting, error, end)
            else:
                self.backoff.worked()
                self._taken(waiting, receipt.get("refused", ()))
            if self.pending is not waiting or not waiting.may_have_arrived:
                self.save()
        if self._unsaved:
            self.save()
        return self.pending is None and not refused

    def _taken(self, waiting: PendingUpload, refused: Collection[str]) -> None:
        self.pending, self.round = None, max(self.round, waiting.round)
        for name, part in waiting.parts.items():
            chosen = waiting.instead if name in refused else waiting.after
            self.errors |= {k: e for k, e in chosen.items() if k.startswith(f"{name}.")}
            if part.version is not None and name not in refused:
                self.waits[name] = part.version

    def _refused(self, waiting: PendingUpload, error: RelayError, end: float) -> None:
        """The relay knows better where this member stands: go on from there; else it is for the caller to hear."""
        self.pending = None
        moving = {name: part.version for name, part in waiting.parts.items() if part.version is not None}
        if error.code == "already-put":
            self.waits |= moving
        elif error.code == "version-ahead":  # the relay has gone back to an earlier state
            for name in moving:
                self.held.pop(name, None)
                self.waits.pop(name, None)
        elif error.code in ("older-round", "other-bytes"):
            self.round = max(self.round, waiting.round)
            try:
                self.round = max(self.round, int(self.client.federation(_left(end))["member"]["round"]))
            except RelayUnreachable as out:
                self._failed(out)
        else:
            self.save()
            raise error
        log.warning("%s", error)

    # -- down ----------------------------------------------------------------------------------------------------------

    def fetch(
        self, names: Collection[str], draws: Mapping[str, int], seconds: float, round_: int | None = None, turn: int = 0
    ) -> dict[str, Answer]:
        """What is new of some channels, if it can be heard in so many seconds; it is held from now on."""
        end = time.monotonic() + seconds
        wanted = [name for name in self.channels if name in names]
        if not wanted or not self._may_try(end):
            return {}
        asked = max(self.round, 0) if round_ is None else round_
        have = {name: self.held[name].version for name in wanted if self.channels[name].moves and name in self.held}
        try:
            try:
                news, found = self._asked(asked, wanted, have, draws, turn, end)
            except RelayError as error:
                if error.code != "no-such-reply":
                    raise
                news, found = self._asked(asked, wanted, {}, draws, turn, end)  # it is gone: then the whole
        except (RelayUnreachable, WireError) as error:
            self.revision = 0  # whatever is there next time was not heard
            self._failed(error)
            return {}
        self.backoff.worked()
        if news is not None:
            self.etag = news.etag
            self.held |= found
            for name, answer in found.items():
                if self.waits.get(name, answer.version) != answer.version:
                    del self.waits[name]
            self.save()
        return found

    def _asked(
        self,
        round_: int,
        wanted: list[str],
        have: Mapping[str, int],
        draws: Mapping[str, int],
        turn: int,
        end: float,
    ) -> tuple[News | None, dict[str, Answer]]:
        news = self.client.answers(round_, wanted, have, draws, self.etag, _left(end), turn)
        if news is None:
            return None, {}
        for name, part in news.parts.items():
            if name not in wanted or not self._fits(name, part, have, draws):
                raise WireError(f"{self.client.url} answers what was not asked: {name}{part}", code="malformed-answer")
        return news, self._read(news, have, end)

    def _fits(self, name: str, part: Part, have: Mapping[str, int], draws: Mapping[str, int]) -> bool:
        """Whether a part of an answer can be one to the question: as many entries, and no reply to what is not held."""
        channel = self.channels[name]
        if isinstance(channel, schema.Pool):
            return part.entries == draws.get(name, channel.draw)
        return not self.channels[name].moves or bool(part.whole) or name in have

    def _read(self, news: News, have: Mapping[str, int], end: float) -> dict[str, Answer]:
        """Answers out of a body; replies of a moving mean that were missed are fetched first, in order."""
        parts: dict[str, Part] = news.parts
        tensors = self._codec("down", parts).decode(news.body)
        found = {}
        for name, part in parts.items():
            channel = self.channels[name]
            mine = channel.own_tensors(tensors)
            if self.channels[name].moves:
                version = part.version or 0
                values = mine if part.whole else self._moved(name, have[name], version, mine, end)
                found[name] = Answer(values, np.array(float(version)), version)
                continue
            lead = (part.entries or 0,) if isinstance(channel, schema.Pool) else ()
            count = mine.pop("count") if channel.rows else np.full(lead, part.weight or 0.0)
            found[name] = Answer(mine, count.astype(np.float64))
        return found

    def _moved(self, name: str, have: int, version: int, last: Arrays, end: float) -> Arrays:
        """Common values after every reply since the version held: each is added by itself, as all others do."""
        values = dict(self.held[name].tensors)
        codec = self._codec("down", {name: Part(version=version)})
        for missed in range(have + 1, version + 1):
            if missed < version:
                body = self.client.reply(name, missed, _left(end))
                reply = self.channels[name].own_tensors(codec.decode(body))
            else:
                reply = last
            values = {k: v + reply[k] for k, v in values.items()}
        return values

    def wait(self, seconds: float) -> bool:
        """Wait until anything is new at the relay, at most so long; whether it is."""
        end, before = time.monotonic() + seconds, self.revision
        while time.monotonic() < end and self.revision == before and self._may_try(end):
            try:
                self.revision = self.client.wait(before, _left(end))
                self.backoff.worked()
            except RelayUnreachable as error:
                self._failed(error)
        return self.revision != before

    def closed(self, names: Collection[str], end: float) -> bool:
        """Whether some moving means have closed over this member's contribution; False where that is not known."""
        if not self._may_try(end):
            return False
        try:
            said = self.client.federation(min(_left(end), self.timeout))
        except RelayUnreachable as error:
            self._failed(error)
            return False
        self.backoff.worked()
        self.revision = int(said["revision"])
        self._forget_closed(said)
        return all(said["versions"].get(n, -1) > self.waits[n] for n in names if n in self.waits)

    # -- trying --------------------------------------------------------------------------------------------------------

    def _may_try(self, end: float) -> bool:
        """Whether there is time for another try; waits until it is worth one."""
        left = end - time.monotonic()
        if left <= 0 or self.backoff.left > left:
            return False
        time.sleep(self.backoff.left)
        return True

    def may_come_back(self, end: float) -> bool:
        """Whether the relay will be tried again before then."""
        return time.monotonic() + self.backoff.left < end

    def _failed(self, error: RelayUnreachable | WireError) -> None:
        level = logging.INFO if self.backoff.failures else logging.WARNING  # once is enough
        self.backoff.failed(getattr(error, "retry_after", 0.0))
        log.log(level, "%s; next try in %.1f s at the earliest", error, self.backoff.left)

    def _codec(self, direction: schema.Direction, parts: Parts) -> Codec:
        return Codec(message_of(self.channels, direction, parts))

    # -- keeping -------------------------------------------------------------------------------------------------------

    @property
    def _file(self) -> Path:
        assert self.folder is not None
        return self.folder / _FILE

    def save(self) -> None:
        """Keep everything a restart needs."""
        self._unsaved = False
        if self.folder is None:
            return
        arrays = {f"errors/{k}": v for k, v in self.errors.items()}
        for name, answer in self.held.items():
            arrays |= {f"held/{name}/{k}": v for k, v in answer.tensors.items()} | {f"count/{name}": answer.count}
        numbers: dict[str, Any] = {
            "charter": self.charter.to_toml(),
            "number": self.number,
            "name": self.name,
            "round": self.round,
            "waits": self.waits,
            "versions": {name: answer.version for name, answer in self.held.items()},
        }
        if self.pending is not None:
            waiting = self.pending
            arrays["body"] = np.frombuffer(waiting.body, dtype=np.uint8)
            arrays |= {f"after/{k}": v for k, v in waiting.after.items()}
            arrays |= {f"instead/{k}": v for k, v in waiting.instead.items()}
            numbers["pending"] = {
                "round": waiting.round,
                "doubtful": waiting.may_have_arrived,
                "parts": {name: vars(part) for name, part in waiting.parts.items()},
            }
        keep(self._file, numbers, arrays)

    def _load(self) -> dict[str, Any] | None:
        """Take up what `save` kept; None where there is nothing."""
        if self.folder is None or not self._file.exists():
            return None
        try:
            numbers, arrays = kept(self._file)
            numbers["charter"] = read_charter(numbers["charter"], "its charter")
            self.round, self.waits = int(numbers["round"]), dict(numbers["waits"])
            self.errors = _under("errors/", arrays)
            for name, version in numbers["versions"].items():
                self.held[name] = Answer(_under(f"held/{name}/", arrays), arrays[f"count/{name}"], int(version))
            if "pending" in numbers:
                waiting = numbers["pending"]
                parts = {name: Part(**part) for name, part in waiting["parts"].items()}
                after, instead = _under("after/", arrays), _under("instead/", arrays)
                body = arrays["body"].tobytes()
                self.pending = PendingUpload(waiting["round"], parts, body, after, instead, waiting["doubtful"])
        except (OSError, ValueError, KeyError, TypeError, ConfigurationError) as error:
            raise CheckpointError(f"{self._file} is damaged: {error}; delete it to begin anew") from error
        return numbers


def _left(end: float) -> float:
    """Seconds until then, and enough to ask at all."""
    return max(end - time.monotonic(), 0.05)


def _under(prefix: str, arrays: Mapping[str, np.ndarray]) -> Arrays:
    return {k[len(prefix) :]: v for k, v in arrays.items() if k.startswith(prefix)}


def _part(channel: schema.Channel, offer: ChannelUpload) -> Part:
    if isinstance(channel, schema.Pool):
        weight = None if channel.rows else float(offer.weight.max(initial=0.0))
        return Part(entries=int(offer.weight.shape[0]), weight=weight)
    moving = channel.moves
    return Part(version=offer.version if moving else None, weight=None if channel.rows else float(offer.weight))
