"""The relay's server on real sockets: timeouts of slow and silent clients, limits, TLS, and shutdown."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import trustme
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from consilience.errors import ConfigurationError
from consilience.relay.server import Server, ServerSettings, bind_server
from consilience.relay.timeouts import HEAD_LIMIT, Timeouts

LONG = 60.0
LARGE = 24 * 2**20  # more than the kernel keeps for both ends of a connection
Start = Callable[..., Server]


# --- an application, and servers of it


async def hello(request: Request) -> Response:
    return PlainTextResponse("hello")


async def put(request: Request) -> Response:
    await asyncio.sleep(float(request.query_params.get("wait", 0)))
    return PlainTextResponse(str(len(await request.body())))


async def unread(request: Request) -> Response:
    return PlainTextResponse("no", status_code=401)


async def large(request: Request) -> Response:
    return Response(bytes(LARGE))


async def fails(request: Request) -> Response:
    raise ValueError(request.headers["authorization"] + (await request.body()).decode())


async def ticks(request: Request) -> Response:
    async def tick() -> AsyncIterator[str]:
        while True:
            yield "data: tick\n\n"
            await asyncio.sleep(0.05)

    return StreamingResponse(tick(), media_type="text/event-stream")


APP = Starlette(
    routes=[
        Route("/", hello),
        Route("/put", put, methods=["POST"]),
        Route("/unread", unread, methods=["POST"]),
        Route("/large", large),
        Route("/fails", fails, methods=["POST"]),
        Route("/ticks", ticks),
    ]
)


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    """Starts servers in threads with the given limits, others being long; at the end all are stopped at once."""
    running: list[tuple[Server, threading.Thread]] = []

    def begin(tls: tuple[str, str] | None = None, connections: int = 100, **limits: float) -> Server:
        timeouts = Timeouts(**{"head": LONG, "idle": LONG, "body": LONG, "answer": LONG, **limits})
        ready = threading.Event()
        settings = ServerSettings(port=0, timeouts=timeouts, tls=tls, connections=connections)
        server = bind_server(APP, settings, on_ready=lambda url: ready.set())
        thread = threading.Thread(target=server.run)
        thread.start()
        running.append((server, thread))
        assert ready.wait(10)
        return server

    yield begin
    for server, _ in running:
        server.should_exit = True
    for _, thread in running:
        thread.join(12)
        assert not thread.is_alive()


def connect(server: Server, **options: int) -> socket.socket:
    made = socket.socket()
    made.settimeout(10)
    for name, value in options.items():
        made.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
    made.connect(("127.0.0.1", urlsplit(server.url).port))
    return made


def read_to_end(connection: socket.socket) -> bytes:
    """All remaining bytes until the other side closes the connection in any way."""
    got = bytearray()
    with suppress(ConnectionError):
        while piece := connection.recv(2**20):
            got += piece
    return bytes(got)


def read_until(connection: socket.socket, ending: bytes) -> None:
    """Read until the received bytes end with these; an answer may arrive in pieces."""
    got = b""
    while not got.endswith(ending):
        piece = connection.recv(2**16)
        assert piece, got
        got += piece


def trickle(connection: socket.socket, data: bytes, every: float = 0.05) -> bytes:
    """Send one byte at a time until the other side closes, for ten seconds at most; returns its answer."""
    with suppress(ConnectionError):
        for byte in data[: int(10 / every)]:
            connection.sendall(bytes([byte]))
            connection.settimeout(every)
            with suppress(TimeoutError):
                if first := connection.recv(2**16):
                    connection.settimeout(10)
                    return first + read_to_end(connection)
                return b""
    connection.settimeout(10)
    return read_to_end(connection)


def refused(answer: bytes) -> tuple[int, str]:
    """Status and code of a refusal that announces the close of the connection."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head, answer
    said = json.loads(body)
    assert said["message"]
    return int(head.split()[1]), said["code"]


