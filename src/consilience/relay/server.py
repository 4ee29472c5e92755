"""Serve an application on a port: in one process, with TLS off loopback, and stopped within ten seconds."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import math
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from consilience.errors import ConfigurationError
from consilience.relay.certificate import Certificate
from consilience.relay.event_loop import RelayEventLoop
from consilience.relay.file_limit import fit_connections
from consilience.relay.timeouts import Timeouts
from consilience.relay.uvicorn_hooks import (
    abort_connections,
    announce_shutdown,
    hide_client_data,
    with_limits,
)

__all__ = ["Server", "ServerSettings", "bind_server", "run_server"]

OnReady = Callable[[str], None]
Address = tuple[socket.AddressFamily, tuple[Any, ...]]
_GRACE = 8
"""Seconds that answers under way get to finish at shutdown; event streams end at once."""
_QUEUE = 256
"""Connections that wait to be accepted, and how many are accepted at a time."""
_FAMILIES = (socket.AF_INET, socket.AF_INET6)
_ABSENT = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}
"""Errors of an address that this machine does not have; IPv6 is often disabled."""


@dataclass(frozen=True)
class ServerSettings:
    """Where a server listens, and whom it serves."""

    host: str = "127.0.0.1"
    port: int = 8443
    """0 takes a free port."""
    timeouts: Timeouts = field(default_factory=Timeouts)
    tls: tuple[str, str] | None = None
    """The file of the certificate with its chain, and the file of its private key."""
    insecure: bool = False
    """Whether to listen off loopback without TLS."""
    connections: int = 1000
    """The most connections at a time."""
    address_connections: int = 0
    """The most connections of one address at a time; 0 is no limit."""
    proxies: frozenset[str] = frozenset()
    """Addresses of reverse proxies, which may have as many connections as there are."""


def run_server(app: ASGIApp, settings: ServerSettings, on_ready: OnReady | None = None) -> None:
    """Serve `app` in this thread until SIGTERM or SIGINT; `on_ready` gets the URL once the server accepts requests."""
    settings = replace(settings, connections=fit_connections(settings.connections))
    server = bind_server(app, settings, on_ready)
    with _stopped_by_signals(server):
        server.run()


def bind_server(app: ASGIApp, settings: ServerSettings, on_ready: OnReady | None = None) -> Server:
    """A server that has its port but does not answer yet: `run` it; `should_exit = True` from any thread stops it."""
    host, tls = settings.host, None if settings.tls is None else Certificate(*settings.tls)
    addresses = _addresses(host, settings.port)
    if tls is None and not settings.insecure and not all(_is_loopback(address) for _, address in addresses):
        raise ConfigurationError(
            f"the relay would listen on {host or 'every address'!r} without TLS, where others can read tokens and "
            "uploads; give it a certificate and its key (--tls-cert, --tls-key), listen on 127.0.0.1, or use "
            "--insecure behind a proxy that has TLS"
        )
    config = uvicorn.Config(
        app,
        http=with_limits(settings.timeouts, settings.address_connections, settings.proxies),
        ws="none",
        loop="none",
        lifespan="on",
        workers=1,
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=_QUEUE,
        limit_concurrency=settings.connections + 1,  # uvicorn answers 503 from this number on
        timeout_keep_alive=math.ceil(settings.timeouts.idle),
        timeout_graceful_shutdown=_GRACE,
        ssl_context_factory=None if tls is None else lambda config, default: tls.context,
    )
    return Server(config, host, _bind(host, addresses), settings.timeouts, on_ready, tls)


class Server(uvicorn.Server):
    """uvicorn on sockets that are bound already; reports when it accepts requests, and closes every connection."""

    def __init__(
        self,
        config: uvicorn.Config,
        host: str,
        sockets: list[socket.socket],
        timeouts: Timeouts,
        on_ready: OnReady | None,
        certificate: Certificate | None = None,
    ) -> None:
        super().__init__(config)
        self.certificate = certificate
        self._sockets, self._timeouts, self._on_ready = sockets, timeouts, on_ready
        name = f"[{host}]" if ":" in host else host or "0.0.0.0"
        self.url = f"http{'s' * config.is_ssl}://{name}:{sockets[0].getsockname()[1]}"

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer requests until stopped."""
        logging.getLogger("uvicorn.error").addFilter(hide_client_data)
        try:
            with asyncio.Runner(loop_factory=lambda: RelayEventLoop(self._timeouts.head)) as runner:
                runner.run(self.serve(sockets=self._sockets))
        finally:
            self.close()

    def close(self) -> None:
        """Release the port; for a server that was never run."""
        for bound in self._sockets:
            bound.close()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections, and report it; requests find connections and certificate in their state."""
        self.lifespan.state |= {"connections": self.server_state.connections, "certificate": self.certificate}
        await super().startup(sockets)
        if self.certificate is not None:
            self._watch = asyncio.create_task(self.certificate.watch())
        if self._on_ready is not None:
            self._on_ready(self.url)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting connections, end event streams, and close what is left after a while."""
        announce_shutdown(self)
        await super().shutdown(sockets)
        abort_connections(self)


# Addresses


def _addresses(host: str, port: int) -> list[Address]:
    """Every address of `host`, IPv4 first."""
    if not 0 <= port <= 65535:
        raise ConfigurationError(f"port is {port}; it must be a number from 0 (any free one) to 65535")
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigurationError(f"host {host!r} is not an address of this machine: {error}") from error
    return sorted({(family, address) for family, _, _, _, address in found if family in _FAMILIES})


def _is_loopback(address: tuple[Any, ...]) -> bool:
    return ipaddress.ip_address(address[0].split("%")[0]).is_loopback


def _bind(host: str, addresses: list[Address]) -> list[socket.socket]:
    """Sockets that listen on these addresses, all on one port; addresses that this machine lacks are skipped."""
    bound: list[socket.socket] = []
    absent: OSError | None = None
    for family, (name, port, *rest) in addresses:
        chosen = port or (bound[0].getsockname()[1] if bound else 0)
        try:
            bound.append(_listening_socket(family, (name, chosen, *rest)))
        except OSError as error:
            if error.errno in _ABSENT:
                absent = error
                continue
            for other in bound:
                other.close()
            reason = f"cannot listen on port {chosen} of {name}: {error}"
            if error.errno == errno.EADDRINUSE:
                reason = f"port {chosen} of {name} is in use; stop the program that uses it, or choose another port"
            raise ConfigurationError(reason) from error
    if not bound:
        raise ConfigurationError(f"host {host!r} is not an address of this machine: {absent}")
    return bound


def _listening_socket(family: socket.AddressFamily, address: tuple[Any, ...]) -> socket.socket:
    # With the protocol given as TCP, asyncio sets TCP_NODELAY: else a body waits 40 ms until its head is acknowledged.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
        made.listen(_QUEUE)  # only now is it certain that no other program has the port
    except OSError:
        made.close()
        raise
    return made


# The process


@contextmanager
def _stopped_by_signals(server: Server) -> Iterator[None]:
    """SIGTERM and SIGINT stop the server only; uvicorn by itself would raise them again after its shutdown.

    SIGHUP loads the certificate again; without one it ends the process, as everywhere.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        server.should_exit = True

    def reload(number: int, frame: object) -> None:
        if server.certificate is not None:
            server.certificate.request_reload()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    if server.certificate is not None and hasattr(signal, "SIGHUP"):  # not on Windows
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, reload)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
