"""The engines' contract for tasks of several labels and of numbers: loop equals stack, and resuming gives the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consilience.methods import METHODS, build_method
from consilience.methods.task_kinds import kinds_of
from consilience.simulation.engines import choose
from consilience.simulation.result import Result
from consilience.simulation.simulate import simulate

DATA: dict[str, dict[str, Any]] = {"digit-pairs": {"train": 120, "test": 40}, "diabetes": {"train": 110, "test": 40}}
METHOD_NAMES = [name for name in METHODS if "regression" in kinds_of(build_method(name))]
CASES = [
    *METHOD_NAMES,
    "representation-sharing:discriminator=exponential:up=2:down=3",
    "representation-sharing:discriminator=exponential:means=seen",
    "fedproto:weighting=equal:dimensions=0.3",
    "federated-distillation:encoding=float16",
]
ABSENT: dict[str, Any] = {"partition": "dirichlet(0.5)", "participation": 0.5, "offline": 0.3, "seeds": 2}

pytestmark = pytest.mark.usefixtures("one_thread")


def run(data: str, method: str, engine: str, precision: str = "float64", **others: Any) -> Result:
    small: dict[str, Any] = {"learners": 4, "rounds": 3, "batch_size": 16, "workers": 0, "lr": 0.01}
    how: dict[str, Any] = {"engine": engine, "precision": precision}
    return simulate(data=data, method=method, **how, **small, **DATA[data], **others)


def assert_same(one: Result, other: Result, tolerance: float) -> None:
    for mine, theirs in zip(one.history.records, other.history.records, strict=True):
        for key in mine:
            if not key.startswith(("seconds", "wall")):
                np.testing.assert_allclose(mine[key], theirs[key], rtol=tolerance, atol=tolerance, err_msg=key)
    for learner in range(one.history.learners):
        pairs = zip(one.model(learner).parameters(), other.model(learner).parameters(), strict=True)
        for a, b in pairs:
            np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=tolerance, atol=tolerance)


def test_the_methods_that_serve_all_kinds() -> None:
    assert set(METHOD_NAMES) == {
        *("centralized", "consilience", "federated-distillation", "fedavg", "fedavg-1bit", "fedprox", "fedproto"),
        *("independent", "self-distillation"),
    }


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("method", CASES)
def test_loop_equals_stack(data: str, method: str) -> None:
    loop, stack = (run(data, method, engine) for engine in ("loop", "stack"))
    assert_same(loop, stack, 1e-9)
    assert np.isfinite(loop.accuracy).all() and np.isfinite(loop.history.last("accuracy_own")).all()


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("method", ["consilience", "federated-distillation"])
def test_loop_equals_stack_with_absences_skewed_data_and_held_out_samples(data: str, method: str) -> None:
    more = {**ABSENT, "validation": 0.2, "shift": "noise(0.5)"}
    loop, stack = (run(data, method, engine, **more) for engine in ("loop", "stack"))
    assert_same(loop, stack, 1e-9)
    assert np.isfinite(loop.history.last("accuracy_validation")).any()


@pytest.mark.parametrize("data", DATA)
def test_loop_equals_branches(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "_BRANCHING", ("cpu", "cuda"))
    loop, branches = (run(data, "consilience", engine, **ABSENT) for engine in ("loop", "branches"))
    assert branches.engine == "branches"
    assert_same(loop, branches, 1e-9)


@pytest.mark.parametrize("data", DATA)
def test_both_engines_run_in_float32(data: str) -> None:
    found = [run(data, "consilience", engine, "float32").accuracy for engine in ("loop", "stack")]
    np.testing.assert_allclose(found[0], found[1], atol=2.0)


@pytest.mark.parametrize("engine", ["loop", "stack"])
@pytest.mark.parametrize("data", DATA)
def test_stop_and_resume_give_the_same_bits(data: str, engine: str, tmp_path: Path) -> None:
    def stop(method: str, round_: int, rounds: int, history: Any) -> None:
        if round_ == 2:
            raise KeyboardInterrupt

    whole = run(data, "consilience", engine)
    with pytest.raises(KeyboardInterrupt):
        run(data, "consilience", engine, out=tmp_path / "run", on_round=stop)
    resumed = simulate(resume=tmp_path / "run")
    assert resumed.finished and resumed.metric == whole.metric
    assert_same(whole, resumed, 0.0)
