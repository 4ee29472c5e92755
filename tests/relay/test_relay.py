"""The relay as its protocol tells it: who puts what when, what is answered, and that the simulator says the same."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from consilience.relay import admin
from consilience.relay import app as app_module
from consilience.relay.app import Limits, Relay
from consilience.relay.rejections import STATUS
from consilience.simulation.round.federation import Federation
from consilience.wire import charter as charters
from consilience.wire import codec, schema
from consilience.wire.byte_count import ByteCount
from consilience.wire.charter import Rules
from consilience.wire.encodings import BIT, FLOAT16, FLOAT32, INT8
from consilience.wire.headers import ANSWER_HEADER, UPLOAD_HEADER, Part, format_parts, parse_parts, upload_sha256
from tests.relay_tools import in_a_thread

Arrays = dict[str, np.ndarray]
Channels = Mapping[str, schema.Channel]
SRC = str(Path(__file__).parents[2] / "src")


# --- a federation in a store, and a relay over it


@dataclass
class Founded:
    """A store with a federation, and its members' tokens."""

    store: Path
    channels: Channels
    tokens: list[str]

    def invite(self, name: str, federation: str | None = None) -> str:
        return str(admin.invite(self.store, name, federation))


def found(
    folder: Path,
    channels: Channels,
    starts: charters.CommonValues | None = None,
    members: int = 2,
    name: str = "digits",
    rules: Rules | None = None,
) -> Founded:
    charter = charters.build_charter(name, {"name": "some"}, 3, channels, starts or {}, rules=rules or Rules(least=1))
    file = folder / f"{name}.toml"
    file.write_text(charter.to_toml())
    charters.start_values_file(file).write_bytes(charters.encode_start_values(charter, starts or {}))
    store = folder / "relay.db"
    admin.create(store, file)
    made = Founded(store, channels, [])
    made.tokens = [made.invite(f"member-{i}", name) for i in range(members)]
    return made


def message(channels: Channels, parts: Mapping[str, Part], direction: schema.Direction) -> dict[str, schema.Field]:
    """The body that such a header stands beside."""
    fields: dict[str, schema.Field] = {}
    for name in channels:
        if name not in parts:
            continue
        part = charters.common_values_message(channels[name]) if parts[name].full else channels[name].message(direction)
        entries = parts[name].entries
        if entries is not None:
            part = {k: replace(f, shape=(entries, *f.shape[1:])) for k, f in part.items()}
        fields |= part
    return fields


class Door:
    """A relay in this process, asked one thing at a time."""

    def __init__(self, founded: Founded, limits: Limits | None = None) -> None:
        self.founded = founded
        self.relay = Relay(founded.store, limits or Limits(rate=0))
        app = self.relay.app()
        self._runner = asyncio.Runner()
        self._life = self.relay.lifespan(app)
        self._runner.run(self._life.__aenter__())
        self._client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://relay")

    def close(self) -> None:
        self._runner.run(self._client.aclose())
        self._runner.run(self._life.__aexit__(None, None, None))
        self._runner.close()

    def ask(
        self,
        who: int | str | None,
        path: str,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
    ) -> httpx.Response:
        token = self.founded.tokens[who] if isinstance(who, int) else who
        said = {**({"Authorization": f"Bearer {token}"} if token else {}), **(headers or {})}
        return self._runner.run(self._client.request(method, path, headers=said, content=content))

    def put(self, who: int | str, round_: int, said: Mapping[str, Part], tensors: Arrays) -> httpx.Response:
        body = codec.encode(message(self.founded.channels, said, "up"), tensors)
        return self.ask(who, f"/v1/rounds/{round_}", "PUT", {UPLOAD_HEADER: format_parts(said)}, content=body)

    def answers(self, who: int | str, query: str = "", **headers: str) -> tuple[dict[str, Part], Arrays]:
        response = self.ask(who, f"/v1/answers?{query}", headers=headers)
        assert response.status_code == 200, response.text
        said = response.headers[ANSWER_HEADER]
        parts = parse_parts(said) if said else {}
        return parts, codec.decode(message(self.founded.channels, parts, "down"), response.content)


@contextmanager
def opened(founded: Founded, limits: Limits | None = None) -> Iterator[Door]:
    door = Door(founded, limits)
    try:
        yield door
    finally:
        door.close()


