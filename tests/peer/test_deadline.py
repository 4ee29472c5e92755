"""Requests end by their deadline for slow name lookups, bytes and answers, also through proxies."""

from __future__ import annotations

import contextlib
import inspect
import re
import socket
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpcore
import pytest

from consilience.errors import ConfigurationError, RelayUnreachable
from consilience.peer import deadline, http, http_address
from consilience.peer.http import RelayClient
from consilience.peer.http_address import check_url, proxy_for

TOKEN = f"cs1_1_{'a' * 43}"
LIBRARY = f"httpcore {httpcore.__version__}: "
MARGIN = 3.0  # extra seconds for a busy machine


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@contextlib.contextmanager
def server(answer: Callable[[socket.socket, threading.Event], None]) -> Iterator[tuple[int, list[bytes]]]:
    """Accepts connections, records their first bytes, and answers; yields its port and these bytes."""
    came, ended = list[bytes](), threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.05)

    def serve() -> None:
        while not ended.is_set():
            with contextlib.suppress(OSError), listener.accept()[0] as client:
                client.settimeout(5)
                came.append(client.recv(65536))
                answer(client, ended)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1], came
    finally:
        ended.set()
        thread.join()
        listener.close()


def silent(client: socket.socket, ended: threading.Event) -> None:
    ended.wait(5)


def dripping(client: socket.socket, ended: threading.Event) -> None:
    client.sendall(b"HTTP/1.1 200 OK\r\nX-Long: ")
    while not ended.wait(0.05):
        client.sendall(b"x")


def ends_in_time(url: str, seconds: float = 0.4) -> RelayUnreachable:
    client = RelayClient(url, TOKEN)
    started = time.monotonic()
    with pytest.raises(RelayUnreachable) as failed:
        client.federation(seconds)
    took = time.monotonic() - started
    client.close()
    assert took < seconds + MARGIN, f"{LIBRARY}a request took {took:.1f} s, and its deadline was {seconds} s"
    return failed.value


@pytest.mark.parametrize("answer", [silent, dripping])
def test_request_ends_by_its_deadline(answer: Any) -> None:
    with server(answer) as (port, came):
        assert ends_in_time(f"http://127.0.0.1:{port}").may_have_arrived
    assert came[0].startswith(b"GET /v1/federation HTTP/1.1\r\nHost: 127.0.0.1:")


def test_slow_name_lookup_does_not_delay_a_request_beyond_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    held = threading.Event()

    def slow(*_: Any, **__: Any) -> list[Any]:
        held.wait(5)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    failed = ends_in_time("https://relay.example")
    held.set()
    assert not failed.may_have_arrived and "address was not found in time" in str(failed)


@pytest.mark.parametrize("answer", [silent, dripping])
def test_proxy_is_used_within_the_deadline(answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with server(answer) as (port, came):
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:se%20cret@127.0.0.1:{port}")
        ends_in_time("https://relay.example:8443")
        assert came[0].startswith(b"CONNECT relay.example:8443 HTTP/1.1\r\n")
        assert b"Proxy-Authorization: Basic bWU6c2UgY3JldA==\r\n" in came[0]  # me:se cret
        assert TOKEN.encode() not in came[0]


def test_proxies_come_from_the_environment_and_exclude_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    assert proxy_for("https://relay.example") is None
    monkeypatch.setenv("ALL_PROXY", "proxy.example:3128")
    found = proxy_for("https://relay.example")
    assert found is not None and found.url == httpcore.URL("http://proxy.example:3128") and found.auth is None
    monkeypatch.setenv("NO_PROXY", "relay.example")
    assert proxy_for("https://relay.example:8443") is None and proxy_for("https://other.example") is not None
    monkeypatch.setenv("ALL_PROXY", "gopher://proxy.example")
    with pytest.raises(ConfigurationError, match=r"gopher://proxy\.example' of the environment cannot be used"):
        proxy_for("https://other.example")
    RelayClient("http://127.0.0.1:1", TOKEN).close()


@pytest.mark.parametrize(
    ("given", "checked"),
    [
        ("https://relay.example/", "https://relay.example"),
        ("https://relay.example:8443/hospital/", "https://relay.example:8443/hospital"),
        ("http://[::1]:8443", "http://[::1]:8443"),
        ("https://bücher.example", "https://xn--bcher-kva.example"),
    ],
)
def test_relay_urls_are_normalized(given: str, checked: str) -> None:
    assert check_url(given) == checked


# --- the library


def test_httpcore_has_the_required_public_interface() -> None:
    """Where this fails, httpcore has changed: adapt peer/deadline.py, or bound its version in pyproject.toml."""
    needed: dict[Any, set[str]] = {
        httpcore.ConnectionPool: {"ssl_context", "proxy", "keepalive_expiry", "network_backend"},
        httpcore.ConnectionPool.stream: {"method", "url", "headers", "content", "extensions"},
        httpcore.Proxy: {"url", "auth"},
        httpcore.NetworkBackend.connect_tcp: {"host", "port", "timeout", "local_address", "socket_options"},
        httpcore.NetworkStream.read: {"max_bytes", "timeout"},
        httpcore.NetworkStream.write: {"buffer", "timeout"},
        httpcore.NetworkStream.start_tls: {"ssl_context", "server_hostname", "timeout"},
        httpcore.NetworkStream.get_extra_info: {"info"},
    }
    for what, names in needed.items():
        missing = names - set(inspect.signature(what).parameters)
        assert not missing, f"{LIBRARY}{what.__qualname__} has no parameter {', '.join(sorted(missing))}"


def test_httpcore_version_is_bounded_and_no_private_name_is_used() -> None:
    project = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text())
    assert "httpcore>=1.0.7,<2" in project["project"]["optional-dependencies"]["learn"]
    version = tuple(int(n) for n in re.findall(r"\d+", httpcore.__version__)[:3])
    assert (1, 0, 7) <= version < (2,), f"{LIBRARY}pyproject.toml allows >=1.0.7,<2"
    for module in (deadline, http, http_address):
        used = set(re.findall(r"httpcore\.(\w+)", inspect.getsource(module)))
        assert used and used <= set(httpcore.__all__), f"{LIBRARY}{module.__name__} uses {used - set(httpcore.__all__)}"
