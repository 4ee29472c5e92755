"""The peers' benchmark gives all libraries the model of consilience, and its plain loop is FedAvg."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.peers.lenet5 import LeNet5
from benchmarks.peers.plain_loop import fedavg_round
from benchmarks.peers.program import ProgramFailed
from benchmarks.peers.run import Programs, Row, Size, table
from benchmarks.peers.work import Work
from consilience.models import build_model


def parameters(model: nn.Module) -> list[nn.Parameter]:
    return list(model.parameters())


def test_its_lenet5_is_that_of_consilience() -> None:
    ours, theirs = build_model("lenet5", (1, 28, 28), 10), LeNet5()
    assert sum(p.numel() for p in parameters(theirs)) == 30_986
    with torch.no_grad():
        for mine, other in zip(parameters(ours), parameters(theirs), strict=True):
            other.copy_(mine)
        x = torch.randn(3, 1, 28, 28, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(theirs(x), ours(x)[-1] if isinstance(ours(x), tuple) else ours(x))


def test_a_round_of_the_plain_loop_is_the_mean_of_what_each_learner_ends_with() -> None:
    work = Work("fedavg", learners=2, samples=1, rounds=1, cores=1, data="", lr=0.5)
    model = nn.Linear(1, 2, bias=False)
    common = {"weight": torch.zeros(2, 1)}
    data = [(torch.ones(1, 1), torch.tensor([0])), (torch.ones(1, 1), torch.tensor([1]))]
    # Adam's first step is the learning rate in the direction of each gradient: +-0.5 for learner 0, -+0.5 for 1.
    torch.testing.assert_close(fedavg_round(model, common, data, work)["weight"], torch.zeros(2, 1))
    alone = fedavg_round(model, common, data[:1], work)["weight"]
    torch.testing.assert_close(alone, torch.tensor([[0.5], [-0.5]]))


def test_ratios_are_to_consilience() -> None:
    rows = [
        Row("consilience", "1", 0.5, 2.0, 100.0, 90.0, 1000),
        Row("pfl", "2", 1.0, 3.0, 200.0, 80.0, None),
    ]
    assert list(table("fedavg", Size(10, 120, 1), rows)) == [
        "| fedavg | 10 x 120 | consilience 1 | 0.500 | 1.00 | 2.0 | 100 | 90.0 | 1,000 |",
        "| fedavg | 10 x 120 | pfl 2 | 1.000 | 2.00 | 3.0 | 200 | 80.0 |  |",
    ]


def test_a_program_that_fails_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fake:
        start_seconds, peak_mb = 2.0, 100.0

        def __init__(self, library: str, *others: Any) -> None:
            self.library, self.turns = library, iter((3.0, 1.0, 5.0))

        def turn(self, rounds: int) -> float:
            if self.library == "pfl":
                raise ProgramFailed("no memory")
            return next(self.turns)

        def finish(self) -> dict[str, Any]:
            return {"version": "1", "accuracy": 90.0}

        def end(self) -> None:
            ended.append(self.library)

    ended: list[str] = []
    monkeypatch.setattr("benchmarks.peers.run.Program", Fake)
    programs = Programs({}, ("consilience", "pfl"), timeout=1.0)
    for _ in range(3):
        programs.take_turns(1)
    assert programs.failed == ["pfl: no memory"] and ended == ["pfl"]
    assert programs.rows() == [Row("consilience", "1", 3.0, 2.0, 100.0, 90.0, None)]
