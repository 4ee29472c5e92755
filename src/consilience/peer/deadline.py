"""Sockets that keep to one deadline: however slowly a name, a byte or an answer comes, a request is over by then.

A timeout of httpx is for one step, and a far end that sends a byte now and then never runs into it.
"""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Iterable
from ssl import SSLContext
from typing import Any

import httpcore
import httpx

_PIECE = 2**14  # bytes written at once, with a look at the clock between


class Deadline(httpcore.NetworkBackend):
    """Connections of a client, all of which end at `end`."""

    def __init__(self) -> None:
        self.end = math.inf
        self._plain = httpcore.SyncBackend()

    def rule(self, client: httpx.Client) -> None:
        """Let every connection of a client keep to the deadline, those through proxies too."""
        for transport in (client._transport, *client._mounts.values()):
            pool = getattr(transport, "_pool", None)
            if pool is not None:
                pool._network_backend = self

    def left(self, step: float | None, late: type[httpcore.TimeoutException]) -> float:
        """Seconds that a step may take; none are left when the time is over."""
        left = self.end - time.monotonic()
        if left <= 0:
            raise late("the time is over")
        return left if step is None else min(step, left)

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        """Try the host's addresses one after the other, each for its share of the time."""
        addresses = _resolved(host, port, self.left(timeout, httpcore.ConnectTimeout))
        options = list(socket_options or ())
        for i, address in enumerate(addresses):
            share = self.left(timeout, httpcore.ConnectTimeout) / (len(addresses) - i)
            try:
                stream = self._plain.connect_tcp(address, port, share, local_address, options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                if address == addresses[-1]:
                    raise
            else:
                return _Stream(stream, self)
        raise httpcore.ConnectError(f"{host} has no address")


class _Stream(httpcore.NetworkStream):
    """A connection that looks at the clock before each step."""

    def __init__(self, stream: httpcore.NetworkStream, deadline: Deadline) -> None:
        self._stream, self._deadline = stream, deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._deadline.left(timeout, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for i in range(0, len(buffer), _PIECE):
            self._stream.write(buffer[i : i + _PIECE], self._deadline.left(timeout, httpcore.WriteTimeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        left = self._deadline.left(timeout, httpcore.ConnectTimeout)
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, left), self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _resolved(host: str, port: int, seconds: float) -> list[str]:
    """The host's addresses. Asking for them knows no timeout, so it is done beside, and left alone where it is slow."""
    found: list[str] = []
    failed: list[Exception] = []

    def ask() -> None:
        try:
            told = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            found.extend(dict.fromkeys(str(each[4][0]) for each in told))
        except (OSError, UnicodeError) as error:
            failed.append(error)

    asking = threading.Thread(target=ask, name="resolve", daemon=True)
    asking.start()
    asking.join(seconds)
    if failed:
        raise httpcore.ConnectError(f"{host}: {failed[0]}")
    if not found:
        raise httpcore.ConnectTimeout(f"{host}: its address is not known in time")
    return list(found)