def code(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["code"]


def soon(holds: Callable[[], bool], seconds: float = 1.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came to hold"
        time.sleep(0.02)


PLAIN = {"mean": schema.Tensor((2,))}
MEAN = {"logits": schema.Mean("logits", PLAIN)}
BY_CLASS = {"prototypes": schema.Mean("prototypes", {"mean": schema.Tensor((3, 2))}, rows=(3,))}
MOVING = {"weights": schema.Mean("weights", {"layer.weight": schema.Tensor((40, 40), BIT, BIT)}, moving=True)}
START = {"weights": {"layer.weight": np.ones((40, 40), dtype=np.float32)}}


def logits(*values: float) -> Arrays:
    return {"logits.mean": np.array(values, dtype=np.float32)}


def weighs(weight: float) -> dict[str, Part]:
    return {"logits": Part(weight=weight)}


def change(seed: int) -> Arrays:
    return {"weights.layer.weight": np.random.default_rng(seed).normal(size=(40, 40)).astype(np.float32)}


def moved(version: int, weight: float = 1) -> dict[str, Part]:
    return {"weights": Part(version=version, weight=weight)}


# --- rounds and receipts


def test_an_upload_is_taken_once_and_its_receipt_given_again(tmp_path: Path) -> None:
    with opened(found(tmp_path, MEAN)) as door:
        first = door.put(0, 1, weighs(3), logits(1, 2))
        body = codec.encode(message(MEAN, weighs(3), "up"), logits(1, 2))
        expected = {"round": 1, "sha256": upload_sha256("logits;weight=3", body), "accepted": ["logits"], "refused": {}}
        assert first.status_code == 200
        assert first.json() == expected
        assert first.json()["sha256"] == hashlib.sha256(b"logits;weight=3\n" + body).hexdigest()
        assert door.put(0, 1, weighs(3), logits(1, 2)).content == first.content
        spelled = {UPLOAD_HEADER: " logits;weight=3.0 "}  # the same, said otherwise
        assert door.ask(0, "/v1/rounds/1", "PUT", spelled, content=body).content == first.content
        assert code(door.put(0, 1, weighs(3), logits(1, 3))) == (409, "other-bytes")
        assert code(door.put(0, 1, weighs(4), logits(1, 2))) == (409, "other-bytes")
        parts, tensors = door.answers(0)
        assert parts["logits"].weight == 3  # it counts once
        assert tensors["logits.mean"].tolist() == [1, 2]


def test_rounds_only_go_on_and_may_be_skipped(tmp_path: Path) -> None:
    with opened(found(tmp_path, MEAN)) as door:
        assert door.put(0, 0, weighs(1), logits(1, 1)).status_code == 200
        assert door.put(0, 7, weighs(1), logits(2, 2)).status_code == 200
        assert code(door.put(0, 3, weighs(1), logits(3, 3))) == (409, "older-round")
        assert code(door.put(0, 0, weighs(1), logits(1, 1))) == (409, "older-round")
        assert door.put(1, 3, weighs(1), logits(3, 3)).status_code == 200  # others have their own
        assert door.ask(1, "/v1/federation").json()["member"]["round"] == 3
        assert door.ask(1, "/v1/federation").json()["round"] == 1  # one on with another member, however far one jumps


def test_a_receipt_names_what_was_refused_as_too_stale(tmp_path: Path) -> None:
    stale = {"weights": replace(MOVING["weights"], max_staleness=0)}
    with opened(found(tmp_path, {**MEAN, **stale}, START)) as door:
        for i in (0, 1):
            assert door.put(i, 1, moved(0), change(i)).json()["accepted"] == ["weights"]
        said = weighs(2) | moved(0)
        receipt = door.put(0, 2, said, logits(1, 1) | change(3)).json()
        assert receipt["accepted"] == ["logits"]
        assert list(receipt["refused"]) == ["weights"]
        assert "version 0" in receipt["refused"]["weights"]
        assert door.ask(0, "/v1/federation").json()["waiting"] == {"weights": 0}


def test_what_waits_is_not_put_again_and_no_version_comes_from_the_future(tmp_path: Path) -> None:
    with opened(found(tmp_path, MOVING, START)) as door:
        assert door.put(0, 1, moved(0), change(1)).status_code == 200
        assert code(door.put(0, 2, moved(0), change(2))) == (409, "already-uploaded")
        assert code(door.put(1, 1, moved(1), change(2))) == (409, "version-ahead")
        assert door.ask(0, "/v1/federation").json()["waiting"] == {"weights": 1}
        assert door.ask(0, "/v1/federation").json()["member"]["round"] == 1


# --- answers


def test_standing_means_are_weighted_and_hold_everybodys_newest(tmp_path: Path) -> None:
    with opened(found(tmp_path, {**MEAN, **BY_CLASS})) as door:
        for i, weight in enumerate([1, 3]):
            table = np.full((3, 2), i, dtype=np.float32)
            tensors = logits(i, 2 * i)
            tensors |= {
                "prototypes.mean": table,
                "prototypes.count": np.array([1, 0, 4]) * weight,
            }
            assert door.put(i, 1, weighs(weight) | {"prototypes": Part()}, tensors).status_code == 200
        parts, tensors = door.answers(0)
        assert parts == {"logits": Part(weight=4), "prototypes": Part()}
        assert tensors["logits.mean"].tolist() == [0.75, 1.5]
        assert tensors["prototypes.mean"].tolist() == [[0.75, 0.75], [0, 0], [0.75, 0.75]]
        assert tensors["prototypes.count"].tolist() == [4, 0, 16]
        door.put(1, 2, weighs(0.5), logits(4, 4))
        parts, tensors = door.answers(0, "channel=logits")
        assert list(parts) == ["logits"]
        assert parts["logits"].weight == 1.5
        np.testing.assert_allclose(tensors["logits.mean"], [4 / 3, 4 / 3], rtol=1e-6)


def test_before_anybody_puts_there_are_zeros_and_common_values(tmp_path: Path) -> None:
    pool = {"seen": schema.Pool("seen", {"mean": schema.Tensor((3, 2))}, rows=(3,), keep=2, draw=2)}
    with opened(found(tmp_path, {**MEAN, **pool, **MOVING}, START)) as door:
        parts, tensors = door.answers(0)
        assert parts == {"logits": Part(weight=0), "seen": Part(entries=2), "weights": Part(version=0, full=1)}
        assert not tensors["logits.mean"].any()
        assert not tensors["seen.count"].any()
        assert tensors["weights.layer.weight"].tobytes() == START["weights"]["layer.weight"].tobytes()


def test_an_answer_that_is_known_is_not_sent_again(tmp_path: Path) -> None:
    with opened(found(tmp_path, {**MEAN, **BY_CLASS})) as door:
        door.put(0, 1, weighs(1), logits(1, 1))
        first = door.ask(0, "/v1/answers?channel=logits")
        known = {"If-None-Match": f'"other", {first.headers["etag"]}'}
        again = door.ask(1, "/v1/answers?channel=logits", headers=known)
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
        other = {"prototypes.mean": np.ones((3, 2)), "prototypes.count": np.ones(3)}
        door.put(1, 1, {"prototypes": Part()}, other)
        assert door.ask(0, "/v1/answers?channel=logits", headers=known).status_code == 304  # another channel's news
        assert door.ask(0, "/v1/answers", headers=known).status_code == 200  # another question
        door.put(1, 2, weighs(1), logits(2, 2))
        assert door.ask(0, "/v1/answers?channel=logits", headers=known).status_code == 200


def test_what_one_has_and_draws_makes_another_answer(tmp_path: Path) -> None:
    pool = {"seen": schema.Pool("seen", {"mean": schema.Tensor((3, 2))}, rows=(3,), keep=2, draw=2)}
    with opened(found(tmp_path, {**pool, **MOVING}, START)) as door:
        for i in (0, 1):
            said = {"seen": Part(entries=2)} | moved(0)
            assert door.put(i, 1, said, entries(1, 2) | change(i)).status_code == 200
        asked = ["", "have=weights:0", "have=weights:1", "draw=seen:1", "round=1", "turn=1", "channel=weights"]
        tags = {door.ask(0, f"/v1/answers?{query}").headers["etag"] for query in asked}
        tags.add(door.ask(1, "/v1/answers").headers["etag"])
        assert len(tags) == len(asked) + 1
        first = {door.ask(i, "/v1/answers?channel=weights&round=7").headers["etag"] for i in (0, 1)}
        assert len(first) == 1  # common values are everybody's


@pytest.mark.parametrize("encoding", [FLOAT32, FLOAT16, INT8, BIT], ids=lambda e: e.name)
def test_a_reply_is_the_same_to_the_bit_however_it_is_fetched(tmp_path: Path, encoding: Any) -> None:
    channels = {
        **MEAN,
        "weights": schema.Mean("weights", {"w": schema.Tensor((40, 3), encoding, encoding)}, moving=True),
    }
    held = np.zeros((40, 3), dtype=np.float32)
    random = np.random.default_rng(5)
    with opened(found(tmp_path, channels, {"weights": {"w": held}}, members=1)) as door:
        for version in range(20):
            tensors = {"weights.w": random.normal(size=(40, 3)).astype(np.float32)}
            assert door.put(0, version, moved(version), tensors).status_code == 200
            _, answer = door.answers(0, f"have=weights:{version}")
            body = door.ask(0, f"/v1/channels/weights/replies/{version + 1}").content
            kept = codec.decode(channels["weights"].message("down"), body)
            assert answer["weights.w"].tobytes() == kept["weights.w"].tobytes()
            held = held + answer["weights.w"]
            assert door.answers(0)[1]["weights.w"].tobytes() == held.tobytes()


def test_common_values_come_as_replies_one_by_one_or_whole_whichever_is_less(tmp_path: Path) -> None:
    founded, traffic = found(tmp_path, MOVING, START), ByteCount(MOVING)
    held = {0: START["weights"]["layer.weight"]}
    with opened(founded) as door:
        for version in range(30):
            for i in (0, 1):
                assert door.put(i, version, moved(version), change(2 * version + i)).status_code == 200
            parts, tensors = door.answers(0, f"have=weights:{version}")
            assert parts == {"weights": Part(version=version + 1)}
            held[version + 1] = held[version] + tensors["weights.layer.weight"]
        parts, tensors = door.answers(0)
        assert parts == {"weights": Part(version=30, full=1)}
        assert tensors["weights.layer.weight"].tobytes() == held[30].tobytes()
        parts, tensors = door.answers(0, "have=weights:30")
        assert (parts, tensors) == ({}, {})
        ways = set()
        for missed in range(2, 31):
            response = door.ask(0, f"/v1/answers?have=weights:{30 - missed}")
            part, size = parse_parts(response.headers[ANSWER_HEADER])["weights"], len(response.content)
            values = codec.decode(message(MOVING, {"weights": part}, "down"), response.content)["weights.layer.weight"]
            assert bool(part.full) == ("weights" in traffic.smaller_in_full(["weights"], {"weights": missed}))
            if not part.full:
                common = held[30 - missed]
                for version in range(31 - missed, 30):
                    body = door.ask(0, f"/v1/channels/weights/replies/{version}").content
                    size += len(body)
                    common = common + codec.decode(MOVING["weights"].message("down"), body)["weights.layer.weight"]
                values = common + values
            assert values.tobytes() == held[30].tobytes()
            assert size == traffic.down(["weights"], {"weights": missed})
            ways.add(bool(part.full))
        assert ways == {False, True}
        assert code(door.ask(0, "/v1/channels/weights/replies/1")) == (404, "no-such-reply")  # nobody needs it any more
        assert code(door.ask(0, "/v1/channels/weights/replies/31")) == (404, "no-such-reply")
        assert door.answers(0, "have=weights:99")[0]["weights"].full  # of another relay, or none


def test_replies_that_are_gone_are_made_up_for_by_the_whole(tmp_path: Path) -> None:
    founded = found(tmp_path, MOVING, START)
    with opened(founded) as door:
        for version in range(3):
            for i in (0, 1):
                door.put(i, version, moved(version), change(2 * version + i))
        assert not door.answers(0, "have=weights:1")[0]["weights"].full
        with door.relay.writer.store.writing():
            door.relay.writer.store.sql.execute("DELETE FROM replies WHERE version = 2")
        assert door.answers(0, "have=weights:1")[0]["weights"].full
        assert not door.answers(0, "have=weights:2")[0]["weights"].full


def entries(*values: float) -> Arrays:
    """Entries of a pool, each of one value, that have all three classes."""
    return {
        "seen.mean": np.stack([np.full((3, 2), value, dtype=np.float32) for value in values]),
        "seen.count": np.ones((len(values), 3)),
    }


def test_a_pool_gives_random_entries_by_round_and_turn(tmp_path: Path) -> None:
    pool = {"seen": schema.Pool("seen", {"mean": schema.Tensor((3, 2))}, rows=(3,), keep=8, draw=3)}
    with opened(found(tmp_path, pool, members=3)) as door:
        for i in range(3):
            said = {"seen": Part(entries=8 - i)}
            assert door.put(i, 1, said, entries(*range(10 * i, 10 * i + 8 - i))).status_code == 200

        def drawn(who: int, query: str) -> list[float]:
            parts, tensors = door.answers(who, query)
            assert parts["seen"].entries == len(tensors["seen.mean"])
            return [float(entry[0, 0]) for entry in tensors["seen.mean"]]

        seen = {tuple(drawn(0, f"round={r}&turn={t}")) for r in range(5) for t in range(3)}
        assert len(seen) > 12  # other rounds and turns, other draws
        assert all(len(set(draw)) == 3 for draw in seen)  # none twice
        assert drawn(0, "round=2&turn=1") == drawn(0, "round=2&turn=1")
        assert any(drawn(0, f"round={r}") != drawn(1, f"round={r}") for r in range(5))
        assert len(drawn(0, "round=1&draw=seen:1")) == 1
        assert len(drawn(0, "round=1&draw=seen:2")) == 2
        assert code(door.ask(0, "/v1/answers?draw=seen:4")) == (400, "entries")
        # what is put anew is all that a member has
        door.put(0, 2, {"seen": Part(entries=1)}, entries(99))
        later = {value for r in range(60) for value in drawn(2, f"round={r}")}
        assert 99 in later
        assert not later & set(range(8))


def test_a_pool_by_row_gives_each_class_from_who_has_it_and_none_of_ones_own(tmp_path: Path) -> None:
    kind = schema.Pool("seen", {"mean": schema.Tensor((3, 2))}, rows=(3,), by="row", include_self=False)
    with opened(found(tmp_path, {"seen": kind})) as door:
        for i, has in enumerate([[1, 1, 0], [0, 1, 0]]):
            tensors = entries(i + 1) | {"seen.count": np.array([has])}
            assert door.put(i, 1, {"seen": Part(entries=1)}, tensors).status_code == 200
        for round_ in range(4):
            _, one = door.answers(0, f"round={round_}")
            _, other = door.answers(1, f"round={round_}")
            assert one["seen.mean"][0, :, 0].tolist() == [0, 2, 0]
            assert one["seen.count"][0].tolist() == [0, 1, 0]
            assert other["seen.mean"][0, :, 0].tolist() == [1, 1, 0]


@pytest.mark.parametrize("encoding", [FLOAT16, INT8], ids=lambda e: e.name)
def test_what_rounding_takes_beyond_a_bound_is_answered_all_the_same(tmp_path: Path, encoding: Any) -> None:
    tensor = schema.Tensor((3, 2), encoding, encoding, 0.1, 0.3)  # of which float16 makes 0.09998 and 0.30005
    channels: Channels = {
        "seen": schema.Pool("seen", {"mean": tensor}, rows=(3,)),
        "prototypes": schema.Mean("prototypes", {"mean": tensor}, rows=(3,)),
        "weights": schema.Mean("weights", {"w": tensor}, moving=True),
    }
    with opened(found(tmp_path, channels, {"weights": {"w": np.full((3, 2), 0.2)}}, members=1)) as door:
        assert door.ask(0, "/v1/answers").status_code == 200  # zeros are beyond the bounds, too
        table = np.array([[0.1, 0.3], [0.3, 0.3], [0.1, 0.1]], dtype=np.float32)
        tensors: Arrays = {"seen.mean": table[None], "seen.count": np.ones((1, 3)), "weights.w": table}
        tensors |= {"prototypes.mean": table, "prototypes.count": np.ones(3)}
        said = {"seen": Part(entries=1), "prototypes": Part(), "weights": Part(version=0, weight=1)}
        assert door.put(0, 1, said, tensors).status_code == 200
        _, answer = door.answers(0, "have=weights:0")
        for name in ("seen.mean", "prototypes.mean", "weights.w"):
            np.testing.assert_allclose(answer[name].reshape(3, 2), table, atol=0.002)


def test_common_values_that_would_leave_float32_stay_where_they_are(tmp_path: Path) -> None:
    channels = {**MEAN, "weights": schema.Mean("weights", {"w": schema.Tensor((2,))}, moving=True)}
    with opened(found(tmp_path, channels, {"weights": {"w": np.zeros(2)}}, members=1)) as door:
        for round_, (version, value) in enumerate([(0, 3e38), (1, 3e38), (1, 1.0)]):
            tensors = {"weights.w": np.array([value, 1.0], dtype=np.float32)}
            assert door.put(0, round_, moved(version), tensors).status_code == 200
        parts, tensors = door.answers(0)
        assert parts["weights"] == Part(version=2, full=1)
        np.testing.assert_allclose(tensors["weights.w"], [3e38, 2], rtol=1e-6)


# --- who is there


def test_federations_in_one_store_do_not_see_each_other(tmp_path: Path) -> None:
    first = found(tmp_path, MEAN)
    second = found(tmp_path, {**MEAN, **MOVING}, START, name="letters")
    with opened(first) as door:
        door.put(0, 1, weighs(1), logits(1, 1))
        door.founded = second
        assert door.ask(0, "/v1/federation").json()["member"] == {
            "number": 0,
            "name": "member-0",
            "round": -1,
            "sha256": None,
        }
        assert door.answers(0, "channel=logits")[0]["logits"].weight == 0
        door.put(0, 1, weighs(5), logits(9, 9))
        assert 'name = "letters"' in door.ask(0, "/v1/federation").json()["charter"]
        door.founded = first
        assert 'name = "digits"' in door.ask(0, "/v1/federation").json()["charter"]
        assert door.answers(0)[1]["logits.mean"].tolist() == [1, 1]
        assert code(door.ask(0, "/v1/answers?channel=weights")) == (400, "unknown-channel")
        assert code(door.ask(0, "/v1/channels/weights/replies/1")) == (404, "no-such-reply")


def test_who_is_invited_and_what_is_founded_meanwhile_is_known_within_a_second(tmp_path: Path) -> None:
    founded = found(tmp_path, MOVING, START)
    with opened(founded) as door:
        late = founded.invite("late")
        assert door.ask(late, "/v1/federation").json()["member"]["number"] == 2
        soon(lambda: door.ask(0, "/v1/federation").json()["expected"] == 3)
        other = found(tmp_path, MEAN, name="letters")
        soon(lambda: door.ask(other.tokens[0], "/v1/federation").status_code == 200)
        door.founded = other
        assert door.put(0, 1, weighs(2), logits(1, 1)).status_code == 200


def test_a_revoked_token_opens_nothing_at_once_and_what_it_put_goes(tmp_path: Path) -> None:
    founded = found(tmp_path, {**MEAN, **MOVING}, START, members=3)
    with opened(founded) as door:
        for i in range(2):
            tensors = logits(i, i) | change(i)
            assert door.put(i, 1, weighs(1) | moved(0), tensors).status_code == 200
        assert door.answers(0)[1]["logits.mean"].tolist() == [0.5, 0.5]
        admin.revoke(founded.store, "member-1")
        for path in ("/v1/federation", "/v1/answers", "/v1/events", "/v1/channels/weights/replies/1"):
            assert code(door.ask(1, path)) == (403, "revoked")
        assert code(door.put(1, 2, weighs(1), logits(1, 1))) == (403, "revoked")
        soon(lambda: door.answers(0)[1]["logits.mean"].tolist() == [0, 0])
        assert door.ask(0, "/v1/federation").json()["expected"] == 2
        # the moving mean waits for the one that is left, and not for the one that is not
        assert door.ask(0, "/v1/federation").json()["waiting"] == {"weights": 1}
        admin.revoke(founded.store, "member-2")
        soon(lambda: door.ask(0, "/v1/federation").json()["versions"] == {"weights": 1})


def test_a_relay_that_begins_again_answers_the_same(tmp_path: Path) -> None:
    founded = found(tmp_path, {**MEAN, **MOVING}, START)
    with opened(founded) as door:
        door.put(0, 1, weighs(1) | moved(0), logits(1, 2) | change(1))
        door.put(1, 1, moved(0), change(2))
        before = door.ask(0, "/v1/answers").content
    with opened(founded) as door:
        assert door.ask(0, "/v1/answers").content == before
        assert door.ask(0, "/v1/federation").json()["member"]["round"] == 1
        assert door.put(0, 1, weighs(1) | moved(0), logits(1, 2) | change(1)).json()["accepted"] == [
            "logits",
            "weights",
        ]


# --- events, over a socket


@contextmanager
def served(founded: Founded) -> Iterator[str]:
    with in_a_thread(Relay(founded.store, Limits(rate=0))) as url:
        yield url


class Stream:
    """What a member hears; lines are read by a thread, so that waiting for one has an end."""

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
        self._closing = True  # seen at the next line, of which beats bring one soon
        self._thread.join(5)
        self._response.close()
        self._client.close()


@contextmanager
def heard(url: str, token: str) -> Iterator[Stream]:
    stream = Stream(url, token)
    try:
        yield stream
    finally:
        stream.close()


def put_over(url: str, token: str, round_: int, said: Mapping[str, Part], channels: Channels, tensors: Arrays) -> None:
    body = codec.encode(message(channels, said, "up"), tensors)
    headers = {"Authorization": f"Bearer {token}", UPLOAD_HEADER: format_parts(said)}
    assert httpx.put(f"{url}/v1/rounds/{round_}", content=body, headers=headers).status_code == 200


def test_events_come_at_once_and_after_each_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "_HEARTBEAT", 0.1)
    founded = found(tmp_path, {**MEAN, **MOVING}, START, members=3)
    with served(founded) as url, heard(url, founded.tokens[1]) as stream:
        soon(lambda: len(stream.blocks) > 0)
        counts = {"expected": 3, "waiting": {"weights": 0}}
        assert stream.news == [{"revision": 0, "round": -1, "versions": {"weights": 0}, **counts}]
        put_over(url, founded.tokens[0], 4, weighs(1), MEAN, logits(1, 1))
        soon(lambda: len(stream.news) == 2)
        assert stream.news[-1] == {"revision": 1, "round": 0, "versions": {"weights": 0}, **counts}
        for i in range(3):
            put_over(url, founded.tokens[i], 5, moved(0), MOVING, change(i))
        soon(lambda: stream.news[-1]["versions"] == {"weights": 1})
        revisions = [news["revision"] for news in stream.news]
        assert revisions == sorted(set(revisions))
        soon(lambda: ": still here" in stream.blocks)
        admin.revoke(founded.store, "member-1")  # which had put, and one that had nothing
        soon(lambda: stream.ended, 2)


def test_a_member_with_nothing_put_hears_no_more_once_revoked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "_HEARTBEAT", 0.1)
    founded = found(tmp_path, MEAN)
    with served(founded) as url, heard(url, founded.tokens[0]) as stream:
        soon(lambda: len(stream.blocks) > 2)
        assert not stream.ended
        admin.revoke(founded.store, "member-0")
        soon(lambda: stream.ended, 2)


