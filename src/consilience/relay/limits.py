"""What one member, and one address, may use of a relay: the settings."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from consilience.errors import ConfigurationError

_MIB = 2**20


@dataclass(frozen=True)
class Limits:
    """Bounds per member and per address; 0 is no limit.

    Members behind one router have one address; those behind a reverse proxy have the proxy's (`proxies`).
    """

    rate: float = 20.0
    """Requests per second of a member."""
    burst: int = 100
    """Requests that a member may make at once."""
    member_connections: int = 32
    """Open connections of a member."""
    address_connections: int = 256
    """Open connections of an address, with or without a token."""
    member_bytes: int = 32 * _MIB
    """Bytes of a member's request bodies being received and answers not read yet; a single one may be larger."""
    address_bytes: int = 256 * _MIB
    """The same for all members of an address; an answer that several of them read counts once."""
    failed_logins: int = 20
    """Wrong tokens from an address within a minute, before each further one is answered late and with 429."""
    cache: int = 64 * _MIB
    """Bytes of answers that are kept for the next who asks; with 0, none are."""
    proxies: frozenset[str] = frozenset()
    """Addresses of reverse proxies whose `X-Forwarded-For` header is believed."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "proxies" and not (math.isfinite(value) and value >= 0):
                raise ConfigurationError(f"{field.name} is {value!r}; it must be a number, 0 or more (0: no limit)")
