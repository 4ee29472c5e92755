"""A member's connection to its federation: who it is there, what it has received, and what it has to upload."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from consilience.errors import CheckpointError, ConfigurationError, RelayError, RelayUnreachable
from consilience.peer.backoff import Backoff
from consilience.peer.http import CERTIFICATE, EXPIRED, RelayClient
from consilience.peer.inbox import Inbox
from consilience.peer.link import Link
from consilience.peer.outbox import Outbox
from consilience.peer.state import PeerState
from consilience.peer.state_folder import Identity, StateFolder
from consilience.peer.trust import SIGNATURE, RelayTrust
from consilience.wire import schema, tokens
from consilience.wire.charter import Charter, read_charter
from consilience.wire.headers import format_parts, upload_sha256

log = logging.getLogger("consilience.peer")


def connect_to_relay(
    url: str,
    token: str,
    folder: Path | str | None = None,
    timeout: float = 5.0,
    ca_file: str | None = None,
    relay_key: str | None = None,
) -> RelayConnection:
    """Connect the member that the token is for, and resume from the state in its folder.

    folder: by default one under `peers/`. timeout: the most seconds that the first request may take. relay_key: the
    relay's public key, if it is known before the first contact.
    """
    if not token.strip():
        raise ConfigurationError(
            "there is no token: give the one from your invitation, consilience.join(url, token, ...), or put it into "
            "the environment variable CONSILIENCE_TOKEN"
        )
    known = tokens.Token.parse(token.strip())
    if known is None:
        raise ConfigurationError("this is not a token; one starts with cs1_ and comes from `consilience relay invite`")
    client = RelayClient(url, token.strip(), ca_file)
    default = f"{urlsplit(url).hostname}-{urlsplit(url).port or 443}-{known.id}"
    store = StateFolder(Path("peers") / default if folder is None else Path(folder))
    try:
        store.lock()
        return RelayConnection(client, store, timeout, relay_key or "")
    except BaseException:
        client.close()
        store.unlock()
        raise


class FederationConnection:
    """A member's side of its federation: who it is there, what it holds, and what it has to send over its link.

    timeout: the most seconds that a call may take where it is not asked to wait.
    """

    def __init__(self, client: Link, store: StateFolder, state: PeerState, identity: Identity, timeout: float) -> None:
        self.client: Link = client
        self.state, self.timeout, self._store, self._identity = state, timeout, store, identity
        self.closed = False
        self.backoff = Backoff()
        self.channels: dict[str, schema.Channel] = self.charter.channels
        self.inbox = Inbox(client, self.backoff, self.channels, state, self.save)
        self.outbox = Outbox(client, self.backoff, self.charter, state, self.save)

    @property
    def charter(self) -> Charter:
        """What the federation has agreed on."""
        return self._identity.charter

    @property
    def number(self) -> int:
        """The member's number in its federation."""
        return self._identity.number

    @property
    def name(self) -> str:
        """The member's name in its federation."""
        return self._identity.name

    @property
    def folder(self) -> Path:
        """Where the state is saved."""
        assert self._store.folder is not None
        return self._store.folder

    @property
    def repeats_rounds(self) -> bool:
        """Whether a round that was published before a restart is continued under its number."""
        return False

    def save(self) -> None:
        """Write what has changed to the folder."""
        self._store.save(self._identity, self.state)

    def require_open(self) -> None:
        """Refuse to go on after `close`: the folder may have another user by now."""
        if self.closed:
            raise ConfigurationError(
                f"{self.name!r} in federation {self.charter.name!r} is closed, and its folder may be in use elsewhere; "
                f"join again, and use what that returns"
            )

    def close(self) -> None:
        """Save the state and close the connection; a pending upload stays in the folder for the next time.

        A second call does nothing: the folder may be another's by then.
        """
        if self.closed:
            return
        try:
            self.save()
        finally:
            self.disconnect()

    def disconnect(self) -> None:
        """Close the connection without saving, and let others use the folder."""
        self.closed = True
        self.client.close()
        self._store.unlock()

    def use_partners(self, numbers: Iterable[int]) -> None:
        """Let means and observations be of these members' uploads alone, beside one's own; without any, everybody's."""
        self.inbox.partners = tuple(sorted(set(numbers)))

    def counted_rounds(self, round_: int) -> dict[str, int]:
        """Without a relay, the round of each member's upload that counts in a round of this member."""
        return {}

    def wait_for_others(self, round_: int, seconds: float, stopped: Callable[[], bool] = lambda: False) -> bool:
        """Wait for the other members' uploads of a round, where they come straight from them; whether they do."""
        return False