def test_so_many_streams_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "_HEARTBEAT", 0.1)
    founded = found(tmp_path, MEAN)
    with served(founded) as url:
        token = {"Authorization": f"Bearer {founded.tokens[0]}"}
        streams = [Stream(url, founded.tokens[0]) for _ in range(4)]
        try:
            soon(lambda: all(stream.blocks for stream in streams))
            refused = httpx.get(f"{url}/v1/events", headers=token)
            assert code(refused) == (429, "over-quota")
            assert int(refused.headers["retry-after"]) > 0
            with heard(url, founded.tokens[1]) as other:
                soon(lambda: len(other.blocks) > 0)
            streams.pop().close()

            def room() -> bool:
                with httpx.stream("GET", f"{url}/v1/events", headers=token) as again:
                    return again.status_code == 200

            soon(room, 3)
        finally:
            for stream in streams:
                stream.close()


def test_asking_for_the_head_of_a_stream_ends(tmp_path: Path) -> None:
    founded = found(tmp_path, MEAN)
    with served(founded) as url, httpx.Client(timeout=5) as client:
        token = {"Authorization": f"Bearer {founded.tokens[0]}"}
        for _ in range(6):  # more than there may be streams
            response = client.head(f"{url}/v1/events", headers=token)
            assert (response.status_code, response.content) == (200, b"")
        assert client.head(f"{url}/v1/answers", headers=token).headers["etag"]
        assert client.get(f"{url}/health").status_code == 200


