"""Models of the learners' own, and choosing by held-out samples how much of the common answer enters the own one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from consilience import Dataset, Result, compare, load, load_model, simulate
from consilience.errors import ConfigurationError
from consilience.exchanges import Prototypes, Weights
from consilience.exchanges.base import Contribution, Received, State, View
from consilience.method import Method, Role
from consilience.objectives import TwoAnswers

SETTINGS: dict[str, Any] = {
    "method": "consilience",
    "learners": 3,
    "rounds": 3,
    "partition": "dirichlet(0.3)",
    "train": 150,
    "test": 60,
    "validation": 0.2,
    "workers": 0,
    "eval_every": 3,
}
INPUTS = torch.from_numpy(load("digits", train=150, test=60).test_inputs)


class Normalized(nn.Module):
    """A network with running statistics, a counter of batches and a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 10)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 1, 8, 8) -> (n, 10)."""
        logits: Tensor = self.last(torch.tanh(self.norm(self.conv(x))).mean((2, 3)))
        return logits


def run(**settings: Any) -> Result:
    return simulate(**SETTINGS | settings)


@pytest.mark.parametrize("model", ["mlp", Normalized])
def test_loop_and_stack_agree(model: Any) -> None:
    loop, stack = (run(engine=engine, model=model, precision="float64", seeds=2) for engine in ("loop", "stack"))
    for key in ("accuracy", "accuracy_own", "accuracy_validation", "loss.cross_entropy"):
        np.testing.assert_allclose(loop.history[key][-1], stack.history[key][-1], rtol=1e-9)
    for learner in range(3):
        mine, theirs = (each.model(learner, answer="own").state_dict() for each in (loop, stack))
        assert "own_model.classifier.weight" in mine
        assert mine["answer_weights"].sum().item() == pytest.approx(1)
        assert mine["answer_weights"][2].item() == pytest.approx(loop.history["own_model_weight"][-1, 0, learner])
        for name, tensor in mine.items():
            torch.testing.assert_close(theirs[name], tensor, rtol=1e-9, atol=1e-9)


def test_the_same_seed_gives_the_same_bits_in_any_number_of_processes() -> None:
    first, second = run(seeds=2), run(seeds=2, workers=2)
    for key in ("accuracy", "accuracy_own", "accuracy_validation"):
        assert np.array_equal(first.history[key][-1], second.history[key][-1])


def test_resuming_gives_the_same_bits(tmp_path: Path) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    whole = run(eval_every=1)
    with pytest.raises(KeyboardInterrupt):
        run(out=tmp_path / "run", eval_every=1, on_round=stop)
    resumed = simulate(resume=tmp_path / "run")
    for learner in range(3):
        mine, theirs = (each.model(learner, answer="own").state_dict() for each in (whole, resumed))
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert np.array_equal(whole.history["accuracy_own"], resumed.history["accuracy_own"])


def test_own_models_change_neither_what_is_sent_nor_the_common_answer() -> None:
    with_model, without = run(), run(method="consilience:own_model=false")
    for key in ("accuracy", "bytes.up", "bytes.down"):
        assert np.array_equal(with_model.history[key][-1], without.history[key][-1])
    states = [each.model(0).state_dict() for each in (with_model, without)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert "own_model.classifier.weight" not in without.model(0, answer="own").state_dict()
    assert len(without.model(0, answer="own").state_dict()["answer_weights"]) == 2  # without and with the head


@dataclass(frozen=True)
class Curious(Prototypes):
    """Looks for what only the objective may see."""

    def contribute(self, state: State, view: View, received: Received) -> Contribution:
        assert view.own_model is None and not view.objective_state
        return super().contribute(state, view, received)


def test_no_exchange_sees_the_own_model() -> None:
    objective = TwoAnswers(own_head=True, own_model=True)
    method = Method("curious", {"learner": Role(objective, (Curious(), Weights()))})
    settings = {key: SETTINGS[key] for key in SETTINGS if key != "method"}
    result = simulate(method=method, **settings)
    assert np.isfinite(result.history["own_model_weight"][-1]).all()


def test_an_own_model_that_nothing_could_choose_is_named(caplog: pytest.LogCaptureFixture) -> None:
    run(method="fedavg:own_model=true", validation=0)
    assert "own_model is true and validation is 0: without held-out samples to choose by, no own model" in caplog.text
    caplog.clear()
    run(validation=0)  # the default method's own_model is nobody's explicit wish
    assert "own_model" not in caplog.text


def test_without_held_out_samples_there_is_no_own_model() -> None:
    names = run(validation=0).model(0, answer="own").state_dict().keys()
    assert not any(name.startswith(("own_model", "answer_weights")) for name in names)


@pytest.mark.parametrize("place", ["memory", "folder"])
def test_plain_torch_gives_the_own_accuracy_of_the_run(place: str, tmp_path: Path) -> None:
    result = run(model=Normalized, out=tmp_path / "run" if place == "folder" else None)
    result.export(tmp_path / "out")
    for learner in range(3):
        folder = tmp_path / "out" / f"learner-{learner}"
        private = load_file(folder / "own_answer.safetensors")
        common, own = Normalized().eval(), Normalized().eval()
        common.load_state_dict(load_file(folder / "model.safetensors"))
        tensors = {name.removeprefix("own_model."): t for name, t in private.items() if name.startswith("own_model.")}
        own.load_state_dict(tensors)
        features = torch.tanh(common.norm(common.conv(INPUTS))).mean((2, 3))
        shares = common.last(features) + private["log_shares"]
        corrected = shares + features @ private["head.weight"].T + private["head.bias"]
        weights = private["answer_weights"]
        answers = [each.softmax(1) for each in (shares, corrected, own(INPUTS))]
        mean = sum(weight * answer for weight, answer in zip(weights, answers, strict=True))
        assert isinstance(mean, Tensor)
        for module in (load_model(folder, Normalized, answer="own"), result.model(learner, answer="own")):
            torch.testing.assert_close(module(INPUTS).exp(), mean)
        assert not torch.allclose(mean, answers[0], atol=1e-3)


def test_a_learner_whose_labels_mean_something_else_stays_with_its_own_model() -> None:
    digits = load("digits", train=600, test=200)
    owners = np.arange(600) % 3
    targets = np.where(owners == 2, (digits.targets + 3) % 10, digits.targets)  # the third names all classes otherwise
    data: Dataset = replace(digits, targets=targets, owners=owners, owner_names=("a", "b", "c"))
    settings: dict[str, Any] = {"data": data, "partition": "owners", "learners": 3, "rounds": 40, "eval_every": 40}
    result = simulate(method="fedavg:own_model=true", validation=0.2, **settings)
    weights = [result.model(learner, answer="own").state_dict()["answer_weights"] for learner in range(3)]
    assert weights[2][1] > 0.98  # its own model
    assert all(weight[0] > 0.02 for weight in weights[:2])  # the common answer is of use to the two that agree


def test_compare_counts_learners_with_the_same_samples_held_out() -> None:
    made = compare(
        methods=["independent", "consilience"],
        **{key: SETTINGS[key] for key in SETTINGS if key not in ("method", "rounds")},
        rounds=6,
    )
    summary = made.summaries[-1]
    assert summary["helped"] + summary["harmed"] <= summary["gain_own"]["learners"] == 3
    assert "control" in summary


def test_an_own_model_needs_labels() -> None:
    with pytest.raises(
        ConfigurationError, match="own_model trains a classifier, and objective 'simclr' learns without"
    ):
        simulate(method="fedavg:objective=simclr:own_model=true", rounds=1)
