"""Probes: hand-computed answers, comparison with other implementations, and invalid inputs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor, nn

from consilience.data import load
from consilience.errors import ConfigurationError, TrainingError
from consilience.evaluation import LinearProbeSettings, knn_probe, linear_probe, probes
from consilience.randomness import uniform

Split = tuple[Tensor, Tensor, Tensor, Tensor]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def digits() -> Split:
    """Training features and targets, test features and targets."""
    data = load("digits")
    inputs, test = (torch.from_numpy(x).flatten(1) for x in (data.inputs, data.test_inputs))
    return inputs, torch.from_numpy(data.targets), test, torch.from_numpy(data.test_targets)


def blobs(samples: int, spread: float, width: int = 12, classes: int = 4) -> tuple[Tensor, Tensor]:
    """Samples of classes, each around its own point."""
    generator = torch.Generator().manual_seed(samples)
    targets = torch.arange(samples) % classes
    middle = 2 * torch.eye(width)[:classes]
    return middle[targets] + spread * torch.randn(samples, width, generator=generator), targets


def accuracy_percent(predicted: Tensor, targets: Tensor) -> float:
    return 100 * (predicted == targets).double().mean().item()


def linear_probe_by_autograd(
    features: Tensor, targets: Tensor, test: Tensor, classes: int, seed: int, epochs: int, batch: int, **how: Any
) -> Tensor:
    """The test logits of a linear probe trained with torch's autograd and optimizer."""
    drops = how.pop("drops")
    linear = nn.Linear(features.shape[1], classes)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    optimizer = torch.optim.SGD(linear.parameters(), **how)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, list(drops), gamma=0.1)
    for epoch in range(epochs):
        order = torch.from_numpy(uniform("probe", seed, epoch, np.arange(len(features))).argsort())
        for chosen in torch.split(order, batch):
            optimizer.zero_grad()
            F.cross_entropy(linear(features[chosen]), targets[chosen]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        schedule.step()
    logits: Tensor = linear(test).detach()
    return logits


# --- linear


def test_linear_probe_step_by_hand() -> None:
    """From zero, a batch's step is lr times the mean of x (one-hot - 1 / classes)."""
    features, targets = torch.tensor([[4.0], [2.0]]), torch.tensor([0, 1])
    # Weights (4 * 1/2 - 2 * 1/2) / 2 = 1/2 for class 0 and -1/2 for class 1; both biases stay 0.
    tests = torch.tensor([[1.0], [-1.0], [0.0]])
    assert linear_probe(features, targets, tests, 2, seed=0, settings=LinearProbeSettings(epochs=1)).tolist() == [
        0,
        1,
        0,
    ]


def test_linear_probe_of_zero_features_predicts_by_bias() -> None:
    zero, targets = torch.zeros(5, 3), torch.tensor([2, 1, 2, 0, 2])
    assert linear_probe(zero, targets, torch.zeros(4, 3), 3, seed=0).tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
@pytest.mark.parametrize("batch", [16, 64, 1000])
def test_linear_probe_equals_autograd_training(batch: int, weight_decay: float) -> None:
    features, targets = blobs(200, spread=1.0)
    tests, truth = blobs(500, spread=1.0)
    how: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "weight_decay": weight_decay, "drops": (3, 5)}
    logits = linear_probe_by_autograd(features, targets, tests, 4, seed=3, epochs=6, batch=batch, **how)
    predicted = linear_probe(
        features, targets, tests, 4, seed=3, settings=LinearProbeSettings(epochs=6, batch_size=batch, **how)
    )
    top = logits.topk(2).values
    clear = top[:, 0] - top[:, 1] > 1e-3
    assert clear.sum() > 490 and torch.equal(predicted[clear], logits.argmax(1)[clear])
    assert 60 < accuracy_percent(predicted, truth) < 99.5  # hard enough to distinguish classifiers


def test_learning_rate_drops_at_the_given_epochs() -> None:
    """Equals a schedule of torch, and differs from drops at other epochs."""
    features, targets = blobs(60, spread=2.0)
    tests, _ = blobs(2000, spread=2.0)
    how: dict[str, Any] = {"lr": 1.0, "momentum": 0.0, "weight_decay": 0.0}
    for drops in ((), (1,), (1, 2)):
        logits = linear_probe_by_autograd(features, targets, tests, 4, seed=0, epochs=3, batch=8, drops=drops, **how)
        predicted = linear_probe(
            features,
            targets,
            tests,
            4,
            seed=0,
            settings=LinearProbeSettings(epochs=3, batch_size=8, drops=drops, **how),
        )
        assert (predicted != logits.argmax(1)).sum() <= 2
        other = linear_probe(
            features, targets, tests, 4, seed=0, settings=LinearProbeSettings(epochs=3, batch_size=8, drops=(2,), **how)
        )
        assert (other != logits.argmax(1)).sum() > 20


