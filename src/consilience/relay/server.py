"""Put an application on a port: in one process, with TLS wherever others can listen, and an end in ten seconds."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import math
import signal
import socket
import ssl
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

from consilience.errors import ConfigurationError, first_sentence
from consilience.relay.timeouts import Timeouts, patient

__all__ = ["Server", "listen", "serve"]

Ready = Callable[[str], None]
_GRACE = 8
"""Seconds that answers under way get when the server is told to stop; event streams take all of them."""
_QUEUE = 256
"""Connections that wait to be accepted, and how many are accepted at a time."""
_A_DAY = 86400.0
_FAMILIES = (socket.AF_INET, socket.AF_INET6)
_ABSENT = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}
"""An address that this machine does not have; IPv6 is often switched off."""


def serve(
    app: ASGIApp,
    *,
    host: str,
    port: int,
    patience: Timeouts,
    tls: tuple[str, str] | None,
    insecure: bool,
    connections: int = 1000,
    on_ready: Ready | None = None,
) -> None:
    """Serve `app` in this thread until SIGTERM or SIGINT; `on_ready` is told where, once it can be reached."""
    server = listen(
        app,
        host=host,
        port=port,
        patience=patience,
        tls=tls,
        insecure=insecure,
        connections=connections,
        on_ready=on_ready,
    )
    _more_files(connections)
    with _stopped_by_signals(server):
        server.run()


def listen(
    app: ASGIApp,
    *,
    host: str,
    port: int,
    patience: Timeouts,
    tls: tuple[str, str] | None,
    insecure: bool,
    connections: int = 1000,
    on_ready: Ready | None = None,
) -> Server:
    """A server that has its port but does not answer yet: `run` it; `should_exit = True` from any thread ends it.

    `tls` is the file of the certificate, with those that vouch for it, and the file of its key. Port 0 is any free one.
    """
    context = None if tls is None else _tls(*tls)
    addresses = _addresses(host, port)
    if context is None and not insecure and not all(_is_loopback(address) for _, address in addresses):
        raise ConfigurationError(
            f"the relay would answer on {host or 'every address'!r} without TLS, where others read along, tokens too; "
            "give it a certificate and its key (--tls-cert, --tls-key), listen on 127.0.0.1, or say --insecure where "
            "something before it has TLS"
        )
    config = uvicorn.Config(
        app,
        http=patient(patience),
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
        limit_concurrency=connections + 1,  # uvicorn answers 503 from this many on
        timeout_keep_alive=math.ceil(patience.idle),
        timeout_graceful_shutdown=_GRACE,
        ssl_context_factory=None if context is None else lambda config, default: context,
    )
    return Server(config, host, _bound(host, addresses), patience, on_ready)


class Server(uvicorn.Server):
    """uvicorn on sockets that are bound already, which tells when it can be reached and leaves no connection behind."""

    def __init__(
        self,
        config: uvicorn.Config,
        host: str,
        sockets: list[socket.socket],
        patience: Timeouts,
        on_ready: Ready | None,
    ) -> None:
        super().__init__(config)
        self._sockets, self._patience, self._on_ready = sockets, patience, on_ready
        name = f"[{host}]" if ":" in host else host or "0.0.0.0"
        self.url = f"http{'s' * config.is_ssl}://{name}:{sockets[0].getsockname()[1]}"

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer until told to stop."""
        logging.getLogger("uvicorn.error").addFilter(_discreet)
        try:
            with asyncio.Runner(loop_factory=lambda: _Loop(self._patience.head)) as runner:
                runner.run(self.serve(sockets=self._sockets))
        finally:
            self.close()

    def close(self) -> None:
        """Give the port back; for a server that never ran."""
        for bound in self._sockets:
            bound.close()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the doors, and say so."""
        await super().startup(sockets)
        if self._on_ready is not None:
            self._on_ready(self.url)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close them, on whoever is left, too."""
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            connection.transport.abort()


