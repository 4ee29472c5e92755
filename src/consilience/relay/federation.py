"""One federation at the relay: accepts uploads, removes contributions, and aggregates moving means."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Mapping

import numpy as np

from consilience.channels import MovingMean, RunningMean
from consilience.channels.base import broadcast_rows
from consilience.channels.robust import for_sums
from consilience.errors import ConfigurationError, StorageError
from consilience.relay.answers import AnswerBuilder
from consilience.relay.messages import Messages, clip_to_bounds, contribution_weight
from consilience.relay.rejections import Rejection
from consilience.relay.roles import check_uploads, count_expected, fewest_contributions
from consilience.relay.snapshot import Snapshot
from consilience.relay.store import Store
from consilience.relay.tables import Arrays, MemberRecord, StoredContribution, StoredReceipt, StoredUpload
from consilience.wire import schema
from consilience.wire.charter import Charter, read_charter
from consilience.wire.codec import Codec
from consilience.wire.common_values import common_values_message
from consilience.wire.headers import Part, Parts, format_parts, upload_sha256
from consilience.wire.signatures import Signer

LIKE = np.zeros(0, dtype=np.float32)
"""An array of the kind that the relay's channels use."""
_ANY_MEMBER = 2**31  # the store checks member numbers: a moving mean at the relay accepts all of them
_LARGE = 1e6  # how many times larger than the sums a removed contribution may be before the sums are recounted


