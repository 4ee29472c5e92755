"""Means that resist at a relay: over HTTP, from the stored uploads, after removals and restarts."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from consilience.peer.charter_means import MeanRules
from consilience.relay import admin
from consilience.relay.federation import FederationService
from consilience.relay.recount import recount
from consilience.relay.robust_answers import RobustAnswers
from consilience.relay.store import Store
from consilience.wire import schema
from consilience.wire.headers import Part
from consilience.wire.robustness import Robustness
from tests.local_relay import Channels, LocalRelay, create_federation, logits, running, weighs

LARGEST = float(np.finfo(np.float32).max)
START = {"weights": {"x": np.zeros(3, dtype=np.float32)}}
MOVING = schema.Mean("weights", {"x": schema.Tensor((3,))}, moving=True)


def standing(robustness: Robustness) -> Channels:
    return {"logits": schema.Mean("logits", {"mean": schema.Tensor((2,))}, robustness=robustness)}


def answer(relay: LocalRelay, who: int = 0) -> list[float]:
    return list(relay.answers(who)[1]["logits.mean"].tolist())


@pytest.mark.parametrize("robustness", [Robustness("median"), Robustness("trimmed", 0.3)], ids=str)
def test_standing_mean_is_of_the_middle_of_all_newest_uploads(robustness: Robustness, tmp_path: Path) -> None:
    stored = create_federation(tmp_path, standing(robustness), members=3)
    with running(stored) as relay:
        assert answer(relay) == [0.0, 0.0]
        relay.upload(0, 1, weighs(1), logits(1, -1))
        assert answer(relay) == [1.0, -1.0]
        relay.upload(1, 1, weighs(1), logits(2, -2))
        relay.upload(2, 1, weighs(1e6), logits(LARGEST, -LARGEST))
        assert answer(relay) == [2.0, -2.0]
        relay.upload(0, 2, weighs(1), logits(3, -3))
        assert answer(relay) == [3.0, -3.0]
        assert relay.answers(0)[0]["logits"].weight == 1e6 + 2
    with running(stored) as relay:  # it is read from the store again
        assert answer(relay) == [3.0, -3.0]
        admin.revoke(stored.store, "member-2")
        relay.upload(1, 2, weighs(1), logits(2, -2))
        assert answer(relay) == [2.5, -2.5]


def test_contributions_are_read_once_for_each_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    whole = RobustAnswers.read_contributions

    def counted(
        self: RobustAnswers, store: Store, revision: int, channel: schema.Mean
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        reads.append(channel.name)
        return whole(self, store, revision, channel)

    monkeypatch.setattr(RobustAnswers, "read_contributions", counted)
    with running(create_federation(tmp_path, standing(Robustness("median")))) as relay:
        relay.upload(0, 1, weighs(1), logits(1, 1))
        assert answer(relay, 0) == answer(relay, 1) == [1.0, 1.0] and len(reads) == 1
        relay.upload(1, 1, weighs(1), logits(2, 2))
        assert answer(relay, 0) == answer(relay, 1) == [1.5, 1.5] and len(reads) == 2


def test_sums_with_a_cap_and_a_clip_are_those_that_a_recount_finds(tmp_path: Path) -> None:
    stored = create_federation(tmp_path, standing(Robustness(clip_norm=5.0, weight_cap=2.0)))
    with running(stored) as relay:
        relay.upload(0, 1, weighs(1e6), logits(LARGEST, 0))
        relay.upload(1, 1, weighs(2), logits(0, 1))
        assert relay.answers(0)[0]["logits"].weight == 4 and answer(relay) == pytest.approx([2.5, 0.5])
        relay.upload(0, 2, weighs(1), logits(1, 1))
        assert answer(relay) == pytest.approx([1 / 3, 1.0])
    with contextlib.closing(Store(stored.store)) as store:
        assert recount(FederationService(store, 1), store) == {}


def test_count_of_a_class_counts_as_the_cap(tmp_path: Path) -> None:
    tensors = {"mean": schema.Tensor((2, 1))}
    channel = schema.Mean("prototypes", tensors, rows=(2,), robustness=Robustness(weight_cap=3.0))
    with running(create_federation(tmp_path, {"prototypes": channel})) as relay:
        for who, value in enumerate((0.0, 4.0)):
            means = np.full((2, 1), value, np.float32)
            counts = np.array([10**6 if who else 1, 2], np.int32)
            said = {"prototypes": Part()}
            assert relay.upload(who, 1, said, {"prototypes.mean": means, "prototypes.count": counts}).status_code == 200
        found = relay.answers(0)[1]
        assert found["prototypes.count"].tolist() == [4, 4] and found["prototypes.mean"].tolist() == [[3.0], [2.0]]


def moves(relay: LocalRelay, uploads: list[list[float]], weights: list[float]) -> np.ndarray:
    """The common values after one upload of each member."""
    for who, (values, weight) in enumerate(zip(uploads, weights, strict=True)):
        said = {"weights": Part(version=0, weight=weight)}
        assert relay.upload(who, 1, said, {"weights.x": np.array(values, np.float32)}).status_code == 200
    return relay.answers(0)[1]["weights.x"]


UPLOADS = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [LARGEST, LARGEST, -LARGEST]]


def test_largest_float_ruins_a_plain_moving_mean_and_not_that_of_a_new_charter(tmp_path: Path) -> None:
    """The defaults of `consilience federation` for a creator with 30 samples."""
    new = MeanRules().apply(MOVING, (10, 20))
    (tmp_path / "plain").mkdir()
    with running(create_federation(tmp_path / "plain", {"weights": MOVING}, START, 3)) as relay:
        assert np.abs(moves(relay, UPLOADS, [10, 20, 1e6])).max() > 1e38
    (tmp_path / "new").mkdir()
    with running(create_federation(tmp_path / "new", {"weights": new}, START, 3)) as relay:
        found = moves(relay, UPLOADS, [10, 20, 1e6])  # weights 10, 20 and 90; norms 1, 1 and 3
    part = 3 / np.sqrt(3) * 90
    np.testing.assert_allclose(found, np.array([10 + part, 20 + part, -part]) / 120, rtol=1e-6)


@pytest.mark.parametrize("robustness", [Robustness("median"), Robustness("trimmed", 0.2)], ids=str)
def test_moving_mean_moves_by_the_middle_of_the_changes(robustness: Robustness, tmp_path: Path) -> None:
    channel = replace(MOVING, robustness=robustness)
    with running(create_federation(tmp_path, {"weights": channel}, START, 3)) as relay:
        assert moves(relay, UPLOADS, [1, 1, 1e6]).tolist() == [1.0, 1.0, 0.0]
