"""Addresses of members: tls/HOST:PORT for zenoh, iroh/MEMBER@HOST:PORT for iroh."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from consilience.errors import ConfigurationError

_MEMBER = r"(?P<member>[a-z0-9][a-z0-9-]{0,63})"
_SOCKET = r"(?P<host>\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9][A-Za-z0-9.-]{0,252}):(?P<port>[0-9]{1,5})"
_ZENOH = re.compile(f"(?P<kind>tls|tcp)/{_SOCKET}")
_IROH, _IROH_LISTENING = re.compile(f"(?P<kind>iroh)/{_MEMBER}(?:@{_SOCKET})?"), re.compile(f"(?P<kind>iroh)/{_SOCKET}")


@dataclass(frozen=True)
class Address:
    """Where a member listens; member: its name, which iroh needs to know whose key it expects there."""

    kind: Literal["tls", "tcp", "iroh"]
    host: str = ""
    port: int = 0
    member: str = ""

    @property
    def socket(self) -> str:
        """Host and port."""
        return f"{self.host}:{self.port}"

    def __str__(self) -> str:
        who = f"{self.member}@" if self.member and self.host else self.member
        return f"{self.kind}/{who}{self.socket if self.host else ''}"


def parse_address(text: str, *, listening: bool = False) -> Address:
    """An address from its text. listening: one of this member's own, where it accepts connections."""
    match = _ZENOH.fullmatch(text) or (_IROH_LISTENING if listening else _IROH).fullmatch(text)
    found = {k: v or "" for k, v in match.groupdict().items()} if match else {}
    port = int(found.get("port") or 0)
    if match is None or port > 65535 or (found["host"] and not port):
        raise _unreadable(text, listening)
    address = Address(found["kind"], found["host"], port, found.get("member", ""))  # type: ignore[arg-type]  # as above
    if address.kind == "tcp" and not _is_loopback(address.host):
        raise ConfigurationError(
            f"{text} is not encrypted, and anybody could connect to it; use tls/{address.socket} with certificates. "
            f"tcp/ is for tests on one machine, such as tcp/127.0.0.1:7447"
        )
    return address


def one_kind(addresses: Sequence[Address]) -> str:
    """The transport of all addresses; refuses none at all, and several transports."""
    kinds = {"iroh" if address.kind == "iroh" else "zenoh" for address in addresses}
    if not addresses:
        raise ConfigurationError(
            "no address is given: name the other members' with --peers, such as --peers tls/south.example:7447, or "
            "listen for them, such as --listen tls/0.0.0.0:7447"
        )
    if len(kinds) > 1:
        listed = ", ".join(str(address) for address in addresses)
        raise ConfigurationError(f"addresses of one transport are needed, all iroh/ or none; received: {listed}")
    return kinds.pop()


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _unreadable(text: str, listening: bool) -> ConfigurationError:
    example = "iroh/0.0.0.0:7447" if listening else "iroh/south@203.0.113.5:7447"
    return ConfigurationError(
        f"{text[:200]!r} is not an address; write tls/HOST:PORT, such as tls/south.example:7447, or with iroh {example}"
    )
