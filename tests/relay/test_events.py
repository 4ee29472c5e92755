"""Event streams, over real sockets."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from consilience.relay import admin
from consilience.relay import app as app_module
from consilience.relay.app import Limits, Relay
from tests.local_relay import (
    MEAN,
    MOVING,
    START,
    StoredFederation,
    change,
    code,
    create_federation,
    logits,
    moved,
    upload_over,
    wait_until,
    weighs,
)
from tests.relay_tools import in_a_thread


@contextmanager
def served(stored: StoredFederation) -> Iterator[str]:
    with in_a_thread(Relay(stored.store, Limits(rate=0))) as url:
        yield url


class Stream:
    """A member's event stream; a thread reads the lines, so that waiting for one can time out."""

    def __init__(self, url: str, token: str) -> None:
        self._client = httpx.Client(timeout=10)
        self._response = self._client.send(
            self._client.build_request("GET", f"{url}/v1/events", headers={"Authorization": f"Bearer {token}"}),
            stream=True,
        )
        assert self._response.headers["content-type"].startswith("text/event-stream")
        self.blocks: list[str] = []
        self._closing = False
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        block: list[str] = []
        with suppress(httpx.HTTPError, httpx.StreamError):
            for line in self._response.iter_lines():
                if self._closing:
                    return
                if line:
                    block.append(line)
                    continue
                self.blocks.append("\n".join(block))
                block = []

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    @property
    def news(self) -> list[dict[str, Any]]:
        lines = [block.split("\n") for block in self.blocks if not block.startswith(":")]
        assert all(kind == "event: news" and data.startswith("data: ") for kind, data in lines)
        return [json.loads(data.removeprefix("data: ")) for _, data in lines]

    def close(self) -> None:
        self._closing = True  # noticed at the next line, which a heartbeat soon sends
        self._thread.join(5)
        self._response.close()
        self._client.close()


@contextmanager
def open_stream(url: str, token: str) -> Iterator[Stream]:
    stream = Stream(url, token)
    try:
        yield stream
    finally:
        stream.close()


def test_events_are_sent_at_once_and_after_each_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "_HEARTBEAT", 0.1)
    stored = create_federation(tmp_path, {**MEAN, **MOVING}, START, members=3)
    with served(stored) as url, open_stream(url, stored.tokens[1]) as stream:
        wait_until(lambda: len(stream.blocks) > 0)
        counts = {"epoch": stream.news[0]["epoch"], "expected": 3, "waiting": {"weights": 0}}
        assert stream.news == [{"revision": 0, "round": -1, "versions": {"weights": 0}, **counts}]
        upload_over(url, stored.tokens[0], 4, weighs(1), MEAN, logits(1, 1))
        wait_until(lambda: len(stream.news) == 2)
        assert stream.news[-1] == {"revision": 1, "round": 0, "versions": {"weights": 0}, **counts}
        for i in range(3):
            upload_over(url, stored.tokens[i], 5, moved(0), MOVING, change(i))
        wait_until(lambda: stream.news[-1]["versions"] == {"weights": 1})
        revisions = [news["revision"] for news in stream.news]
        assert revisions == sorted(set(revisions))
        wait_until(lambda: ": still here" in stream.blocks)
        admin.revoke(stored.store, "member-1")  # one that had uploaded, and one that had not
        wait_until(lambda: stream.ended, 2)


def test_event_stream_of_a_revoked_member_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "_HEARTBEAT", 0.1)
    stored = create_federation(tmp_path, MEAN)
    with served(stored) as url, open_stream(url, stored.tokens[0]) as stream:
        wait_until(lambda: len(stream.blocks) > 2)
        assert not stream.ended
        admin.revoke(stored.store, "member-0")
        wait_until(lambda: stream.ended, 2)


def test_member_has_a_limited_number_of_event_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "_HEARTBEAT", 0.1)
    stored = create_federation(tmp_path, MEAN)
    with served(stored) as url:
        token = {"Authorization": f"Bearer {stored.tokens[0]}"}
        streams = [Stream(url, stored.tokens[0]) for _ in range(4)]
        try:
            wait_until(lambda: all(stream.blocks for stream in streams))
            refused = httpx.get(f"{url}/v1/events", headers=token)
            assert code(refused) == (429, "over-quota")
            assert int(refused.headers["retry-after"]) > 0
            with open_stream(url, stored.tokens[1]) as other:
                wait_until(lambda: len(other.blocks) > 0)
            streams.pop().close()

            def room() -> bool:
                with httpx.stream("GET", f"{url}/v1/events", headers=token) as again:
                    return again.status_code == 200

            wait_until(room, 3)
        finally:
            for stream in streams:
                stream.close()


def test_head_request_to_events_ends(tmp_path: Path) -> None:
    stored = create_federation(tmp_path, MEAN)
    with served(stored) as url, httpx.Client(timeout=5) as client:
        token = {"Authorization": f"Bearer {stored.tokens[0]}"}
        for _ in range(6):  # more than there may be streams
            response = client.head(f"{url}/v1/events", headers=token)
            assert (response.status_code, response.content) == (200, b"")
        assert client.head(f"{url}/v1/answers", headers=token).headers["etag"]
        assert client.get(f"{url}/health").status_code == 200


def test_event_streams_end_when_the_relay_stops(tmp_path: Path) -> None:
    stored = create_federation(tmp_path, MEAN)
    relay = Relay(stored.store)
    sent: list[dict[str, Any]] = []

    async def story() -> None:
        app = relay.app()
        scope: dict[str, Any] = {
            "type": "http",
            "method": "GET",
            "path": "/v1/events",
            "query_string": b"",
            "root_path": "",
        }
        scope["headers"] = [(b"authorization", f"Bearer {stored.tokens[0]}".encode())]

        async def receive() -> dict[str, Any]:
            await asyncio.Event().wait()
            raise AssertionError

        async def send(part: Any) -> None:
            sent.append(part)

        async with relay.lifespan(app):
            stream = asyncio.create_task(app(scope, receive, send))
            while len(sent) < 2:
                await asyncio.sleep(0.01)
        await asyncio.wait_for(stream, 2)

    asyncio.run(story())
    assert sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
