"""The address a request came from, as limits count it."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from functools import lru_cache
from typing import Any

from consilience.errors import ConfigurationError

UNKNOWN = ""
"""Stands for a client whose address is not known."""


@lru_cache(maxsize=4096)
def shared_address(text: str) -> str:
    """What limits count as one address: an IPv4 address, or the 64-bit prefix of an IPv6 network."""
    try:
        found = ipaddress.ip_address(text.split("%")[0])
    except ValueError:
        return UNKNOWN
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(found) if found.is_loopback else str(ipaddress.ip_network((int(found) >> 64 << 64, 64)))


def client_address(scope: Any, proxies: Collection[str] = ()) -> str:
    """The address of a request's client.

    A proxy appends the address that it sees to `X-Forwarded-For`. Only the last one is believed, and only if the
    request came from one of `proxies`; what a client wrote there itself stands before it.
    """
    client = scope.get("client")
    address = shared_address(client[0]) if client else UNKNOWN
    if address not in proxies:
        return address
    forwarded = [value for name, value in scope["headers"] if name == b"x-forwarded-for"]
    last = forwarded[-1].decode("latin-1").rsplit(",", 1)[-1].strip() if forwarded else ""
    return shared_address(last) or address


def check_proxies(texts: Collection[str]) -> frozenset[str]:
    """The addresses of proxies as limits count them; refuses what is not an address."""
    for text in texts:
        if not shared_address(text):
            raise ConfigurationError(f"proxy {text!r} is not an IP address; write one such as 10.0.0.5 or ::1")
    return frozenset(shared_address(text) for text in texts)