def wait_until(holds: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came to hold"
        time.sleep(0.02)


def assert_served(server: Server) -> None:
    assert httpx.get(server.url, timeout=5).text == "hello"


# --- clients that are slow to send


def test_silent_connection_is_closed(start: Start) -> None:
    server = start(head=0.3)
    began = time.monotonic()
    with connect(server) as silent:
        assert_served(server)
        assert read_to_end(silent) == b""
    assert 0.29 < time.monotonic() - began < 5


def test_connection_that_sends_only_empty_lines_is_closed(start: Start) -> None:
    server = start(head=0.3)
    with connect(server) as empty:
        assert trickle(empty, b"\r\n" * 500) == b""


def test_head_sent_byte_by_byte_times_out(start: Start) -> None:
    server = start(head=0.4)
    with connect(server) as slow:
        assert refused(trickle(slow, b"GET / HTTP/1.1\r\nhost: x\r\n" + b"a" * 500)) == (408, "too-slow")
    assert_served(server)


def test_second_head_of_a_connection_has_the_same_timeout(start: Start) -> None:
    server = start(head=0.4)
    with connect(server) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        read_until(slow, b"hello")
        assert refused(trickle(slow, b"GET / HTTP/1.1\r\nhost: x\r\n" + b"a" * 500)) == (408, "too-slow")


def test_body_sent_byte_by_byte_times_out(start: Start) -> None:
    server = start(body=0.4, rate=1000)
    with connect(server) as slow:
        slow.sendall(b"POST /put HTTP/1.1\r\nhost: x\r\ncontent-length: 5000\r\n\r\n")
        assert refused(trickle(slow, b"a" * 500)) == (408, "too-slow")
    assert_served(server)


def test_body_at_the_minimum_rate_may_exceed_the_timeout(start: Start) -> None:
    server = start(body=0.15, idle=0.5, rate=1000)
    with connect(server) as slow:
        slow.sendall(b"POST /put HTTP/1.1\r\nhost: x\r\ncontent-length: 5000\r\n\r\n")
        for _ in range(10):
            slow.sendall(b"a" * 500)  # in a twentieth of a second; ten times the minimum rate
            time.sleep(0.05)
        read_until(slow, b"5000")


def test_body_that_stops_times_out(start: Start) -> None:
    server = start(idle=0.3)
    began = time.monotonic()
    with connect(server) as stopped:
        stopped.sendall(b"POST /put HTTP/1.1\r\nhost: x\r\ncontent-length: 5000\r\n\r\nabc")
        assert_served(server)
        assert refused(read_to_end(stopped)) == (408, "too-slow")
    assert 0.29 < time.monotonic() - began < 5


def test_chunk_framing_without_data_does_not_extend_the_timeout(start: Start) -> None:
    server = start(idle=0.4)
    with connect(server) as slow:
        slow.sendall(b"POST /put HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1;")
        assert refused(trickle(slow, b"a" * 500)) == (408, "too-slow")


def test_body_that_the_application_has_not_read_does_not_time_out(start: Start) -> None:
    server = start(idle=0.2, body=0.2)
    body = bytes(8 * 2**20)
    assert httpx.post(server.url + "/put?wait=0.7", content=body, timeout=10).text == str(len(body))


def test_client_waiting_for_100_continue_does_not_time_out(start: Start) -> None:
    server = start(idle=0.4, body=0.4)
    with connect(server) as polite:
        polite.sendall(b"POST /put?wait=0.7 HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n")
        assert polite.recv(2**16).startswith(b"HTTP/1.1 100")
        time.sleep(0.2)  # its timeout starts with 100 Continue
        polite.sendall(b"abc")
        read_until(polite, b"3")


def test_client_without_100_continue_is_answered_and_closed(start: Start) -> None:
    server = start()
    with connect(server) as polite:
        polite.sendall(b"POST /unread HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n")
        assert read_to_end(polite).startswith(b"HTTP/1.1 401")


def test_body_that_continues_after_the_answer_times_out(start: Start) -> None:
    server = start(body=0.5, rate=1)
    with connect(server) as late:
        late.sendall(b"POST /unread HTTP/1.1\r\nhost: x\r\ncontent-length: 5000\r\n\r\n")
        read_until(late, b"no")
        assert trickle(late, b"a" * 500) == b""


# --- clients that do not read


def test_client_that_does_not_read_its_answer_is_dropped(start: Start) -> None:
    server = start(answer=0.25)
    with connect(server, SO_RCVBUF=2**15) as deaf:
        deaf.sendall(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
        wait_until(lambda: len(server.server_state.connections) == 1)
        assert_served(server)
        wait_until(lambda: not server.server_state.connections)
        assert len(read_to_end(deaf)) < LARGE


def test_client_that_does_not_read_the_end_of_its_answer_is_dropped(start: Start) -> None:
    server = start(answer=0.25)
    with connect(server, SO_RCVBUF=2**15) as deaf:
        deaf.sendall(b"GET /large HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        wait_until(lambda: len(server.server_state.connections) == 1)
        wait_until(lambda: not server.server_state.connections)
        assert len(read_to_end(deaf)) < LARGE


@pytest.mark.parametrize(("secure", "keeps"), [(False, "keep-alive"), (False, "close"), (True, "close")])
def test_client_that_reads_slowly_receives_everything(
    start: Start, authority: Authority, secure: bool, keeps: str
) -> None:
    head = 2.0 if secure else 0.2  # a TLS handshake may take a while on a busy machine
    server = start(tls=authority.files("127.0.0.1") if secure else None, answer=0.4, idle=0.5, head=head)
    with authority.wrap(connect(server, SO_RCVBUF=2**15), secure) as slow:
        slow.sendall(f"GET /large HTTP/1.1\r\nhost: x\r\nconnection: {keeps}\r\n\r\n".encode())
        got = 0
        for _ in range(15):  # longer than every limit, including uvicorn's own, which is in whole seconds
            end = got + 2**20
            while got < end:
                got += len(slow.recv(2**16))
            time.sleep(0.08)
        while got < LARGE:
            got += len(slow.recv(2**16))
        if keeps == "keep-alive":
            slow.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        last = read_to_end(slow)
    assert LARGE < got + len(last) < LARGE + 1000
    assert last.endswith(b"hello") == (keeps == "keep-alive")


def test_client_that_does_not_read_under_tls_is_dropped(start: Start, authority: Authority) -> None:
    server = start(tls=authority.files("127.0.0.1"), answer=0.25)
    with authority.wrap(connect(server, SO_RCVBUF=2**15), True) as deaf:
        deaf.sendall(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
        wait_until(lambda: len(server.server_state.connections) == 1)
        wait_until(lambda: not server.server_state.connections)


@pytest.mark.parametrize("secure", [False, True])
def test_event_stream_outlasts_every_timeout(start: Start, authority: Authority, secure: bool) -> None:
    tls = authority.files("127.0.0.1") if secure else None
    server = start(tls=tls, head=0.15, idle=0.15, body=0.15, answer=0.15)
    events = 0
    with httpx.stream("GET", server.url + "/ticks", verify=authority.context(), timeout=5) as stream:
        for line in stream.iter_lines():
            events += line == "data: tick"
            if events == 15:
                break
    assert events == 15


# --- heads that are too large


@pytest.mark.parametrize(
    ("path", "header"), [("", HEAD_LIMIT), ("a" * 10_000, HEAD_LIMIT - 10_000), ("a" * HEAD_LIMIT, 0)]
)
def test_head_that_is_too_large_is_refused(start: Start, path: str, header: int) -> None:
    server = start()
    with connect(server) as wordy:
        wordy.sendall(f"GET /{path} HTTP/1.1\r\nhost: x\r\nx-long: {'b' * header}\r\n\r\n".encode())
        assert refused(read_to_end(wordy)) == (431, "head-too-large")
    assert_served(server)


def test_head_just_within_the_limit_is_accepted(start: Start) -> None:
    assert httpx.get(start().url, headers={"x-long": "b" * (HEAD_LIMIT - 500)}).text == "hello"


HEAD = b"GET / HTTP/1.1\r\nhost: x\r\n"
CHUNKED = b"POST /put HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n"


@pytest.mark.parametrize(
    ("opening", "more"),
    [
        pytest.param(HEAD, b"x-more: 1234567\r\n" * 500, id="lines"),
        pytest.param(HEAD + b"x-more: ", b"1" * 8000, id="one line"),
        pytest.param(CHUNKED + b"0\r\nx-more: ", b"1" * 8000, id="a line after the body"),
        pytest.param(CHUNKED + b"3;", b"1" * 8000, id="a word on a chunk"),
    ],
)
def test_endless_head_is_not_buffered(start: Start, opening: bytes, more: bytes) -> None:
    server = start()
    sent = 0
    with connect(server, SO_SNDBUF=2**14) as endless:
        endless.sendall(opening)
        with suppress(ConnectionError):
            for _ in range(4000):  # 32 MB if all were accepted
                endless.sendall(more)
                sent += len(more)
        answer = read_to_end(endless)
    assert sent < 8 * 2**20
    assert answer == b"" or refused(answer) == (431, "head-too-large")
    assert_served(server)


def test_bytes_that_are_not_http_are_refused(start: Start) -> None:
    with connect(start()) as other:
        other.sendall(b"EHLO example.org\r\n\r\n")
        assert refused(read_to_end(other)) == (400, "not-http")


# --- several requests, several clients


def test_connection_is_reused(start: Start) -> None:
    server = start(head=0.2)
    with httpx.Client() as client:
        ports = set()
        for _ in range(3):
            response = client.get(server.url)
            ports.add(response.extensions["network_stream"].get_extra_info("client_addr")[1])
            time.sleep(0.15)  # in total longer than the timeout of a head
        assert client.post(server.url + "/put", content=b"abc").text == "3"
    assert len(ports) == 1
    assert "server" not in response.headers


def test_idle_connection_is_closed(start: Start) -> None:
    server = start(idle=0.3)
    with connect(server) as idle:
        idle.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert read_to_end(idle).endswith(b"hello")


def test_answer_is_not_interrupted_by_a_slow_second_request(start: Start) -> None:
    server = start(head=0.3)
    with connect(server) as hasty:
        hasty.sendall(b"GET /ticks HTTP/1.1\r\nhost: x\r\n\r\nGET /")
        assert b"408" not in read_to_end(hasty)


def test_silent_connections_do_not_block_other_clients(start: Start) -> None:
    server = start(connections=10)
    silent = [connect(server) for _ in range(40)]
    try:
        for _ in range(5):
            assert_served(server)
        assert len(server.server_state.connections) <= 11
    finally:
        for one in silent:
            one.close()


def test_connection_that_reads_its_answer_is_not_evicted(start: Start) -> None:
    server = start(connections=2)
    with connect(server, SO_RCVBUF=2**15) as reader:
        reader.sendall(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
        got = len(reader.recv(2**10))
        silent = [connect(server) for _ in range(6)]
        assert_served(server)
        while piece := reader.recv(2**20) if got < LARGE else b"":
            got += len(piece)
        assert got >= LARGE
        for one in silent:
            one.close()


def test_silent_connections_are_closed_after_their_timeout(start: Start) -> None:
    server = start(connections=50, head=0.4)
    silent = [connect(server) for _ in range(40)]
    try:
        assert_served(server)
        wait_until(lambda: not server.server_state.connections, 5)
    finally:
        for one in silent:
            one.close()


def test_requests_above_the_connection_limit_get_503(start: Start) -> None:
    server = start(connections=3)
    busy = [connect(server) for _ in range(3)]
    try:
        for one in busy:
            one.sendall(b"GET /ticks HTTP/1.1\r\nhost: x\r\n\r\n")
            assert one.recv(2**16)
        assert httpx.get(server.url).status_code == 503
        busy[0].close()
        wait_until(lambda: len(server.server_state.connections) == 2)
        assert_served(server)
    finally:
        for one in busy:
            one.close()


# --- shutdown


PROGRAM = """
import asyncio, contextlib, sys
sys.path.insert(0, {folder!r})
from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route
from consilience.relay import server

async def ticks(request):
    async def tick():
        while True:
            yield "data: tick\\n\\n"
            await asyncio.sleep(0.1)
    return StreamingResponse(tick())

@contextlib.asynccontextmanager
async def lifespan(app):
    yield
    print("closed", flush=True)

assert "torch" not in sys.modules
assert server._GRACE <= 8  # and two seconds for all the rest
server._GRACE = 1
app = Starlette(routes=[Route("/ticks", ticks)], lifespan=lifespan)
server.run_server(app, server.ServerSettings(port=0), on_ready=lambda url: print(url, flush=True))
print("returned", flush=True)
"""


@pytest.mark.parametrize(("number", "streams"), [(signal.SIGTERM, True), (signal.SIGINT, False)])
def test_signal_stops_the_server_in_time(number: int, streams: bool) -> None:
    program = PROGRAM.format(folder=str(Path(__file__).parents[2] / "src"))
    command = [sys.executable, "-W", "error", "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            with httpx.Client(timeout=15) as client:
                if streams:
                    stream = client.send(client.build_request("GET", url + "/ticks"), stream=True)
                    lines = stream.iter_lines()  # keep a reference, or the stream would be closed
                    assert next(lines) == "data: tick"
                began = time.monotonic()
                process.send_signal(number)
                out, err = process.communicate(timeout=15)
                assert time.monotonic() - began < 3
        finally:
            process.kill()
    assert process.returncode == 0, err
    assert out.split() == ["closed", "returned"]
    assert "Traceback" not in err


# --- TLS


class Authority:
    """A certificate authority."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._ca = folder, trustme.CA()

    def files(self, *names: str, expires: datetime | None = None) -> tuple[str, str]:
        leaf = self._ca.issue_cert(*names, not_after=expires)
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        certificate, key = folder / "certificate.pem", folder / "key.pem"
        certificate.write_bytes(b"".join(part.bytes() for part in leaf.cert_chain_pems))
        key.write_bytes(leaf.private_key_pem.bytes())
        return str(certificate), str(key)

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self._ca.configure_trust(context)
        return context

    def wrap(self, connection: socket.socket, secure: bool) -> socket.socket:
        return self.context().wrap_socket(connection, server_hostname="127.0.0.1") if secure else connection


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_matching_host_name_is_accepted(start: Start, authority: Authority) -> None:
    server = start(tls=authority.files("127.0.0.1"))
    assert server.url.startswith("https://127.0.0.1:")
    assert httpx.get(server.url, verify=authority.context()).text == "hello"


def test_clients_refuse_wrong_name_expiry_and_unknown_authority(
    start: Start, authority: Authority, tmp_path: Path
) -> None:
    past = datetime.now(UTC) - timedelta(days=1)
    for files, says in [
        (authority.files("example.org"), "mismatch"),
        (authority.files("127.0.0.1", expires=past), "expired"),
        (Authority(tmp_path).files("127.0.0.1"), "unable to get local issuer|self-signed"),
    ]:
        server = start(tls=files)
        with pytest.raises(httpx.ConnectError, match=says):
            httpx.get(server.url, verify=authority.context())


def test_old_versions_of_tls_are_refused(start: Start, authority: Authority) -> None:
    server = start(tls=authority.files("127.0.0.1"))
    context = authority.context()
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with connect(server) as plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as new:
        assert new.version() == "TLSv1.2"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with connect(server) as plain, pytest.raises(OSError):
        context.wrap_socket(plain, server_hostname="127.0.0.1")


def test_client_without_tls_handshake_is_closed(start: Start, authority: Authority) -> None:
    server = start(tls=authority.files("127.0.0.1"), head=0.3)
    with connect(server) as silent:
        assert read_to_end(silent) == b""


def test_slow_heads_under_tls_are_refused(start: Start, authority: Authority) -> None:
    server = start(tls=authority.files("127.0.0.1"), head=2.0)
    with authority.wrap(connect(server), True) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n")
        assert refused(read_to_end(slow)) == (408, "too-slow")
        wait_until(lambda: not server.server_state.connections, 5)  # although the client never sent a TLS close


# --- invalid addresses and certificates


def refusal(host: str = "127.0.0.1", port: int = 0, tls: tuple[str, str] | None = None) -> str:
    with pytest.raises(ConfigurationError) as refused_:
        bind_server(APP, ServerSettings(host=host, port=port, tls=tls))
    return str(refused_.value)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1"])
def test_public_address_requires_tls(host: str) -> None:
    assert "without TLS" in refusal(host=host)


def test_public_address_is_allowed_with_tls_or_insecure(authority: Authority) -> None:
    for tls, insecure in [(None, True), (authority.files("127.0.0.1"), False)]:
        server = bind_server(APP, ServerSettings(host="0.0.0.0", port=0, tls=tls, insecure=insecure))
        assert server.url.startswith("https://" if tls else "http://0.0.0.0:")
        server.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost"])
def test_loopback_address_needs_no_tls(host: str) -> None:
    server = bind_server(APP, ServerSettings(host=host, port=0))
    server.close()


def test_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert f"port {port} of 127.0.0.1 is in use" in refusal(port=port)


def test_invalid_host_names_and_ports_are_named(tmp_path: Path) -> None:
    assert "70000" in refusal(port=70000)
    assert "'no.such.host.invalid'" in refusal(host="no.such.host.invalid")


def test_unusable_certificates_and_keys_are_named(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.files("127.0.0.1")
    damaged, other, locked = (str(tmp_path / name) for name in ("damaged.pem", "other.pem", "locked.pem"))
    Path(damaged).write_text(Path(key).read_text().replace("A", "!"))
    Path(other).write_bytes(authority._ca.issue_cert("127.0.0.1").private_key_pem.bytes())
    encrypt = ["openssl", "pkey", "-in", key, "-aes256", "-passout", "pass:secret", "-out", locked]
    subprocess.run(encrypt, check=True, capture_output=True)
    missing = str(tmp_path / "missing.pem")
    assert f"cannot read {missing}" in refusal(tls=(missing, key))
    assert f"cannot read {missing}" in refusal(tls=(certificate, missing))
    assert f"{damaged} is not a certificate in PEM format" in refusal(tls=(damaged, key))
    assert f"{damaged} is not a key in PEM format" in refusal(tls=(certificate, damaged))
    assert f"{locked} is not a key in PEM format without a password" in refusal(tls=(certificate, locked))
    assert f"{other} is not the key of the certificate {certificate}" in refusal(tls=(certificate, other))


@pytest.mark.parametrize("limit", ["head", "idle", "body", "rate", "answer"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_timeouts_are_finite_and_above_0(limit: str, value: float) -> None:
    with pytest.raises(ConfigurationError, match=f"timeout {limit}"):
        Timeouts(**{limit: value})


# --- logs


def test_client_data_is_not_logged(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    server = start(idle=0.3)
    with caplog.at_level(logging.DEBUG):
        response = httpx.post(server.url + "/fails", headers={"authorization": "TOKEN"}, content=b"BODY")
        with connect(server) as stopped:
            stopped.sendall(b"POST /put?q=QUERY HTTP/1.1\r\nauthorization: TOKEN\r\ncontent-length: 9\r\n\r\nBODY")
            read_to_end(stopped)
    assert response.status_code == 500
    said = [logging.Formatter().format(record) for record in caplog.records if record.name.startswith("uvicorn")]
    assert len(said) == 1, "only the failure, and not that a client left"
    assert "failed with ValueError" in said[0] and "in fails" in said[0]
    assert not any(word in said[0] for word in ("TOKEN", "BODY", "QUERY"))
