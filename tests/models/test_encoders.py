"""Encoders: published sizes, outputs by definition, and stacking."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from consilience import simulate
from consilience.data import Dataset
from consilience.errors import ConfigurationError
from consilience.models import SplitModel, build_model, model_size
from consilience.models.nets.encoders import BasicBlock, Bottleneck
from consilience.simulation.engines.stack.batched_layers import Layers

CIFAR = (3, 32, 32)
NAMES = ["encoder18", "encoder50"]
SIZES = [("encoder18", 11_173_962, 512), ("encoder50", 23_520_842, 2048)]
both_encoders = pytest.mark.parametrize("name", NAMES)

pytestmark = pytest.mark.usefixtures("one_thread")


def made(name: str, shape: tuple[int, ...], seed: int = 0) -> SplitModel:
    torch.manual_seed(seed)
    return build_model(name, shape, 10)


# --- sizes


@pytest.mark.parametrize(("name", "count", "width"), SIZES)
def test_sizes_are_the_published_ones(name: str, count: int, width: int) -> None:
    assert model_size(name, CIFAR, 10) == {"parameters": count, "width": width}
    # Large images: 64 kernels of 7x7 instead of 3x3 for each of three channels; 1,000 classes are ImageNet's.
    published = {"encoder18": 11_689_512, "encoder50": 25_557_032}[name]
    assert model_size(name, (3, 224, 224), 1000) == {"parameters": published, "width": width}


@both_encoders
def test_features_are_the_average_pool_and_the_classifier_is_linear(name: str) -> None:
    model = made(name, CIFAR).eval()
    x = torch.randn(2, *CIFAR)
    features = model.features(x)
    assert features.shape == (2, model.width) and model.bound == math.inf
    assert features.min() >= 0, "a ReLU comes last"
    torch.testing.assert_close(model(x), features @ model.classifier.weight.T + model.classifier.bias)


@both_encoders
@pytest.mark.parametrize(
    ("shape", "places"),
    [((1, 1, 1), (1, 1)), ((3, 32, 32), (4, 4)), ((1, 64, 33), (8, 5)), ((3, 65, 20), (3, 1)), ((3, 96, 96), (3, 3))],
)
def test_first_layer_downsamples_only_large_images(
    name: str, shape: tuple[int, int, int], places: tuple[int, int]
) -> None:
    model = made(name, shape).eval()
    seen: list[tuple[int, ...]] = []
    blocks = model.features.get_submodule("blocks")
    blocks.register_forward_hook(lambda module, given, out: seen.append(tuple(out.shape)))
    assert model(torch.randn(1, *shape)).shape == (1, 10)
    assert seen == [(1, model.width, *places)]
    stem = model.features.get_parameter("stem.conv.weight")
    assert stem.shape == ((64, shape[0], 7, 7) if max(shape) > 64 else (64, shape[0], 3, 3))


@both_encoders
def test_convolutions_have_no_bias_and_he_initialization(name: str) -> None:
    convolutions = [module for module in made(name, CIFAR).modules() if isinstance(module, nn.Conv2d)]
    assert len(convolutions) == {"encoder18": 17 + 3, "encoder50": 49 + 4}[name]
    for convolution in convolutions:
        assert convolution.bias is None
        expected = math.sqrt(2 / (convolution.out_channels * convolution.kernel_size[0] ** 2))
        assert convolution.weight.std().item() == pytest.approx(expected, rel=0.1)
        assert convolution.weight.mean().item() == pytest.approx(0, abs=0.1 * expected)


@both_encoders
def test_other_feature_width_is_refused(name: str) -> None:
    width = made(name, CIFAR).width
    assert build_model(name, CIFAR, 10, width).width == width
    with pytest.raises(ConfigurationError, match=f"'{name}' has features of width {width}, and width is 64"):
        build_model(name, CIFAR, 10, 64)


@both_encoders
def test_inputs_that_are_not_images_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"'{name}' takes images.*model 'mlp'"):
        build_model(name, (13,), 10)


# --- outputs


def test_basic_block_applies_its_last_relu_after_the_sum() -> None:
    block = BasicBlock(1, 1, stride=1).eval()
    with torch.no_grad():
        for conv in (block.first.conv, block.second.conv):
            conv.weight.zero_()
            conv.weight[0, 0, 1, 1] = -1.0  # the middle of the kernel: each convolution flips the sign
    x = torch.tensor([-2.0, 3.0]).reshape(1, 1, 1, 2)
    # -2 -> 2 -> relu 2 -> -2, plus -2, relu 0. 3 -> -3 -> relu 0 -> 0, plus 3.
    torch.testing.assert_close(block(x), torch.tensor([0.0, 3.0]).reshape(x.shape), rtol=1e-4, atol=1e-4)


def test_bottleneck_widens_four_times_and_strides_in_the_middle() -> None:
    block = Bottleneck(8, 2, stride=2).eval()
    kernels = [block.first.conv, block.second.conv, block.third.conv]
    assert [(*conv.weight.shape[:3], conv.stride[0]) for conv in kernels] == [(2, 8, 1, 1), (2, 2, 3, 2), (8, 2, 1, 1)]
    assert block(torch.randn(1, 8, 5, 4)).shape == (1, 8, 3, 2)
    assert isinstance(Bottleneck(8, 2, stride=1).shortcut, nn.Identity)
    assert not isinstance(Bottleneck(2, 2, stride=1).shortcut, nn.Identity), "other channels need a way of their own"


@pytest.mark.parametrize("shape", [(2, 9, 7), (1, 70, 40)])
@both_encoders
def test_encoder_equals_its_definition(name: str, shape: tuple[int, int, int]) -> None:
    model = made(name, shape).double().eval()
    state, x = model.features.state_dict(), torch.randn(2, *shape, dtype=torch.float64)

    def conv(x: Tensor, name: str, stride: int = 1) -> Tensor:
        weight = state[f"{name}.conv.weight"]
        x = F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)
        return x / math.sqrt(1 + 1e-5)  # a norm with initial statistics

    inputs, large = x, max(shape) > 64
    x = conv(x, "stem", 2 if large else 1).clamp(min=0)
    x = F.max_pool2d(x, 3, 2, 1) if large else x
    starts = {"encoder18": (2, 4, 6), "encoder50": (3, 7, 13)}[name]  # of the stages that halve the image
    for number in range({"encoder18": 8, "encoder50": 16}[name]):
        block, stride = f"blocks.{number}", 2 if number in starts else 1
        short = conv(x, f"{block}.shortcut", stride) if f"{block}.shortcut.conv.weight" in state else x
        if name == "encoder18":
            x = conv(conv(x, f"{block}.first", stride).clamp(min=0), f"{block}.second")
        else:
            x = conv(x, f"{block}.first").clamp(min=0)
            x = conv(conv(x, f"{block}.second", stride).clamp(min=0), f"{block}.third")
        x = (x + short).clamp(min=0)
    torch.testing.assert_close(model.features(inputs), x.mean((2, 3)), rtol=1e-9, atol=1e-9)


@both_encoders
def test_encoder_runs_in_half_precision(name: str) -> None:
    model = made(name, (3, 16, 16)).train()
    x, exact = torch.randn(8, 3, 16, 16), made(name, (3, 16, 16)).train()
    with torch.autocast("cpu", torch.bfloat16):
        features = model.features(x)
    assert features.isfinite().all()
    assert F.cosine_similarity(features.float(), exact.features(x)).min() > 0.95


# --- stacked


@pytest.mark.parametrize(
    ("name", "shape"), [("encoder18", (1, 8, 8)), ("encoder50", (1, 4, 4)), ("encoder18", (1, 66, 9))]
)
def test_stacked_models_equal_single_models(name: str, shape: tuple[int, int, int]) -> None:
    models = [made(name, shape, seed).double().train() for seed in range(2)]
    weights, buffers = stack_module_state(models)
    weights = {key: value.detach() for key, value in weights.items()}
    x = torch.randn(2, 4, *shape, dtype=torch.float64)  # (learners, batch, *shape)
    y = torch.randint(0, 10, (2, 4))  # (learners, batch)

    def loss(w: dict[str, Tensor], b: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(models[0], (w, b), (x,)), y)

    with Layers():
        gradients = vmap(grad(loss))(weights, buffers, x, y)
    for learner, model in enumerate(models):
        names, values = zip(*model.named_parameters(), strict=True)
        alone = torch.autograd.grad(F.cross_entropy(model(x[learner]), y[learner]), values)
        for key, value in zip(names, alone, strict=True):
            torch.testing.assert_close(gradients[key][learner], value, rtol=1e-6, atol=1e-9)


def test_loop_equals_stack() -> None:
    # Not smaller: norms over two samples at a single pixel amplify rounding errors to 1e-5 within two steps.
    inputs = np.random.default_rng(0).normal(size=(8, 1, 16, 16)).astype(np.float32)
    data = Dataset("noise", inputs, np.arange(8) % 2, inputs[:4], np.arange(4) % 2, classes=2)
    how: dict[str, Any] = {"learners": 2, "rounds": 1, "batch_size": 2, "optimizer": "sgd", "lr": 0.01}
    stack, loop = (
        simulate(
            data=data, model="encoder18", method="independent", engine=engine, workers=0, precision="float64", **how
        )
        for engine in ("stack", "loop")
    )
    assert (stack.engine, loop.engine) == ("stack", "loop")
    assert stack.accuracy.shape == (1, 2) and np.array_equal(stack.accuracy, loop.accuracy)
    np.testing.assert_allclose(stack.history["loss.cross_entropy"], loop.history["loss.cross_entropy"], rtol=1e-9)
