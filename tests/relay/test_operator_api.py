"""The status of a relay, for operators: what it holds, who may see it, and how it changes."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from consilience.relay import admin, operator_api, status_builder, status_feed
from consilience.relay.app import Limits, Relay
from consilience.relay.operator_page import HEADERS
from consilience.relay.operators import add_operator, remove_operator
from consilience.relay.restore import back_up
from tests.local_relay import (
    MEAN,
    MOVING,
    START,
    LocalRelay,
    change,
    code,
    create_federation,
    logits,
    moved,
    upload_over,
    wait_until,
    weighs,
)
from tests.local_relay import running as running_relay
from tests.relay_tools import in_a_thread

BOTH = {**MEAN, **MOVING}


def status_of(relay: LocalRelay, token: str) -> dict[str, Any]:
    response = relay.ask(token, "/v1/operator/status")
    assert response.status_code == 200, response.text
    assert response.headers["cache-control"] == "no-store"
    status: dict[str, Any] = response.json()
    return status


def test_status_shows_federations_members_refusals_and_the_store(tmp_path: Path) -> None:
    stored = create_federation(tmp_path, BOTH, START, members=4)
    token, now = str(add_operator(stored.store, "anna")), int(time.time())
    admin.revoke(stored.store, "member-3")
    with running_relay(stored) as relay:
        for member in (0, 1):
            assert relay.upload(member, 5, weighs(1) | moved(0), logits(1, 1) | change(member)).status_code == 200
        assert relay.upload(1, 5, weighs(1) | moved(0), logits(1, 1) | change(1)).status_code == 200  # once more
        assert code(relay.upload(1, 4, weighs(1), logits(1, 1))) == (409, "older-round")
        assert code(relay.ask(3, "/v1/federation")) == (403, "revoked")
        assert code(relay.ask("cs1_1_" + "a" * 43, "/v1/federation")) == (401, "wrong-token")
        status = status_of(relay, token)
    (federation,) = status["federations"]
    assert {key: federation[key] for key in ("name", "method", "served", "round", "expected", "uploads")} == {
        **{"name": "digits", "method": "some", "served": True, "round": 1, "expected": 3, "uploads": 2}
    }
    assert federation["members"] == {"active": 2, "away": 0, "invited": 1, "expired": 0, "revoked": 1}
    assert federation["bytes"] == sum(member["bytes"] for member in status["members"]) > 0
    assert sum(federation["minutes"]) == 2  # the same upload again is no upload
    assert federation["channels"] == [
        {"name": "logits", "kind": "standing"},
        {"name": "weights", "kind": "moving", "version": 0, "waiting": 2, "missing": 1, "missing_names": ["member-2"]},
    ]
    first, second, third, last = status["members"]
    assert (first["name"], first["number"], first["state"], first["round"]) == ("member-0", 0, "active", 5)
    assert (third["state"], third["round"], third["seen"]) == ("invited", -1, 0)
    assert last["state"] == "revoked"
    assert second["seen"] >= now
    assert status["refusals"]["codes"] == {"older-round": 1, "revoked": 1, "wrong-token": 1}
    shown = [(each["code"], each["member"], each["request"]) for each in status["refusals"]["last"]]
    assert shown == [
        ("wrong-token", None, "GET /v1/federation"),
        ("revoked", "member-3", "GET /v1/federation"),
        ("older-round", "member-1", "PUT /v1/rounds/4"),
    ]
    assert status["store"]["status"] == "ok"
    assert status["store"]["bytes"] > 10_000
    assert status["store"]["last_backup"] is None
    assert status["relay"]["started"] >= now
    assert status["relay"]["epoch"] > 0


def test_status_names_the_last_backup_and_repairs(tmp_path: Path) -> None:
    stored = create_federation(tmp_path, MEAN)
    token = str(add_operator(stored.store, "anna"))
    back_up(stored.store, tmp_path / "monday.db")
    with closing(sqlite3.connect(stored.store)) as sql:
        sql.execute("UPDATE members SET name = 'somebody' WHERE number = 1")
        sql.commit()
    with running_relay(stored) as relay:
        status = status_of(relay, token)
    assert abs(status["store"]["last_backup"] - time.time()) < 600
    assert status["store"]["repairs"] == 1
    assert "'somebody' is revoked" in status["store"]["last_repairs"][0]
    assert [member["state"] for member in status["members"]] == ["invited", "revoked"]


def test_a_federation_that_is_not_served_is_shown_with_the_reason(tmp_path: Path) -> None:
    stored = create_federation(tmp_path, MEAN)
    create_federation(tmp_path, MEAN, name="letters")
    token = str(add_operator(stored.store, "anna"))
    with closing(sqlite3.connect(stored.store)) as sql:
        sql.execute("UPDATE federations SET round = 77 WHERE name = 'letters'")
        sql.commit()
    with running_relay(stored) as relay:
        federations = status_of(relay, token)["federations"]
    assert [each["served"] for each in federations] == [True, False]
    assert federations[1] == {"id": 2, "name": "number 2", "served": False, "why": "its record is damaged"}


def test_only_operators_see_the_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = create_federation(tmp_path, MEAN)
    token, short = str(add_operator(stored.store, "anna")), str(add_operator(stored.store, "ben", days=1))
    with running_relay(stored) as relay:
        for path in ("/v1/operator/status", "/v1/operator/events"):
            assert code(relay.ask(None, path)) == (401, "no-token")
            assert code(relay.ask(stored.tokens[0], path)) == (401, "wrong-token")
            assert relay.ask(None, path).headers["www-authenticate"] == "Bearer"
            twice = relay._client.get(path, headers=[("Authorization", f"Bearer {token}")] * 2)
            assert code(relay._runner.run(twice)) == (400, "malformed-query")
        assert code(relay.ask(token, "/v1/federation")) == (401, "wrong-token")  # an operator is no member
        assert code(relay.ask(token, "/v1/operator/status", "POST")) == (405, "method-not-allowed")
        assert relay.ask(token, "/v1/operator/events", "HEAD").status_code == 200
        assert relay.ask(short, "/v1/operator/status").status_code == 200
        later = time.time() + 90_000
        monkeypatch.setattr(time, "time", lambda: later)
        assert code(relay.ask(short, "/v1/operator/status")) == (403, "expired")
        remove_operator(stored.store, "anna")
        assert code(relay.ask(token, "/v1/operator/status")) == (401, "wrong-token")


def test_requests_of_an_operator_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_api, "_BURST", 2)
    monkeypatch.setattr(operator_api, "_RATE", 0.001)
    stored = create_federation(tmp_path, MEAN)
    token = str(add_operator(stored.store, "anna"))
    with running_relay(stored) as relay:
        answers = [relay.ask(token, "/v1/operator/status") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]


def test_page_is_served_with_strict_headers_and_without_inline_code(tmp_path: Path) -> None:
    stored = create_federation(tmp_path, MEAN)
    with running_relay(stored) as relay:
        page = relay.ask(None, "/operator")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        for name in ("main.js", "stream.js", "operator.css", "icon.svg"):
            answer = relay.ask(None, f"/operator/{name}")
            assert answer.status_code == 200
            assert {key.lower(): value for key, value in HEADERS.items()}.items() <= dict(answer.headers).items()
        assert code(relay.ask(None, "/operator/operator.html")) == (404, "not-found")
        assert code(relay.ask(None, "/operator/../app.py")) == (404, "not-found")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy and "http" not in policy
    assert "style=" not in page.text and "<style" not in page.text and " on" not in page.text.split("<main>")[0]
    assert page.text.count("<script") == 1


# --- events


class Events:
    """An operator's event stream, read event by event."""

    def __init__(self, response: httpx.Response) -> None:
        self.lines = response.iter_lines()

    def next(self) -> tuple[str, dict[str, Any]]:
        """The next event; comments are skipped."""
        kind = ""
        for line in self.lines:
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: "):
                return kind, json.loads(line.removeprefix("data: "))
        raise AssertionError("the stream has ended")

    def until(self, key: str) -> tuple[str, dict[str, Any]]:
        """The next event that has this key."""
        while True:
            kind, sent = self.next()
            if key in sent:
                return kind, sent


