"""What readers are answered: one body of means, drawn entries and replies, known by an ETag before it is made."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from consilience.channels import draw_from, gather_entries
from consilience.relay.messages import Messages, bounded
from consilience.relay.rejections import Rejection
from consilience.relay.snapshot import Snapshot
from consilience.relay.store import Store
from consilience.wire import schema
from consilience.wire.byte_count import ByteCount
from consilience.wire.headers import Part, Parts

_LARGEST = 2**31 - 1


@dataclass(frozen=True)
class Question:
    """What a member asks: answers of which channels, in which of its rounds, and what it has already.

    have: versions of moving means. draw: entries of pools, where it wants fewer than there are. turn: which of several
    questions in one round this is, so that another draw is another one.
    """

    channels: tuple[str, ...]
    round: int
    have: Mapping[str, int]
    draw: Mapping[str, int]
    turn: int = 0


@dataclass(frozen=True)
class Reply:
    """An answer: what its body holds, the body, and by what it is known."""

    parts: Parts
    body: bytes
    etag: str


class Answers:
    """Answers of one federation, from what readers see of it and what lies in the store."""

    def __init__(self, federation: int, seed: int, messages: Messages) -> None:
        self.id, self.seed, self.messages = federation, seed, messages
        self.channels = messages.channels
        self.traffic = ByteCount(self.channels)

    def asked(self, question: Question) -> Question:
        """The question in the charter's order; refuses channels that are not there, and more than there is to draw."""
        for name in [*question.channels, *question.have, *question.draw]:
            if name not in self.channels:
                known = ", ".join(self.channels)
                raise Rejection("unknown-channel", f"no channel {name[:80]!r} here; there are {known}", field=name[:80])
        for name, draw in question.draw.items():
            channel = self.channels[name]
            if not isinstance(channel, schema.Pool) or not 1 <= draw <= channel.draw:
                most = channel.draw if isinstance(channel, schema.Pool) else 0
                raise Rejection("entries", f"{name}: {draw} entries asked for; {most} at most are drawn", field=name)
        return replace(question, channels=tuple(n for n in self.channels if n in question.channels))

    def etag(self, sight: Snapshot, number: int, question: Question) -> str:
        """By what an answer is known before it is made: the same question at the same revisions has the same answer."""
        seen = [(n, sight.changed[n]) for n in question.channels if n not in sight.moving]
        seen += [(n, sight.moving[n].version) for n in question.channels if n in sight.moving]
        drawn = any(n in sight.present for n in question.channels)
        who = (number, question.round, question.turn) if drawn else ()
        said = self.id, seen, who, sorted(question.have.items()), sorted(question.draw.items())
        return hashlib.sha256(repr(said).encode()).hexdigest()[:32]

    def answer(self, store: Store, sight: Snapshot, number: int, question: Question) -> Reply:
        """One body with an answer of every channel asked for, but for moving means that have not moved."""
        parts: dict[str, Part] = {}
        tensors: dict[str, np.ndarray] = {}
        for name in question.channels:
            channel = self.channels[name]
            if name in sight.standing:
                mean = sight.standing[name].answer()
                tensors |= bounded(channel, {f"{name}.{k}": t for k, t in mean.tensors.items()})
                parts[name] = Part(weight=None if channel.rows else float(mean.count))
                if channel.rows:
                    tensors[f"{name}.count"] = np.minimum(mean.count, _LARGEST)
            elif isinstance(channel, schema.Pool):
                tensors |= self._drawn(store, sight, channel, number, question)
                parts[name] = Part(entries=question.draw.get(name, channel.draw))
        self._common(store, sight, question, parts, tensors)
        parts = {name: parts[name] for name in question.channels if name in parts}
        body = self.messages.of("down", parts).encode(tensors)
        return Reply(parts, body, self.etag(sight, number, question))

    def _common(
        self,
        store: Store,
        sight: Snapshot,
        question: Question,
        parts: dict[str, Part],
        tensors: dict[str, np.ndarray],
    ) -> None:
        """Replies of moving means that have moved, or their common values where that is less or all there is."""
        behind = {}
        for name in question.channels:
            if name in sight.moving and question.have.get(name) != sight.moving[name].version:
                behind[name] = sight.moving[name].version - question.have.get(name, -1)
        names = {*parts, *behind}
        entire = self.traffic.whole(names, behind)
        for name, missed in behind.items():
            version = sight.moving[name].version
            known = name in question.have and missed > 0
            first = store.reply(self.id, name, version - missed + 1) if known and name not in entire else None
            last = store.reply(self.id, name, version) if first is not None else None
            if last is None:
                parts[name] = Part(version=version, whole=1)
                tensors |= {f"{name}.{k}": v for k, v in sight.moving[name].common.items()}
            else:
                parts[name] = Part(version=version)
                tensors |= bounded(self.channels[name], self.messages.reply(name).read(last))

    def _drawn(
        self, store: Store, sight: Snapshot, channel: schema.Pool, number: int, question: Question
    ) -> dict[str, np.ndarray]:
        """Random entries of a pool for one reader."""
        name = channel.name
        draw = question.draw.get(name, channel.draw)
        where = self.seed, question.round, question.turn
        picks = draw_from(channel, sight.available_entries(channel), np.array([number]), where, draw)
        owners = np.unique(picks[picks >= 0] // channel.keep)
        values = {k: np.zeros((len(owners), channel.keep, *t.shape), np.float32) for k, t in channel.tensors.items()}
        counts = np.zeros((len(owners), channel.keep, *channel.rows))
        for i, owner in enumerate(owners.tolist()):
            with store.reading():  # both of one moment
                entry = store.entry(self.id, name, owner)
                upload = store.upload(entry.upload) if entry else None
            if entry is None or upload is None:
                continue  # it left a moment ago
            named = self.messages.stored(upload, name)
            for k, kept in values.items():
                kept[i, : entry.version] = named[f"{name}.{k}"]
            counts[i, : entry.version] = named[f"{name}.count"] if channel.rows else entry.weight
        near = np.searchsorted(owners, picks // channel.keep) * channel.keep + picks % channel.keep
        if not len(owners):  # nobody has anything: of one member, nothing is picked
            values = {k: np.zeros((1, *v.shape[1:]), np.float32) for k, v in values.items()}
            counts = np.zeros((1, *counts.shape[1:]))
        answer = gather_entries(channel, np.where(picks >= 0, near, -1), values, counts)[0]
        tensors = bounded(channel, {f"{name}.{k}": t for k, t in answer.tensors.items()})
        return tensors | ({f"{name}.count": answer.count} if channel.rows else {})