class FederationService:
    """The channels of one federation. Only the writer calls methods that take a draft; readers use the snapshot."""

    def __init__(self, store: Store, federation: int) -> None:
        found = store.federations.get(federation)
        if found is None:
            raise ConfigurationError(f"{store.path} has no federation with id {federation}")
        self.id, self.charter_text = federation, found.charter
        self.charter: Charter = read_charter(self.charter_text)
        self.channels = self.charter.channels
        self.moving = [n for n, c in self.channels.items() if c.moves]
        self.messages = Messages(self.charter)
        self.epoch = store.epochs.current()
        self.signer = Signer(store.keys.get(), self.charter.name)
        self.answers = AnswerBuilder(
            federation, self.epoch, self.charter.seed, self.messages, self.signer, self.charter.rules
        )
        self.snapshot = self._restore(store, Snapshot(found.revision, found.round, found.advanced_by))

    def read_again(self, store: Store) -> Snapshot:
        """A draft of what the store has now, all of it counted as changed: records have been dropped or rebuilt."""
        found = store.federations.get(self.id)
        assert found is not None
        self.epoch = self.answers.epoch = store.epochs.current()
        revision = max(found.revision, self.snapshot.revision)
        draft = self._restore(store, Snapshot(revision, found.round, found.advanced_by))
        for name in self.channels:
            draft.count_change(name)
        return draft

    # -- from the store ------------------------------------------------------------------------------------------------

    def _restore(self, store: Store, snapshot: Snapshot) -> Snapshot:
        """The federation as it was last saved."""
        revision = snapshot.revision
        self.count_members(store, snapshot)
        snapshot.has_public_set = store.public_sets.has(self.id)
        for name, channel in self.channels.items():
            state = store.channel_states.get(self.id, name)
            snapshot.changed[name] = revision
            if isinstance(channel, schema.Pool):
                self._restore_pool(store, snapshot, channel)
                continue
            assert isinstance(channel, schema.Mean)
            if channel.moving:
                if state is None:  # it is stored when the federation is created
                    raise StorageError(f"{self.charter.name}: the common values of {name} are gone")
                start = {k: state[f"common.{k}"] for k in channel.tensors}
                snapshot.moving[name] = moving = MovingMean(channel, _ANY_MEMBER, start)
                moving.load(state)
                snapshot.waiting[name] = len(store.contributions.all(self.id, name))
            else:
                snapshot.standing[name] = running = RunningMean(channel, LIKE)
                if state is not None:
                    running.load(state)
        return snapshot

    def _restore_pool(self, store: Store, snapshot: Snapshot, channel: schema.Pool) -> None:
        name = channel.name
        contributions = store.contributions.all(self.id, name)
        members = contributions[-1].number + 1 if contributions else 0
        snapshot.present[name] = np.zeros((members, channel.keep), dtype=bool)
        if channel.by == "row":
            snapshot.weights[name] = np.zeros((members, channel.keep, *channel.rows))
        for each in contributions:
            snapshot.present[name][each.number, : each.entries] = True
            if channel.by == "row":
                tensors = self.messages.read_stored(store.uploads.get(each.upload), name)
                snapshot.weights[name][each.number, : each.entries] = tensors[f"{name}.count"]

    def count_members(self, store: Store, snapshot: Snapshot) -> None:
        """Count again how many members moving means wait for."""
        snapshot.expected = store.members.count_expected(self.id)
        snapshot.uploaders = count_expected(store, self.id, self.charter, self.moving)

    # -- uploads -------------------------------------------------------------------------------------------------------

    def accept_upload(
        self,
        store: Store,
        draft: Snapshot,
        member: MemberRecord,
        round_: int,
        upload: StoredUpload,
        may_advance: bool = True,
    ) -> str:
        """Write one upload to the store and the draft; returns its receipt. A refused upload changes neither.

        may_advance: whether the federation's round has lasted long enough.
        """
        parts = self.messages.parse_header(upload.header)
        check_uploads(self.charter, member.number, parts)
        header, body = format_parts(parts), upload.body
        sha256 = upload_sha256(header, body)
        if round_ <= member.round:
            return _earlier_receipt(store, member, round_, sha256)
        tensors = self.messages.decode_upload(parts, body)
        before = store.contributions.of(self.id, member.number, parts.keys())
        too_stale = self._check_versions(draft, parts, before)
        accepted = [name for name in parts if name not in too_stale]
        advances = may_advance and bool(accepted) and round_ > draft.round and member.number != draft.advanced_by
        if advances:
            draft.round, draft.advanced_by = draft.round + 1, member.number
        replaced = {name: before.get(name) for name in accepted}
        for name, old in replaced.items():
            self._apply(store, draft, name, parts[name], self.channels[name].own_tensors(tensors), old, member.number)
            draft.count_change(name)
        self._store(store, draft, member, parts, replaced, StoredUpload(header, body), sha256)
        came_back = bool(member.away) and any(name in self.moving for name in accepted)
        counted = store.members.count_upload(member, round_, len(body), came_back=came_back)
        if came_back and not counted.away:
            draft.expect(1, self.charter.uploads_of(member.number))
        entry = store.audit.append("uploaded", self.id, member.id, round=round_, sha256=sha256)
        said = {"round": round_, "sha256": sha256, "epoch": self.epoch, "accepted": accepted, "refused": too_stale}
        receipt = json.dumps({**said, "after": member.round, "entry": entry.id, "chain": entry.chain.hex()})
        store.receipts.add(counted, StoredReceipt(sha256, receipt), len(body))
        if advances:
            self._remove_expired(store, draft)
        for name in parts:
            if name in self.moving:
                self.aggregate_if_ready(store, draft, name)
        return receipt

    def _store(
        self,
        store: Store,
        draft: Snapshot,
        member: MemberRecord,
        parts: Parts,
        before: Mapping[str, StoredContribution | None],
        upload: StoredUpload,
        sha256: str,
    ) -> None:
        """Store an upload and its contributions, in place of the member's contributions before."""
        if not before:  # all of it was too stale
            return
        replaced = Counter(old.upload for old in before.values() if old)
        number = store.uploads.add(member.id, upload, sha256, replaced)
        for name, old in before.items():
            part, of = parts[name], (member.number, number)
            new = StoredContribution(*of, part.version or 0, part.entries or 0, part.weight or 0.0, draft.round)
            store.contributions.save(self.id, name, new, old)
        store.uploads.delete_unused(replaced.keys() - {number})

    def _check_versions(
        self, draft: Snapshot, parts: Parts, before: Mapping[str, StoredContribution]
    ) -> dict[str, str]:
        """The moving means that refuse their contribution as too stale, and why; other faults refuse the upload.

        before: what the member has in the channels now.
        """
        too_stale: dict[str, str] = {}
        for name in self.moving:
            if name not in parts:
                continue
            version, now = parts[name].version or 0, draft.moving[name].version
            if version > now:
                raise Rejection("version-ahead", f"{name}: version {version} is ahead of the relay's {now}", field=name)
            if name in before:
                raise Rejection(
                    "already-uploaded",
                    f"{name}: your last contribution waits to be aggregated; leave the channel out until then",
                    field=name,
                )
            most = draft.moving[name].channel.max_staleness
            if now - version > most:
                too_stale[name] = f"made from version {version}; the relay is at {now} and accepts {most} versions back"
        return too_stale

    def _apply(
        self,
        store: Store,
        draft: Snapshot,
        name: str,
        part: Part,
        tensors: Mapping[str, np.ndarray],
        old: StoredContribution | None,
        number: int,
    ) -> None:
        """One channel's part of an upload, into the draft."""
        if name in draft.moving:
            draft.waiting[name] += 1
        elif name in draft.standing:
            new = {k: t[None] for k, t in tensors.items()}
            weights = contribution_weight(self.channels[name], new, part.weight)
            self._replace(draft, name, new, weights, *self.read_contribution(store, name, old))
        else:
            draft.set_pool_entries(name, number, part.entries or 0, tensors.get("count"))

    def _replace(
        self, draft: Snapshot, name: str, new: Arrays, weights: np.ndarray, old: Arrays, old_weights: np.ndarray
    ) -> None:
        """Replace a contribution to a standing mean; notes if the sums may have lost digits to the old one."""
        running = draft.copy_standing_mean(name)
        running.exchange(new, weights, old, old_weights)
        old, old_weights = for_sums(running.channel, old, old_weights)
        for k, total in running.sums.items():
            removed = np.abs(broadcast_rows(old_weights, old[k]) * old[k]).max(initial=0.0)
            draft.needs_recount |= bool(removed > _LARGE * np.abs(total).max(initial=0.0))

    def read_contribution(
        self, store: Store, name: str, stored: StoredContribution | None
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """The tensors and the weight of a contribution to a standing mean; zeros if there is none."""
        channel = self.channels[name]
        if stored is None:
            zeros = {k: np.zeros((1, *t.shape), dtype=np.float32) for k, t in channel.tensors.items()}
            return zeros, np.zeros((1, *channel.rows))
        named = self.messages.read_stored(store.uploads.get(stored.upload), name)
        tensors = {k: t[None] for k, t in channel.own_tensors(named).items()}
        return tensors, contribution_weight(channel, tensors, stored.weight)

    # -- removal -------------------------------------------------------------------------------------------------------

    def remove_contributions(
        self, store: Store, draft: Snapshot, number: int, names: Collection[str] | None = None
    ) -> None:
        """Remove a member's contributions from all channels, or from some."""
        removed = set()
        for name in self.channels if names is None else names:
            stored = store.contributions.get(self.id, name, number)
            if stored is None:
                continue
            if name in draft.standing:
                old, old_weights = self.read_contribution(store, name, stored)
                zeros = {k: t * 0 for k, t in old.items()}
                self._replace(draft, name, zeros, old_weights * 0, old, old_weights)
            elif name in draft.moving:
                draft.waiting[name] -= 1
            else:
                draft.set_pool_entries(name, number, 0)
            store.contributions.delete(self.id, name, number)
            draft.count_change(name)
            removed.add(stored.upload)
        store.uploads.delete_unused(removed)

    def _remove_expired(self, store: Store, draft: Snapshot) -> None:
        """Remove contributions that were not renewed for more rounds than the rules allow."""
        after = self.charter.rules.expire
        for name in () if not after else set(self.channels) - set(self.moving):
            for stored in store.contributions.all(self.id, name, before_round=draft.round - after):
                self.remove_contributions(store, draft, stored.number, [name])

    # -- aggregation of moving means -----------------------------------------------------------------------------------

    def aggregate_if_ready(self, store: Store, draft: Snapshot, name: str) -> None:
        """Aggregate a moving mean if every expected member, or the quorum, has uploaded."""
        waiting, quorum, expected = draft.waiting[name], draft.moving[name].channel.quorum, draft.uploaders[name]
        if waiting < fewest_contributions(self.charter, name):
            return
        complete = waiting >= expected and waiting - store.members.count_away(self.id, name) >= expected
        if complete or (quorum is not None and waiting >= quorum):
            self.aggregate(store, draft, name)

    def aggregate_overdue(self, store: Store, draft: Snapshot, name: str) -> bool:
        """Aggregate a moving mean whose deadline has passed; members that did not upload are away from now on."""
        if draft.waiting[name] < fewest_contributions(self.charter, name):
            return False
        uploaded = {stored.number for stored in store.contributions.all(self.id, name)}
        present = [m.number for m in store.members.of(self.id) if not (m.revoked or m.away)]
        missing = [n for n in present if n not in uploaded and name in self.charter.uploads_of(n)]
        store.members.miss_deadline(self.id, missing)
        for number in missing:
            draft.expect(-1, self.charter.uploads_of(number))
        self.aggregate(store, draft, name)
        for other in self.moving:  # they wait for fewer members now
            if draft.waiting[other]:
                self.aggregate_if_ready(store, draft, other)
        return True

    def aggregate(self, store: Store, draft: Snapshot, name: str) -> None:
        """Move the common values by the mean of the waiting contributions, added in the order of member numbers."""
        before, moving = draft.moving[name], draft.copy_moving_mean(name)
        waiting = store.contributions.all(self.id, name)
        moving.expect([stored.number for stored in waiting])
        if moving.limit_is_relative:  # read twice, so that memory does not grow with the members
            counted = [stored for stored in waiting if stored.weight > 0]
            moving.know_norms([moving.norm(self._read_change(store, name, stored)) for stored in counted])
        for stored in waiting:
            change = self._read_change(store, name, stored)
            moving.upload([stored.number], change, np.array([stored.weight]), [stored.version])
        with np.errstate(over="ignore", invalid="ignore"):  # non-finite values are noticed below
            body = self._encode_reply(moving, before.common) if moving.aggregate() else None
        if body is None:
            draft.moving[name] = before
        else:
            useful = math.ceil(Codec(common_values_message(self.channels[name])).size / max(len(body), 1)) + 1
            store.replies.add(self.id, name, moving.version, body, moving.version - useful)
            store.channel_states.save(self.id, name, moving.state())
        store.contributions.delete(self.id, name)
        store.uploads.delete_unused({stored.upload for stored in waiting})
        draft.waiting[name] = 0
        draft.count_change(name)

    def _read_change(self, store: Store, name: str, stored: StoredContribution) -> Arrays:
        """The tensors of a contribution to a moving mean, (1, ...)."""
        named = self.messages.read_stored(store.uploads.get(stored.upload), name)
        return {k: t[None] for k, t in self.channels[name].own_tensors(named).items()}

    def _encode_reply(self, moving: MovingMean, before: Mapping[str, np.ndarray]) -> bytes | None:
        """The reply as a body, and the common values moved by it; None if they would be non-finite in float32."""
        name, codec = moving.channel.name, self.messages.reply_codec(moving.channel.name)
        if not all(np.isfinite(t).all() for t in moving.reply.values()):
            return None
        named = {f"{name}.{k}": t for k, t in moving.reply.items()}
        body, again = b"", codec.encode(clip_to_bounds(moving.channel, named))
        for _ in range(8):  # an answer encodes the reply again, which must give the same bytes
            body = again
            sent = codec.read(body)  # members add what they decode, and so does the relay, to the bit
            again = codec.encode(clip_to_bounds(moving.channel, sent))
            if again == body:
                break
        moving.common = {k: v + sent[f"{name}.{k}"] for k, v in before.items()}
        return body if all(np.isfinite(v).all() for v in moving.common.values()) else None

    # -- to the store --------------------------------------------------------------------------------------------------

    def save(self, store: Store, draft: Snapshot) -> None:
        """Save the draft's sums and its progress in the store."""
        for name, running in draft.standing.items():
            if draft.changed[name] > self.snapshot.changed[name]:
                store.channel_states.save(self.id, name, running.state())
        if (draft.revision, draft.round) != (self.snapshot.revision, self.snapshot.round):
            store.federations.update(self.id, draft.revision, draft.round, draft.advanced_by)


def _earlier_receipt(store: Store, member: MemberRecord, round_: int, sha256: str) -> str:
    """The receipt of the member's last round, if the very same upload comes again."""
    stored = store.receipts.get(member.id, round_) if round_ == member.round else None
    if stored is None:
        raise Rejection(
            "older-round", f"round {round_} came after round {member.round}; upload a round after {member.round}"
        )
    if stored.sha256 != sha256:
        raise Rejection("other-bytes", f"round {round_} was uploaded before with other bytes, SHA-256 {stored.sha256}")
    return stored.text