class _Loop(asyncio.SelectorEventLoop):
    """An event loop whose servers wait `handshake` seconds for the greetings of TLS; uvicorn has no setting for it."""

    def __init__(self, handshake: float) -> None:
        super().__init__()
        self._handshake = handshake

    async def create_server(self, *given: Any, **named: Any) -> asyncio.Server:
        """As ever; when a closing connection is given up is left to its own timer, which sees if the client reads."""
        if named.get("ssl") is not None:
            named |= {"ssl_handshake_timeout": self._handshake, "ssl_shutdown_timeout": _A_DAY}
        return await super().create_server(*given, **named)


# Where


def _addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[Any, ...]]]:
    """Every address that `host` means, those of IPv4 first."""
    if not 0 <= port <= 65535:
        raise ConfigurationError(f"port is {port}; it must be a number from 0 (any free one) to 65535")
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigurationError(f"host {host!r} is no address of this machine: {error}") from error
    return sorted({(family, address) for family, _, _, _, address in found if family in _FAMILIES})


def _is_loopback(address: tuple[Any, ...]) -> bool:
    return ipaddress.ip_address(address[0].split("%")[0]).is_loopback


def _bound(host: str, addresses: list[tuple[socket.AddressFamily, tuple[Any, ...]]]) -> list[socket.socket]:
    """Sockets that listen on these addresses, all on one port; those that this machine does not have are left out."""
    bound: list[socket.socket] = []
    absent: OSError | None = None
    for family, (name, port, *rest) in addresses:
        chosen = port or (bound[0].getsockname()[1] if bound else 0)
        try:
            bound.append(_listening(family, (name, chosen, *rest)))
        except OSError as error:
            if error.errno in _ABSENT:
                absent = error
                continue
            for other in bound:
                other.close()
            taken = f"port {chosen} of {name} is taken; stop who has it, or choose another (0 takes a free one)"
            reason = taken if error.errno == errno.EADDRINUSE else f"cannot listen on port {chosen} of {name}: {error}"
            raise ConfigurationError(reason) from error
    if not bound:
        raise ConfigurationError(f"host {host!r} is no address of this machine: {absent}")
    return bound


def _listening(family: socket.AddressFamily, address: tuple[Any, ...]) -> socket.socket:
    # Said to be TCP, for asyncio to send at once (TCP_NODELAY): else a body waits 40 ms until its head is acknowledged.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
        made.listen(_QUEUE)  # only now is it sure that nobody else has the port
    except OSError:
        made.close()
        raise
    return made


# With which keys


def _tls(certificate: str, key: str) -> ssl.SSLContext:
    """What a server needs to prove who it is, or a refusal that names the file at fault."""
    for path in (certificate, key):
        try:
            with open(path, "rb"):
                pass
        except OSError as error:
            raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(certificate)
    except ssl.SSLError as error:
        raise ConfigurationError(f"{certificate} holds no certificate in PEM: {first_sentence(error)}") from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password=lambda: "")  # never asks at the terminal
    except ssl.SSLError as error:
        if "MISMATCH" in (error.reason or ""):
            raise ConfigurationError(f"{key} is not the key of the certificate {certificate}") from error
        raise ConfigurationError(f"{key} holds no key in PEM that can be read without a password") from error
    return context


# How it is left alone, and what it says


@contextmanager
def _stopped_by_signals(server: Server) -> Iterator[None]:
    """SIGTERM and SIGINT end the server and then nothing more: uvicorn alone would raise them again when it is done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        server.should_exit = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _more_files(connections: int) -> None:
    """Let this process have as many files open as connections need, and as many again; where that is allowed."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * connections + 2 * _QUEUE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def _discreet(record: logging.LogRecord) -> bool:
    """Of an application's failure keep where and which, never the message: it may quote what a client sent."""
    if not record.exc_info or not str(record.msg).startswith("Exception in ASGI application"):
        return "asyncio.exceptions.CancelledError" not in str(record.msg)  # stopped twice: nothing that need be told
    kind, _, where = record.exc_info
    if kind is None or issubclass(kind, ClientDisconnect | asyncio.CancelledError):
        return False  # a client that left, or a stream that was open at the end
    record.msg = f"the application failed with {kind.__name__}\n{''.join(traceback.format_tb(where))}"
    record.args, record.exc_info, record.exc_text = (), None, None
    return True
