"""Bounds per member and per address: connections, bytes in flight, wrong tokens; and answers shared by all who ask."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response

from consilience.errors import ConfigurationError
from consilience.relay import admin
from consilience.relay.addresses import check_proxies, client_address, shared_address
from consilience.relay.answer_cache import AnswerCache, SharedAnswer
from consilience.relay.answer_endpoints import AnswerEndpoints
from consilience.relay.app import Limits, Relay
from consilience.relay.connection_places import ConnectionPlaces
from consilience.relay.event_loop import RelayEventLoop
from consilience.relay.failed_logins import FailedLogins
from consilience.relay.file_limit import _fitting
from consilience.relay.in_flight import Usage
from consilience.relay.known_answers import KnownAnswers
from consilience.relay.member_connections import MemberConnections
from consilience.relay.rejections import Rejection
from consilience.relay.snapshot import Snapshot
from consilience.relay.store import Store
from consilience.relay.timeouts import Timeouts
from tests.relay_tools import Federation, create_federation, in_a_thread, serving, wait_until

# Addresses


def test_ipv6_networks_and_mapped_addresses_count_as_one_address() -> None:
    assert shared_address("192.0.2.7") == shared_address("::ffff:192.0.2.7") == "192.0.2.7"
    assert shared_address("2001:db8::1") == shared_address("2001:db8::ffff:1") != shared_address("2001:db8:0:1::1")
    assert shared_address("::1") == "::1"
    assert shared_address("testclient") == ""


def test_forwarded_address_is_believed_only_from_a_named_proxy() -> None:
    headers = [(b"x-forwarded-for", b"203.0.113.9, 198.51.100.4")]
    scope = {"client": ("10.0.0.5", 4711), "headers": headers}
    assert client_address(scope) == "10.0.0.5"
    assert client_address(scope, check_proxies(["10.0.0.5"])) == "198.51.100.4", "the one that the proxy has added"
    assert client_address({**scope, "headers": []}, check_proxies(["10.0.0.5"])) == "10.0.0.5"
    with pytest.raises(ConfigurationError, match=r"proxy 'nginx' is not an IP address"):
        check_proxies(["nginx"])


# Bytes in flight


def test_bytes_in_flight_are_limited_and_given_back() -> None:
    usage = Usage(member_bytes=100, address_bytes=150)
    first = usage.hold(1, "a", 90)
    with pytest.raises(
        Rejection, match=r"about 20 bytes, and 90 bytes .* of yours .* at most 100 are allowed"
    ) as found:
        usage.hold(1, "a", 20)
    assert (found.value.status, found.value.code, found.value.retry_after) == (429, "too-many-bytes", 1)
    with pytest.raises(Rejection, match="of your address are under way; at most 150"):
        usage.hold(2, "a", 90)
    usage.hold(2, "b", 90)()  # what was refused for the address was given back for the member
    first()
    usage.hold(1, "a", 1000)()  # a single one may be larger
    usage.hold(1, "a", 20)()


def test_answer_that_several_requests_read_counts_once() -> None:
    usage = Usage(member_bytes=100, address_bytes=100)
    body = b"x" * 80
    holds = [usage.hold(member, "a", 80, body) for member in (1, 2, 1)]
    with pytest.raises(Rejection):
        usage.hold(3, "a", 80, b"y" * 80)
    for release in holds:
        release()
    usage.hold(3, "a", 80)()
    assert not usage.members._used and not usage.members._readers and not usage.addresses._readers


# Wrong tokens


def test_wrong_tokens_are_counted_by_address_and_forgiven_with_time() -> None:
    now = 100.0
    logins = FailedLogins(3, clock=lambda: now)
    assert [logins.count("a") is None for _ in range(4)] == [True, True, True, False]
    refused = logins.count("a")
    assert refused is not None and refused.retry_after == 20, "one of three per minute"
    assert "more than 3 such tokens within a minute" in str(refused)
    assert logins.count("b") is None
    now += 20
    assert logins.count("a") is None
    assert all(FailedLogins(0).count("a") is None for _ in range(1000)), "0 is no limit"


def test_address_with_wrong_tokens_is_slowed_and_its_members_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consilience.relay.admission.DELAY", 0.01)
    federation = create_federation(tmp_path, 1)
    relay = Relay(federation.store, Limits(failed_logins=3))
    wrong = {"Authorization": f"Bearer cs1_1_{'A' * 43}"}
    with in_a_thread(relay) as url:
        answers = [httpx.get(f"{url}/v1/federation", headers=wrong) for _ in range(5)]
        assert [answer.status_code for answer in answers] == [401, 401, 401, 429, 429]
        assert answers[-1].json()["code"] == "too-many-logins"
        assert int(answers[-1].headers["retry-after"]) > 0
        assert answers[-1].headers["connection"] == "close"
        assert httpx.get(f"{url}/v1/federation", headers=federation.head(0)).status_code == 200
        assert httpx.get(f"{url}/v1/federation").status_code == 401, "no token at all is not a guess"


# Connections


class FakeConnection:
    def __init__(self, idle: bool = False) -> None:
        self.idle, self.closed = idle, False
        self.places = ConnectionPlaces()

    def close_if_idle(self) -> bool:
        self.closed = self.idle
        return self.idle


def test_member_gets_another_connection_only_for_an_idle_one() -> None:
    connections = MemberConnections(2)
    busy, idle, third, fourth = FakeConnection(), FakeConnection(idle=True), FakeConnection(), FakeConnection()
    for each in (busy, busy, idle, third):  # a connection counts once, however many requests come over it
        connections.claim(each, 1)
    assert idle.closed and not busy.closed
    with pytest.raises(Rejection, match="2 connections of yours are in use; at most 2 are allowed"):
        connections.claim(fourth, 1)
    connections.claim(fourth, 2)
    connections.claim(third, 2)  # the connection is the other member's now
    connections.claim(FakeConnection(), 1)
    connections.claim(None, 1)  # a request without a connection, as in tests
    third.places.free(third)  # it has ended
    assert third not in connections._member
    for still_open in list(connections._member):
        connections.forget(still_open)
    assert not connections._of and not connections._member


def unread(url: str, federation: Federation, member: int, path: str = "/v1/events") -> socket.socket:
    """A connection whose answer is not read."""
    made = socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), timeout=10)
    token = federation.tokens[member]
    made.sendall(f"GET {path} HTTP/1.1\r\nHost: relay\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
    return made


def test_connections_of_a_member_are_limited(tmp_path: Path) -> None:
    federation = create_federation(tmp_path, 2)
    with in_a_thread(Relay(federation.store, Limits(member_connections=2))) as url, contextlib.ExitStack() as held:
        for _ in range(2):
            assert held.enter_context(unread(url, federation, 0)).recv(15) == b"HTTP/1.1 200 OK"
        refused = httpx.get(f"{url}/v1/federation", headers=federation.head(0))
        assert (refused.status_code, refused.json()["code"]) == (429, "too-many-connections")
        assert refused.headers["connection"] == "close" and int(refused.headers["retry-after"]) > 0
        assert httpx.get(f"{url}/v1/federation", headers=federation.head(1)).status_code == 200


def test_connections_of_an_address_are_limited(tmp_path: Path) -> None:
    federation = create_federation(tmp_path, 2)
    options = ["--address-connections", "3"]
    with serving(federation.store, options=options) as relay, contextlib.ExitStack() as held:
        silent = [held.enter_context(socket.create_connection(("127.0.0.1", relay.port), 10)) for _ in range(3)]
        streams = [held.enter_context(unread(relay.url, federation, 0)) for _ in range(3)]
        assert [each.recv(15) for each in streams] == [b"HTTP/1.1 200 OK"] * 3, "silent connections make room"
        assert [each.recv(1) for each in silent] == [b""] * 3
        refused = httpx.get(f"{relay.url}/v1/federation", headers=federation.head(1))
        assert (refused.status_code, refused.json()["code"]) == (429, "too-many-connections")
        assert "connections of your address are open; at most 3 are allowed" in refused.json()["message"]
        streams[0].close()
        wait_until(lambda: httpx.get(f"{relay.url}/v1/federation", headers=federation.head(1)).status_code == 200)


# Answers


def test_concurrent_requests_wait_for_one_build_and_later_ones_share_its_bytes(tmp_path: Path) -> None:
    federation = create_federation(tmp_path, 1)
    begun, may_end, builds = threading.Event(), threading.Event(), list[str]()

    def build(store: Store) -> SharedAnswer:
        builds.append(threading.current_thread().name)
        assert store.members.get(1) is not None
        begun.set()
        assert may_end.wait(10)
        return SharedAnswer([], b"answer")

    async def story() -> None:
        cache = AnswerCache(federation.store, 100)
        try:
            asked = [asyncio.create_task(cache.get_or_make("a", member, build, keep=True)) for member in (1, 1, 2)]
            await asyncio.to_thread(begun.wait, 10)
            asked[0].cancel()  # who waits for it may go
            await asyncio.sleep(0)
            may_end.set()
            first, second = await asked[1], await asked[2]
            again = await cache.get_or_make("a", 3, build, keep=True)
            assert first.body is second.body is again.body
        finally:
            cache.close()

    asyncio.run(story())
    assert len(builds) == 1 and builds[0].startswith("answers")


def test_cache_is_bounded_in_bytes_and_failed_builds_are_not_kept(tmp_path: Path) -> None:
    federation = create_federation(tmp_path, 1)

    def failing(store: Store) -> SharedAnswer:
        raise Rejection("no-such-reply", "gone")

    async def story() -> None:
        cache = AnswerCache(federation.store, 100)
        try:
            for key in ("a", "b", "c"):
                await cache.get_or_make(key, 1, lambda store: SharedAnswer([], b"x" * 40), keep=True)
                assert cache.get("a") is not None
            assert (cache.size, cache.get("b"), cache.get("c") is None) == (80, None, False)
            await cache.get_or_make("large", 1, lambda store: SharedAnswer([], b"x" * 101), keep=True)
            await cache.get_or_make("own", 1, lambda store: SharedAnswer([], b"x"), keep=False)
            assert (cache.size, cache.get("large"), cache.get("own")) == (80, None, None)
            for _ in range(2):
                with pytest.raises(Rejection, match="gone"):
                    await cache.get_or_make("failed", 1, failing, keep=True)
        finally:
            cache.close()

    asyncio.run(story())


def test_known_answer_is_found_by_query_until_the_federation_changes() -> None:
    known, snapshot = KnownAnswers(), Snapshot()
    known.remember(1, b"round=3&channel=mean", snapshot, "key")
    assert known.find(1, b"round=14&channel=mean", snapshot) == "key"
    assert known.find(1, b"channel=mean&round=14", snapshot) is None
    assert known.find(2, b"round=3&channel=mean", snapshot) is None
    assert known.find(1, b"round=3&round=4&channel=mean", snapshot) is None, "it is refused"
    assert known.find(1, b"round=x&channel=mean", snapshot) is None, "it is refused"
    assert known.find(1, b"round=3&channel=mean", Snapshot()) is None


def test_known_answers_are_those_of_the_endpoint(tmp_path: Path) -> None:
    federation = create_federation(tmp_path, 2)
    relay = Relay(federation.store, Limits(rate=0))
    with in_a_thread(relay) as url, httpx.Client(base_url=url) as client:
        for member in (0, 1, 0):
            answer = client.get("/v1/answers?round=1&channel=prototypes", headers=federation.head(member))
            known = client.get("/v1/answers?round=2&channel=prototypes", headers=federation.head(member))
            assert (known.status_code, known.content) == (answer.status_code, answer.content)
            assert {k: v for k, v in known.headers.items() if k != "date"} == {
                k: v for k, v in answer.headers.items() if k != "date"
            }
        head = federation.head(0, **{"If-None-Match": answer.headers["etag"]})
        assert client.get("/v1/answers?round=3&channel=prototypes", headers=head).status_code == 304
        twice = client.get("/v1/answers?round=1&round=2&channel=prototypes", headers=federation.head(0))
        assert twice.status_code == 400
        admin.revoke(federation.store, "m0")
        gone = client.get("/v1/answers?round=4&channel=prototypes", headers=federation.head(0))
        assert gone.status_code == 403, "a revoked token is refused at once"
        assert relay.downloads._known._known, "they came from there"


def exchanged(url: str, requests: str) -> bytes:
    """What comes back on one connection that sends all of it at once, until the relay closes it."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(requests.encode())
        came = b""
        while piece := connection.recv(2**16):
            came += piece
    return came


