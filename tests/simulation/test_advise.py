"""`advise`: nothing of the test part is seen, folds, candidates under a budget, real trials, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from consilience import Advice, Dataset, advise, load
from consilience.config.config import Config, make_config
from consilience.errors import ConfigurationError, ConsilienceError
from consilience.methods import build_method
from consilience.simulation.advice.candidates import chooses
from consilience.simulation.advice.folds import draw_folds, without_tests
from consilience.simulation.advice.trial import Trial, plan_trial
from consilience.simulation.advise import ADVICE, TRIAL

SMALL: dict[str, Any] = {"rounds": 2, "epochs": 1, "seeds": 3, "workers": 0}

pytestmark = pytest.mark.usefixtures("one_thread")


def digits(samples: int = 60) -> Dataset:
    return load("digits", train=samples)


def trial(budget: int | None = None, models: list[Any] | None = None, **settings: Any) -> Trial:
    config = make_config({**SMALL, "learners": 2, "model": "mlp", **settings})
    return plan_trial(config, "consilience", digits(), models or ["mlp"], budget)


# --- what is held out


def test_every_sample_is_held_out_once_and_not_trained_on_then() -> None:
    parts = [np.arange(0, 14, 2), np.arange(1, 14, 2)]
    folds = draw_folds(parts, 14, repetitions=3, seed=0)
    for who, part in enumerate(parts):
        mine = [held[who] for held in folds.held]
        assert [len(each) for each in mine] == [3, 2, 2]
        assert sorted(np.concatenate(mine)) == part.tolist()
    for held, kept in zip(folds.held, folds.kept, strict=True):
        assert np.flatnonzero(~kept).tolist() == sorted(np.concatenate(held))
    again = draw_folds(parts, 14, repetitions=3, seed=0)
    other = draw_folds(parts, 14, repetitions=3, seed=1)
    assert (again.kept == folds.kept).all() and (other.kept != folds.kept).any()
    assert folds.samples == 14


def test_learners_with_fewer_samples_than_seeds_take_turns() -> None:
    """Five samples each, eight seeds: with every seed somebody holds a sample out, or there is nothing to measure."""
    parts = [np.arange(5), np.arange(5, 10)]
    folds = draw_folds(parts, 10, repetitions=8, seed=0)
    assert [[len(mine) for mine in held] for held in folds.held] == [
        [1, 1], [1, 1], [1, 0], [1, 0], [1, 0], [0, 1], [0, 1], [0, 1],
    ]  # fmt: skip
    assert folds.samples == 10
    with pytest.raises(ConfigurationError, match=r"seeds is 12, .* use fewer seeds, or give learners more samples"):
        draw_folds(parts, 10, repetitions=12, seed=0)


def test_learners_of_the_trial_do_not_have_what_they_hold_out() -> None:
    planned = trial()
    for candidate in planned.candidates.all:
        data = candidate.setup.data
        for held, parts in zip(planned.folds.held, data.parts, strict=True):
            assert not np.isin(np.concatenate(held), np.concatenate(parts)).any(), candidate.name
        if data.validation is not None:  # nor to choose an answer by
            chosen_by = [np.concatenate(mine) for mine in data.validation]
            assert not any(
                np.isin(np.concatenate(h), c).any() for h, c in zip(planned.folds.held, chosen_by, strict=True)
            )


def test_only_methods_that_choose_hold_out_more() -> None:
    assert chooses(build_method("consilience")) and not chooses(build_method("fedavg"))
    validated = {each.name for each in trial().candidates.all if each.setup.data.validation is not None}
    assert validated == {"consilience"}


def test_the_test_part_is_gone_before_anything_is_trained() -> None:
    data = digits()
    left = without_tests(data)
    assert len(left.test_inputs) == 1 and (left.test_inputs[0] == data.inputs[0]).all()
    assert all(each.setup.data.train.test_inputs.shape == (1, 1, 8, 8) for each in trial().candidates.all)


def test_other_test_samples_change_nothing() -> None:
    """The same training samples with a test part of zeros and wrong labels: the same numbers."""
    data = digits()
    other = Dataset(
        **{**vars(data), "test_inputs": np.zeros_like(data.test_inputs), "test_targets": 9 - data.test_targets}
    )
    first, second = (advise(data=each, learners=2, **SMALL).to_dict() for each in (data, other))
    assert first == second


# --- which methods


def names(planned: Trial) -> list[str]:
    return [each.name for each in planned.candidates.all]


def test_two_alternatives_and_three_ways_to_learn_alone() -> None:
    assert names(trial()) == [
        "independent",
        "independent for 2 times as long",
        "representation-sharing with itself only",
        "independent:batch_order=1",
        "consilience",
        "fedavg",
        "representation-sharing",
    ]
    rounds = [each.config.training.rounds for each in trial().candidates.all]
    assert rounds == [2, 4, 2, 2, 2, 2, 2]


def test_what_does_not_fit_the_budget_is_not_run() -> None:
    planned = trial(budget=10_000)
    together = {each.name: each.bytes for each in planned.candidates.together}
    assert together == {"consilience": 8055, "fedavg-1bit": 1948, "representation-sharing": 5792}
    assert [(left.method, left.bytes) for left in planned.candidates.left_out] == [("fedavg", 53_344)]
    tight = trial(budget=1_200)
    assert [each.name for each in tight.candidates.together] == ["federated-distillation"]
    assert [left.method for left in tight.candidates.left_out] == ["consilience", "fedavg", "representation-sharing"]


def test_a_budget_that_nothing_fits_names_the_smallest() -> None:
    with pytest.raises(ConfigurationError, match=r"bytes_per_round is 100, .* federated-distillation:encoding=float16, "
                       r"sends and receives (\d+) bytes per learner and round; allow \1 or more"):  # fmt: skip
        trial(budget=100)


def test_different_models_share_what_fits_them() -> None:
    planned = trial(model="mlp,lenet5", models=["mlp", "lenet5"])
    assert [each.name for each in planned.candidates.together] == ["federated-distillation"]
    assert [(left.method, left.bytes) for left in planned.candidates.left_out][:2] == [
        ("consilience", None),
        ("fedavg", None),
    ]
    assert "learner" in planned.candidates.left_out[0].reason


# --- trials


def test_regressions_and_several_labels_have_their_own_score() -> None:
    """A regression has one answer with the default method: nothing is held out for choosing, and the score is R²."""
    numbers = advise(data="diabetes", train=60, learners=2, **SMALL)
    assert numbers.size.metric == "r2" and numbers.answers["independent"].own[0][0].dtype == np.float64
    assert "representation-sharing does not fit this task or these models and was not run" in numbers.sentences[2]
    labels = advise(data="digit-pairs", train=60, learners=2, **SMALL)
    assert labels.size.metric == "f1" and labels.answers["independent"].own[0][0].shape == (10, 2)
    assert all(0 <= each.mean <= 100 for each in labels.answers.values())
    assert not chooses(build_method("consilience"), "regression")


def test_inputs_of_several_arrays_and_streamed_ones_are_read_as_the_model_wants_them() -> None:
    generator = np.random.default_rng(0)
    inputs = {"left": generator.normal(size=(40, 3)), "right": generator.normal(size=(40, 2))}
    labels = np.arange(40) % 2

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.fc = nn.Linear(5, 4), nn.Linear(4, 2)

        def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            """(n, 3), (n, 2) -> (n, 2)."""
            logits: torch.Tensor = self.fc(torch.tanh(self.hidden(torch.cat([left, right], 1))))
            return logits

    fields = advise(data=Dataset.from_arrays("two", inputs, labels), model=Two, learners=2, **SMALL)
    assert len(fields.sentences) == 3
    samples = torch.utils.data.TensorDataset(torch.from_numpy(inputs["left"]).float(), torch.from_numpy(labels))
    memory, streamed = (
        advise(data=data, model="mlp", learners=2, engine="loop", **SMALL).to_dict()
        for data in (
            Dataset.from_arrays("same", inputs["left"].astype("f4"), labels, inputs["left"], labels, scaling="none"),
            Dataset.streamed(samples, samples, name="same"),
        )
    )
    assert memory == streamed


def relabeled(who: list[int], samples: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """One data set per learner, of the same digits; some learners number the classes in their own way."""
    data, generator = load("digits"), np.random.default_rng(7)
    parts = generator.permutation(len(data.targets))[: 4 * samples].reshape(4, samples)
    orders = [generator.permutation(10) if learner in who else np.arange(10) for learner in range(4)]
    return [(data.inputs[part], order[data.targets[part]]) for part, order in zip(parts, orders, strict=True)]


def test_learners_with_the_same_task_are_advised_to_work_together(tmp_path: Path) -> None:
    done: list[tuple[str, int, int]] = []
    found = advise(
        data=digits(500),
        learners=5,
        rounds=15,
        seeds=5,
        workers=0,
        out=tmp_path / "out",
        on_progress=lambda *progress: done.append(progress),
    )
    assert found.verdict == "yes" and found.gain.mean > 3 and found.gain.low is not None and found.gain.low > 0
    assert len(found.helped) >= 2 and not found.harmed
    assert found.size.samples == 500 and sum(each.samples for each in found.learners) == 500
    assert done[-1] == ("representation-sharing", 8 * 15, 8 * 15)
    saved = json.loads((tmp_path / "out" / ADVICE).read_text(encoding="utf-8"))
    assert saved["verdict"] == "yes" and saved["sentences"] == list(found.sentences)
    assert "seeds = 5" in (tmp_path / "out" / TRIAL).read_text(encoding="utf-8")
    with pytest.raises(ConfigurationError, match="choose another folder"):
        advise(data=digits(), out=tmp_path / "out")


def test_learners_with_unrelated_labels_are_not() -> None:
    found = advise(data=relabeled([0, 1, 2, 3], 100), rounds=15, seeds=4, workers=0)
    assert found.verdict != "yes" and not found.for_some
    assert found.answers["fedavg"].mean < found.answers["independent"].mean - 20
    assert [each.name for each in found.learners] == ["0", "1", "2", "3"]


def test_same_seed_same_numbers() -> None:
    first, second, other = (advise(data=digits(), learners=2, seed=seed, **SMALL).to_dict() for seed in (0, 0, 5))
    assert first == second != other


def test_a_learner_is_the_same_one_with_every_seed() -> None:
    planned = trial(partition="dirichlet(0.5)", seeds=4)
    parts = [np.sort(np.concatenate([held[who] for held in planned.folds.held])) for who in range(2)]
    for part, mine in zip(planned.split.parts, parts, strict=True):
        assert part.tolist() == mine.tolist()


def test_settings_of_a_trial_are_used_where_given() -> None:
    config = Config.model_validate({})
    usual = advise(config, data=digits(), learners=2, rounds=1, seeds=3, workers=0)
    assert (usual.size.rounds, usual.size.seeds) == (1, 3)
    made = make_config({"rounds": 3, "seeds": 3, "learners": 2, "epochs": 1, "workers": 0})
    assert advise(made, data=digits()).size.rounds == 3


def test_owners_are_named() -> None:
    data = digits()
    owned = Dataset(**{**vars(data), "owners": np.arange(60) % 2, "owner_names": ("north", "south")})
    found = advise(data=owned, partition="owners", **SMALL)
    assert found.size.learners == ("north", "south")


def test_shifted_data_and_private_uploads_run() -> None:
    found = advise(data=digits(), learners=2, shift="swap(1)+noise(0.5)", private="upload", epsilon=8, **SMALL)
    assert isinstance(found, Advice) and found.tried


# --- what is refused


class Convolution(nn.Module):
    """Without a linear classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 10, 8)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.conv(inputs)
        return outputs.flatten(1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"learners": 1}, r"learners is 1; working together needs two or more: give --learners"),
        (
            {"learners": 20},
            r"learner \d+ has 3 training samples; a trial .* needs 5 or more of each learner: give it more",
        ),
        ({"seeds": 2}, r"seeds is 2; a trial holds out .* needs 3 or more"),
        ({"model": Convolution}, r"let it end in one, such as nn.Sequential"),
        ({"method": "centralized"}, r"'centralized' does not let learners work together, .* name one that does"),
        ({"method": "self-distillation"}, r"does not let learners work together"),
        (
            {"method": "flesd"},
            r"'flesd' learns without labels .* name a method that learns from labels, .* or compare it",
        ),
        ({"bytes_per_round": 0}, r"bytes_per_round is 0; it must be a whole number, 1 or more"),
        ({"bytes_per_round": 10}, r"allow \d+ or more, or choose a smaller model"),
        ({"worth": -1.0}, r"worth is -1.0; it must be a finite number, 0 or more"),
        (
            {"time": 1e-6},
            r"time is 1e-06 minutes, and 5 rounds of the trial take about .*; allow more, or make it smaller",
        ),
        ({"method": "fedavgg"}, r"Did you mean 'fedavg'"),
        ({"data": (np.zeros((20, 3)), None)}, r"arrays"),
    ],
)
def test_what_cannot_work_is_refused_with_a_way_out(given: dict[str, Any], said: str) -> None:
    settings = {"data": digits(), "learners": 2, **SMALL, **given}
    with pytest.raises(ConsilienceError, match=said):
        advise(**settings)


def test_epochs_in_all_do_not_stand_in_the_way_of_fewer_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trial, "seconds_per_round", lambda self: 6.0)
    found = advise(data=digits(), learners=2, rounds=8, total_epochs=8, seeds=3, workers=0, time=0.6)
    assert found.size.rounds == 6  # 8 epochs are no multiple of 6 rounds


def test_the_method_asked_about_is_the_configurations(tmp_path: Path) -> None:
    config = make_config({**SMALL, "learners": 2, "method": {"name": "fedprox"}})
    found = advise(config, data=digits(), out=tmp_path / "out")
    assert found.tried[0] == "fedprox" and 'name = "fedprox"' in (tmp_path / "out" / TRIAL).read_text(encoding="utf-8")
    assert advise(config, data=digits(), method="consilience").tried[0] == "consilience"


def test_less_time_means_fewer_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trial, "seconds_per_round", lambda self: 6.0)
    found = advise(data=digits(), learners=2, rounds=8, epochs=1, seeds=3, workers=0, time=0.6)
    assert found.size.rounds == 6 and "the trial had 6 rounds" in found.sentences[2]
