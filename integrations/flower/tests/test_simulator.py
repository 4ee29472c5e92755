"""Nodes give the simulator's numbers: bytes, accuracies and losses of every round, answers, and weights at the end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from consilience_flower import member_app
from consilience_flower.gateway import RelayGateway
from consilience_flower.run import FederationRun
from consilience_flower.settings import FederationSettings
from federations import (
    WARDS,
    alike,
    held_answers,
    recorded_answers,
    results,
    simulate_wards,
    training,
    ward,
    write_wards,
)
from local_grid import LocalGrid, LocalNode

from consilience import load_model

ROUNDS = 3


@pytest.mark.parametrize(
    "method", ["representation-sharing", "federated-distillation", "fedavg", "fedavg:up=bit:down=int4", "consilience"]
)
def test_nodes_give_the_simulator_s_numbers(tmp_path: Path, method: str) -> None:
    same = "fed" in method and "distillation" not in method or method == "consilience"
    charter = write_wards(tmp_path / "wards.toml", method, alike=same)
    nodes = [LocalNode(member_app(alike if same else training), ward(tmp_path, n)) for n in range(WARDS)]
    held: list[list[dict[str, dict[str, np.ndarray]]]] = []

    def after(kind: str) -> None:
        if kind == "evaluate":
            held.append([held_answers(tmp_path / f"ward-{n}") for n in range(WARDS)])

    settings = FederationSettings(charter, tmp_path / "wards.db", nodes=WARDS, rounds=ROUNDS)
    grid = LocalGrid(nodes, after)
    with RelayGateway(settings.store, settings.charter) as relay:
        FederationRun(grid, relay, settings).run()
    assert grid.steps == ["query.consilience", *["train", "evaluate"] * (ROUNDS + 1)]  # nobody needed another message

    with recorded_answers() as simulated:
        result = simulate_wards(ROUNDS, method, alike=same)
    lines = results(settings.results)
    records = result.history.records
    before = len(records) - ROUNDS  # 1 where there is an exchange before training
    for key, name in (("bytes_up", "bytes.up"), ("bytes_down", "bytes.down")):
        seen = np.array([line[key] for line in lines]).reshape(ROUNDS + 1, WARDS)
        if not before:
            assert not seen[0].any() or name == "bytes.down"
        np.testing.assert_array_equal(seen[1 - before :], np.stack([record[name][0] for record in records]))
    trained = [line for line in lines if line["round"] > 0]
    for key in ("accuracy", *(k for k in result.history.keys() if k.startswith("loss."))):
        seen = np.array([line[key] for line in trained]).reshape(ROUNDS, WARDS)
        np.testing.assert_array_equal(seen, result.history[key][:, 0])

    for number in range(WARDS):
        for name, answers in simulated[number].items():
            for mine, theirs in zip(held[-ROUNDS:], answers[-ROUNDS:], strict=True):
                for tensor in set(theirs) - {"count"}:
                    np.testing.assert_array_equal(mine[number][name][tensor], theirs[tensor])
        own, expected = load_model(tmp_path / f"ward-{number}" / "model"), result.model(number)
        for mine_, theirs_ in zip(own.state_dict().values(), expected.state_dict().values(), strict=True):
            assert torch.equal(mine_, theirs_)
