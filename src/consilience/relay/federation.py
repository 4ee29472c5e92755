"""One federation at the relay: what is put into its channels, who leaves them, and when moving means close."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping

import numpy as np

from consilience.channels import MovingMean, RunningMean
from consilience.channels.base import broadcast_rows
from consilience.errors import ConfigurationError
from consilience.relay.answers import Answers
from consilience.relay.messages import Messages, bounded
from consilience.relay.rejections import Rejection
from consilience.relay.snapshot import Snapshot
from consilience.relay.store import Arrays, Entry, Member, Store
from consilience.wire import schema
from consilience.wire.charter import Charter, common_values_message, read_charter
from consilience.wire.codec import Codec
from consilience.wire.headers import Part, Parts, format_parts, upload_sha256

LIKE = np.zeros(0, dtype=np.float32)
_ANYBODY = 2**31  # a moving mean at the relay takes whoever the store knows
_LARGER = 1e6  # what goes, against the sums it leaves behind: of those so many digits were rounded away beside it


class FederationService:
    """The channels of one federation. Writers call what takes a draft, one at a time; readers ask beside them."""

    def __init__(self, store: Store, federation: int) -> None:
        found = store.federation(federation)
        if found is None:
            raise ConfigurationError(f"the store has no federation {federation}")
        self.id, self.text = federation, found[0]
        self.charter: Charter = read_charter(self.text)
        self.channels = self.charter.channels
        self.moving = [n for n, c in self.channels.items() if c.moves]
        self.messages = Messages(self.charter)
        self.answers = Answers(federation, self.charter.seed, self.messages)
        self.sight = self._restored(store, Snapshot(*found[1:]))

    def _restored(self, store: Store, sight: Snapshot) -> Snapshot:
        """How the federation stood when it was last on disk."""
        revision = sight.revision
        self.meet(store, sight)
        for name, channel in self.channels.items():
            state = store.state(self.id, name)
            sight.changed[name] = revision
            if isinstance(channel, schema.Pool):
                self._fill(store, sight, channel)
                continue
            assert isinstance(channel, schema.Mean)
            if channel.moving:
                assert state is not None, "a moving mean was stored when the federation was made"
                start = {k: state[f"common.{k}"] for k in channel.tensors}
                sight.moving[name] = moving = MovingMean(channel, _ANYBODY, start)
                moving.load(state)
                sight.waiting[name] = len(store.entries(self.id, name))
            else:
                sight.standing[name] = running = RunningMean(channel, LIKE)
                if state is not None:
                    running.load(state)
        return sight

    def meet(self, store: Store, sight: Snapshot) -> None:
        """See anew who the members are."""
        sight.expected = store.expected(self.id)

    def _fill(self, store: Store, sight: Snapshot, channel: schema.Pool) -> None:
        name = channel.name
        sight.present[name] = np.zeros((0, channel.keep), dtype=bool)
        entries = store.entries(self.id, name)
        if not entries:
            if channel.by == "row":
                sight.weights[name] = np.zeros((0, channel.keep, *channel.rows))
            return
        room = entries[-1].number + 1
        sight.present[name] = np.zeros((room, channel.keep), dtype=bool)
        if channel.by == "row":
            sight.weights[name] = np.zeros((room, channel.keep, *channel.rows))
        for entry in entries:  # of a pool, `version` is how many entries there are
            sight.present[name][entry.number, : entry.version] = True
            if channel.by == "row":
                tensors = self.messages.stored(store.upload(entry.upload), name)
                sight.weights[name][entry.number, : entry.version] = tensors[f"{name}.count"]

    # -- putting -------------------------------------------------------------------------------------------------------

    def take(self, store: Store, draft: Snapshot, member: Member, round_: int, put: str, body: bytes) -> str:
        """One upload into the store and the draft; its receipt, or a refusal that leaves both as they were."""
        parts = self.messages.meant(put)
        put = format_parts(parts)
        sha256 = upload_sha256(put, body)
        if round_ <= member.round:
            return self._known(store, member, round_, sha256)
        tensors = self._judged(parts, body)
        stale = self._stale(store, draft, member, parts)
        upload, gone = store.add_upload(member.id, put, body), set()
        taken = [name for name in parts if name not in stale]
        renewed = bool(taken) and round_ > draft.newest and member.number != draft.newest_by
        if renewed:
            draft.newest, draft.newest_by = draft.newest + 1, member.number
        for name in taken:
            part = parts[name]
            old = store.entry(self.id, name, member.number)
            gone |= {old.upload} if old else set()
            mine = self.channels[name].own_tensors(tensors)
            self._place(store, draft, name, part, mine, old, member.number)
            version, weight = part.entries or part.version or 0, part.weight or 0.0
            store.set_entry(self.id, name, Entry(member.number, upload, version, weight, draft.newest))
            draft.changes(name)
        if member.away and any(name in self.moving for name in taken):
            store.set_away(self.id, [member.number], False)
            draft.expected += 1
        store.tidy(gone | {upload})
        receipt = {"round": round_, "sha256": sha256, "taken": taken, "refused": stale}
        said = json.dumps(receipt)
        store.keep_receipt(member.id, round_, sha256, len(body), said)
        if renewed:
            self._expire(store, draft)
        for name in parts:
            if name in self.moving:
                self.shut_if_ready(store, draft, name)
        return said

    def _known(self, store: Store, member: Member, round_: int, sha256: str) -> str:
        """The receipt of a round that was put before, where the very same is put again."""
        kept = store.receipt(member.id, round_) if round_ == member.round else None
        if kept is None:
            raise Rejection("older-round", f"round {round_} came after round {member.round}; rounds only go on")
        if kept[0] != sha256:
            raise Rejection("other-bytes", f"round {round_} was put with other bytes, SHA-256 {kept[0]}, and stays so")
        return kept[1]

    def _judged(self, parts: Parts, body: bytes) -> dict[str, np.ndarray]:
        tensors = self.messages.of("up", parts).decode(body)
        most = self.charter.rules.samples
        for name, part in parts.items():
            if self.channels[name].rows:
                count = tensors[f"{name}.count"]
                if count.sum(dtype=np.int64) > most * (part.entries or 1):
                    raise Rejection(
                        "absurd-count",
                        f"{name}.count: {int(count.sum(dtype=np.int64))} samples; {most} are taken at most",
                        field=f"{name}.count",
                    )
        return tensors

    def _stale(self, store: Store, draft: Snapshot, member: Member, parts: Parts) -> dict[str, str]:
        """Moving means that refuse this put as too stale; one that may not be at all refuses the whole upload."""
        stale: dict[str, str] = {}
        for name in self.moving:
            if name not in parts:
                continue
            version, now = parts[name].version or 0, draft.moving[name].version
            if version > now:
                raise Rejection("version-ahead", f"{name}: version {version} is ahead of the relay's {now}", field=name)
            if store.entry(self.id, name, member.number):
                raise Rejection(
                    "already-put", f"{name}: your last contribution waits for the others; leave it out", field=name
                )
            channel = draft.moving[name].channel
            if now - version > channel.max_staleness:
                stale[name] = f"made from version {version}; the relay is at {now}, {channel.max_staleness} is the most"
        return stale

    def _place(
        self,
        store: Store,
        draft: Snapshot,
        name: str,
        part: Part,
        tensors: Mapping[str, np.ndarray],
        old: Entry | None,
        number: int,
    ) -> None:
        """One channel's share of an upload, into the draft."""
        if name in draft.moving:
            draft.waiting[name] += 1
        elif name in draft.standing:
            fresh = {k: t[None] for k, t in tensors.items()}
            weights = _weights(fresh, self.channels[name], part.weight)
            stale, before = self.contribution(store, name, old)
            self._exchange(draft, name, fresh, weights, stale, before)
        else:
            draft.place(name, number, part.entries or 0, tensors.get("count"))

    def _exchange(
        self, draft: Snapshot, name: str, fresh: Arrays, weights: np.ndarray, stale: Arrays, before: np.ndarray
    ) -> None:
        """Let a contribution to a standing mean come and the one before it go; sums may have lost digits to that."""
        running = draft.running(name)
        running.exchange(fresh, weights, stale, before)
        for k, total in running.sums.items():
            went = np.abs(broadcast_rows(before, stale[k]) * stale[k]).max(initial=0.0)
            draft.doubtful |= bool(went > _LARGER * np.abs(total).max(initial=0.0))

    def contribution(self, store: Store, name: str, entry: Entry | None) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """What a member has in a standing mean, and its weight; nothing where it has nothing."""
        channel = self.channels[name]
        if entry is None:
            nothing = {k: np.zeros((1, *t.shape), dtype=np.float32) for k, t in channel.tensors.items()}
            return nothing, np.zeros((1, *channel.rows))
        named = self.messages.stored(store.upload(entry.upload), name)
        tensors = {k: t[None] for k, t in channel.own_tensors(named).items()}
        return tensors, _weights(tensors, channel, entry.weight)

    # -- leaving -------------------------------------------------------------------------------------------------------

    def withdraw(self, store: Store, draft: Snapshot, number: int, names: Collection[str] | None = None) -> None:
        """Take out what a member has in the channels, or in some of them."""
        gone = set()
        for name in self.channels if names is None else names:
            entry = store.entry(self.id, name, number)
            if entry is None:
                continue
            if name in draft.standing:
                stale, before = self.contribution(store, name, entry)
                nothing = {k: t * 0 for k, t in stale.items()}
                self._exchange(draft, name, nothing, before * 0, stale, before)
            elif name in draft.moving:
                draft.waiting[name] -= 1
            else:
                draft.place(name, number, 0)
            store.drop_entries(self.id, name, number)
            draft.changes(name)
            gone.add(entry.upload)
        store.tidy(gone)

    def _expire(self, store: Store, draft: Snapshot) -> None:
        """Forget contributions of members who have been silent for too many rounds."""
        after = self.charter.rules.expire
        for name in () if not after else set(self.channels) - set(self.moving):
            for entry in store.entries(self.id, name, before=draft.newest - after):
                self.withdraw(store, draft, entry.number, [name])

    # -- closing -------------------------------------------------------------------------------------------------------

    def shut_if_ready(self, store: Store, draft: Snapshot, name: str) -> None:
        """Close a moving mean when everybody who is waited for, or the quorum, has put."""
        waiting, quorum = draft.waiting[name], draft.moving[name].channel.quorum
        enough = waiting >= draft.expected or (quorum is not None and waiting >= quorum)
        if enough and waiting >= self.charter.rules.least:
            self.shut(store, draft, name)

    def overdue(self, store: Store, draft: Snapshot, name: str) -> bool:
        """Close a moving mean whose deadline has passed, and wait no longer for those who were not there."""
        if draft.waiting[name] < self.charter.rules.least:
            return False
        here = {entry.number for entry in store.entries(self.id, name)}
        missing = [m.number for m in store.members(self.id) if not (m.revoked or m.away or m.number in here)]
        store.set_away(self.id, missing, True)
        draft.expected -= len(missing)
        self.shut(store, draft, name)
        for other in self.moving:  # fewer are waited for now, there too
            if draft.waiting[other]:
                self.shut_if_ready(store, draft, other)
        return True

    def shut(self, store: Store, draft: Snapshot, name: str) -> None:
        """Move the common values by the mean of what waits, in the order of the members' numbers."""
        theirs, moving = draft.moving[name], draft.common(name)
        entries = store.entries(self.id, name)
        moving.expect([entry.number for entry in entries])
        for entry in entries:
            named = self.messages.stored(store.upload(entry.upload), name)
            tensors = {k: t[None] for k, t in self.channels[name].own_tensors(named).items()}
            moving.upload([entry.number], tensors, np.array([entry.weight]), [entry.version])
        with np.errstate(over="ignore", invalid="ignore"):  # what would warn moves nothing
            body = self._moved(moving, theirs.common) if moving.aggregate() else None
        if body is None:
            draft.moving[name] = theirs
        else:
            useful = math.ceil(Codec(common_values_message(self.channels[name])).size / max(len(body), 1)) + 1
            store.keep_reply(self.id, name, moving.version, body, moving.version - useful)
            store.keep_state(self.id, name, moving.state())
        store.drop_entries(self.id, name)
        store.tidy({entry.upload for entry in entries})
        draft.waiting[name] = 0
        draft.changes(name)

    def _moved(self, moving: MovingMean, before: Mapping[str, np.ndarray]) -> bytes | None:
        """The reply, and the common values moved by it; None where they would be beyond float32."""
        name, codec = moving.channel.name, self.messages.reply(moving.channel.name)
        if not all(np.isfinite(t).all() for t in moving.reply.values()):
            return None
        body, again = b"", codec.encode(bounded(moving.channel, {f"{name}.{k}": t for k, t in moving.reply.items()}))
        for _ in range(8):  # an answer writes it down once more, which must not change it by a bit
            body = again
            sent = codec.read(body)  # members add what they decode: so does the relay, to the bit
            again = codec.encode(bounded(moving.channel, sent))
            if again == body:
                break
        moving.common = {k: v + sent[f"{name}.{k}"] for k, v in before.items()}
        return body if all(np.isfinite(v).all() for v in moving.common.values()) else None

    # -- keeping -------------------------------------------------------------------------------------------------------

    def keep(self, store: Store, draft: Snapshot) -> None:
        """Bring the draft's sums to the store, with the rest of what was written."""
        for name, running in draft.standing.items():
            if draft.changed[name] > self.sight.changed[name]:
                store.keep_state(self.id, name, running.state())
        if (draft.revision, draft.newest) != (self.sight.revision, self.sight.newest):
            store.revise(self.id, draft.revision, draft.newest, draft.newest_by)


def _weights(tensors: Mapping[str, np.ndarray], channel: schema.Channel, weight: float | None) -> np.ndarray:
    """What a contribution weighs, (1, *rows): by row as its counts say, or as was said beside it."""
    return tensors["count"].astype(np.float64) if channel.rows else np.array([weight or 0.0])
