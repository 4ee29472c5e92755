"""Models: published sizes, outputs by definition, and stacking."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pickle import dumps, loads
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

import consilience.models
from consilience.errors import ConfigurationError, UnknownName
from consilience.models import (
    MODELS,
    SplitModel,
    build_model,
    model_factory,
    model_names,
    model_size,
    register_model,
    to_split_model,
)
from consilience.models.nets.blocks import Residual, Shortcut

MNIST = (1, 28, 28)
CIFAR = (3, 32, 32)
SIZES = [
    ("lenet5", MNIST, 30_986, 84),
    ("resnet9", MNIST, 2_470_730, 128),
    ("resnet18", CIFAR, 11_302_730, 256),
    ("mlp", (1, 8, 8), 6_570, 32),
]
OF_IMAGES = sorted(set(MODELS) - {"lstm", "device-lstm"})  # these read text
STACKED = [("lenet5", (1, 8, 8)), ("resnet9", (2, 16, 16)), ("resnet18", (1, 9, 9)), ("mlp", (1, 8, 8))]


pytestmark = pytest.mark.usefixtures("one_thread")


def made(name: str, shape: tuple[int, ...], seed: int = 0, classes: int = 10) -> SplitModel:
    torch.manual_seed(seed)
    return build_model(name, shape, classes)


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def gradient(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """The gradient of ordinary training, by parameter name."""
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
    assert len(names) == 52 and not any("shortcut" in name for name in names)  # 8 blocks of 6, and 2 linear layers
    shortcuts = {name for name in made("resnet18", CIFAR).state_dict() if name.endswith("shortcut.conv.weight")}
    assert shortcuts == {f"features.pair{i}.0.shortcut.conv.weight" for i in (2, 3, 4)}


@pytest.mark.parametrize("name", OF_IMAGES)
def test_model_has_the_channels_and_classes_of_the_task(name: str) -> None:
    model = made(name, (3, 32, 32), classes=7).eval()
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 7)


@pytest.mark.parametrize("name", OF_IMAGES)
def test_the_same_seed_gives_the_same_weights(name: str) -> None:
    one, two, other = (made(name, MNIST, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert not torch.equal(one["classifier.weight"], other["classifier.weight"])


def test_lenet5_equals_its_definition() -> None:
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


def test_residual_block_adds_the_shortcut_after_the_last_relu() -> None:
    block = Residual(1).eval()
    with torch.no_grad():
        for part in (block.first, block.second):
            part.conv.weight.zero_()
            part.conv.weight[0, 0, 1, 1] = -1.0  # the middle of the kernel: each convolution flips the sign
    x = torch.tensor([-2.0, 3.0]).reshape(1, 1, 1, 2)
    # -2 -> 2 -> relu 2 -> -2 -> relu 0, plus -2. 3 -> -3 -> relu 0 -> 0 -> relu 0, plus 3: negative sums remain.
    torch.testing.assert_close(block(x), x, rtol=1e-4, atol=1e-4)


def test_strided_residual_block_has_a_convolutional_shortcut() -> None:
    block = Residual(1, 2, stride=2).eval()
    with torch.no_grad():
        block.second.conv.weight.zero_()  # only the shortcut contributes
        assert isinstance(block.shortcut, Shortcut)
        block.shortcut.conv.weight.copy_(torch.tensor([1.0, -3.0]).reshape(2, 1, 1, 1))
    x = torch.arange(9.0).reshape(1, 1, 3, 3)
    # Every second pixel of every second row, times 1 and -3: no ReLU after the sum.
    expected = torch.tensor([[0.0, 2.0], [6.0, 8.0]])
    torch.testing.assert_close(block(x), torch.stack([expected, -3 * expected])[None], rtol=1e-4, atol=1e-4)


def test_resnet18_equals_its_definition() -> None:
    model = made("resnet18", (2, 9, 7)).eval()
    state, inputs = model.state_dict(), torch.randn(2, 2, 9, 7)

    def conv(x: Tensor, name: str, stride: int = 1) -> Tensor:
        weight, norm = state[f"features.{name}.conv.weight"], f"features.{name}.norm"
        x = F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)
        named = (state[f"{norm}.{key}"] for key in ("running_mean", "running_var", "weight", "bias"))
        mean, var, scale, shift = (t.reshape(-1, 1, 1) for t in named)
        normed: Tensor = (x - mean) / torch.sqrt(var + 1e-5) * scale + shift
        return normed

    x = conv(inputs, "block").clamp(min=0)
    for pair, stride in ((1, 1), (2, 2), (3, 2), (4, 2)):
        for half, step in ((0, stride), (1, 1)):
            block = f"pair{pair}.{half}"
            short = conv(x, f"{block}.shortcut", step) if step > 1 else x
            x = conv(conv(x, f"{block}.first", step).clamp(min=0), f"{block}.second").clamp(min=0) + short
    assert x.shape == (2, 512, 2, 1)
    x = torch.tanh(x.mean((2, 3)) @ state["features.linear.weight"].T + state["features.linear.bias"])
    torch.testing.assert_close(model.features(inputs), x, rtol=1e-4, atol=1e-5)


def test_resnet9_uses_batch_statistics_only_in_training() -> None:
    model = made("resnet9", (1, 16, 16))
    x = torch.randn(4, 1, 16, 16)
    model.train()(x)
    tracked = model.state_dict()["features.block1.norm.num_batches_tracked"]
    assert tracked.item() == 1
    model.eval()
    torch.testing.assert_close(model(x)[:1], model(x[:1]), rtol=1e-4, atol=1e-5)
    assert tracked.item() == 1


@pytest.mark.parametrize("name", OF_IMAGES)
def test_every_parameter_gets_a_gradient_and_inputs_are_unchanged(name: str) -> None:
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
def test_stacked_models_equal_single_models(name: str, shape: tuple[int, int, int], training: bool) -> None:
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
def test_stacked_features_and_classifier_can_be_called_separately(name: str, shape: tuple[int, int, int]) -> None:
    models = [made(name, shape, seed).eval() for seed in range(2)]
    weights, buffers = stack_module_state([model.features for model in models])
    x = torch.randn(4, *shape)

    def features(w: dict[str, Tensor], b: dict[str, Tensor]) -> Tensor:
        out: Tensor = functional_call(models[0].features, (w, b), (x,))
        return out

    stacked = vmap(features)(weights, buffers)  # (learners, batch, width)
    for learner, model in enumerate(models):
        torch.testing.assert_close(stacked[learner], model.features(x), rtol=1e-4, atol=1e-5)


# --- custom models


class Own(nn.Module):
    """A custom model, with or without the required attributes."""

    def __init__(self, **parts: object) -> None:
        super().__init__()
        for key, value in parts.items():
            setattr(self, key, value)


def test_module_with_features_and_classifier_is_accepted() -> None:
    own = Own(features=nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), classifier=nn.Linear(3, 2))
    split = to_split_model(own)
    assert (split.width, split.classes, split.bound) == (3, 2, math.inf)
    assert split.classifier is own.classifier and split.features is own.features
    assert split(torch.zeros(5, 1, 2, 2)).shape == (5, 2)
    assert to_split_model(Own(features=own.features, classifier=own.classifier, bound=2)).bound == 2.0


def test_split_model_is_accepted_unchanged() -> None:
    model = made("mlp", MNIST)
    assert to_split_model(model) is model


@pytest.mark.parametrize(
    ("own", "says"),
    [
        (nn.Linear(3, 2), r"is a torch.nn.Linear, and .* inside of it; give nn.Sequential\(nn.Flatten\(\), layer\)"),
        (nn.Conv2d(1, 3, 3), r"Conv2d has no torch.nn.Linear .*nn.Sequential\(model, nn.Flatten\(\), nn.Linear"),
        (Own(), "Own is not a split model.*features = nothing and classifier = nothing"),
        ("Net", "a model is a torch.nn.Module, got str; build one first"),
        (Own, r"a model is a torch.nn.Module, got the class Own; build one first, such as Net\(\)"),
        (Own(classifier=nn.Linear(3, 2)), r"features = nothing and classifier = Linear\(3, 2\)"),
        (Own(features=nn.Flatten()), "features = Flatten and classifier = nothing"),
        (Own(features=nn.Flatten(), classifier=nn.Sequential(nn.Linear(3, 2))), "classifier = Sequential"),
        (Own(features=nn.Flatten(), classifier=torch.zeros(2, 3)), r"a tensor of the shape \(2, 3\)"),
        (Own(features=lambda x: x, classifier=nn.Linear(3, 2)), "features = function"),
    ],
)
def test_module_without_a_linear_classifier_is_refused(own: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        to_split_model(own)


@pytest.mark.parametrize("classifier", [nn.Sequential(nn.Linear(3, 2)), nn.Conv2d(3, 2, 1), nn.LazyLinear(2), None])
def test_non_linear_classifier_is_refused(classifier: nn.Module | None) -> None:
    with pytest.raises(ConfigurationError, match=r"must be a torch.nn.Linear.*into the features"):
        SplitModel(nn.Flatten(), classifier)  # type: ignore[arg-type]


@pytest.mark.parametrize("bound", [0.0, -1.0, math.nan])
def test_invalid_bound_is_refused(bound: float) -> None:
    with pytest.raises(ConfigurationError, match="bound"):
        SplitModel(nn.Flatten(), nn.Linear(3, 2), bound=bound)


# --- errors


@pytest.mark.parametrize(
    ("name", "shape", "smallest"),
    [("resnet9", (1, 8, 8), 16), ("resnet9", (1, 28, 15), 16), ("lenet5", (1, 3, 8), 4), ("lenet5", (1, 8, 3), 4)],
)
def test_inputs_too_small_for_the_pools_are_refused(name: str, shape: tuple[int, int, int], smallest: int) -> None:
    with pytest.raises(ConfigurationError, match=f"at least {smallest}x{smallest} .*got {shape[1]}x{shape[2]}"):
        build_model(name, shape, 10)


@pytest.mark.parametrize(
    ("name", "side"), [("lenet5", 4), ("lenet5", 8), ("resnet9", 16), ("resnet9", 31), ("resnet18", 1), ("mlp", 1)]
)
def test_smallest_inputs_are_accepted(name: str, side: int) -> None:
    assert made(name, (1, side, side)).eval()(torch.zeros(2, 1, side, side)).shape == (2, 10)


@pytest.mark.parametrize("shape", [(), (0,), (1, 8, 0), (0, 8, 8), (-1, 8, 8)])
def test_invalid_input_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigurationError, match=r"\(channels, height, width\) or \(features,\).*got \("):
        build_model("mlp", shape, 10)


@pytest.mark.parametrize("shape", [(13,), (8, 8), (1, 1, 8, 8)])
@pytest.mark.parametrize("name", ["lenet5", "resnet9", "resnet18"])
def test_convolutional_models_refuse_inputs_that_are_not_images(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigurationError, match=rf"'{name}' takes images.*\(channels, height, width\).*model 'mlp'"):
        build_model(name, shape, 10)


@pytest.mark.parametrize("shape", [(13,), (8, 8), (1, 1, 8, 8)])
def test_perceptron_accepts_any_shape(shape: tuple[int, ...]) -> None:
    assert made("mlp", shape)(torch.zeros(2, *shape)).shape == (2, 10)


def test_zero_classes_and_unknown_models_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least 1 class, got 0"):
        build_model("mlp", MNIST, 0)
    with pytest.raises(UnknownName, match=r"unknown model 'lenet'. Did you mean 'lenet5'\?") as caught:
        build_model("lenet", MNIST, 10)
    assert caught.value.kind == "model"


def test_public_names_are_exact() -> None:
    assert consilience.models.__all__ == sorted(consilience.models.__all__)
    names = (
        "MODELS SplitModel UnknownClassifier WholeModel absolute_model_name build_for build_model cut is_model_file "
        "load_builder model_digest model_factory model_names model_size register_model split split_or_whole "
        "to_split_model with_fields"
    )
    assert set(consilience.models.__all__) == set(names.split())
    assert all(hasattr(consilience.models, name) for name in consilience.models.__all__)
    assert (
        model_names()
        == sorted(MODELS)
        == [
            *(
                "cnn",
                "cnn5",
                "cnn5-small",
                "device-cnn",
                "device-cnn-large",
                "device-cnn-medium",
                "device-lstm",
                "encoder18",
                "encoder50",
                "lenet5",
                "lstm",
                "mlp",
            ),
            *("resnet18", "resnet9"),
        ]
    )


# --- any width of the features


@pytest.mark.parametrize("name", [name for name, *_ in SIZES])
def test_features_can_have_any_width(name: str) -> None:
    shape = (1, 16, 16)
    model = build_model(name, shape, 10, width=7).eval()
    assert (model.width, model.bound) == (7, 1.0) and model.features(torch.zeros(2, *shape)).shape == (2, 7)
    assert build_model(name, shape, 10, None).width == next(width for known, _, _, width in SIZES if known == name)


@pytest.mark.parametrize("width", [0, -3])
def test_width_below_one_is_refused(width: int) -> None:
    with pytest.raises(ConfigurationError, match=f"'mlp' needs features of a width of at least 1, got {width}"):
        build_model("mlp", MNIST, 10, width)


def test_model_size_counts_parameters_and_width() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    assert model_size("mlp", (1, 8, 8), 10) == {"parameters": 6_570, "width": 32}
    # 64 * 64 + 64 in the hidden layer, 64 * 5 + 5 to the features, 5 * 3 + 3 in the classifier.
    assert model_size("mlp", (64,), 3, width=5) == {"parameters": 4_160 + 325 + 18, "width": 5}
    assert torch.equal(torch.get_rng_state(), before)


# --- registered models


def small(channels: int, num_classes: int, depth: int = 1) -> nn.Module:
    hidden = [nn.Linear(channels, channels) for _ in range(depth)]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(channels, num_classes))


@pytest.fixture
def models() -> Iterator[dict[str, Callable[..., nn.Module]]]:
    """The registry, from which "small" is removed after the test."""
    yield MODELS
    MODELS.pop("small", None)


def test_registered_builder_gets_the_arguments_it_declares(models: dict[str, Callable[..., nn.Module]]) -> None:
    assert register_model("small")(small) is small and models["small"] is small
    model = build_model("small", (6,), 3)
    assert (model.width, model.classes, parameters(model)) == (6, 3, 6 * 6 + 6 + 6 * 3 + 3)
    assert build_model("small", (6,), 3, width=6).width == 6
    with pytest.raises(ConfigurationError, match="'small' has features of width 6, and width is 5"):
        build_model("small", (6,), 3, width=5)


def test_model_factory_carries_the_registered_builder(models: dict[str, Callable[..., nn.Module]]) -> None:
    register_model("small")(small)
    made = model_factory("small", (6,), 3)
    del models["small"]  # as in another process
    assert made().width == 6
    packed = loads(dumps(model_factory("mlp", (6,), 3, 4)))
    assert packed().width == 4
    with pytest.raises(UnknownName, match="unknown model 'small'"):
        model_factory("small", (6,), 3)


@pytest.mark.parametrize("name", ["mlp", "", "net.py", "a:b", "a,b"])
def test_taken_or_invalid_model_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"a model '{name}' already|'{name}' cannot be the name"):
        register_model(name)


@pytest.mark.parametrize(
    ("builder", "says"),
    [
        (lambda depth, classes: nn.Identity(), r"'small' has the parameter 'depth', which is unknown.*shape, channels"),
        (lambda width: nn.Identity(), "'small' has the parameter 'width', and no width is set"),
        (lambda shape: 3, "its builder returned int; it must return a torch.nn.Module"),
        (type, "the parameters of type are not known"),
    ],
)
def test_invalid_builder_is_refused(
    builder: Callable[..., nn.Module], says: str, models: dict[str, Callable[..., nn.Module]]
) -> None:
    register_model("small")(builder)
    with pytest.raises(ConfigurationError, match=says):
        build_model("small", (6,), 3)


def test_lazy_layer_is_refused_by_name() -> None:
    features = nn.Sequential(nn.Flatten(), nn.LazyLinear(8), nn.Tanh())
    with pytest.raises(ConfigurationError, match=r"parameter '1\.weight' of the features has no size yet"):
        SplitModel(features, nn.Linear(8, 2))
