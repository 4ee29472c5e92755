"""The validation split: what learners hold out, and the models after the best round."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from consilience import Result, load, simulate
from consilience.errors import ConfigurationError
from consilience.simulation.setup.assign_data import hold_out

# The learning rate grows until training fails, so that the best round is not the last.
FAILING: dict[str, Any] = {
    "learners": 3,
    "rounds": 6,
    "train": 150,
    "test": 100,
    "seeds": 2,
    "partition": "dirichlet(0.5)",
    "validation": 0.3,
    "lr": "ramp(0.005, 1.5, 6)",
    "workers": 0,
}


def test_hold_out_divides_each_learner_s_samples_and_keeps_at_least_one() -> None:
    parts = [[np.arange(10), np.arange(10, 12), np.array([12])], [np.arange(10), np.arange(10, 12), np.array([12])]]
    trained, held = hold_out(parts, [0, 1], 0.2, None)
    for whole, kept, out in zip(parts, trained, held, strict=True):
        assert [len(each) for each in out] == [2, 1, 0]
        for mine, one, other in zip(whole, kept, out, strict=True):
            np.testing.assert_array_equal(np.sort(np.concatenate([one, other])), mine)
    assert held[0][0].tolist() != held[1][0].tolist()  # each seed has its own
    again, _ = hold_out(parts, [0, 1], 0.2, None)
    assert [each.tolist() for mine in again for each in mine] == [each.tolist() for mine in trained for each in mine]
    unchanged, none = hold_out(parts, [0, 1], 0.0, None)
    assert all(np.array_equal(a, b) for a, b in zip(unchanged[0], parts[0], strict=True)) and not none[0][0].size
    _, held = hold_out(parts, [0, 1], 0.2, host=0)  # a public set stays whole
    assert [len(each) for each in held[0]] == [0, 1, 0]


def test_the_best_models_are_those_of_the_best_round_and_resuming_gives_the_same(tmp_path: Path) -> None:
    whole = simulate(engine="loop", **FAILING)
    validation = whole.history["accuracy_validation"].mean(-1)  # (rounds, seeds)
    best = validation.argmax(0) + 1
    assert (best < 6).all() and whole.summary()["best_rounds"] == best.tolist()

    def stop(method: str, round_: int, rounds: int, history: object) -> None:
        if round_ == 4:
            os.kill(os.getpid(), signal.SIGINT)

    assert not simulate(engine="loop", out=tmp_path, on_round=stop, **FAILING).finished
    resumed = simulate(resume=tmp_path)
    assert len(list(tmp_path.glob("best-*.safetensors"))) == 1

    data = load("digits", train=150, test=100)
    inputs, targets = torch.from_numpy(data.test_inputs), data.test_targets
    for result in (whole, resumed, Result.load(tmp_path)):
        np.testing.assert_allclose(result.history["accuracy_validation"], whole.history["accuracy_validation"])
        for seed, learner in result.models:
            accuracy = 100 * np.mean(result.model(learner, seed, "best")(inputs).argmax(1).numpy() == targets)
            assert accuracy == pytest.approx(result.history["accuracy"][best[seed] - 1, seed, learner])
        assert (result.history["accuracy"][best - 1, [0, 1]] != result.accuracy).all()
    table = " ".join(whole.table().split())
    assert "validation" in table and f"{whole.summary()['accuracy_validation']['mean']:.1f}" in table
    dropped = simulate(keep_models=False, **(FAILING | {"rounds": 1, "lr": 0.01}))
    with pytest.raises(ConfigurationError, match="has no models: it was run with keep_models=False"):
        dropped.model(round="best")
    (folder,) = resumed.export(tmp_path / "out", learner=0, round="best")
    assert f'"round": {best[0]},' in (folder / "model.json").read_text()


def test_loop_and_stack_validate_alike() -> None:
    mild = FAILING | {"lr": 0.01, "rounds": 2, "precision": "float64"}
    loop, stack = (simulate(engine=engine, **mild) for engine in ("loop", "stack"))
    np.testing.assert_array_equal(loop.history["accuracy_validation"], stack.history["accuracy_validation"])
    one, other = (result.model(2, 1, "best").state_dict() for result in (loop, stack))
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=1e-9, atol=1e-9)


def test_held_out_samples_are_not_trained_on() -> None:
    small: dict[str, Any] = {"method": "independent", "learners": 2, "rounds": 3, "train": 60, "test": 50, "epochs": 40}
    result = simulate(validation=0.5, workers=0, **small)
    assert (result.history["accuracy_train"][-1] > 99).all()
    assert (result.history["accuracy_validation"][-1] < 99).all()
    assert "accuracy_validation" not in simulate(workers=0, **small).history.records[0]


def test_validation_needs_labels() -> None:
    with pytest.raises(ConfigurationError, match=r"validation is 0\.1, but not all learners .* learn from labels"):
        simulate(method="flesd", validation=0.1, learners=3, rounds=1, train=60, test=20)