def test_streams_end_when_the_relay_does(tmp_path: Path) -> None:
    founded = found(tmp_path, MEAN)
    relay = Relay(founded.store)
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
        scope["headers"] = [(b"authorization", f"Bearer {founded.tokens[0]}".encode())]

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


# --- the rest of the endpoints


def test_health_says_whether_it_writes(tmp_path: Path) -> None:
    door = Door(found(tmp_path, MEAN))
    try:
        assert door.ask(None, "/health").json() == {"status": "ok", "protocol": charters.PROTOCOL}
    finally:
        door.close()
    assert not door.relay.writer.alive


def test_the_description_names_every_code_and_every_route(tmp_path: Path) -> None:
    with opened(found(tmp_path, MEAN)) as door:
        said = door.ask(None, "/openapi.json").json()
        routes = {route.path for route in door.relay.app().routes}  # type: ignore[attr-defined]
    assert set(said["paths"]) == routes
    codes = set(said["components"]["schemas"]["Rejection"]["properties"]["code"]["enum"])
    assert codes >= set(STATUS) | set(codec.CODES)
    listed = json.dumps(said["paths"])
    told = {c for c in codes if c in listed}
    assert told >= codes - {"method-not-allowed", "head-too-large"}  # before any operation is found


PROGRAM = """
import sys
sys.path.insert(0, {src!r})
sys.modules["torch"] = None
from consilience.cli.main import main
main(["relay", "serve", "--store", {store!r}, "--port", "0"])
"""


