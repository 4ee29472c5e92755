"""The contract of both engines without labels: loop equals stack, resumed or not, with one seed or several."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from consilience.config.config import Config, make_config
from consilience.data import Dataset, load
from consilience.models import SplitModel
from consilience.simulation.engines import choose
from consilience.simulation.engines.loop import worker_pool
from consilience.simulation.records.history import History
from consilience.simulation.records.run_folder import RunFolder
from consilience.simulation.result import Result
from consilience.simulation.simulate import simulate

Arrays = dict[str, np.ndarray]

DISTIL: dict[str, Any] = {"distill_epochs": 2, "distill_batch": 16, "queue": 20}
CASES: dict[str, tuple[str, Mapping[str, Any]]] = {
    "flesd": ("flesd", DISTIL),
    "flesd, everybody distills": ("flesd", DISTIL | {"distill": "learner"}),
    "flesd, means": ("flesd", DISTIL | {"form": "mean"}),
    "flesd, everybody distills means": ("flesd", DISTIL | {"distill": "learner", "form": "mean", "keep": 0.5}),
    "flesd, two of the largest": ("flesd", DISTIL | {"down": 2, "keep": 0.3, "encoding": "float16"}),
    "flesd-cc": ("flesd-cc", DISTIL),
    "fedavg": ("fedavg", {"objective": "simclr"}),
    "independent": ("independent", {"objective": "simclr"}),
    "fedprox": ("fedprox", {"objective": "simclr"}),
    "cluster-sharing": ("cluster-sharing", {"clusters": 6, "kd": 0.5}),
}
PARTIAL_PARTICIPATION: dict[str, Any] = {
    "partition": "dirichlet(0.5)",
    "participation": 0.5,
    "offline": 0.3,
    "seeds": 2,
}
WAYS: dict[str, dict[str, Any]] = {
    "unequal": {"partition": "dirichlet(0.5)"},
    "half take part": {"participation": 0.5},
    "some are offline": {"offline": 0.3},
    "two epochs, another batch": {"epochs": 2, "batch_size": 7},
    "a queue beyond the public set": {"public": 10},
}
each_case = pytest.mark.parametrize("case", list(CASES))
each_kind = pytest.mark.parametrize("case", ["flesd", "flesd, everybody distills"])
each_resumed = pytest.mark.parametrize("case", ["flesd", "flesd, everybody distills", "cluster-sharing"])

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def data() -> Dataset:
    """Thirty samples for each of four learners: a whole batch of 16 and a partial one."""
    return load("digits", train=120, test=40)


def settings(case: str, **others: Any) -> Config:
    method, own = CASES[case]
    small: dict[str, Any] = {"learners": 4, "batch_size": 16, "rounds": 3, "workers": 0, "engine": "loop"}
    return make_config({**small, "probe": "knn", "method": {"name": method, **own}, **others})


def kept(folder: Path) -> Arrays:
    checkpoint = RunFolder.open(folder).load()
    assert checkpoint is not None
    return checkpoint[0]


def timeless(history: History) -> list[str]:
    return [m for m in history.records[0] if not m.startswith(("seconds.", "wall."))]


def close(one: np.ndarray, other: np.ndarray, what: str, rtol: float = 1e-9) -> None:
    """Relative to the largest magnitude; integers exactly."""
    assert one.dtype == other.dtype and one.shape == other.shape, what
    largest = np.abs(np.nan_to_num(one)).max(initial=0.0)
    slack = max(rtol * largest, 1e-15) if one.dtype.kind == "f" else 0.0
    np.testing.assert_allclose(other, one, rtol=0, atol=slack, err_msg=what)


def assert_engines_agree(config: Config, data: Dataset, folder: Path, other: str = "stack", **more: Any) -> Result:
    """In float64 over the run: every array of the state, every metric of every round."""
    results = []
    for engine in ("loop", other):
        exactly = config.replace(engine=engine, precision="float64")
        results.append(simulate(exactly, data=data, out=folder / engine, **more))
    assert [r.engine for r in results] == ["loop", other]
    loop, stack = kept(folder / "loop"), kept(folder / other)
    assert set(loop) == set(stack)
    for key, value in loop.items():
        close(value, stack[key], key)
    for metric in timeless(results[0].history):
        close(results[0].history[metric], results[1].history[metric], metric)
    return results[1]


def learned(result: Result, term: str) -> np.ndarray:
    """A loss of the learners that have one, (rounds, ...): all values are finite."""
    values = result.history[f"loss.{term}"]
    found: np.ndarray = values[np.isfinite(values)]
    return found


# Loop and stack


@each_case
def test_loop_equals_stack(case: str, data: Dataset, tmp_path: Path) -> None:
    result = assert_engines_agree(settings(case), data, tmp_path)
    assert (learned(result, "simclr") > 0).all() and learned(result, "simclr").size
    if case.startswith("flesd"):
        assert (learned(result, "similarity") > 0).all() and learned(result, "similarity").size
    if case == "cluster-sharing":
        assert (learned(result, "clusters") > 0).all() and learned(result, "clusters").size
    assert result.history.rounds == (1 if case == "flesd-cc" else 3)


@each_case
def test_loop_equals_stack_with_unequal_and_partly_absent_learners(case: str, data: Dataset, tmp_path: Path) -> None:
    assert_engines_agree(settings(case, **PARTIAL_PARTICIPATION), data, tmp_path)


@each_case
def test_loop_equals_branches(case: str, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "_BRANCHING", ("cpu", "cuda"))
    assert_engines_agree(settings(case, **PARTIAL_PARTICIPATION), data, tmp_path, "branches")


@each_kind
@pytest.mark.parametrize("way", list(WAYS))
def test_loop_equals_stack_for_all_settings(way: str, case: str, data: Dataset, tmp_path: Path) -> None:
    assert_engines_agree(settings(case, **WAYS[way]), data, tmp_path)


def normalized() -> SplitModel:
    features = nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6)
    )
    return SplitModel(features, nn.Linear(6, 4))


def pixels(count: int, side: int) -> Dataset:
    """No pixel is constant over all images: behind BatchNorm its gradient would only be rounding error."""
    inputs = np.random.default_rng(0).random((count, 1, side, side), dtype=np.float32)
    targets = np.arange(count) % 4
    return Dataset("pixels", inputs, targets, inputs[:20], targets[:20], 4)


@pytest.mark.parametrize("case", ["flesd", "flesd, everybody distills", "fedavg"])
@pytest.mark.parametrize("own", [{}, {"partition": "dirichlet(5)", "offline": 0.3}], ids=["even", "unequal"])
def test_loop_equals_stack_with_batch_norm(own: dict[str, Any], case: str, tmp_path: Path) -> None:
    """Only the student's training passes update its statistics: not those of the momentum encoder or of evaluation."""
    config = settings(case, optimizer="sgd", lr=0.05, rounds=2, **own)
    assert_engines_agree(config, pixels(116, 6), tmp_path, model=normalized)
    counters = {k: v for k, v in kept(tmp_path / "stack").items() if k.endswith(".other_buffers.int64")}
    steps = {k: v for k, v in kept(tmp_path / "stack").items() if k.endswith(".step")}
    assert counters and len(counters) == len(steps)
    if not own and case == "fedavg":
        assert (
            counters["learners.0.other_buffers.int64"].tolist() == [[4, 4]] * 4
        )  # two batches of 29 samples, two rounds


