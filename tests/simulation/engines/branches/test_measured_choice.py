"""Which engine is faster on a GPU: measured once and remembered; here with invented times."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from consilience.config.config import Config, make_config
from consilience.data import load
from consilience.files import lock_file, unlock_file
from consilience.learner.learner import Learner
from consilience.methods import build_method
from consilience.simulation.engines import choose, measured_choice
from consilience.simulation.engines.choose import choose_engine
from consilience.simulation.engines.measured_choice import choose_measured, measurement_key
from consilience.simulation.setup.setup import Setup, build_setup


class Measure:
    """Says these times, and counts how often it is asked."""

    def __init__(self, stack: float, branches: float) -> None:
        self.found, self.asked = {"stack": stack, "branches": branches}, 0

    def __call__(self) -> dict[str, float]:
        self.asked += 1
        return self.found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "engines.json"


def test_the_faster_engine_is_chosen_and_remembered(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "consilience")
    first, later = Measure(2e-5, 1e-5), Measure(1.0, 2.0)
    assert choose_measured("a", first, file) == "branches" and first.asked == 1
    assert (
        "engine branches: one learner's training step takes stack 20 us, branches 10 us (measured now)" in caplog.text
    )
    assert choose_measured("a", later, file) == "branches" and later.asked == 0
    assert "(measured before)" in caplog.text
    assert choose_measured("b", later, file) == "stack" and later.asked == 1
    assert set(json.loads(file.read_text())) == {"a", "b"}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[1]",
        '{"a": 3}',
        '{"a": {}}',
        '{"a": {"stack": "1", "branches": 2}}',
        '{"a": {"stack": -1}}',
        "\x00\xff",
    ],
)
def test_a_damaged_file_is_measured_anew_and_mended(content: str, file: Path) -> None:
    file.parent.mkdir()
    file.write_text(content, encoding="latin-1")
    measure = Measure(2.0, 1.0)
    assert choose_measured("a", measure, file) == "branches" and measure.asked == 1
    assert json.loads(file.read_text())["a"] == measure.found


def test_other_entries_outlive_a_damaged_one(file: Path) -> None:
    file.parent.mkdir()
    file.write_text('{"good": {"stack": 1, "branches": 2}, "bad": 7}')
    choose_measured("new", Measure(2.0, 1.0), file)
    assert set(json.loads(file.read_text())) == {"good", "new"}


def test_what_cannot_be_measured_is_not_chosen_and_not_remembered(file: Path) -> None:
    assert choose_measured("a", Measure(math.inf, 1.0), file) == "branches"
    assert choose_measured("a", Measure(1.0, math.inf), file) == "stack"
    assert choose_measured("a", Measure(math.inf, math.inf), file) == "stack"
    assert choose_measured("a", Measure(1.0, 1.0), file) == "stack", "the same: the stack"
    assert list(json.loads(file.read_text())) == ["a"]


def test_where_nothing_can_be_written_every_run_measures(file: Path) -> None:
    file.parent.write_text("a file in the place of the folder")
    measure = Measure(2.0, 1.0)
    assert [choose_measured("a", measure, file) for _ in range(2)] == ["branches"] * 2 and measure.asked == 2


def test_a_file_that_another_process_writes_is_left_to_it(file: Path) -> None:
    lock = lock_file(file.with_suffix(".lock"), "mine")
    try:
        assert choose_measured("a", Measure(2.0, 1.0), file) == "branches"
    finally:
        unlock_file(lock)
    assert not file.exists()


# --- what a measurement holds for


def set_up(method: str = "fedavg", **settings: Any) -> tuple[Config, Setup]:
    config = make_config({"learners": 4, "model": "mlp", "rounds": 500, "method": {"name": method}, **settings})
    return config, build_setup(config, build_method(method), load("digits", train=64, test=8), [config.model_name])


def key(device: str = "GPU", method: str = "fedavg", **settings: Any) -> str:
    plans = set_up(method, **settings)[1].cohorts.plans
    return measurement_key(plans, [Learner(plan.spec) for plan in plans], device)


def test_key_follows_what_the_speed_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    same = key()
    assert same == key() == key(method="independent") == key(lr=0.1, seed=3, rounds=7)
    others = [
        key("another GPU"),
        key(model="lenet5"),
        key(width=20),
        key(learners=5),
        key(batch_size=8),
        key(precision="float64"),
        key(precision="bf16"),
        key(optimizer="sgd"),
    ]
    monkeypatch.setattr(torch, "__version__", "9.9")
    assert len({same, key(), *others}) == len(others) + 2


# --- in a run


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Measure], None]:
    """A GPU is pretended, and what it measures."""
    monkeypatch.setenv("CONSILIENCE_CACHE", str(tmp_path))
    monkeypatch.setattr(choose, "_AUTO_BRANCHES", True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Pretended")

    def measuring(measure: Measure) -> None:
        def choose_it(key: str, real: Any) -> str:
            return choose_measured(key, measure, tmp_path / measured_choice._FILE)

        monkeypatch.setattr(choose, "choose_measured", choose_it)

    return measuring


def test_auto_measures_on_a_gpu_where_it_pays(gpu: Callable[[Measure], None]) -> None:
    config, setup = set_up()  # set up for a CPU: the choice depends on the requested device
    config = config.replace(device="cuda")
    measure = Measure(2.0, 1.0)
    gpu(measure)
    assert choose_engine(config, setup) == "branches" and measure.asked == 1
    assert choose_engine(config, setup) == "branches" and measure.asked == 1, "remembered"
    assert choose_engine(config.replace(rounds=3), setup) == "stack", "too short to pay for measuring"
    assert choose_engine(config.replace(deterministic=True), setup) == "stack", "else times would decide the bits"
    assert choose_engine(config.replace(engine="stack"), setup) == "stack"
    assert choose_engine(config.replace(engine="loop"), setup) == "loop"
    assert choose_engine(config.replace(engine="branches"), setup) == "branches"
    assert choose_engine(config.replace(device="cpu"), setup) == "loop"


def test_auto_leaves_branches_out_until_they_are_let_in(
    gpu: Callable[[Measure], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, setup = set_up()
    measure = Measure(2.0, 1.0)
    gpu(measure)
    monkeypatch.setattr(choose, "_AUTO_BRANCHES", False)
    assert choose_engine(config.replace(device="cuda"), setup) == "stack" and measure.asked == 0
    assert choose_engine(config.replace(device="cuda", engine="branches"), setup) == "branches"


def test_a_resumed_run_keeps_its_engine(gpu: Callable[[Measure], None]) -> None:
    config, setup = set_up()
    config = config.replace(device="cuda")
    measure = Measure(1.0, 2.0)
    gpu(measure)
    assert choose_engine(config, setup, before="branches") == "branches" and measure.asked == 0
    assert choose_engine(config.replace(engine="stack"), setup, before="stack") == "stack"