def test_a_relay_without_torch_serves_and_its_log_tells_nothing_of_what_came(tmp_path: Path) -> None:
    founded = found(tmp_path, {**MEAN, **MOVING}, START, rules=Rules(least=1, deadline=0.2))
    program = PROGRAM.format(src=SRC, store=str(founded.store))
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-W", "error", "-c", program]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().removeprefix("relay: ").strip()
            token = founded.tokens[0]
            put_over(url, token, 1, weighs(424242) | moved(0), founded.channels, logits(0.4242, 7.25) | change(1))
            headers = {
                "Authorization": f"Bearer {token}",
                "X-Own": "my-own-header",
                UPLOAD_HEADER: "logits;weight=99;entries=9",
            }
            bad = httpx.put(f"{url}/v1/rounds/2", content=b"secret-body", headers=headers)
            assert bad.status_code == 400
            assert httpx.get(f"{url}/v1/answers?have=mine:1", headers=headers).status_code == 400
            assert httpx.get(f"{url}/v1/nowhere-{token}", headers=headers).status_code == 404

            def closed() -> bool:
                said: dict[str, Any] = httpx.get(f"{url}/v1/federation", headers=headers).json()
                return bool(said["versions"]["weights"])

            soon(closed, 5)
            answer = httpx.get(f"{url}/v1/answers?channel=logits", headers=headers)
            values = codec.decode(MEAN["logits"].message("down"), answer.content)["logits.mean"]
            assert values.tolist() == logits(0.4242, 7.25)["logits.mean"].tolist()
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=15)
        finally:
            process.kill()
    assert process.returncode == 0, err
    assert "weights was aggregated at its deadline" in err  # so the log was on
    for secret in (token, token[-43:], "0.4242", "7.25", "424242", "my-own-header", "secret-body", "weight=99"):
        assert secret not in out + err


