"""Nodes give the simulator's numbers: bytes, accuracies and losses of every round, answers, and weights at the end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from federations import WARDS, alike, held_answers, member, recorded_answers, run_locally, simulate_wards, write_wards
from local_grid import LocalGrid
from wards.client_app import training
from wards.models import MODELS, mlp

from consilience import load_model

ROUNDS = 3


@pytest.mark.parametrize(
    "method", ["representation-sharing", "federated-distillation", "fedavg", "fedavg:up=bit:down=int4", "consilience"]
)
def test_nodes_give_the_simulator_s_numbers(tmp_path: Path, method: str) -> None:
    same = method.startswith(("fedavg", "consilience"))
    write_wards(tmp_path / "wards.toml", method, alike=same)
    held: list[list[dict[str, dict[str, np.ndarray]]]] = []

    def after(kind: str) -> None:
        if kind == "evaluate":
            held.append([held_answers(tmp_path / f"ward-{n}") for n in range(WARDS)])

    grid = LocalGrid([member(tmp_path, n, alike if same else training) for n in range(WARDS)], after)
    lines = run_locally(grid, tmp_path, ROUNDS, nodes=WARDS)
    assert grid.steps == ["query.consilience", *["train", "evaluate"] * (ROUNDS + 1)]  # nobody needed another message

    with recorded_answers() as simulated:
        result = simulate_wards(ROUNDS, method, alike=same)
    records = result.history.records
    before = len(records) - ROUNDS  # 1 where there is an exchange before training
    for key, name in (("bytes_up", "bytes.up"), ("bytes_down", "bytes.down")):
        seen = np.array([line[key] for line in lines]).reshape(ROUNDS + 1, WARDS)
        if not before:
            assert not seen[0].any() or name == "bytes.down"
        np.testing.assert_array_equal(seen[1 - before :], np.stack([record[name][0] for record in records]))
    trained = [line for line in lines if line["round"] > 0]
    for key in ("accuracy", *(k for k in result.history if k.startswith("loss."))):
        seen = np.array([line[key] for line in trained]).reshape(ROUNDS, WARDS)
        np.testing.assert_array_equal(seen, result.history[key][:, 0])

    for number in range(WARDS):
        for name, answers in simulated[number].items():
            for mine, theirs in zip(held[-ROUNDS:], answers[-ROUNDS:], strict=True):
                for tensor in set(theirs) - {"count"}:
                    np.testing.assert_array_equal(mine[number][name][tensor], theirs[tensor])
        model = mlp if same else MODELS[number]
        own, expected = load_model(tmp_path / f"ward-{number}" / "model", model=model), result.model(number)
        for mine_, theirs_ in zip(own.state_dict().values(), expected.state_dict().values(), strict=True):
            assert torch.equal(mine_, theirs_)
