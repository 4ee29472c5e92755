"""Evaluation with the newest common part: by hand, for absent learners, and without a trace in training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from consilience.data import Dataset, load
from consilience.simulation.records.round_record import Record
from consilience.simulation.round import round as rounds_module
from consilience.simulation.round.newest_parts import with_newest_parts
from consilience.simulation.round.participation import Presence
from consilience.simulation.round.round import Rounds
from tests.voting_tools import common_of, flat, served, settings, stage

each_engine = pytest.mark.parametrize("engine", ["loop", "stack"])
pytestmark = pytest.mark.usefixtures("one_thread")
FEW: dict[str, Any] = {"learners": 4, "partition": "shards(2)", "batch_size": 8, "precision": "float64"}


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load("digits", train=160, test=80)


def take_part(monkeypatch: pytest.MonkeyPatch, *who: int) -> None:
    """Only these learners take part in the next rounds."""
    there = np.isin(np.arange(4), who)[None]
    monkeypatch.setattr(rounds_module, "draw_presence", lambda *given: Presence(there, np.ones_like(there)))


def by_hand(rounds: Rounds, data: Dataset, shared: dict[str, Tensor]) -> tuple[list[float], float]:
    """Accuracy of every device's private part followed by these shared values, and of the mean of their logits."""
    learner, inputs = rounds.learners[0], torch.from_numpy(data.test_inputs).double()
    targets, logits = torch.from_numpy(data.test_targets), []
    for row in range(4):
        learner.bind(rounds.engine.read(0).row(row).clone())
        learner.binding.assign(shared)
        with torch.no_grad():
            logits.append(learner.model.eval()(inputs))
    right = [100 * float((each.argmax(1) == targets).double().mean()) for each in logits]
    return right, 100 * float((torch.stack(logits).mean(0).argmax(1) == targets).double().mean())


def check(record: Record, expected: tuple[list[float], float]) -> None:
    assert record["accuracy"][0].tolist() == pytest.approx(expected[0])
    assert record["accuracy_ensemble"][0].tolist() == pytest.approx([expected[1]] * 4)


@each_engine
def test_absent_devices_are_evaluated_with_the_newest_shared_part(
    engine: str, data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = {"name": "two-stage", "delta": 0.02, "alpha_1": 0}
    with stage(settings(**FEW, method=method), data, engine) as rounds:
        take_part(monkeypatch, 0, 1)
        rounds.run(evaluate=False)
        take_part(monkeypatch, 2)
        for _ in range(5):
            record = rounds.run(evaluate=True)
        assert rounds.answers.versions(rounds.answers.held[0]["gradients"]).tolist() == [1, 1, 6, 0]
        newest = by_hand(rounds, data, common_of(rounds))
        check(record, newest)
        stale = [by_hand(rounds, data, served(rounds, row))[0][row] for row in range(4)]
        assert stale != newest[0] and stale[2] == newest[0][2], "or the test shows nothing"


@each_engine
def test_device_asked_before_any_vote_has_the_common_start_values(engine: str, data: Dataset) -> None:
    """All are offline, so nobody has heard anything; private parts start from different weights."""
    method = {"name": "two-stage", "start": "different"}
    with stage(settings(**FEW, offline=1.0, method=method), data, engine) as rounds:
        record = rounds.run(evaluate=True)
        start = {name: value.clone() for name, value in common_of(rounds).items()}
        assert rounds.federations[0].version("gradients") == 0
        assert all(torch.equal(served(rounds, row)[name], start[name]) for row in range(4) for name in start)
        check(record, by_hand(rounds, data, start))


@each_engine
def test_learner_that_never_took_part_is_asked_through_votes_of_others(
    engine: str, data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stage(settings(**FEW), data, engine) as rounds:
        take_part(monkeypatch, 1, 2)
        check(rounds.run(evaluate=True), by_hand(rounds, data, common_of(rounds)))


@each_engine
def test_evaluation_leaves_no_trace_in_training(engine: str, data: Dataset) -> None:
    config = settings(**FEW, participation=0.5, offline=0.3)
    ends = []
    for every in (1, 4):
        with stage(config, data, engine) as rounds:
            spent = 0.0
            for number in range(1, 5):
                spent += rounds.run(evaluate=number % every == 0)["bytes.down"].sum()
            ends.append((flat(rounds, "device"), flat(rounds, "server"), spent))
    assert torch.equal(ends[0][0], ends[1][0]) and torch.equal(ends[0][1], ends[1][1])
    assert ends[0][2] == ends[1][2], "nothing is downloaded for it"


def test_own_parts_are_back_after_an_error(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    with stage(settings(**FEW), data) as rounds:
        take_part(monkeypatch, 0)
        rounds.run(evaluate=False)
        before = flat(rounds, "server")
        assert not torch.equal(before[0], before[1])
        with pytest.raises(RuntimeError, match="stop"), with_newest_parts(rounds):
            assert torch.equal(flat(rounds, "server")[1], before[0])
            raise RuntimeError("stop")
        assert torch.equal(flat(rounds, "server"), before)