def test_linear_probe_is_as_accurate_as_logistic_regression(digits: Split) -> None:
    features, targets, tests, truth = digits
    other = LogisticRegression(max_iter=2000).fit(features.numpy(), targets.numpy())
    expected = 100 * other.score(tests.numpy(), truth.numpy())
    assert expected > 85
    assert accuracy_percent(linear_probe(features, targets, tests, 10, seed=0), truth) == pytest.approx(expected, abs=2)


def test_linear_probe_depends_only_on_the_given_seed() -> None:
    features, targets = blobs(100, spread=3.0)
    tests, _ = blobs(1000, spread=3.0)
    torch.manual_seed(1)
    one = linear_probe(features, targets, tests, 4, seed=1, settings=LinearProbeSettings(batch_size=8))
    torch.manual_seed(2)
    assert torch.equal(
        one, linear_probe(features, targets, tests, 4, seed=1, settings=LinearProbeSettings(batch_size=8))
    )
    assert not torch.equal(
        one, linear_probe(features, targets, tests, 4, seed=2, settings=LinearProbeSettings(batch_size=8))
    )


# --- neighbors


def test_knn_votes_by_hand() -> None:
    features = torch.tensor([[1.0, 0.0], [0.0, 5.0], [0.0, 0.1]])
    targets = torch.tensor([0, 1, 1])
    half = math.sqrt(0.5)
    tests = torch.tensor([[1.0, 0.9], [1.0, 0.5], [half, half]])
    # The first has cosines 0.743, 0.669, 0.669: two votes of exp(-0.074 / t) beat one only where t > 0.107.
    assert knn_probe(features, targets, tests, 2, temperature=0.1).tolist() == [0, 0, 1]
    assert knn_probe(features, targets, tests, 2, temperature=0.12).tolist() == [1, 0, 1]
    assert knn_probe(features, targets, tests, 2, neighbors=1, temperature=9.0).tolist()[:2] == [0, 0]


def test_zero_features_have_similarity_zero() -> None:
    features, targets = torch.tensor([[1.0, 0.0], [0.0, 0.0], [-1.0, 0.0]]), torch.tensor([0, 1, 2])
    tests = torch.tensor([[0.0, 0.0], [2.0, 0.0], [-2.0, 0.0], [0.0, 3.0]])
    # Similarity 0 to all, so all votes are equal, and the lowest class is predicted.
    assert knn_probe(features, targets, tests, 3).tolist() == [0, 0, 2, 0]
    assert knn_probe(features[1:], targets[1:], tests[2:3], 3, neighbors=1).tolist() == [2]
    tests = torch.tensor([[1.0, 0.0]])  # 0 is above -1
    assert knn_probe(features[1:], targets[1:], tests, 3).tolist() == [1]


@pytest.mark.parametrize(("neighbors", "temperature"), [(1, 0.1), (20, 0.1), (200, 0.1), (200, 0.005), (5000, 1.0)])
def test_knn_probe_equals_scikit_learn(neighbors: int, temperature: float, digits: Split) -> None:
    features, targets, tests, truth = digits

    def weight(distances: NDArray[np.float64]) -> NDArray[np.float64]:
        votes: NDArray[np.float64] = np.exp(-distances / temperature)
        return votes

    fewer = min(neighbors, len(features))
    other = KNeighborsClassifier(fewer, metric="cosine", weights=weight, algorithm="brute")
    expected = other.fit(features.double().numpy(), targets.numpy()).predict(tests.double().numpy())
    predicted = knn_probe(features, targets, tests, 10, neighbors=neighbors, temperature=temperature)
    assert (predicted.numpy() != expected).sum() <= 1
    assert accuracy_percent(predicted, truth) > (85 if neighbors < 5000 else 60)


