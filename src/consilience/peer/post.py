"""What lies between a member's exchanges and the relay: answers that were heard, and a contribution that waits.

All of it is kept in one file, so that a member that is stopped goes on where it was. A contribution that the relay may
have and did not acknowledge is put again, the very same, until that is known; one that never left is replaced by the
next.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from consilience import schema
from consilience.channels import Answer
from consilience.charter import Charter, read_charter, whole
from consilience.errors import CheckpointError, RelayError, Unreachable
from consilience.peer.link import Backoff, Link, News
from consilience.protocol import Part, digest, spell
from consilience.simulation.folder import replace_file, storing
from consilience.wire import Codec

_FILE = "peer.safetensors"
log = logging.getLogger("consilience.peer")
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Offer:
    """A contribution to one channel, as the wire shows it: tensors, what it weighs, and the version it was made from.

    after: what the encoding will have rounded away when it is taken.
    """

    tensors: Mapping[str, np.ndarray]
    weight: np.ndarray
    version: int = 0
    after: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass
class Pending:
    """An upload that waits. doubtful: it left, and whether it arrived is not known."""

    round: int
    parts: dict[str, Part]
    body: bytes
    after: Arrays  # what was rounded away, where a channel takes it
    instead: Arrays  # and where a channel refuses it as too stale: all of it
    doubtful: bool = False


class Post:
    """One member's correspondence with its relay."""

    def __init__(self, link: Link, folder: Path | None, patience: float) -> None:
        self.link, self.folder, self.patience = link, folder, patience
        self.backoff = Backoff()
        self.round = -1
        """The newest round the relay has acknowledged."""
        self.held: dict[str, Answer] = {}
        self.waits: dict[str, int] = {}
        """Moving means that have a contribution of this member, and the version it was made from."""
        self.errors: Arrays = {}
        """What encodings have rounded away so far, by channel and tensor."""
        self.pending: Pending | None = None
        self.etag, self.revision = "", 0
        self.number, self.name, text = 0, "", ""
        kept = self._load()
        try:
            said = link.federation(patience)
        except Unreachable:
            if kept is None:
                raise
            log.warning("the relay cannot be reached; going on with what it said last")
            self.number, self.name, text = kept["number"], kept["name"], kept["charter"]
            self.backoff.failed()
        else:
            text = said["charter"]
            self._meet(said, kept)
        self.charter: Charter = read_charter(text, "the relay's charter")
        self.channels: dict[str, schema.Channel] = self.charter.channels

    def _meet(self, said: Mapping[str, Any], kept: Mapping[str, Any] | None) -> None:
        """See who this member is to the relay, and what came of what was on its way."""
        member = said["member"]
        if kept is not None and (kept["charter"] != said["charter"] or kept["number"] != member["number"]):
            raise CheckpointError(
                f"{self._file} is of another federation or member ({kept['name']}); choose another folder"
            )
        self.number, self.name = member["number"], member["name"]
        waiting = self.pending
        if waiting and member["sha256"] == digest(spell(waiting.parts), waiting.body):
            self._taken(waiting, {})  # it had arrived; what was refused of it is not known, and little
        elif member["round"] > self.round:
            self.pending = None  # of a state that was lost: rounds only go on
        self.round = max(self.round, member["round"])

    # -- up ------------------------------------------------------------------------------------------------------------

    @property
    def open(self) -> frozenset[str]:
        """Channels that would take a contribution now: a moving mean takes one until it closes."""
        return frozenset(name for name in self.channels if name not in self.waits)

    def queue(self, round_: int, offers: Mapping[str, Offer]) -> bool:
        """Let this be put up next; False where an earlier one must be settled first, and this one is lost."""
        if self.pending is not None and self.pending.doubtful:
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
        self.pending = Pending(round_, parts, self._codec("up", parts).encode(tensors), after, instead)
        self.save()
        return True

    def flush(self, seconds: float) -> bool:
        """Put up what waits, if it can be in so many seconds; whether nothing waits any more."""
        end = time.monotonic() + seconds
        while self.pending is not None and self._may_try(end):
            waiting = self.pending
            try:
                left = max(min(end - time.monotonic(), self.patience), 0.05)
                receipt = self.link.put(waiting.round, waiting.parts, waiting.body, left)
            except Unreachable as error:
                waiting.doubtful |= error.doubtful
                self._failed(error)
            except RelayError as error:
                self._refused(waiting, error)
            else:
                self.backoff.worked()
                self._taken(waiting, receipt.get("refused", {}))
            self.save()
        return self.pending is None

    def _taken(self, waiting: Pending, refused: Collection[str]) -> None:
        self.pending, self.round = None, max(self.round, waiting.round)
        for name, part in waiting.parts.items():
            chosen = waiting.instead if name in refused else waiting.after
            self.errors |= {k: e for k, e in chosen.items() if k.split(".", 1)[0] == name}
            if part.version is not None and name not in refused:
                self.waits[name] = part.version

    def _refused(self, waiting: Pending, error: RelayError) -> None:
        """The relay knows better where this member stands: go on from there; else it is for the caller to hear."""
        self.pending = None
        if error.code == "already-put":
            self.waits |= {name: part.version for name, part in waiting.parts.items() if part.version is not None}
        elif error.code == "version-ahead":  # the relay has gone back to an earlier state
            for name in [n for n, p in waiting.parts.items() if p.version is not None]:
                self.held.pop(name, None)
        elif error.code in ("older-round", "other-bytes"):
            self.round = max(self.round, int(self.link.federation(self.patience)["member"]["round"]))
        else:
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
        have = {name: self.held[name].version for name in wanted if self._moves(name) and name in self.held}
        asked = max(self.round, 0) if round_ is None else round_
        try:
            news = self.link.answers(asked, wanted, have, draws, self.etag, seconds, turn)
            found = {} if news is None else self._read(news, have, end)
        except Unreachable as error:
            self._failed(error)
            return {}
        self.backoff.worked()
        if news is not None:
            self.etag = news.etag
            self.held |= found
            for name, answer in found.items():
                if answer.version > self.waits.get(name, answer.version):
                    del self.waits[name]
            self.save()
        return found

    def _read(self, news: News, have: Mapping[str, int], end: float) -> dict[str, Answer]:
        """Answers out of a body; replies of a moving mean that were missed are fetched first, in order."""
        parts: dict[str, Part] = news.parts
        tensors = self._codec("down", parts).decode(news.body)
        found = {}
        for name, part in parts.items():
            channel = self.channels[name]
            mine = {k.split(".", 1)[1]: t for k, t in tensors.items() if k.split(".", 1)[0] == name}
            if self._moves(name):
                version = part.version or 0
                values = mine if part.whole else self._moved(name, have[name], version, mine, end)
                found[name] = Answer(values, np.ones(()), version)
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
                body = self.link.reply(name, missed, max(end - time.monotonic(), 0.05))
                reply = {k.split(".", 1)[1]: t for k, t in codec.decode(body).items()}
            else:
                reply = last
            values = {k: v + reply[k] for k, v in values.items()}
        return values

    def wait(self, seconds: float) -> bool:
        """Wait until anything is new at the relay, at most so long; whether it is."""
        end, before = time.monotonic() + seconds, self.revision
        while time.monotonic() < end and self.revision == before and self._may_try(end):
            try:
                self.revision = self.link.wait(before, max(end - time.monotonic(), 0.05))
            except Unreachable as error:
                self._failed(error)
        return self.revision > before

    def closed(self, names: Collection[str]) -> list[str]:
        """Of some moving means, those that have moved since this member's contribution; none where that is unknown."""
        try:
            said = self.link.federation(self.patience)
        except Unreachable as error:
            self._failed(error)
            return []
        self.revision = int(said["revision"])
        return [n for n in names if n in self.waits and said["versions"].get(n, -1) > self.waits[n]]

    # -- trying --------------------------------------------------------------------------------------------------------

    def _may_try(self, end: float) -> bool:
        """Whether there is time for another try; waits until it is worth one."""
        left = end - time.monotonic()
        if left <= 0 or self.backoff.left > left:
            return False
        time.sleep(self.backoff.left)
        return True

    def _failed(self, error: Unreachable) -> None:
        self.backoff.failed(error.retry_after)
        log.info("%s; next try in %.1f s at the earliest", error, self.backoff.left)

    def _moves(self, name: str) -> bool:
        channel = self.channels[name]
        return isinstance(channel, schema.Mean) and channel.moving

    def _codec(self, direction: schema.Direction, parts: Mapping[str, Part]) -> Codec:
        fields: dict[str, schema.Field] = {}
        for name, part in parts.items():
            channel = self.channels[name]
            message = whole(channel) if part.whole else channel.message(direction)
            if isinstance(channel, schema.Pool) and part.entries is not None:
                message = {k: replace(f, shape=(part.entries, *f.shape[1:])) for k, f in message.items()}
            fields |= message
        return Codec(fields)

    # -- keeping -------------------------------------------------------------------------------------------------------

    @property
    def _file(self) -> Path:
        assert self.folder is not None
        return self.folder / _FILE

    def save(self) -> None:
        """Keep everything a restart needs."""
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
                "doubtful": waiting.doubtful,
                "parts": {name: vars(part) for name, part in waiting.parts.items()},
            }
        content = save({k: np.ascontiguousarray(v) for k, v in arrays.items()}, {"peer": json.dumps(numbers)})
        with storing(self._file, "choose another folder"):
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_file(self._file, content)

    def _load(self) -> dict[str, Any] | None:
        """Take up what `save` kept; None where there is nothing."""
        if self.folder is None or not self._file.exists():
            return None
        try:
            with safe_open(self._file, framework="numpy") as file:
                numbers: dict[str, Any] = json.loads((file.metadata() or {})["peer"])
                arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  # it is no mapping
            self.round, self.waits = int(numbers["round"]), dict(numbers["waits"])
            self.errors = _under("errors/", arrays)
            for name, version in numbers["versions"].items():
                self.held[name] = Answer(_under(f"held/{name}/", arrays), arrays[f"count/{name}"], int(version))
            if "pending" in numbers:
                waiting = numbers["pending"]
                parts = {name: Part(**part) for name, part in waiting["parts"].items()}
                after, instead = _under("after/", arrays), _under("instead/", arrays)
                body = arrays["body"].tobytes()
                self.pending = Pending(waiting["round"], parts, body, after, instead, waiting["doubtful"])
        except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{self._file} is damaged: {error}; delete it to begin anew") from error
        return numbers


def _under(prefix: str, arrays: Mapping[str, np.ndarray]) -> Arrays:
    return {k[len(prefix) :]: v for k, v in arrays.items() if k.startswith(prefix)}


def _part(channel: schema.Channel, offer: Offer) -> Part:
    if isinstance(channel, schema.Pool):
        weight = None if channel.rows else float(offer.weight.max(initial=0.0))
        return Part(entries=int(offer.weight.shape[0]), weight=weight)
    moving = isinstance(channel, schema.Mean) and channel.moving
    return Part(version=offer.version if moving else None, weight=None if channel.rows else float(offer.weight))
