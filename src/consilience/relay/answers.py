"""Answers to members: one body with means, drawn entries and replies, and its ETag before the body is built."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from weakref import ref

import numpy as np

from consilience.channels import draw_from, gather_entries
from consilience.relay.answer_parts import entries_to_send, mean_to_send
from consilience.relay.messages import Messages, clip_to_bounds
from consilience.relay.rejections import Rejection
from consilience.relay.robust_answers import RobustAnswers
from consilience.relay.scoped_answers import ScopedAnswers, entries_within
from consilience.relay.snapshot import KnownMean, Snapshot
from consilience.relay.store import Store
from consilience.wire import schema
from consilience.wire.byte_count import ByteCount
from consilience.wire.headers import ANSWER_HEADER, Part, Parts, format_parts
from consilience.wire.rules import Rules
from consilience.wire.signatures import ANSWER, Signer

_KEPT_MEAN = 128 * 1024  # bytes: larger means are kept only as answers, of which there is a limit
_ALL_UPLOADS = 2**40  # bytes: more than any answer that reads a few uploads takes


@dataclass(frozen=True)
class AnswerRequest:
    """What a member asks for: the answers of which channels, in which of its rounds.

    have: versions of the moving means it has. draw: how many entries of a pool, if fewer than the charter's. turn:
    0, 1, ... for several requests in one round; each turn draws other entries.
    """

    channels: tuple[str, ...]
    round: int
    have: Mapping[str, int]
    draw: Mapping[str, int]
    turn: int = 0
    partners: tuple[int, ...] = ()
    """Members by number, whose uploads alone, with its own, standing means and pools are of; none: everybody's."""


@dataclass(frozen=True)
class EncodedAnswer:
    """An answer as it is sent: what the body holds, the body, and the headers beside it with the signature of all."""

    parts: Parts
    body: bytes
    headers: dict[str, str]


