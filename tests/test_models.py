"""Models: their published sizes, what they compute, and that thousands can be stacked."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

import consilience.models
from consilience.errors import ConfigurationError, UnknownName
from consilience.models import MODELS, SplitModel, as_split, build
from consilience.models.resnet9 import Residual

MNIST = (1, 28, 28)
SIZES = [("lenet5", MNIST, 30_986, 84), ("resnet9", MNIST, 2_470_730, 128), ("mlp", (1, 8, 8), 6_570, 32)]
STACKED = [("lenet5", (1, 8, 8)), ("resnet9", (2, 16, 16)), ("mlp", (1, 8, 8))]


pytestmark = pytest.mark.usefixtures("one_thread")


def made(name: str, shape: tuple[int, int, int], seed: int = 0, classes: int = 10) -> SplitModel:
    torch.manual_seed(seed)
    return build(name, shape, classes)


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def gradient(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """What ordinary training would follow, by parameter name."""
    names, values = zip(*model.named_parameters(), strict=True)
    loss = F.cross_entropy(model(x), y)
    return dict(zip(names, torch.autograd.grad(loss, values), strict=True))


# --- sizes, names, values


@pytest.mark.parametrize(("name", "shape", "count", "width"), SIZES)
def test_sizes_are_the_published_ones(name: str, shape: tuple[int, int, int], count: int, width: int) -> None:
    model = made(name, shape)
    assert parameters(model) == count
    assert (model.width, model.classes, model.bound) == (width, 10, 1.0)
    assert model.classifier.in_features == width and model.classifier.out_features == 10


@pytest.mark.parametrize(("name", "shape", "count", "width"), SIZES)
def test_logits_are_the_classifier_of_bounded_features(
    name: str, shape: tuple[int, int, int], count: int, width: int
) -> None:
    model = made(name, shape).eval()
    x = 100 * torch.randn(5, *shape)
    features = model.features(x)  # (5, width)
    assert features.shape == (5, width) and features.abs().max() <= model.bound
    expected = features @ model.classifier.weight.T + model.classifier.bias
    torch.testing.assert_close(model(x), expected)


def test_parameter_names_are_readable() -> None:
    assert [name for name, _ in made("lenet5", MNIST).named_parameters() if name.endswith("weight")] == [
        "features.conv1.weight",
        "features.conv2.weight",
        "features.conv3.weight",
        "features.linear.weight",
        "classifier.weight",
    ]
    assert {"features.hidden.weight", "features.linear.weight"} < set(made("mlp", MNIST).state_dict())
    names = set(made("resnet9", MNIST).state_dict())
    assert {"features.block1.conv.weight", "features.residual2.second.norm.running_mean"} < names


@pytest.mark.parametrize("name", sorted(MODELS))
def test_channels_and_classes_come_from_the_task(name: str) -> None:
    model = made(name, (3, 32, 32), classes=7).eval()
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 7)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_the_same_seed_gives_the_same_weights(name: str) -> None:
    one, two, other = (made(name, MNIST, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert not torch.equal(one["classifier.weight"], other["classifier.weight"])


def test_lenet5_against_its_definition() -> None:
    model = made("lenet5", MNIST)
    state, inputs = model.state_dict(), torch.randn(3, *MNIST)
    x = inputs
    for layer, padding, pool in (("conv1", 2, True), ("conv2", 2, True), ("conv3", 1, False)):
        weight, bias = state[f"features.{layer}.weight"], state[f"features.{layer}.bias"]
        x = F.conv2d(x, weight, bias, padding=padding).clamp(min=0)
        x = F.max_pool2d(x, 2) if pool else x
    assert x.shape == (3, 120, 7, 7)
    x = F.adaptive_avg_pool2d(x, 1).reshape(3, 120)
    x = torch.tanh(x @ state["features.linear.weight"].T + state["features.linear.bias"])
    torch.testing.assert_close(model.features(inputs), x)


def test_a_residual_block_adds_the_shortcut_after_the_last_relu() -> None:
    block = Residual(1).eval()
    with torch.no_grad():
        for part in (block.first, block.second):
            part.conv.weight.zero_()
            part.conv.weight[0, 0, 1, 1] = -1.0  # the middle of the kernel: each convolution turns the sign
    x = torch.tensor([-2.0, 3.0]).reshape(1, 1, 1, 2)
    # -2 -> 2 -> relu 2 -> -2 -> relu 0, plus -2. 3 -> -3 -> relu 0 -> 0 -> relu 0, plus 3: negative sums remain.
    torch.testing.assert_close(block(x), x, rtol=1e-4, atol=1e-4)


def test_resnet9_is_normalised_by_its_batch_only_while_training() -> None:
    model = made("resnet9", (1, 16, 16))
    x = torch.randn(4, 1, 16, 16)
    model.train()(x)
    tracked = model.state_dict()["features.block1.norm.num_batches_tracked"]
    assert tracked.item() == 1
    model.eval()
    torch.testing.assert_close(model(x)[:1], model(x[:1]), rtol=1e-4, atol=1e-5)
    assert tracked.item() == 1


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_parameter_gets_a_gradient_and_the_input_is_left_alone(name: str) -> None:
    model = made(name, (1, 16, 16)).train()
    x = torch.randn(6, 1, 16, 16)
    before = x.clone()
    gradients = gradient(model, x, torch.arange(6))
    assert torch.equal(x, before)
    for key, value in gradients.items():
        assert value.abs().sum() > 0, key


# --- stacked


Loss = tuple[Tensor, dict[str, Tensor]]


def objective(model: nn.Module) -> Callable[[dict[str, Tensor], dict[str, Tensor], Tensor, Tensor], Loss]:
    def loss(weights: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor) -> Loss:
        logits = functional_call(model, (weights, buffers), (x,))
        return F.cross_entropy(logits, y), buffers

    return loss


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("name", "shape"), STACKED)
def test_a_stack_computes_what_its_models_compute(name: str, shape: tuple[int, int, int], training: bool) -> None:
    models = [made(name, shape, seed).double().train(training) for seed in range(2)]
    weights, buffers = stack_module_state(models)
    x = torch.randn(2, 3, *shape, dtype=torch.float64)  # (learners, batch, *shape)
    y = torch.randint(0, 10, (2, 3))  # (learners, batch)
    weights = {key: value.detach() for key, value in weights.items()}
    gradients, moved = vmap(grad(objective(models[0]), has_aux=True))(weights, buffers, x, y)
    for learner, model in enumerate(models):
        for key, value in gradient(model, x[learner], y[learner]).items():
            torch.testing.assert_close(gradients[key][learner], value, rtol=1e-9, atol=1e-12)
        for key, buffer in model.named_buffers():
            torch.testing.assert_close(moved[key][learner], buffer, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("name", "shape"), STACKED)
def test_stacked_features_and_classifier_can_be_asked_alone(name: str, shape: tuple[int, int, int]) -> None:
    models = [made(name, shape, seed).eval() for seed in range(2)]
    weights, buffers = stack_module_state([model.features for model in models])
    x = torch.randn(4, *shape)

    def features(w: dict[str, Tensor], b: dict[str, Tensor]) -> Tensor:
        out: Tensor = functional_call(models[0].features, (w, b), (x,))
        return out

    stacked = vmap(features)(weights, buffers)  # (learners, batch, width)
    for learner, model in enumerate(models):
        torch.testing.assert_close(stacked[learner], model.features(x), rtol=1e-4, atol=1e-5)


# --- any model of one's own


class Own(nn.Module):
    """A stranger's model, with or without what is needed."""

    def __init__(self, **parts: object) -> None:
        super().__init__()
        for key, value in parts.items():
            setattr(self, key, value)


