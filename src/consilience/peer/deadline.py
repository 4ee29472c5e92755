"""Network connections with one deadline per request, over the public interfaces of httpcore.

A timeout of httpcore is for one step of a request, such as one read: a server that sends a byte now and then never
exceeds it. Here every step also ends at the request's deadline: name lookup, connect, TLS handshake, read and write.
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

_WRITE_SIZE = 2**14  # bytes written at once; the deadline is checked in between


class DeadlineBackend(httpcore.NetworkBackend):
    """Opens connections whose every step ends at `end`, a time of `time.monotonic()`."""

    def __init__(self) -> None:
        self.end = math.inf
        self._sockets = httpcore.SyncBackend()

    def step_timeout(self, timeout: float | None, late: type[httpcore.TimeoutException]) -> float:
        """Seconds that a step may take; raises `late` where the deadline is over."""
        left = self.end - time.monotonic()
        if left <= 0:
            raise late("the request's deadline is over")
        return left if timeout is None else min(timeout, left)

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        """Try the host's addresses in order, each for an equal share of the time left."""
        addresses = _resolve(host, port, self.step_timeout(timeout, httpcore.ConnectTimeout))
        options = list(socket_options or ())
        for i, address in enumerate(addresses):
            share = self.step_timeout(timeout, httpcore.ConnectTimeout) / (len(addresses) - i)
            try:
                stream = self._sockets.connect_tcp(address, port, share, local_address, options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                if address == addresses[-1]:
                    raise
            else:
                return _DeadlineStream(stream, self)
        raise httpcore.ConnectError(f"{host} has no address")


class _DeadlineStream(httpcore.NetworkStream):
    """A connection that checks the deadline before each step."""

    def __init__(self, stream: httpcore.NetworkStream, backend: DeadlineBackend) -> None:
        self._stream, self._backend = stream, backend

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._backend.step_timeout(timeout, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for i in range(0, len(buffer), _WRITE_SIZE):
            left = self._backend.step_timeout(timeout, httpcore.WriteTimeout)
            self._stream.write(buffer[i : i + _WRITE_SIZE], left)

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        left = self._backend.step_timeout(timeout, httpcore.ConnectTimeout)
        return _DeadlineStream(self._stream.start_tls(ssl_context, server_hostname, left), self._backend)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _resolve(host: str, port: int, seconds: float) -> list[str]:
    """The host's addresses. `getaddrinfo` has no timeout, so it runs in a thread that is abandoned where it is slow."""
    found: list[str] = []
    failed: list[Exception] = []

    def look_up() -> None:
        try:
            entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            found.extend(dict.fromkeys(str(entry[4][0]) for entry in entries))
        except (OSError, UnicodeError) as error:
            failed.append(error)

    thread = threading.Thread(target=look_up, name="resolve", daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise httpcore.ConnectError(f"{host}: {failed[0]}")
    if not found:
        raise httpcore.ConnectTimeout(f"{host}: its address was not found in time")
    return list(found)
