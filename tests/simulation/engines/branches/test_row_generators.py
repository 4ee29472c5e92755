"""Numbers that models draw themselves: every learner has its own, the loop's, whoever is trained in between."""

from __future__ import annotations

import torch

from consilience.learner.device import seeded
from consilience.randomness import seed_of
from consilience.simulation.engines.branches.row_generators import RowGenerators

CPU = torch.device("cpu")


def test_rows_that_take_turns_have_the_numbers_of_a_loop() -> None:
    expected = []
    for learner in (4, 7):
        with seeded(CPU, seed_of("model", 1, 3, learner)):
            expected.append([torch.rand(2).tolist() for _ in range(3)])
    rows = RowGenerators(CPU, 2)
    rows.seed([1, 1], [4, 7], 3)
    found: list[list[list[float]]] = [[], []]
    for _ in range(3):
        for row in (0, 1):
            with rows.of(row):
                found[row].append(torch.rand(2).tolist())
    assert found == expected and found[0] != found[1]


def test_the_callers_numbers_are_left_alone() -> None:
    rows = RowGenerators(CPU, 1)
    rows.seed([0], [0], 1)
    torch.manual_seed(1)
    with rows.of(0):
        torch.rand(3)
    drawn = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(drawn, torch.rand(3))


def test_a_round_begins_anew() -> None:
    rows, found = RowGenerators(CPU, 1), []
    for round_ in (1, 2, 1):
        rows.seed([0], [0], round_)
        with rows.of(0):
            found.append(torch.rand(2).tolist())
    assert found[0] == found[2] != found[1]
