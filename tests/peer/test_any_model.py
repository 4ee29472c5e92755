"""Where only weights travel, a loop of one's own has any model; what needs features is refused, with the reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from consilience.errors import ConfigurationError
from consilience.exchanges import Received, State, View, Weights
from consilience.method import Role
from consilience.models import SplitModel, UnknownClassifier, WholeModel, split_or_whole
from consilience.objectives import CrossEntropy
from tests.peer_tools import CLASSES, SHAPE, SHARING, batches, federation
from tests.relay_tools import serving

pytestmark = pytest.mark.usefixtures("one_thread")
FEDPROX = {"name": "fedprox", "mu": 0.5}


class Convolution(nn.Module):
    """Has no linear layer."""

    def __init__(self, classes: int = CLASSES) -> None:
        super().__init__()
        self.layer = nn.Conv1d(1, classes, SHAPE[0])

    def forward(self, inputs: Tensor) -> Tensor:
        """(n, 6) -> (n, classes)."""
        logits: Tensor = self.layer(inputs[:, None])[..., 0]
        return logits


class EveryToken(nn.Module):
    """Applies its classifier to each of six tokens, and uses the logits of the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.score = nn.Linear(1, 4), nn.Linear(4, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        """(n, 6) -> (n, 3)."""
        logits: Tensor = self.score(self.body(inputs[..., None]).tanh())[:, -1]
        return logits


class Tied(nn.Module):
    """Its last linear layer is its first one transposed, and has other outputs than there are classes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Embedding(5, SHAPE[0]), nn.Linear(SHAPE[0], 5, bias=False)
        self.last.weight = self.first.weight

    def forward(self, inputs: Tensor) -> Tensor:
        """(n, 6) -> (n, 5)."""
        logits: Tensor = self.last(inputs)
        return logits


class Auxiliary(nn.Module):
    """Its last linear layer has other outputs than there are classes."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.auxiliary = nn.Conv1d(1, CLASSES, SHAPE[0]), nn.Linear(SHAPE[0], 7)

    def forward(self, inputs: Tensor) -> Tensor:
        """(n, 6) -> (n, 3)."""
        logits: Tensor = self.head(inputs[:, None])[..., 0] + self.auxiliary(inputs).mean()
        return logits


@pytest.mark.parametrize("build", [Convolution, EveryToken, Tied, Auxiliary, lambda: nn.Linear(SHAPE[0], CLASSES)])
def test_the_penalty_is_that_of_the_weights_for_any_model(tmp_path: Path, build: Any) -> None:
    with federation(tmp_path, FEDPROX, 2, [build]) as made, serving(made.store) as running:
        model = build()
        peer = made.join(running.url, 0, model)
        start = [p.detach().clone() for p in model.parameters()]
        optimizer, loader = torch.optim.SGD(model.parameters(), lr=0.1), batches(0)
        for inputs, targets in loader:
            loss, penalty = cross_entropy(model(inputs), targets), peer.penalty(targets)
            away = sum((p - s).square().sum() for p, s in zip(model.parameters(), start, strict=True))
            torch.testing.assert_close(penalty, torch.as_tensor(0.5 * away / 2))
            optimizer.zero_grad()
            (loss + penalty).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        assert float(penalty.detach()) > 0 and peer.share(loader) and peer.round == 1
        peer.close()
        with pytest.raises(ConfigurationError, match=r"'m0' in federation 'small' is closed"):
            peer.penalty(targets)


def test_members_with_such_a_model_have_the_mean_of_their_weights(tmp_path: Path) -> None:
    with federation(tmp_path, {"name": "fedavg"}, 2, [Convolution]) as made, serving(made.store) as running:
        models = [Convolution(), Convolution()]
        peers = [made.join(running.url, i, model) for i, model in enumerate(models)]
        assert torch.equal(models[0].layer.weight, models[1].layer.weight)  # the common ones
        with torch.no_grad():
            for i, model in enumerate(models):
                model.layer.weight += i + 1
        expected = models[0].layer.weight + 0.5
        assert all([peer.share(batches(i)) for i, peer in enumerate(peers)])
        for peer, model in zip(peers, models, strict=True):
            peer.refresh(wait=10)
            torch.testing.assert_close(model.layer.weight, expected)


def test_what_needs_features_is_refused_with_the_reason(tmp_path: Path) -> None:
    inputs, targets = batches(0)[0]
    with federation(tmp_path / "weights", FEDPROX, 2, [Convolution]) as made, serving(made.store) as running:
        peer = made.join(running.url, 0, Convolution())
        assert peer.classifier is None
        calls: list[Callable[[], Tensor]] = [lambda: peer.loss(targets), lambda: peer.own_logits(inputs)]
        for call in calls:
            said = r"\) needs the linear layer that computes the logits.*Convolution has no torch.nn.Linear"
            with pytest.raises(ConfigurationError, match=said):
                call()
    with federation(tmp_path / "features", SHARING, 2, [EveryToken]) as made, serving(made.store) as running:
        model = EveryToken()
        peer = made.join(running.url, 0, model)
        model(inputs)
        with pytest.raises(ConfigurationError, match=r"'score' read features of the shape \(8, 6, 4\) .*each position"):
            peer.penalty(targets)
        with pytest.raises(ConfigurationError, match=r"'score' of EveryToken read inputs of the shape \(8, 6, 4\)"):
            peer.share(batches(0))
        with pytest.raises(ConfigurationError, match=r"Convolution has no torch.nn.Linear to compute the logits"):
            made.join(running.url, 1, Convolution())


def test_other_models_are_still_refused(tmp_path: Path) -> None:
    with federation(tmp_path, FEDPROX, 2, [Convolution]) as made, serving(made.store) as running:
        lazy = nn.Sequential(nn.LazyConv1d(CLASSES, 1), nn.Flatten())
        refusals: list[tuple[Any, str]] = [
            (Convolution(4), r"your model cannot share 'weights'.*features\.layer"),
            (Auxiliary(), r"your model has 7 classes, and federation 'small' has 3"),
            (lazy, r"'0\.weight' of your model has no size"),
            (Convolution, r"a model is a torch\.nn\.Module, got the class Convolution"),
            (nn.Module(), r"Module is not a split model: it needs modules named features and classifier"),
        ]
        for model, said in refusals:
            with pytest.raises(ConfigurationError, match=said):
                made.join(running.url, 0, model)


def test_a_network_that_can_be_divided_is() -> None:
    divided, whole, tied = split_or_whole(EveryToken(), CLASSES), split_or_whole(Convolution(), 3), Tied()
    assert type(divided) is SplitModel and divided.width == 4
    assert isinstance(whole, WholeModel) and isinstance(whole.classifier, UnknownClassifier) and whole.classes == 3
    assert [name for name, _ in whole.named_parameters()] == ["features.layer.weight", "features.layer.bias"]
    assert torch.equal(whole(torch.ones(2, *SHAPE)), whole.original(torch.ones(2, *SHAPE)))
    assert [name for name, _ in split_or_whole(tied, 3).named_parameters()] == ["features.first.weight"]
    with pytest.raises(ConfigurationError, match=r"layer 'last' of Tied shares its parameters with 'first\.weight'"):
        split_or_whole(tied, 3).classifier(torch.ones(2, 1))
    assert whole.state_dict().keys() == {"features.layer.weight", "features.layer.bias"}


class Halves(nn.Module):
    """A network with modules that are called as those of a divided model, and no linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.classifier = nn.Conv1d(1, 2, 1), nn.Conv1d(2, CLASSES, SHAPE[0])

    def forward(self, inputs: Tensor) -> Tensor:
        """(n, 6) -> (n, 3)."""
        logits: Tensor = self.classifier(self.features(inputs[:, None]))[..., 0]
        return logits


@pytest.mark.parametrize("part", ["features", "classifier"])
def test_a_part_of_a_whole_model_is_one_of_the_network(tmp_path: Path, part: str) -> None:
    """What is called features in the network is shared, and not all of it."""
    with federation(tmp_path, {"name": "fedavg", "part": part}, models=[Halves]) as made:
        tensors = made.charter.channel_settings["weights"].tensors
        assert list(tensors) == [f"features.{part}.weight", f"features.{part}.bias"]


class PullToMean(Weights):
    """An exchange of somebody's own that overrides the penalty of weights."""

    def penalty(self, state: State, view: View, received: Received) -> Tensor:
        """It reads features."""
        return view.features.square().mean()


class SaysItself(PullToMean):
    """It reads no mini-batch, and says so."""

    needs_batches = False

    def penalty(self, state: State, view: View, received: Received) -> Tensor:
        """Of the classifier's weights."""
        return view.parameters["classifier.weight"].square().mean()


def test_an_exchange_that_overrides_a_penalty_reads_mini_batches_unless_it_says_otherwise() -> None:
    assert not Role(CrossEntropy(), (Weights(),)).reads_samples
    assert Role(CrossEntropy(), (PullToMean(),)).reads_samples
    assert not Role(CrossEntropy(), (PullToMean(),)).takes_any_model
    assert not Role(CrossEntropy(), (SaysItself(),)).reads_samples