class RelayConnection(FederationConnection):
    """One member's connection to its relay. Without the relay it opens with the state of its folder.

    timeout: the most seconds that a call may take where it is not asked to wait. relay_key: the relay's public key; by
    default the one that the folder has, or that the relay names at the first contact.
    """

    client: RelayClient

    def __init__(self, client: RelayClient, store: StateFolder, timeout: float, relay_key: str = "") -> None:
        saved = store.load()
        opening = _Opening(client, store, saved[1] if saved else PeerState(), timeout)
        identity = opening.identify(saved[0] if saved else None, relay_key)
        super().__init__(client, store, opening.state, identity, timeout)
        if opening.error is not None:
            self.backoff.failed(opening.error.retry_after)
        if saved is None or saved[0] is not identity:
            self.save()  # the relay's key: from now on, no other one is accepted
        public = self.charter.public_set
        client.largest_answer = max(self.inbox.largest_answer(), public.size if public else 0)


@dataclass
class _Opening:
    """The first contact with the relay: who this member is, and what has become of what it sent last."""

    client: RelayClient
    store: StateFolder
    state: PeerState
    timeout: float
    error: RelayUnreachable | None = None

    def identify(self, saved: Identity | None, relay_key: str) -> Identity:
        """Who this member is, from a relay that has the known key."""
        self._trust(saved, relay_key)
        return self._open(saved)

    def _trust(self, saved: Identity | None, relay_key: str) -> None:
        """Hold the relay to the key that is known, if there is one."""
        kept = saved.charter.relay_key if saved else ""
        if relay_key and kept not in ("", relay_key):
            raise ConfigurationError(
                f"the key given is {relay_key}, and {self.store.path} was made with a relay whose key is {kept}; ask "
                f"the relay's operator which one is right"
            )
        name, number = (saved.charter.name, saved.number) if saved and kept else ("", -1)
        self.client.trust = RelayTrust(self.client.url, relay_key or kept, name, number)

    def _open(self, saved: Identity | None) -> Identity:
        """Ask the relay who this member is; out of reach, the saved identity serves."""
        try:
            status = self.client.federation(self.timeout)
        except RelayUnreachable as error:
            if error.code == SIGNATURE or (saved is None and error.code in (CERTIFICATE, EXPIRED)):
                raise RelayError(str(error), code=error.code) from error
            if saved is None:
                raise
            log.warning("%s; continuing with the saved state", error)
            self.error = error
            return saved
        member, charter = status["member"], read_charter(status["charter"], "the relay's charter")
        known = saved.charter.with_relay_key(charter.relay_key) if saved else charter
        if saved is not None and (known != charter or saved.number != member["number"]):
            raise CheckpointError(
                f"{self.store.path} is of another federation or member ({saved.name}); choose another folder"
            )
        self._settle_pending(status, charter)
        if lost := self.state.notice_loss(self.client.epoch, member["round"]):
            log.warning("%s", lost)
        if member["round"] < self.state.round:
            self.state.awaiting.clear()  # the relay was restored from a backup, and may not have these uploads
        self.state.forget_aggregated(status)
        self.state.round = max(self.state.round, member["round"])
        if saved is None:
            self.state.count_lost(member["round"])
        if saved and saved.charter.relay_key:
            return saved
        return Identity(charter, member["number"], member["name"])

    def _settle_pending(self, status: Mapping[str, Any], charter: Charter) -> None:
        """Find out from the relay's status whether a pending upload arrived before the restart."""
        pending, member = self.state.pending, status["member"]
        if pending is None:
            return
        if member["sha256"] == upload_sha256(format_parts(pending.parts), pending.body):
            limits = {name: getattr(charter.channels[name], "max_staleness", 0) for name in pending.versions}
            if all(status["versions"][n] - v <= limits[n] for n, v in pending.versions.items()):
                self.state.accept_pending()  # versions only increase, so no channel can have refused it as too stale
                known = {"round": pending.round, "sha256": member["sha256"], "epoch": self.client.epoch}
                self.state.receipt = known  # the status is signed too
            else:
                pending.may_have_arrived = True  # it has, and is sent again for the receipt, which says who refused it
        elif member["round"] >= pending.round:
            self.state.pending = None  # the relay has a newer round, of a state that was lost here