class AnswerBuilder:
    """Builds the answers of one federation from its snapshot and the store."""

    def __init__(
        self, federation: int, epoch: int, seed: int, messages: Messages, signer: Signer, rules: Rules
    ) -> None:
        self.id, self.epoch, self.seed, self.messages, self.signer = federation, epoch, seed, messages, signer
        self.channels = messages.channels
        self.byte_count = ByteCount(self.channels)
        self._work = {name: _work(channel, messages.largest) for name, channel in self.channels.items()}
        self._robust = RobustAnswers(federation, messages)
        self.scoped = ScopedAnswers(federation, messages, rules)

    def work(self, request: AnswerRequest) -> int:
        """About how many bytes are read and computed for an answer."""
        more = self.scoped.work(request.partners) * len(request.channels) if request.partners else 0
        return more + sum(self._work[name] for name in request.channels)

    def check(self, request: AnswerRequest) -> AnswerRequest:
        """The request in the charter's order; refuses unknown channels, and more entries than are drawn."""
        for name in [*request.channels, *request.have, *request.draw]:
            if name not in self.channels:
                known = ", ".join(self.channels)
                raise Rejection("unknown-channel", f"no channel {name[:80]!r} here; there are {known}", field=name[:80])
        for name, draw in request.draw.items():
            channel = self.channels[name]
            if not isinstance(channel, schema.Pool) or not 1 <= draw <= channel.draw:
                most = channel.draw if isinstance(channel, schema.Pool) else 0
                raise Rejection("entries", f"{name}: {draw} entries requested; at most {most} are drawn", field=name)
        return replace(request, channels=tuple(n for n in self.channels if n in request.channels))

    def draws(self, snapshot: Snapshot, request: AnswerRequest) -> bool:
        """Whether an answer has random entries, or is within partners: it is then for one member, in one round."""
        return bool(request.partners) or any(n in snapshot.present for n in request.channels)

    def etag(self, snapshot: Snapshot, number: int, request: AnswerRequest) -> str:
        """Identifies an answer before it is built: the same request at the same revisions has the same answer."""
        seen = [(n, snapshot.changed[n]) for n in request.channels if n not in snapshot.moving]
        seen += [(n, snapshot.moving[n].version) for n in request.channels if n in snapshot.moving]
        who = (number, request.round, request.turn) if self.draws(snapshot, request) else ()
        known = self.epoch, self.id, seen, who, sorted(request.have.items()), sorted(request.draw.items())
        within = repr(request.partners) if request.partners else ""
        return hashlib.sha256((repr(known) + within).encode()).hexdigest()[:32]

    def build(self, store: Store, snapshot: Snapshot, number: int, request: AnswerRequest) -> EncodedAnswer:
        """One body with the answer of every requested channel, except moving means that have not moved."""
        parts: dict[str, Part] = {}
        tensors: dict[str, np.ndarray] = {}
        for name in request.channels:
            channel = self.channels[name]
            if isinstance(channel, schema.Mean) and name in snapshot.standing:
                parts[name], sent = self._mean(store, snapshot, channel, number, request)
                tensors |= sent
            elif isinstance(channel, schema.Pool):
                parts[name], sent = self._draw(store, snapshot, channel, number, request)
                tensors |= sent
        self._add_moving_means(store, snapshot, request, parts, tensors)
        parts = {name: parts[name] for name in request.channels if name in parts}
        body = self.messages.codec_for("down", parts).encode(tensors)
        etag, parts_header = f'"{self.etag(snapshot, number, request)}"', format_parts(parts)
        proof = self.signer.proof_headers(ANSWER, self.epoch, {"etag": etag, "parts": parts_header}, body)
        return EncodedAnswer(parts, body, {"ETag": etag, ANSWER_HEADER: parts_header, **proof})

    def _mean(
        self, store: Store, snapshot: Snapshot, channel: schema.Mean, number: int, request: AnswerRequest
    ) -> tuple[Part, dict[str, np.ndarray]]:
        """A standing mean: from its sums, or from contributions, of partners or where it needs all of them at once."""
        if request.partners:
            return mean_to_send(channel, self.scoped.mean(store, snapshot, channel, number, request.partners))
        if channel.robustness.needs_all:
            return mean_to_send(channel, self._robust.answer(store, snapshot, channel))
        running, known = snapshot.standing[channel.name], snapshot.means.get(channel.name)
        if known is not None and known.running() is running:
            return known.part, known.tensors
        part, tensors = mean_to_send(channel, running.answer())
        if self._work[channel.name] <= _KEPT_MEAN:
            snapshot.means[channel.name] = KnownMean(ref(running), part, tensors)
        return part, tensors

    def _add_moving_means(
        self,
        store: Store,
        snapshot: Snapshot,
        request: AnswerRequest,
        parts: dict[str, Part],
        tensors: dict[str, np.ndarray],
    ) -> None:
        """Replies of moving means that have moved; their common values if those are smaller or a reply is gone."""
        behind = {}
        for name in request.channels:
            if name in snapshot.moving and request.have.get(name) != snapshot.moving[name].version:
                behind[name] = snapshot.moving[name].version - request.have.get(name, -1)
        names = {*parts, *behind}
        smaller_in_full = self.byte_count.smaller_in_full(names, behind)
        for name, missed in behind.items():
            version = snapshot.moving[name].version
            by_reply = name in request.have and missed > 0 and name not in smaller_in_full
            first = store.replies.get(self.id, name, version - missed + 1) if by_reply else None
            last = store.replies.get(self.id, name, version) if first is not None else None
            if last is None:
                parts[name] = Part(version=version, full=1)
                tensors |= {f"{name}.{k}": v for k, v in snapshot.moving[name].common.items()}
            else:
                parts[name] = Part(version=version)
                tensors |= clip_to_bounds(self.channels[name], self.messages.reply_codec(name).read(last))

    def _draw(
        self, store: Store, snapshot: Snapshot, channel: schema.Pool, number: int, request: AnswerRequest
    ) -> tuple[Part, dict[str, np.ndarray]]:
        """Random entries of a pool for one member; without weights by row, those that are missing go last."""
        name = channel.name
        draw = request.draw.get(name, channel.draw)
        where = self.seed, request.round, request.turn
        entries = snapshot.entries_to_draw(channel)
        if request.partners:
            entries = entries_within(entries, channel.keep, number, request.partners, self.scoped.fewest)
        picks = draw_from(channel, entries, np.array([number]), where, draw)
        owners = sorted({pick // channel.keep for pick in picks.ravel().tolist() if pick >= 0})
        values = {k: np.zeros((len(owners), channel.keep, *t.shape), np.float32) for k, t in channel.tensors.items()}
        counts = np.zeros((len(owners), channel.keep, *channel.rows), np.int32 if channel.rows else np.float64)
        for i, owner in enumerate(owners):
            found = store.contributions.get_with_upload(self.id, name, owner)
            if found is None:
                continue  # its contribution was removed since the snapshot
            stored, upload = found
            named = self.messages.read_stored(upload, name)
            for k, value in values.items():
                value[i, : stored.entries] = named[f"{name}.{k}"]
            counts[i, : stored.entries] = named[f"{name}.count"] if channel.rows else stored.weight
        rows = np.searchsorted(owners, picks // channel.keep) * channel.keep + picks % channel.keep
        if not len(owners):  # the pool is empty: arrays of one member, of which nothing is picked
            values = {k: np.zeros((1, *v.shape[1:]), np.float32) for k, v in values.items()}
            counts = np.zeros((1, *counts.shape[1:]), counts.dtype)
        answer = gather_entries(channel, np.where(picks >= 0, rows, -1), values, counts)[0]
        return entries_to_send(channel, answer)


def _work(channel: schema.Channel, largest: int) -> int:
    """About how many bytes the answer of a channel takes; each drawn entry is read with all of its upload."""
    if isinstance(channel, schema.Mean) and channel.robustness.needs_all:
        return _ALL_UPLOADS
    size = sum(4 * math.prod(tensor.shape) for tensor in channel.tensors.values())
    return channel.draw * (largest + size) if isinstance(channel, schema.Pool) else size