def test_knn_probe_in_blocks_equals_one_block(digits: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    features, targets, tests, _ = digits
    whole = knn_probe(features, targets, tests, 10)
    for at_once in (1, 7 * len(features) + 3):  # blocks of one and of seven test samples
        monkeypatch.setattr(probes, "_MAX_SIMILARITIES", at_once)
        assert torch.equal(knn_probe(features, targets, tests, 10), whole)


# --- both


def both_probes(features: Tensor, targets: Tensor, tests: Tensor, classes: int = 2) -> list[Tensor]:
    return [linear_probe(features, targets, tests, classes, seed=0), knn_probe(features, targets, tests, classes)]


def test_probes_accept_any_dtype_and_requires_grad() -> None:
    features, targets = blobs(64, spread=0.1)
    tests, truth = blobs(40, spread=0.1)
    features.requires_grad_()
    for kind in (torch.float32, torch.float64, torch.bfloat16):
        with torch.autocast("cpu", torch.bfloat16):
            for predicted in both_probes(features.to(kind), targets.int(), tests.to(kind), 4):
                assert torch.equal(predicted, truth) and predicted.dtype == torch.int64


def test_probes_do_not_change_their_inputs() -> None:
    features, targets = blobs(64, spread=1.0)
    tests, _ = blobs(40, spread=1.0)
    given = features, targets, tests
    before = [tensor.clone() for tensor in given]
    both_probes(*given, classes=4)
    assert all(torch.equal(now, then) for now, then in zip(given, before, strict=True))


def test_probes_accept_one_sample_one_class_or_no_tests() -> None:
    for predicted in both_probes(torch.ones(1, 2), torch.tensor([1]), torch.ones(3, 2)):
        assert predicted.tolist() == [1, 1, 1]
    for predicted in both_probes(torch.ones(2, 2), torch.tensor([0, 0]), torch.ones(1, 2), classes=1):
        assert predicted.tolist() == [0]
    for predicted in both_probes(torch.ones(2, 2), torch.tensor([0, 1]), torch.ones(0, 2)):
        assert predicted.tolist() == []


PROBES: dict[str, Any] = {"linear": lambda *given: linear_probe(*given, seed=0), "neighbors": knn_probe}


@pytest.mark.parametrize("probe", list(PROBES))
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_non_finite_features_are_refused(probe: str, value: float) -> None:
    good, bad = torch.ones(4, 3), torch.ones(4, 3)
    bad[1, 0] = bad[1, 2] = bad[3, 1] = value
    targets = torch.tensor([0, 1, 0, 1])
    with pytest.raises(TrainingError, match=r"2 of 4 features are NaN or infinite.*learning rate"):
        PROBES[probe](bad, targets, good, 2)
    with pytest.raises(TrainingError, match="2 of 4 test features are NaN or infinite"):
        PROBES[probe](good, targets, bad, 2)


@pytest.mark.parametrize("probe", list(PROBES))
@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        (((4, 3), (4,), (2, 5)), r"got \(4, 3\), \(4,\) and \(2, 5\)"),
        (((4, 3), (3,), (2, 3)), r"got \(4, 3\), \(3,\) and \(2, 3\)"),
        (((4, 3, 1), (4,), (2, 3, 1)), r"got \(4, 3, 1\)"),
        (((0, 3), (0,), (2, 3)), "1 or more samples"),
    ],
)
def test_mismatched_shapes_are_refused(probe: str, shapes: tuple[tuple[int, ...], ...], says: str) -> None:
    features, targets, tests = (torch.zeros(shape) for shape in shapes)
    with pytest.raises(ConfigurationError, match=says):
        PROBES[probe](features, targets.long(), tests, 2)


@pytest.mark.parametrize("probe", list(PROBES))
def test_targets_outside_the_classes_are_refused(probe: str) -> None:
    for targets, got in (([0, 2], "0 to 2"), ([-1, 1], "-1 to 1")):
        with pytest.raises(ConfigurationError, match=f"from 0 to 1, .*got {got}"):
            PROBES[probe](torch.ones(2, 3), torch.tensor(targets), torch.ones(1, 3), 2)


@pytest.mark.parametrize(
    "setting", [{"epochs": 0}, {"batch_size": 0}, {"lr": -1.0}, {"momentum": math.nan}, {"weight_decay": -0.1}]
)
def test_invalid_settings_of_the_linear_probe_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(setting))} is "):
        linear_probe(
            torch.ones(2, 3), torch.tensor([0, 1]), torch.ones(1, 3), 2, seed=0, settings=LinearProbeSettings(**setting)
        )


@pytest.mark.parametrize("setting", [{"neighbors": 0}, {"temperature": 0.0}, {"temperature": -1.0}])
def test_invalid_settings_of_the_knn_probe_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(setting))} is "):
        knn_probe(torch.ones(2, 3), torch.tensor([0, 1]), torch.ones(1, 3), 2, **setting)


def test_diverging_linear_probe_is_refused() -> None:
    features, targets = 1e30 * torch.randn(8, 3, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 2
    with pytest.raises(
        TrainingError,
        match=r"weights of the linear probe are NaN or infinite after 60 epochs; use a lower lr than 1e\+10",
    ):
        linear_probe(features, targets, features, 2, seed=0, settings=LinearProbeSettings(lr=1e10))
