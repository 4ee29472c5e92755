"""The validation split: what learners hold out, and the models after the best round."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from consilience import Result, load, simulate
from consilience.errors import ConfigurationError
from consilience.simulation.setup.assign_data import _check_held_out, hold_out

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
            own, expected = (each.model(learner, seed, "best", "own").state_dict() for each in (result, whole))
            assert all(torch.equal(own[name], tensor) for name, tensor in expected.items())
            last = result.model(learner, seed, answer="own").state_dict()
            assert not any(torch.equal(own[name], last[name]) for name in ("model.classifier.weight", "head.weight"))
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


SMALL: dict[str, Any] = {"learners": 3, "rounds": 1, "train": 90, "test": 30, "validation": 0.3, "workers": 0}
EVERY: dict[str, dict[str, Any]] = {
    "two-stage": {"method": "two-stage"},
    "federated-distillation": {"method": "federated-distillation"},
    "pooled": {"method": "centralized"},
    "two answers": {"method": "fedavg:objective=calibrated:own_head=true", "partition": "dirichlet(0.3)"},
    "groups": {"method": "fedproto", "groups": {"few": {"learners": "0", "samples": 10, "lr": 0.02}}},
    "shifts": {"method": "fedavg", "shift": "rotate(45)"},
    "participation": {"method": "fedavg", "participation": 0.5, "rounds": 2},
    "without labels": {"method": "independent:objective=simclr", "probe": "knn"},
    "a public set": {"method": "flesd:distill_epochs=1", "probe": "knn", "public": 20},
}


@pytest.mark.parametrize("which", EVERY)
def test_every_kind_of_method_and_both_engines_validate(which: str) -> None:
    loop, stack = (simulate(engine=engine, **SMALL | EVERY[which]) for engine in ("loop", "stack"))
    found = loop.history["accuracy_validation"][-1]  # (seeds, learners)
    known = ~np.isnan(found)
    assert known[:, 1:].all() and known[:, 0].all() == (which != "a public set"), "all but the host of a public set"
    assert ((found[known] >= 0) & (found[known] <= 100)).all()
    np.testing.assert_allclose(found, stack.history["accuracy_validation"][-1])
    assert loop.summary()["accuracy_validation"]["mean"] is not None and "validation" in loop.table()


def test_a_probe_is_not_trained_on_held_out_samples() -> None:
    """Its nearest neighbors would be the samples themselves."""
    settings = SMALL | {"method": "independent:objective=simclr", "probe": "knn", "learners": 2}
    data = load("digits", train=90, test=30)
    shuffled = replace(data, targets=np.random.default_rng(0).permutation(data.targets))  # nothing can be learned
    assert simulate(data=shuffled, **settings).history["accuracy_validation"].mean() < 50


def test_validation_needs_something_that_predicts() -> None:
    with pytest.raises(ConfigurationError, match=r"validation is 0\.3, but not all .* and probe is 'none', so nothing"):
        simulate(**SMALL | {"method": "flesd", "probe": "none"})


def test_a_learner_with_one_sample_holds_out_none_and_is_named(caplog: pytest.LogCaptureFixture) -> None:
    parts = [np.arange(20), np.arange(20, 21), np.arange(21, 40)]
    _, held = hold_out([parts], [0], 0.9, None)
    assert [len(each) for each in held[0]] == [18, 0, 17]
    with caplog.at_level("WARNING", logger="consilience"):
        _check_held_out(held, 0.9, None)
    assert "1 of 3 learners have one sample and hold out none, learner 1 is the first" in caplog.text
    _, none = hold_out([[np.arange(1), np.arange(1, 2)]], [0], 0.5, None)
    with pytest.raises(ConfigurationError, match=r"validation is 0\.5, but every learner has one sample"):
        _check_held_out(none, 0.5, None)


def test_too_few_samples_beside_the_held_out_ones_are_refused_with_both_numbers() -> None:
    settings = SMALL | {"method": "independent:objective=simclr", "learners": 15, "train": 30, "validation": 0.5}
    with pytest.raises(ConfigurationError, match="one sample to train on, with 1 held out for validation, and"):
        simulate(**settings)