def test_known_answers_are_sent_without_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain requests for them never reach the application; all others do, and get the same."""
    federation = create_federation(tmp_path, 2)
    relay, reached = Relay(federation.store, Limits(rate=0)), list[str]()
    usual = AnswerEndpoints.answers

    async def noted(self: AnswerEndpoints, request: Request, *rest: Any) -> Response:
        reached.append(request.method)
        return await usual(self, request, *rest)

    monkeypatch.setattr(AnswerEndpoints, "answers", noted)
    path, head = "/v1/answers?round=1&channel=prototypes", federation.head(0)
    with in_a_thread(relay) as url, httpx.Client(base_url=url) as client:
        first = client.get(path, headers=head)
        for round_ in range(2, 7):
            again = client.get(f"/v1/answers?round={round_}&channel=prototypes", headers=head)
            assert (again.status_code, again.content, len(reached)) == (200, first.content, 1)
        unusual: list[tuple[str, dict[str, str], bytes]] = [
            ("HEAD", {}, b""),
            ("GET", {}, b"body"),
            ("GET", {"If-None-Match": '"other"'}, b""),
            ("GET", {"Connection": "close"}, b""),
            ("GET", {"Expect": "100-continue"}, b""),
        ]
        for i, (method, more, body) in enumerate(unusual):
            answer = client.request(method, path, headers=head | more, content=body or None)
            assert (answer.status_code, len(reached)) == (200, 2 + i), (method, more)
            assert answer.content == (b"" if method == "HEAD" else first.content)
        # Of requests that come in one piece, one is answered at once and the others in their turn, all in order.
        line = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: {head['Authorization']}\r\n"
        came = exchanged(url, f"{line}\r\n" * 3 + f"{line}Connection: close\r\n\r\n")
        assert came.count(b"HTTP/1.1 200 OK") == came.count(first.content) == 4
        assert 6 + 1 <= len(reached) <= 6 + 3, "the first was answered at once, and the last was not"
        wrong = client.get(path, headers={"Authorization": head["Authorization"][:-1] + "!"})
        assert wrong.status_code == 401


def test_connection_that_was_answered_at_once_is_closed_when_it_is_idle(tmp_path: Path) -> None:
    federation = create_federation(tmp_path, 1)
    path, head = "/v1/answers?round=1&channel=prototypes", federation.head(0)
    with in_a_thread(Relay(federation.store), Timeouts(idle=0.3, head=30)) as url:
        httpx.get(url + path, headers=head)
        began = time.monotonic()
        came = exchanged(url, f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: {head['Authorization']}\r\n\r\n")
        assert came.startswith(b"HTTP/1.1 200 OK") and time.monotonic() - began < 20


# Event streams


def read_to_end(stream: socket.socket) -> bytes:
    """What an event stream sends, up to the end of its answer; less if it is cut off."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while not received.endswith(b"\r\n0\r\n\r\n") and (piece := stream.recv(65536)):
            received += piece
    return received