def test_a_module_with_both_halves_is_taken_and_shares_its_weights() -> None:
    own = Own(features=nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), classifier=nn.Linear(3, 2))
    split = as_split(own)
    assert (split.width, split.classes, split.bound) == (3, 2, math.inf)
    assert split.classifier is own.classifier and split.features is own.features
    assert split(torch.zeros(5, 1, 2, 2)).shape == (5, 2)
    assert as_split(Own(features=own.features, classifier=own.classifier, bound=2)).bound == 2.0


def test_a_split_model_is_taken_as_it_is() -> None:
    model = made("mlp", MNIST)
    assert as_split(model) is model


@pytest.mark.parametrize(
    ("own", "says"),
    [
        (nn.Linear(3, 2), "Linear is no split model.*features = nothing and classifier = nothing"),
        (Own(classifier=nn.Linear(3, 2)), r"features = nothing and classifier = Linear\(3, 2\)"),
        (Own(features=nn.Flatten()), "features = Flatten and classifier = nothing"),
        (Own(features=nn.Flatten(), classifier=nn.Sequential(nn.Linear(3, 2))), "classifier = Sequential"),
        (Own(features=nn.Flatten(), classifier=torch.zeros(2, 3)), r"a tensor of the shape \(2, 3\)"),
        (Own(features=lambda x: x, classifier=nn.Linear(3, 2)), "features = function"),
    ],
)
def test_a_module_without_a_linear_classifier_is_refused(own: nn.Module, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        as_split(own)


@pytest.mark.parametrize("classifier", [nn.Sequential(nn.Linear(3, 2)), nn.Conv2d(3, 2, 1), nn.LazyLinear(2), None])
def test_a_classifier_that_is_not_linear_is_refused(classifier: nn.Module | None) -> None:
    with pytest.raises(ConfigurationError, match=r"must be a torch.nn.Linear.*into the features"):
        SplitModel(nn.Flatten(), classifier)  # type: ignore[arg-type]


@pytest.mark.parametrize("bound", [0.0, -1.0, math.nan])
def test_a_bound_that_bounds_nothing_is_refused(bound: float) -> None:
    with pytest.raises(ConfigurationError, match="bound"):
        SplitModel(nn.Flatten(), nn.Linear(3, 2), bound=bound)


# --- refusals


@pytest.mark.parametrize(
    ("name", "shape", "smallest"),
    [("resnet9", (1, 8, 8), 16), ("resnet9", (1, 28, 15), 16), ("lenet5", (1, 3, 8), 4), ("lenet5", (1, 8, 3), 4)],
)
def test_inputs_that_pools_would_swallow_are_refused(name: str, shape: tuple[int, int, int], smallest: int) -> None:
    with pytest.raises(ConfigurationError, match=f"at least {smallest}x{smallest} .*got {shape[1]}x{shape[2]}"):
        build(name, shape, 10)


@pytest.mark.parametrize(("name", "side"), [("lenet5", 4), ("lenet5", 8), ("resnet9", 16), ("resnet9", 31), ("mlp", 1)])
def test_the_smallest_inputs_work(name: str, side: int) -> None:
    assert made(name, (1, side, side)).eval()(torch.zeros(2, 1, side, side)).shape == (2, 10)


@pytest.mark.parametrize("shape", [(8, 8), (1, 8, 0), (0, 8, 8), (1, 1, 8, 8), (-1, 8, 8)])
def test_a_shape_that_is_none_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigurationError, match=r"\(channels, height, width\)"):
        build("mlp", shape, 10)  # type: ignore[arg-type]


def test_no_classes_and_no_such_model_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least 1 class, got 0"):
        build("mlp", MNIST, 0)
    with pytest.raises(UnknownName, match=r"unknown model 'lenet'. Did you mean 'lenet5'\?") as caught:
        build("lenet", MNIST, 10)
    assert caught.value.kind == "model"


def test_the_names_are_exact() -> None:
    assert consilience.models.__all__ == ["MODELS", "SplitModel", "as_split", "build"]
    assert all(hasattr(consilience.models, name) for name in consilience.models.__all__)
    assert sorted(MODELS) == ["lenet5", "mlp", "resnet9"]
