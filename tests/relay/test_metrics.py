"""What a relay shows to its operators' monitoring: metrics, readiness, and its log."""

from __future__ import annotations

import io
import json
import logging
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from consilience.relay import admin
from consilience.relay.limits import Limits
from consilience.relay.logs import JsonFormatter, TextFormatter, configure_logging, event
from consilience.relay.operators import add_operator, remove_operator
from consilience.relay.repeat_filter import RepeatFilter
from consilience.relay.rotate import rotate
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
    running,
    wait_until,
    weighs,
)

Samples = dict[tuple[str, str], float]


def samples(text: str) -> Samples:
    """Values by name and labels, as Prometheus reads them."""
    return {
        (sample.name.removeprefix("consilience_"), ",".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scrape(relay: LocalRelay, token: object) -> Samples:
    response = relay.ask(str(token), "/metrics")
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/plain; version=")
    return samples(response.text)


def test_metrics_count_what_happened(tmp_path: Path) -> None:
    stored = create_federation(tmp_path, {**MEAN, **MOVING}, START, members=3)
    operator = add_operator(stored.store, "anna")
    with running(stored) as relay:
        body = len(relay.upload(0, 1, weighs(1) | moved(0), logits(1, 2) | change(1)).request.content)
        relay.upload(1, 1, weighs(1), logits(1, 2))
        relay.upload(1, 0, weighs(1), logits(1, 2))
        relay.answers(0)
        relay.answers(1)  # the same answer, which is kept
        relay.ask(0, "/v1/answers?have=no:1")
        relay.ask(None, "/v1/nowhere")
        relay.ask(None, "/health")
        admin.revoke(stored.store, "member-2")
        wait_until(lambda: relay.ask(0, "/v1/federation").json()["expected"] == 2)
        found = scrape(relay, operator)
    assert found["uploads_total", "digits,accepted"] == 2
    assert found["uploads_total", "digits,older-round"] == 1
    assert found["requests_total", "upload,200"] == 2
    assert found["requests_total", "upload,409"] == 1
    assert found["requests_total", "answers,200"] == 2
    assert found["requests_total", "answers,400"] == 1
    assert found["requests_total", "other,404"] == 1
    assert found["requests_total", "health,200"] == 1
    assert found["received_bytes_total", ""] > body
    assert found["sent_bytes_total", ""] > 0
    assert found["answer_seconds_count", ""] == 1
    assert found["commit_seconds_count", ""] >= 3
    assert found["last_commit_timestamp_seconds", ""] > 1.7e9
    assert [found["members", f"digits,{s}"] for s in ("active", "invited", "revoked", "expired", "away")] == [
        *(2, 0, 1, 0, 0)
    ]
    assert (found["round", "digits"], found["version", "weights,digits"]) == (1, 0)
    assert found["waiting", "weights,digits"] == 1
    assert (found["queue_length", ""], found["event_streams", ""], found["writable", ""]) == (0, 0, 1)
    assert (found["damage_repaired_total", ""], found["federations_lost", ""]) == (0, 0)
    assert found["store_bytes", ""] >= stored.store.stat().st_size
    assert found["disk_free_bytes", ""] > 0


def test_metrics_are_for_operators_only(tmp_path: Path) -> None:
    stored = create_federation(tmp_path, MEAN)
    operator = add_operator(stored.store, "anna")
    with running(stored) as relay:
        assert code(relay.ask(None, "/metrics")) == (401, "no-token")
        assert code(relay.ask(0, "/metrics")) == (401, "wrong-token")
        assert relay.ask(str(operator), "/metrics").status_code == 200
        assert code(relay.ask(str(operator), "/v1/federation")) == (401, "wrong-token")
        remove_operator(stored.store, "anna")
        assert code(relay.ask(str(operator), "/metrics")) == (401, "wrong-token")


def test_guessing_operators_tokens_is_slowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consilience.relay.admission.DELAY", 0.01)
    stored = create_federation(tmp_path, MEAN)
    operator = add_operator(stored.store, "anna")
    with running(stored, Limits(failed_logins=3)) as relay:
        wrong = f"co1_1_{'a' * 43}"
        assert [relay.ask(wrong, "/metrics").status_code for _ in range(5)] == [401, 401, 401, 429, 429]
        assert relay.ask(str(operator), "/metrics").status_code == 200


def test_log_has_the_address_that_a_proxy_names(tmp_path: Path, lines: io.StringIO) -> None:
    stored = create_federation(tmp_path, MEAN)
    with running(stored, Limits(proxies=frozenset({"127.0.0.1"}))) as relay:
        for client in ("10.1.1.1", "10.2.2.2"):
            relay.ask(f"cs1_9_{'a' * 43}", "/v1/federation", headers={"X-Forwarded-For": client})
    assert "10.1.1.1" in lines.getvalue() and "10.2.2.2" in lines.getvalue()


def test_damage_is_counted(tmp_path: Path) -> None:
    stored = create_federation(tmp_path, MEAN)
    operator = add_operator(stored.store, "anna")
    with running(stored) as relay:
        relay.upload(0, 1, weighs(1), logits(1, 2))
    with sqlite3.connect(stored.store) as sql:
        sql.execute("UPDATE contributions SET weight = 7")
    sql.close()
    with running(stored) as relay:
        assert scrape(relay, operator)["damage_repaired_total", ""] == 1


def test_ready_says_whether_members_can_use_the_relay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    relay = LocalRelay(create_federation(tmp_path, MEAN))
    try:
        writer = relay.relay.writer
        assert relay.ask(None, "/ready").json() == {"status": "ready"}
        monkeypatch.setattr(writer, "write", lambda batch: None)  # so that it notices no free space
        for full, status in ((True, "disk full"), (False, "cannot write")):
            writer.failing, writer.full = True, full
            said = relay.ask(None, "/ready")
            assert (said.status_code, said.json()) == (503, {"status": status})
        writer.failing = False
        writer.federations.clear()
        writer.loaded.lost[1] = "its record is damaged"
        assert relay.ask(None, "/ready").json() == {"status": "damaged"}
        assert relay.ask(None, "/health").status_code == 200  # a restart would not help
        relay.relay.streams.end_all()
        said = relay.ask(None, "/ready")
        assert (said.status_code, said.json()) == (503, {"status": "stopping"})
    finally:
        relay.close()


# --- the log


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """The relay's log as JSON."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    log = logging.getLogger("consilience.relay")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield stream
    log.removeHandler(handler)
    log.setLevel(level)


def events(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_log_names_who_did_what_and_shows_no_secret(tmp_path: Path, lines: io.StringIO) -> None:
    stored = create_federation(tmp_path, MEAN)
    with running(stored) as relay:
        relay.upload(0, 1, weighs(1), logits(0.4242, 2))
        relay.upload(0, 0, weighs(1), logits(0.4242, 2))

        def logged(name: str) -> bool:
            return any(each["event"] == name for each in events(lines))

        wrong = f"cs1_1_{'x' * 43}"
        assert code(relay.ask(wrong, "/v1/federation")) == (401, "wrong-token")
        late = stored.invite("late")
        wait_until(lambda: logged("member-invited"), 5)
        new = str(rotate(stored.store, "late"))
        wait_until(lambda: logged("token-rotated"), 5)
        admin.revoke(stored.store, "late")
        wait_until(lambda: logged("member-revoked"), 5)
        again = stored.invite("late")
        wait_until(lambda: logged("member-invited-again"), 5)
    found = {each["event"]: each for each in events(lines)}
    assert list(found) == [
        *("start", "refused", "login-failed", "member-invited", "token-rotated", "member-revoked"),
        *("member-invited-again", "stop"),
    ]
    who = {"federation": "digits", "member": "member-0", "address": "127.0.0.1"}
    assert {key: found["refused"][key] for key in ("code", "endpoint", *who)} == {
        "code": "older-round",
        "endpoint": "upload",
        **who,
    }
    assert found["login-failed"]["code"] == "wrong-token" and "member" not in found["login-failed"]
    assert found["member-revoked"]["member"] == "late"
    assert all(each["time"].endswith("+00:00") and each["level"] == "info" for each in found.values())
    for secret in (*stored.tokens, wrong, late, new, again, "0.4242"):
        assert secret not in lines.getvalue() and secret[-43:] not in lines.getvalue()


def test_failed_logins_are_counted_and_not_repeated_in_the_log(tmp_path: Path, lines: io.StringIO) -> None:
    with running(create_federation(tmp_path, MEAN)) as relay:
        for _ in range(50):
            relay.ask(f"cs1_1_{'x' * 43}", "/v1/federation")
        relay.ask(None, "/v1/federation")
    logged = [each["code"] for each in events(lines) if each["event"] == "login-failed"]
    assert logged == ["wrong-token", "no-token"]


def test_repeated_lines_are_held_back_and_counted() -> None:
    now = 1000.0
    filtered = RepeatFilter(lambda: now)
    assert [filtered.count("a") for _ in range(4)] == [0, None, None, None]
    assert filtered.count("b") == 0
    now += 61
    assert filtered.count("a") == 3
    assert filtered.count("a") is None
    assert sum(filtered.count(key) is not None for key in range(1000)) < 101  # a flood of different ones
    now += 61
    assert filtered.count("new") == 0


def test_log_in_both_forms() -> None:
    record = logging.LogRecord("consilience.relay", logging.WARNING, "", 0, "it %s", ("broke",), None)
    record.__dict__.update(event("damage-found", federation="wards", member=None, address=""))
    assert TextFormatter().format(record)[8:] == " it broke (federation wards)"
    said = json.loads(JsonFormatter().format(record))
    assert said.pop("time")
    assert said == {"level": "warning", "event": "damage-found", "message": "it broke", "federation": "wards"}
    try:
        raise ValueError("a\nb")
    except ValueError as error:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "two\nlines", (), (ValueError, error, None))
    lines = JsonFormatter().format(record)
    assert "\n" not in lines and json.loads(lines)["event"] == "log"


def test_configured_log_is_written_once_per_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("consilience"), "propagate", True)  # commands of other tests switch it off
    root, stream = logging.getLogger(), io.StringIO()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = []
    try:
        configure_logging("json", stream)
        configure_logging("json", stream)
        logging.getLogger("consilience.relay").info("hello", extra=event("start"))
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["start"]