# One seed and several


@pytest.mark.parametrize("case", ["flesd", "flesd, everybody distills", "flesd, two of the largest", "fedavg"])
@pytest.mark.parametrize("public", [{}, {"public": 25}], ids=["public sets of unlike sizes", "of one size"])
def test_several_seeds_in_one_run_equal_separate_runs(
    public: dict[str, Any], case: str, data: Dataset, tmp_path: Path
) -> None:
    common: dict[str, Any] = {"partition": "dirichlet(5)", "participation": 0.6, "rounds": 2, **public}
    many = simulate(settings(case, seed=3, seeds=3, **common), data=data, out=tmp_path / "many")
    together = kept(tmp_path / "many")
    sizes = set()
    for place, seed in enumerate((3, 4, 5)):
        one = simulate(settings(case, seed=seed, **common), data=data, out=tmp_path / str(seed))
        sizes.add(one.summary()["public_bytes"])
        for key, value in kept(tmp_path / str(seed)).items():
            if key.startswith("learners.") and public:
                rows = len(value)
                assert np.array_equal(together[key][place * rows : (place + 1) * rows], value), (seed, key)
            if key.startswith("channels."):
                assert np.array_equal(together[key.replace("channels.0.", f"channels.{place}.")], value), (seed, key)
        for metric in timeless(one.history):
            assert np.array_equal(one.history[metric][:, 0], many.history[metric][:, place], equal_nan=True), metric
    assert (len(sizes) > 1) == (not public and case != "fedavg"), "or the test shows nothing"


# Stop and resume, and worker processes


def interrupt_at(*rounds: int) -> Callable[[str, int, int, History], None]:
    def on_round(method: str, round_: int, total: int, history: History) -> None:
        if round_ in rounds:
            signal.raise_signal(signal.SIGINT)

    return on_round


def assert_same_bits(one: Path, other: Path) -> None:
    a, b = kept(one), kept(other)
    assert set(a) == set(b)
    assert [key for key in a if a[key].tobytes() != b[key].tobytes()] == []


@each_resumed
@pytest.mark.parametrize("engine", ["loop", "stack"])
def test_stopping_and_resuming_gives_the_same_bits(case: str, engine: str, data: Dataset, tmp_path: Path) -> None:
    config = settings(case, engine=engine, participation=0.6, offline=0.3)
    whole = simulate(config, data=data, out=tmp_path / "whole")
    parts = simulate(config, data=data, out=tmp_path / "parts", on_round=interrupt_at(1))
    assert not parts.finished and parts.history.rounds == 1
    parts = simulate(data=data, resume=tmp_path / "parts")
    assert parts.finished and whole.engine == parts.engine == engine
    assert_same_bits(tmp_path / "whole", tmp_path / "parts")
    for metric in timeless(whole.history):
        assert np.array_equal(whole.history[metric], parts.history[metric], equal_nan=True), metric


@each_resumed
def test_worker_processes_give_the_same_bits_as_none(case: str, data: Dataset, tmp_path: Path) -> None:
    results = [
        simulate(settings(case, workers=n, learners=5, offline=0.3, rounds=2), data=data, out=tmp_path / str(n))
        for n in (0, 2)
    ]
    assert [w.process.poll() for w in worker_pool._pools[2].workers] == [None, None], "two are waiting for more"
    assert_same_bits(tmp_path / "0", tmp_path / "2")
    for metric in timeless(results[0].history):
        assert np.array_equal(results[0].history[metric], results[1].history[metric], equal_nan=True), metric