def test_event_streams_end_with_revocation_and_with_the_relay(tmp_path: Path) -> None:
    """Long before the next heartbeat, and complete: not cut off."""
    federation = create_federation(tmp_path, 2)
    with serving(federation.store) as relay:
        revoked, other = (unread(relay.url, federation, member) for member in (0, 1))
        with revoked, other:
            assert revoked.recv(15) == other.recv(15) == b"HTTP/1.1 200 OK"
            admin.revoke(federation.store, "m0")
            received = read_to_end(revoked)
            assert b"still here" not in received and received.endswith(b"0\r\n\r\n")
            relay.stop()
            assert read_to_end(other).endswith(b"0\r\n\r\n")


# Files


def test_connections_are_lowered_to_the_limit_of_open_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert _fitting(1000, 20_000) == 1000
    assert _fitting(1000, 400) == 400 - 64 - 100
    assert "1000 connections do not fit into the limit of 400 open files" in caplog.text
    with pytest.raises(ConfigurationError, match="may open 60 files"):
        _fitting(1000, 60)
    federation = create_federation(tmp_path, 1)
    few = ["bash", "-c", 'ulimit -n 200 && exec "$@"', "--"]
    options = ["--address-connections", "0"]
    with serving(federation.store, before=few, options=options) as relay, contextlib.ExitStack() as held:
        for _ in range(300):
            with contextlib.suppress(OSError):
                held.enter_context(socket.create_connection(("127.0.0.1", relay.port), 5))
        wait_until(lambda: httpx.get(f"{relay.url}/health").status_code == 200)
    text = federation.store.with_suffix(".log").read_text()
    assert "do not fit into the limit of 200 open files" in text
    assert "Traceback" not in text and len(text) < 4000


def test_running_out_of_files_is_logged_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    loop = RelayEventLoop(1.0)
    try:
        with caplog.at_level(logging.ERROR):
            for _ in range(300):
                loop.call_exception_handler(
                    {
                        "message": "socket.accept() out of system resource",
                        "exception": OSError(24, "Too many open files"),
                    }
                )
            assert caplog.text.count("no connection can be accepted now") == 1
            loop.call_exception_handler({"message": "something else"})
            assert "something else" in caplog.text
    finally:
        loop.close()