@contextmanager
def watching(url: str, token: str) -> Iterator[Events]:
    head = {"Authorization": f"Bearer {token}"}
    with httpx.stream("GET", f"{url}/v1/operator/events", headers=head, timeout=60) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        yield Events(response)


def test_events_are_all_of_the_status_and_then_what_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_feed, "_TICK", 0.6)
    stored = create_federation(tmp_path, BOTH, START, members=3)
    token = str(add_operator(stored.store, "anna"))
    with in_a_thread(Relay(stored.store, Limits(rate=0))) as url, watching(url, token) as events:
        kind, sent = events.next()
        assert (kind, len(sent["members"]), sent["federations"][0]["round"]) == ("status", 3, -1)
        upload_over(url, stored.tokens[1], 0, weighs(1), MEAN, logits(1, 1))
        kind, sent = events.until("members")
        assert kind == "update"
        (member,) = sent["members"]
        assert (member["name"], member["state"], member["uploads"]) == ("member-1", "active", 1)
        assert [(each["round"], each["uploads"]) for each in sent["federations"]] == [(0, 1)]
        assert httpx.get(f"{url}/v1/federation").status_code == 401
        _, sent = events.until("refusals")
        assert sent["refusals"]["codes"] == {"no-token": 1}
        httpx.get(f"{url}/v1/federation", headers={"Authorization": f"Bearer {stored.tokens[2]}"})
        _, sent = events.until("seen")
        assert list(sent["seen"]) == ["3"] and "members" not in sent
        stored.invite("late")
        _, sent = events.until("members")
        assert [each["name"] for each in sent["members"]] == ["late"]
        assert [each["expected"] for each in sent["federations"]] == [4]


