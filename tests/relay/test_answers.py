"""Answers over HTTP: means, replies, pools, and ETags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consilience.relay.app import Limits
from consilience.wire import codec, schema
from consilience.wire.byte_count import ByteCount
from consilience.wire.encodings import BIT, FLOAT16, FLOAT32, INT4, INT8
from consilience.wire.headers import ANSWER_HEADER, Part, parse_parts
from tests.local_relay import (
    BY_CLASS,
    MEAN,
    MOVING,
    START,
    Arrays,
    Channels,
    change,
    code,
    create_federation,
    logits,
    message,
    moved,
    running,
    weighs,
)


def test_standing_means_are_weighted_and_use_the_newest_contributions(tmp_path: Path) -> None:
    with running(create_federation(tmp_path, {**MEAN, **BY_CLASS})) as relay:
        for i, weight in enumerate([1, 3]):
            table = np.full((3, 2), i, dtype=np.float32)
            tensors = logits(i, 2 * i)
            tensors |= {
                "prototypes.mean": table,
                "prototypes.count": np.array([1, 0, 4]) * weight,
            }
            assert relay.upload(i, 1, weighs(weight) | {"prototypes": Part()}, tensors).status_code == 200
        parts, tensors = relay.answers(0)
        assert parts == {"logits": Part(weight=4), "prototypes": Part()}
        assert tensors["logits.mean"].tolist() == [0.75, 1.5]
        assert tensors["prototypes.mean"].tolist() == [[0.75, 0.75], [0, 0], [0.75, 0.75]]
        assert tensors["prototypes.count"].tolist() == [4, 0, 16]
        relay.upload(1, 2, weighs(0.5), logits(4, 4))
        parts, tensors = relay.answers(0, "channel=logits")
        assert list(parts) == ["logits"]
        assert parts["logits"].weight == 1.5
        np.testing.assert_allclose(tensors["logits.mean"], [4 / 3, 4 / 3], rtol=1e-6)


def test_before_any_upload_there_are_zeros_and_common_values(tmp_path: Path) -> None:
    pool = {"seen": schema.Pool("seen", {"mean": schema.Tensor((3, 2))}, rows=(3,), keep=2, draw=2)}
    with running(create_federation(tmp_path, {**MEAN, **pool, **MOVING}, START)) as relay:
        parts, tensors = relay.answers(0)
        assert parts == {"logits": Part(weight=0), "seen": Part(entries=2), "weights": Part(version=0, full=1)}
        assert not tensors["logits.mean"].any()
        assert not tensors["seen.count"].any()
        assert tensors["weights.layer.weight"].tobytes() == START["weights"]["layer.weight"].tobytes()


def test_answer_with_the_same_etag_is_not_sent_again(tmp_path: Path) -> None:
    with running(create_federation(tmp_path, {**MEAN, **BY_CLASS})) as relay:
        relay.upload(0, 1, weighs(1), logits(1, 1))
        first = relay.ask(0, "/v1/answers?channel=logits")
        known = {"If-None-Match": f'"other", {first.headers["etag"]}'}
        again = relay.ask(1, "/v1/answers?channel=logits", headers=known)
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
        other = {"prototypes.mean": np.ones((3, 2)), "prototypes.count": np.ones(3)}
        relay.upload(1, 1, {"prototypes": Part()}, other)
        assert relay.ask(0, "/v1/answers?channel=logits", headers=known).status_code == 304  # another channel changed
        assert relay.ask(0, "/v1/answers", headers=known).status_code == 200  # another query
        relay.upload(1, 2, weighs(1), logits(2, 2))
        assert relay.ask(0, "/v1/answers?channel=logits", headers=known).status_code == 200


def test_versions_held_and_draws_change_the_answer(tmp_path: Path) -> None:
    pool = {"seen": schema.Pool("seen", {"mean": schema.Tensor((3, 2))}, rows=(3,), keep=2, draw=2)}
    with running(create_federation(tmp_path, {**pool, **MOVING}, START)) as relay:
        for i in (0, 1):
            said = {"seen": Part(entries=2)} | moved(0)
            assert relay.upload(i, 1, said, entries(1, 2) | change(i)).status_code == 200
        asked = ["", "have=weights:0", "have=weights:1", "draw=seen:1", "round=1", "turn=1", "channel=weights"]
        tags = {relay.ask(0, f"/v1/answers?{query}").headers["etag"] for query in asked}
        tags.add(relay.ask(1, "/v1/answers").headers["etag"])
        assert len(tags) == len(asked) + 1
        first = {relay.ask(i, "/v1/answers?channel=weights&round=7").headers["etag"] for i in (0, 1)}
        assert len(first) == 1  # common values are the same for all members


@pytest.mark.parametrize("encoding", [FLOAT32, FLOAT16, INT8, INT4, BIT], ids=lambda e: e.name)
def test_reply_has_the_same_bits_however_it_is_downloaded(tmp_path: Path, encoding: Any) -> None:
    channels = {
        **MEAN,
        "weights": schema.Mean("weights", {"w": schema.Tensor((40, 3), encoding, encoding)}, moving=True),
    }
    held = np.zeros((40, 3), dtype=np.float32)
    random = np.random.default_rng(5)
    with running(create_federation(tmp_path, channels, {"weights": {"w": held}}, members=1)) as relay:
        for version in range(20):
            tensors = {"weights.w": random.normal(size=(40, 3)).astype(np.float32)}
            assert relay.upload(0, version, moved(version), tensors).status_code == 200
            _, answer = relay.answers(0, f"have=weights:{version}")
            body = relay.ask(0, f"/v1/channels/weights/replies/{version + 1}").content
            kept = codec.decode(channels["weights"].message("down"), body)
            assert answer["weights.w"].tobytes() == kept["weights.w"].tobytes()
            held = held + answer["weights.w"]
            assert relay.answers(0)[1]["weights.w"].tobytes() == held.tobytes()


def test_common_values_are_sent_as_replies_or_in_full_if_smaller(tmp_path: Path) -> None:
    stored, traffic = create_federation(tmp_path, MOVING, START), ByteCount(MOVING)
    held = {0: START["weights"]["layer.weight"]}
    with running(stored) as relay:
        for version in range(30):
            for i in (0, 1):
                assert relay.upload(i, version, moved(version), change(2 * version + i)).status_code == 200
            parts, tensors = relay.answers(0, f"have=weights:{version}")
            assert parts == {"weights": Part(version=version + 1)}
            held[version + 1] = held[version] + tensors["weights.layer.weight"]
        parts, tensors = relay.answers(0)
        assert parts == {"weights": Part(version=30, full=1)}
        assert tensors["weights.layer.weight"].tobytes() == held[30].tobytes()
        parts, tensors = relay.answers(0, "have=weights:30")
        assert (parts, tensors) == ({}, {})
        ways = set()
        for missed in range(2, 31):
            response = relay.ask(0, f"/v1/answers?have=weights:{30 - missed}")
            part, size = parse_parts(response.headers[ANSWER_HEADER])["weights"], len(response.content)
            values = codec.decode(message(MOVING, {"weights": part}, "down"), response.content)["weights.layer.weight"]
            assert bool(part.full) == ("weights" in traffic.smaller_in_full(["weights"], {"weights": missed}))
            if not part.full:
                common = held[30 - missed]
                for version in range(31 - missed, 30):
                    body = relay.ask(0, f"/v1/channels/weights/replies/{version}").content
                    size += len(body)
                    common = common + codec.decode(MOVING["weights"].message("down"), body)["weights.layer.weight"]
                values = common + values
            assert values.tobytes() == held[30].tobytes()
            assert size == traffic.down(["weights"], {"weights": missed})
            ways.add(bool(part.full))
        assert ways == {False, True}
        assert code(relay.ask(0, "/v1/channels/weights/replies/1")) == (
            404,
            "no-such-reply",
        )  # no member needs it any more
        assert code(relay.ask(0, "/v1/channels/weights/replies/31")) == (404, "no-such-reply")
        assert relay.answers(0, "have=weights:99")[0]["weights"].full  # of another relay, or none


def test_deleted_replies_are_replaced_by_full_common_values(tmp_path: Path) -> None:
    stored = create_federation(tmp_path, MOVING, START)
    with running(stored, Limits(rate=0, cache=0)) as relay:
        for version in range(3):
            for i in (0, 1):
                relay.upload(i, version, moved(version), change(2 * version + i))
        assert not relay.answers(0, "have=weights:1")[0]["weights"].full
        with relay.relay.writer.store.writing():
            relay.relay.writer.store.sql.execute("DELETE FROM replies WHERE version = 2")
        assert relay.answers(0, "have=weights:1")[0]["weights"].full
        assert not relay.answers(0, "have=weights:2")[0]["weights"].full


def entries(*values: float) -> Arrays:
    """Entries of a pool, each of one value, that have all three classes."""
    return {
        "seen.mean": np.stack([np.full((3, 2), value, dtype=np.float32) for value in values]),
        "seen.count": np.ones((len(values), 3)),
    }


def test_pool_answers_random_entries_by_round_and_turn(tmp_path: Path) -> None:
    pool = {"seen": schema.Pool("seen", {"mean": schema.Tensor((3, 2))}, rows=(3,), keep=8, draw=3)}
    with running(create_federation(tmp_path, pool, members=3)) as relay:
        for i in range(3):
            said = {"seen": Part(entries=8 - i)}
            assert relay.upload(i, 1, said, entries(*range(10 * i, 10 * i + 8 - i))).status_code == 200

        def drawn(who: int, query: str) -> list[float]:
            parts, tensors = relay.answers(who, query)
            assert parts["seen"].entries == len(tensors["seen.mean"])
            return [float(entry[0, 0]) for entry in tensors["seen.mean"]]

        seen = {tuple(drawn(0, f"round={r}&turn={t}")) for r in range(5) for t in range(3)}
        assert len(seen) > 12  # other rounds and turns, other draws
        assert all(len(set(draw)) == 3 for draw in seen)  # without repetition
        assert drawn(0, "round=2&turn=1") == drawn(0, "round=2&turn=1")
        assert any(drawn(0, f"round={r}") != drawn(1, f"round={r}") for r in range(5))
        assert len(drawn(0, "round=1&draw=seen:1")) == 1
        assert len(drawn(0, "round=1&draw=seen:2")) == 2
        assert code(relay.ask(0, "/v1/answers?draw=seen:4")) == (400, "entries")
        # a new upload replaces all entries of a member
        relay.upload(0, 2, {"seen": Part(entries=1)}, entries(99))
        later = {value for r in range(60) for value in drawn(2, f"round={r}")}
        assert 99 in later
        assert not later & set(range(8))


def test_pool_by_row_draws_each_class_from_other_members_that_have_it(tmp_path: Path) -> None:
    kind = schema.Pool("seen", {"mean": schema.Tensor((3, 2))}, rows=(3,), by="row", include_self=False)
    with running(create_federation(tmp_path, {"seen": kind})) as relay:
        for i, has in enumerate([[1, 1, 0], [0, 1, 0]]):
            tensors = entries(i + 1) | {"seen.count": np.array([has])}
            assert relay.upload(i, 1, {"seen": Part(entries=1)}, tensors).status_code == 200
        for round_ in range(4):
            _, one = relay.answers(0, f"round={round_}")
            _, other = relay.answers(1, f"round={round_}")
            assert one["seen.mean"][0, :, 0].tolist() == [0, 2, 0]
            assert one["seen.count"][0].tolist() == [0, 1, 0]
            assert other["seen.mean"][0, :, 0].tolist() == [1, 1, 0]


@pytest.mark.parametrize("encoding", [FLOAT16, INT8], ids=lambda e: e.name)
def test_values_rounded_beyond_a_bound_are_clipped_in_answers(tmp_path: Path, encoding: Any) -> None:
    tensor = schema.Tensor((3, 2), encoding, encoding, 0.1, 0.3)  # of which float16 makes 0.09998 and 0.30005
    channels: Channels = {
        "seen": schema.Pool("seen", {"mean": tensor}, rows=(3,)),
        "prototypes": schema.Mean("prototypes", {"mean": tensor}, rows=(3,)),
        "weights": schema.Mean("weights", {"w": tensor}, moving=True),
    }
    with running(create_federation(tmp_path, channels, {"weights": {"w": np.full((3, 2), 0.2)}}, members=1)) as relay:
        assert relay.ask(0, "/v1/answers").status_code == 200  # zeros are outside the bounds, too
        table = np.array([[0.1, 0.3], [0.3, 0.3], [0.1, 0.1]], dtype=np.float32)
        tensors: Arrays = {"seen.mean": table[None], "seen.count": np.ones((1, 3)), "weights.w": table}
        tensors |= {"prototypes.mean": table, "prototypes.count": np.ones(3)}
        said = {"seen": Part(entries=1), "prototypes": Part(), "weights": Part(version=0, weight=1)}
        assert relay.upload(0, 1, said, tensors).status_code == 200
        _, answer = relay.answers(0, "have=weights:0")
        for name in ("seen.mean", "prototypes.mean", "weights.w"):
            np.testing.assert_allclose(answer[name].reshape(3, 2), table, atol=0.002)


def test_common_values_that_would_exceed_float32_do_not_move(tmp_path: Path) -> None:
    channels = {**MEAN, "weights": schema.Mean("weights", {"w": schema.Tensor((2,))}, moving=True)}
    with running(create_federation(tmp_path, channels, {"weights": {"w": np.zeros(2)}}, members=1)) as relay:
        for round_, (version, value) in enumerate([(0, 3e38), (1, 3e38), (1, 1.0)]):
            tensors = {"weights.w": np.array([value, 1.0], dtype=np.float32)}
            assert relay.upload(0, round_, moved(version), tensors).status_code == 200
        parts, tensors = relay.answers(0)
        assert parts["weights"] == Part(version=2, full=1)
        np.testing.assert_allclose(tensors["weights.w"], [3e38, 2], rtol=1e-6)
