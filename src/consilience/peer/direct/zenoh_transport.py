"""Members of one network over zenoh: each connects to the addresses it is given, with TLS certificates on both sides.

Nothing is announced or looked for: multicast scouting and gossip are off, so that a member talks to those it names and
to those that name it, and every pair needs one that can reach the other.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from consilience.errors import ConfigurationError
from consilience.extras import install_command
from consilience.peer.direct.address import Address
from consilience.peer.direct.transport import AnswerRequest

if TYPE_CHECKING:
    import zenoh

log = logging.getLogger("consilience.peer")
_TOKEN_SECONDS = 2.0  # to list who is there: a question to this process alone
_RETRY = {"period_init_ms": 200, "period_max_ms": 5000, "period_increase_factor": 2}
_LEASE = 10_000  # milliseconds without a sign of life after which a connection is closed
_SPARE = 2**16  # bytes: of a message that is too long, so much more is read that it is refused by name


@dataclass(frozen=True)
class Certificates:
    """PEM files: the authority that signs the members' certificates, this member's own, and its private key."""

    authority: str
    own: str
    key: str

    def check(self) -> None:
        """Refuse files that cannot be read."""
        for what, name in (("--ca-file", self.authority), ("--certificate", self.own), ("--certificate-key", self.key)):
            try:
                found = Path(name).read_text(encoding="ascii", errors="replace")
            except OSError as error:
                raise ConfigurationError(f"{what} {name}: cannot be read: {error.strerror}") from error
            if "-----BEGIN" not in found:
                raise ConfigurationError(f"{what} {name}: this is not a PEM file")


class ZenohTransport:
    """One member's zenoh session. members: names of all. largest: the most bytes of a request or a reply."""

    def __init__(
        self,
        federation: str,
        name: str,
        members: Sequence[str],
        addresses: tuple[Sequence[Address], Sequence[Address]],
        certificates: Certificates | None,
        answer: AnswerRequest,
        largest: int,
    ) -> None:
        """addresses: where to connect, and where to listen."""
        self._zenoh = _import_zenoh()
        self._name, self._answer, self._largest = name, answer, largest
        self._others = frozenset(members) - {name}
        self._messages, self._tokens = f"consilience/{federation}/message", f"consilience/{federation}/present"
        config = _config(self._zenoh, addresses, certificates, largest)
        try:
            self._session = self._zenoh.open(config)
        except self._zenoh.ZError as error:
            listed = ", ".join(str(address) for address in addresses[1]) or "no address"
            raise ConfigurationError(
                f"zenoh cannot start, listening at {listed}: {_first_line(error)}; is the address this machine's, and "
                f"free? Are the certificates in order?"
            ) from error
        try:
            self._open()
        except BaseException:
            self._session.close()
            raise

    def _open(self) -> None:
        self._key = f"{self._messages}/{self._name}"
        self._token = self._session.liveliness().declare_token(f"{self._tokens}/{self._name}")
        self._queryable = self._session.declare_queryable(self._key)
        # A callback of zenoh's own would run in a thread that keeps the process alive after its end.
        self._thread = threading.Thread(target=self._answer_all, name="zenoh", daemon=True)
        self._thread.start()

    def _answer_all(self) -> None:
        for query in self._queryable:
            with query:  # whoever asks waits until it is closed
                self._reply(query)

    def _reply(self, query: zenoh.Query) -> None:
        payload = query.payload
        reply = self._answer(bytes(payload) if payload is not None else b"")
        try:
            query.reply(self._key, reply)
        except self._zenoh.ZError as error:  # whoever asked has gone
            log.info("a reply could not be sent: %s", _first_line(error))

    # -- what a transport does -----------------------------------------------------------------------------------------

    def present(self) -> set[str]:
        """Names of the members that are connected now, as they call themselves."""
        replies = self._session.liveliness().get(f"{self._tokens}/*", timeout=_TOKEN_SECONDS)
        keys = [str(reply.ok.key_expr) for reply in replies if reply.ok is not None]
        return {key.rpartition("/")[2] for key in keys} & self._others

    def ask(self, request: bytes, seconds: float, member: str | None = None) -> dict[str, bytes]:
        """Send a request to one member, or to all that are connected; the replies that came in time, by member.

        The first reply of each member counts; those under other names and those that are too long do not.
        """
        awaited = self._others if member is None else self._others & {member}
        if not awaited:
            return {}
        end, zenoh = time.monotonic() + seconds, self._zenoh
        handler = self._session.get(
            f"{self._messages}/{member or '*'}",
            payload=request,
            target=zenoh.QueryTarget.ALL,
            consolidation=zenoh.ConsolidationMode.NONE,
            congestion_control=zenoh.CongestionControl.BLOCK,
            allowed_destination=zenoh.Locality.REMOTE,
            timeout=max(seconds, 0.05),
        )
        found: dict[str, bytes] = {}
        for reply in handler:
            if reply.ok is not None:
                who = str(reply.ok.key_expr).rpartition("/")[2]
                if who in awaited and who not in found and len(reply.ok.payload) <= self._largest + _SPARE:
                    found[who] = bytes(reply.ok.payload)
            if len(found) == len(awaited) or time.monotonic() > end + 1.0:
                break
        return found

    def close(self) -> None:
        """Close the session."""
        if self._session.is_closed():
            return
        self._queryable.undeclare()
        self._token.undeclare()
        self._session.close()
        self._thread.join(_TOKEN_SECONDS)


def _config(
    zenoh: Any, addresses: tuple[Sequence[Address], Sequence[Address]], certificates: Certificates | None, largest: int
) -> Any:
    """The session's settings: a peer that talks to the given addresses only."""
    connect, listen = ([f"{a.kind}/{a.socket}" for a in each] for each in addresses)
    settings: dict[str, Any] = {
        "mode": "peer",
        "scouting/multicast/enabled": False,
        "scouting/gossip/enabled": False,
        "connect/endpoints": connect,
        "connect/timeout_ms": -1,
        "connect/exit_on_failure": False,
        "connect/retry": _RETRY,
        "listen/endpoints": listen,
        "listen/exit_on_failure": True,
        "transport/link/tx/lease": _LEASE,
        "transport/link/rx/max_message_size": largest + _SPARE,
        "transport/shared_memory/enabled": False,
        "adminspace/enabled": False,
    }
    if certificates is not None:
        certificates.check()
        settings["transport/link/tls"] = {
            "root_ca_certificate": certificates.authority,
            "listen_certificate": certificates.own,
            "listen_private_key": certificates.key,
            "connect_certificate": certificates.own,
            "connect_private_key": certificates.key,
            "enable_mtls": True,
            "verify_name_on_connect": True,
        }
    config = zenoh.Config()
    for key, value in settings.items():
        config.insert_json5(key, json.dumps(value))
    return config


def _import_zenoh() -> Any:
    try:
        import zenoh
    except ImportError as error:
        raise ConfigurationError(
            f"addresses with tls/ and tcp/ need the package eclipse-zenoh: {install_command('p2p')}"
        ) from error
    return zenoh


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0].split(" at /")[0][:300]
