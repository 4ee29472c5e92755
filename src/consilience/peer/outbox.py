"""Uploads of a member: one at a time, saved before it is sent, sent until the relay acknowledges it.

An upload that the relay may have received without acknowledging it is sent again, the same bytes, until the receipt is
there; one that was never sent is replaced by the next round's. A private upload is sent again even if the relay has
only refused it for now: somebody has read it, and another one would spend more of the budget.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from consilience.errors import ConfigurationError, RelayError, RelayUnreachable, WireError
from consilience.peer.backoff import Backoff, seconds_left
from consilience.peer.link import Link
from consilience.peer.state import Arrays, ChannelUpload, PeerState, PendingUpload
from consilience.wire import schema
from consilience.wire.charter import Charter, message_of
from consilience.wire.codec import Codec
from consilience.wire.headers import Part

log = logging.getLogger("consilience.peer")


class Outbox:
    """The pending upload of one member, and how it reaches the relay."""

    def __init__(
        self, client: Link, backoff: Backoff, charter: Charter, state: PeerState, save: Callable[[], None]
    ) -> None:
        self._client, self._backoff, self._state, self._save = client, backoff, state, save
        self._channels, self._federation = charter.channels, charter.name
        self._private = charter.privacy is not None
        self._unsaved = False

    @property
    def open_channels(self) -> frozenset[str]:
        """Channels that accept an upload now: a moving mean takes one from each member until it aggregates."""
        return frozenset(name for name in self._channels if name not in self._state.awaiting)

    def queue(self, round_: int, uploads: Mapping[str, ChannelUpload]) -> bool:
        """Encode uploads as the next to send; False, and they are dropped, where an earlier one is unconfirmed."""
        if self._state.unconfirmed:
            return False
        parts: dict[str, Part] = {}
        tensors, accepted, refused = Arrays(), dict[str, Arrays](), dict[str, Arrays]()
        for name in (name for name in self._channels if name in uploads):
            upload, channel = uploads[name], self._channels[name]
            parts[name] = _part(channel, upload)
            tensors |= {f"{name}.{k}": t for k, t in upload.tensors.items()}
            if channel.rows:
                tensors[f"{name}.count"] = upload.weight
            if upload.residuals:
                accepted[name] = upload.residuals
                refused[name] = {k: residual + upload.tensors[k] for k, residual in upload.residuals.items()}
        if not parts:
            return True
        try:
            body = Codec(message_of(self._channels, "up", parts)).encode(tensors)
        except WireError as error:
            raise ConfigurationError(f"federation {self._federation!r} cannot accept your upload: {error}") from error
        self._state.pending, self._unsaved = PendingUpload(round_, parts, body, accepted, refused), True
        return True

    def flush(self, seconds: float) -> bool:
        """Send the pending upload, where that is possible within the seconds; whether all of it was acknowledged."""
        end, refused = time.monotonic() + seconds, False
        while (pending := self._state.pending) is not None and self._backoff.wait_until_allowed(end):
            sent_before, read_before = pending.may_have_arrived, pending.was_sent
            if not sent_before or self._unsaved:
                pending.may_have_arrived = pending.was_sent = (
                    True  # a process killed from here on cannot know whether it arrived
                )
                self._save_all()
            try:
                receipt = self._client.upload(pending.round, pending.parts, pending.body, seconds_left(end))
            except RelayUnreachable as error:
                pending.was_sent = read_before or error.was_sent
                pending.may_have_arrived = sent_before or error.may_have_arrived or (self._private and pending.was_sent)
                self._backoff.report(error)
            except RelayError as error:
                refused = True
                self._refused(pending, error, end)
            else:
                self._backoff.succeeded()
                if lost := self._state.notice_loss(receipt["epoch"], receipt.get("after", pending.round)):
                    log.warning("%s", lost)
                self._state.accept_pending(receipt.get("refused", ()))
                self._state.receipt = receipt
            if self._state.pending is not pending or not pending.may_have_arrived:
                self._save_all()
        if self._unsaved:
            self._save_all()
        return self._state.pending is None and not refused

    def _save_all(self) -> None:
        self._unsaved = False
        self._save()

    def _refused(self, pending: PendingUpload, error: RelayError, end: float) -> None:
        """Drop a refused upload and continue from what the relay knows; other refusals are raised."""
        state = self._state
        state.pending = None
        if error.code == "already-uploaded":
            state.awaiting |= pending.versions
        elif error.code == "version-ahead":  # the relay was restored from a backup
            for name in pending.versions:
                state.answers.pop(name, None)
                state.awaiting.pop(name, None)
        elif error.code in ("older-round", "other-bytes"):
            state.round = max(state.round, pending.round)
            try:
                state.round = max(state.round, int(self._client.federation(seconds_left(end))["member"]["round"]))
            except RelayUnreachable as unreachable:
                self._backoff.report(unreachable)
        else:
            self._save_all()
            raise error
        log.warning("%s", error)


def _part(channel: schema.Channel, upload: ChannelUpload) -> Part:
    """What the upload's header says of a channel."""
    if isinstance(channel, schema.Pool):
        weight = None if channel.rows else float(upload.weight.max(initial=0.0))
        return Part(entries=int(upload.weight.shape[0]), weight=weight)
    version = upload.version if channel.moves else None
    return Part(version=version, weight=None if channel.rows else float(upload.weight))