def test_a_fault_of_the_relays_own_is_told_without_its_insides(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    founded = found(tmp_path, MEAN)
    with opened(founded) as door, caplog.at_level(logging.DEBUG):
        service = next(iter(door.relay.writer.federations.values()))

        def fails(*given: Any) -> str:
            raise ValueError("0.4242")

        with monkeypatch.context() as broken, pytest.raises(ValueError, match=r"0\.4242"):
            broken.setattr(service, "accept_upload", fails)
            door.put(0, 1, weighs(1), logits(0.4242, 1))
        assert door.put(0, 1, weighs(1), logits(2, 1)).status_code == 200  # nothing was kept, and it writes on
    assert any("ValueError" in record.getMessage() for record in caplog.records)
    assert founded.tokens[0] not in caplog.text


# --- the simulator's own maths

ENCODINGS = st.sampled_from([FLOAT32, FLOAT16, INT8, BIT])
CLASSES = 3


@st.composite
def any_channel(draw: st.DrawFn, name: str) -> schema.Channel:
    kind = draw(st.sampled_from(["standing", "pool", "moving"]))
    rows = () if kind == "moving" else draw(st.sampled_from([(), (CLASSES,)]))
    shape = (*rows, *draw(st.sampled_from([(), (2,), (2, 3)])))
    names = draw(st.sampled_from([["mean"], ["a", "b.c"]]))
    tensors = {key: schema.Tensor(shape, draw(ENCODINGS), draw(ENCODINGS)) for key in names}
    if kind != "pool":
        return schema.Mean(name, tensors, rows, moving=kind == "moving")
    keep, many = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    by = draw(st.sampled_from(["member", "row"])) if rows else "member"
    alone = draw(st.booleans())
    return schema.Pool(name, tensors, rows, keep=keep, draw=many, by=by, include_self=alone)  # type: ignore[arg-type]


@st.composite
def any_channels(draw: st.DrawFn) -> Channels:
    return {name: draw(any_channel(name)) for name in ["first", "second", "third"][: draw(st.integers(1, 3))]}


def contribution(channel: schema.Channel, random: np.random.Generator) -> Arrays:
    """Something to put; of a pool, all the entries that may be."""
    tensors = {}
    for key, field in channel.message("up").items():
        counts = field.encoding.name == "int32"
        drawn = random.integers(0, 4, field.shape) if counts else random.normal(size=field.shape)
        tensors[key] = np.asarray(drawn, dtype=np.float32)
    return tensors


def part_of(channel: schema.Channel, version: int, weight: float) -> Part:
    entries = channel.keep if isinstance(channel, schema.Pool) else None
    moving = isinstance(channel, schema.Mean) and channel.moving
    return Part(entries, version if moving else None, None if channel.rows else weight)


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(any_channels(), st.integers(1, 4), st.integers(1, 3), st.integers(0, 1000))
def test_a_relay_answers_what_the_simulator_does(channels: Channels, members: int, rounds: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    moving = {n: c for n, c in channels.items() if isinstance(c, schema.Mean) and c.moving}
    starts = {
        n: {k: random.normal(size=t.shape).astype(np.float32) for k, t in c.tensors.items()} for n, c in moving.items()
    }
    simulated = Federation(
        0, channels, members, {n: {k: torch.tensor(v) for k, v in s.items()} for n, s in starts.items()}, torch.zeros(0)
    )
    traffic = ByteCount(channels)
    common = {f"{n}.{k}": v for n, s in starts.items() for k, v in s.items()}
    with tempfile.TemporaryDirectory() as folder, opened(found(Path(folder), channels, starts, members)) as door:
        for round_ in range(1, rounds + 1):
            for name in moving:
                simulated.expect(name, np.arange(members))
            for i in range(members):
                weight = float(random.integers(1, 9))
                said = {n: part_of(c, round_ - 1, weight) for n, c in channels.items()}
                tensors = {k: v for c in channels.values() for k, v in contribution(c, random).items()}
                body = codec.encode(message(channels, said, "up"), tensors)
                assert len(body) == traffic.up(channels)
                response = door.ask(i, f"/v1/rounds/{round_}", "PUT", {UPLOAD_HEADER: format_parts(said)}, content=body)
                assert response.json()["accepted"] == list(channels)
                sent = codec.decode(message(channels, said, "up"), body)
                for name, channel in channels.items():
                    simulate_put(simulated, name, channel, i, sent, weight, round_)
            simulated.aggregate(moving)
            for i in range(members):
                have = "".join(f"&have={name}:{round_ - 1}" for name in moving)
                response = door.ask(i, f"/v1/answers?round={round_}{have}")
                assert len(response.content) == traffic.down(channels)
                parts = parse_parts(response.headers[ANSWER_HEADER])
                got = codec.decode(message(channels, parts, "down"), response.content)
                for name, channel in channels.items():
                    if name in moving and i:
                        continue
                    if name in moving:
                        mine = {f"{name}.{k}" for k in channel.tensors}
                        common |= {k: common[k] + got[k] for k in mine}
                        got |= {k: common[k] for k in mine}
                    compare(simulated, name, channel, i, round_, got)
        parts, got = door.answers(0)
        assert all(got[key].tobytes() == held.tobytes() for key, held in common.items())  # the relay's own, to the bit


def simulate_put(
    simulated: Federation, name: str, channel: schema.Channel, i: int, sent: Arrays, weight: float, round_: int
) -> None:
    tensors = {key: torch.tensor(sent[f"{name}.{key}"])[None] for key in channel.tensors}
    lead = (1, channel.keep) if isinstance(channel, schema.Pool) else (1,)
    weights = torch.tensor(sent[f"{name}.count"])[None] if channel.rows else torch.full(lead, weight)
    simulated.upload(name, np.array([i]), tensors, weights, np.array([round_ - 1]), round_)


def compare(simulated: Federation, name: str, channel: schema.Channel, reader: int, round_: int, got: Arrays) -> None:
    answers, which = simulated.answers(name, np.array([reader]), round_, 0)
    answer = answers[int(which[0])]
    for key, expected in answer.tensors.items():
        values = got[f"{name}.{key}"]
        exact = isinstance(channel, schema.Mean) and channel.moving and channel.tensors[key].down is not INT8
        if exact:
            assert values.tobytes() == expected.numpy().tobytes(), key
        np.testing.assert_allclose(values, expected.numpy(), rtol=1e-6, atol=1e-6)
    if channel.rows:
        assert np.array_equal(got[f"{name}.count"], answer.count.numpy())
