"""The undocumented parts of uvicorn and asyncio that `relay/uvicorn_hooks.py` uses exist in this version."""

from __future__ import annotations

import asyncio
import importlib.metadata
import inspect
import re
import ssl
import sys
import tomllib
from pathlib import Path

import pytest
import trustme
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http import flow_control, httptools_impl
from uvicorn.server import ServerState

ROOT = Path(__file__).parents[2]
UVICORN = f"uvicorn {uvicorn.__version__}"
PYTHON = f"asyncio of Python {sys.version.split()[0]}"
CALLED_BY_UVICORN = (
    "connection_made",
    "connection_lost",
    "data_received",
    "on_message_begin",
    "on_header",
    "on_headers_complete",
    "on_body",
    "on_message_complete",
    "on_response_complete",
    "timeout_keep_alive_handler",
    "send_400_response",
    "resume_writing",
)
CONNECTION = (
    "loop",
    "transport",
    "flow",
    "cycle",
    "pipeline",
    "connections",
    "server_state",
    "limit_concurrency",
    "timeout_keep_alive_task",
    "url",
    "headers",
    "expect_100_continue",
    "client",
    "scope",
    "app_state",
    "parser",
)
CYCLE = ("response_started", "response_complete", "disconnected", "message_event")


def has(library: str, thing: object, name: str, *attributes: str) -> None:
    missing = [each for each in attributes if not hasattr(thing, each)]
    assert not missing, (
        f"{library}: {name} has no {', '.join(missing)}, which consilience/relay/uvicorn_hooks.py uses; adapt it, or "
        f"narrow the versions in pyproject.toml"
    )


class Transport(asyncio.Transport):
    """A transport without a socket."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


def test_installed_version_is_in_the_range_of_pyproject() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["relay"]
    (declared,) = (each for each in extras if each.startswith("uvicorn"))
    bounds = re.fullmatch(r"uvicorn>=(\d+)\.(\d+),<(\d+)\.(\d+)", declared)
    assert bounds, f"{declared}: both bounds are needed, as private attributes are used"
    low, high = (int(bounds[1]), int(bounds[2])), (int(bounds[3]), int(bounds[4]))
    major, minor = importlib.metadata.version("uvicorn").split(".")[:2]
    assert low <= (int(major), int(minor)) < high, f"{UVICORN} is outside {declared}"
    written = (ROOT / "src/consilience/relay/uvicorn_hooks.py").read_text()
    assert declared in written, f"uvicorn_hooks.py names another range than pyproject.toml: {declared}"


def test_methods_that_uvicorn_calls_exist() -> None:
    has(UVICORN, httptools_impl.HttpToolsProtocol, "HttpToolsProtocol", *CALLED_BY_UVICORN)
    has(UVICORN, httptools_impl, "protocols.http.httptools_impl", "STATUS_LINE")
    has(UVICORN, flow_control.FlowControl, "FlowControl", "resume_reading")
    has(UVICORN, uvicorn.Server, "Server", "startup", "shutdown", "serve")
    has(PYTHON, asyncio.SelectorEventLoop, "SelectorEventLoop", "_start_serving")
    given = list(inspect.signature(asyncio.SelectorEventLoop._start_serving).parameters)  # type: ignore[attr-defined]
    assert given[1:6] == ["protocol_factory", "sock", "sslcontext", "server", "backlog"], f"{PYTHON}: {given}"
    assert httptools_impl.STATUS_LINE[431].startswith(b"HTTP/1.1 431 "), f"{UVICORN}: STATUS_LINE is another"


def test_attributes_of_connection_and_request_exist() -> None:
    async def one_request() -> None:
        config = uvicorn.Config(application, http="httptools", ws="none", lifespan="off", log_config=None)
        config.load()
        has(UVICORN, config.lifespan_class(config), "the lifespan", "state")
        state = ServerState()
        has(UVICORN, state, "ServerState", "connections", "default_headers", "total_requests")
        protocol = httptools_impl.HttpToolsProtocol(config, state, {}, asyncio.get_running_loop())
        protocol.connection_made(Transport())
        assert state.connections == {protocol}, f"{UVICORN}: ServerState.connections has other things"
        protocol.data_received(b"GET / HTTP/1.1\r\nhost: here\r\n\r\n")
        has(UVICORN, protocol, "HttpToolsProtocol", *CONNECTION)
        has(UVICORN, protocol.cycle, "RequestResponseCycle", *CYCLE)
        has(UVICORN, protocol.flow, "FlowControl", "read_paused")
        assert protocol.headers == [(b"host", b"here")], f"{UVICORN}: HttpToolsProtocol.headers is another"
        await asyncio.gather(*state.tasks)
        assert protocol.cycle.response_complete, f"{UVICORN}: response_complete is not set at the end of an answer"
        protocol.connection_lost(None)

    asyncio.run(one_request())


def test_uvicorn_settings_exist() -> None:
    for setting in ("http", "ssl_context_factory", "limit_concurrency", "timeout_keep_alive"):
        assert setting in uvicorn.Config.__init__.__annotations__, f"{UVICORN}: Config has no {setting}"


def test_tls_transport_attributes_exist() -> None:
    authority = trustme.CA()
    server_side, client_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(server_side)
    authority.configure_trust(client_side)

    async def connect() -> None:
        made: asyncio.Future[asyncio.BaseTransport] = asyncio.get_running_loop().create_future()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            made.set_result(writer.transport)

        server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=server_side)
        port = server.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client_side)
        transport = await made
        has(PYTHON, transport, "the transport of a TLS connection", "_ssl_protocol")
        has(PYTHON, transport._ssl_protocol, "SSLProtocol", "_transport")  # type: ignore[attr-defined]
        below = transport._ssl_protocol._transport  # type: ignore[attr-defined]
        has(PYTHON, below, "its socket's transport", "get_write_buffer_size", "set_write_buffer_limits", "abort")
        transport.abort()  # type: ignore[attr-defined]
        writer.transport.abort()
        server.close()

    asyncio.run(connect())


def test_missing_attribute_is_named_with_library_and_version() -> None:
    with pytest.raises(AssertionError, match=rf"{re.escape(UVICORN)}: Server has no nothing_like_it"):
        has(UVICORN, uvicorn.Server, "Server", "nothing_like_it")