def test_a_stream_ends_when_the_operator_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_api, "_HEARTBEAT", 0.1)
    stored = create_federation(tmp_path, MEAN)
    token = str(add_operator(stored.store, "anna"))
    with in_a_thread(Relay(stored.store)) as url, watching(url, token) as events:
        assert events.next()[0] == "status"
        remove_operator(stored.store, "anna")
        kind, sent = events.until("code")
        assert (kind, sent["code"]) == ("end", "wrong-token")
        with pytest.raises(AssertionError, match="ended"):
            events.next()


def test_streams_of_one_operator_are_limited_and_end_when_the_relay_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator_api, "_STREAMS", 1)
    stored = create_federation(tmp_path, MEAN)
    token, other = str(add_operator(stored.store, "anna")), str(add_operator(stored.store, "ben"))
    relay = Relay(stored.store)
    with in_a_thread(relay) as url:
        with watching(url, token) as events:
            events.next()
            refused = httpx.get(f"{url}/v1/operator/events", headers={"Authorization": f"Bearer {token}"})
            assert code(refused) == (429, "over-quota")
            with watching(url, other) as others:
                assert others.next()[0] == "status"
        wait_until(lambda: not any(relay.operators._streams.values()), 20)
        with watching(url, token) as again:
            again.next()
            relay._loop.call_soon_threadsafe(relay.operators.end_streams)
            kind, sent = again.until("code")
            assert (kind, sent["code"]) == ("end", "stopping")


def test_members_that_changed_elsewhere_are_found_when_all_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_builder, "_ALL_AGAIN", 0.0)
    monkeypatch.setattr(status_builder, "_SHARE", 0)
    stored = create_federation(tmp_path, MEAN, members=3)
    token = str(add_operator(stored.store, "anna"))
    with running_relay(stored) as relay:
        assert [member["state"] for member in status_of(relay, token)["members"]] == ["invited"] * 3
        with closing(sqlite3.connect(stored.store)) as sql:  # damage that nobody has noticed
            sql.execute("UPDATE members SET bytes = 5 WHERE number = 1")
            sql.commit()
        assert [member["name"] for member in status_of(relay, token)["members"]] == ["member-0", "member-2"]
        wait_until(lambda: len(status_of(relay, token)["members"]) == 3, 20)
        assert status_of(relay, token)["store"]["repairs"] == 1
