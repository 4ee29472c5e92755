"""Models cut into device and server parts: cut layers, the part of each weight, and invalid cuts."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from consilience.errors import ConfigurationError, UnknownName
from consilience.learner.learner import Learner
from consilience.learner.spec import LearnerSpec
from consilience.method import Role
from consilience.models import SplitModel, build_model, cut, model_factory
from consilience.models.cut import cut_shape
from consilience.optimizers import SGD


def chain() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


class Nested(nn.Module):
    """Two blocks with nested modules, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleDict({"low": nn.Sequential(nn.Linear(6, 5), nn.ReLU()), "high": nn.Linear(5, 4)})
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.tanh(self.body["high"](self.body["low"](x))))
        return logits


class Backwards(nn.Module):
    """Modules are registered in reverse order of their use."""

    def __init__(self) -> None:
        super().__init__()
        self.late, self.early = nn.Linear(5, 4), nn.Linear(6, 5)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.tanh(self.late(torch.relu(self.early(x)))))
        return logits


def whole(model: SplitModel) -> set[str]:
    return {name for name, _ in (*model.named_parameters(), *model.named_buffers())}


def assert_parts_are_disjoint(model: SplitModel) -> None:
    """The two parts are disjoint and cover the whole model."""
    assert set(model.parts) == {"device", "server"}
    assert model.parts["device"] | model.parts["server"] == whole(model)
    assert not model.parts["device"] & model.parts["server"]


def cut_shape_of(model: SplitModel, shape: tuple[int, ...] = (6,)) -> tuple[int, ...]:
    return cut_shape(model, shape, "net")


# Cut layers and the parts of weights


def test_sequential_is_cut_by_layer_name() -> None:
    net = chain()
    before = {name: id(p) for name, p in net.named_parameters()}
    model = cut(net, at="2")
    assert model.cut == "features.model.2" and cut_shape_of(model) == (5,)
    assert model.parts["device"] == {"features.model.1.weight", "features.model.1.bias"}
    assert_parts_are_disjoint(model)
    # The parameters are shared, and the given model is unchanged.
    assert {id(p) for p in model.parameters()} == {id(p) for p in net.parameters()}
    assert {name: id(p) for name, p in net.named_parameters()} == before
    assert isinstance(net[5], nn.Linear) and not hasattr(net, "cut")
    x = torch.randn(7, 6)
    assert torch.equal(model(x), net(x))


@pytest.mark.parametrize(
    ("at", "device", "shape"),
    [
        ("body.low", {"body.low.0.weight", "body.low.0.bias"}, (5,)),
        ("body.low.0", {"body.low.0.weight", "body.low.0.bias"}, (5,)),
        ("body.high", {"body.low.0.weight", "body.low.0.bias", "body.high.weight", "body.high.bias"}, (4,)),
        ("features.model.body.low.1", {"body.low.0.weight", "body.low.0.bias"}, (5,)),
    ],
)
def test_nested_layers_are_cut_by_dotted_name(at: str, device: set[str], shape: tuple[int, ...]) -> None:
    model = cut(Nested(), at=at)
    assert model.parts["device"] == {f"features.model.{name}" for name in device}
    assert cut_shape_of(model) == shape
    assert_parts_are_disjoint(model)


def test_cut_of_a_split_model_keeps_features_classifier_and_bound() -> None:
    given = SplitModel(
        nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.Tanh()), nn.Linear(4, 3), bound=1.0
    )
    for at in ("1", "features.1"):
        model = cut(given, at=at)
        assert model.cut == "features.1" and model.bound == 1.0
        assert model.features is given.features and model.classifier is given.classifier
        assert model.parts["server"] == {"features.2.weight", "features.2.bias", "classifier.weight", "classifier.bias"}
        assert_parts_are_disjoint(model)
    assert given.cut is None and given.parts == {}


def test_server_part_may_be_only_the_classifier() -> None:
    given = SplitModel(nn.Sequential(nn.Linear(6, 5), nn.ReLU()), nn.Linear(5, 3))
    model = cut(given, at="features")
    assert model.cut == "features" and model.parts["server"] == {"classifier.weight", "classifier.bias"}
    assert cut_shape_of(model) == (5,)


class Holding(nn.Module):
    """A network with a part named `model` or `features`."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.add_module(name, nn.Sequential(nn.Linear(6, 5), nn.ReLU()))
        self.rest = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.rest(self.get_submodule(self.name)(x))
        return logits


@pytest.mark.parametrize("name", ["model", "features"])
@pytest.mark.parametrize("inner", ["", ".0"])
def test_layers_named_model_or_features_are_cut_by_name(name: str, inner: str) -> None:
    model = cut(Holding(name), at=f"{name}{inner}")
    assert model.cut == f"features.model.{name}{inner}" and cut_shape_of(model) == (5,)


def test_features_are_cut_after_a_layer_named_model() -> None:
    features = nn.Sequential()
    features.add_module("model", nn.Linear(6, 5))
    features.add_module("more", nn.Linear(5, 4))
    assert cut(SplitModel(features, nn.Linear(4, 3)), at="model").cut == "features.model"


@pytest.mark.parametrize(
    "told",
    [
        {"device": ["early"]},
        {"server": ["late", "head"]},
        {"server": ["late.*", "classifier"]},
        {"device": ["early.weight", "early.bias"], "server": ["late", "classifier.*"]},
        {"device": ["features.model.early"]},
    ],
)
def test_parts_may_be_given_for_another_registration_order(told: dict[str, list[str]]) -> None:
    model = cut(Backwards(), at="early", **told)
    assert model.parts["device"] == {"features.model.early.weight", "features.model.early.bias"}
    assert_parts_are_disjoint(model)
    assert cut_shape_of(model) == (5,)


def test_wrong_registration_order_is_refused_with_a_hint() -> None:
    model = cut(Backwards(), at="early")
    assert_parts_are_disjoint(model)
    with pytest.raises(
        ConfigurationError, match=r"'features.model.late.weight' belongs to part 'device'.*server=\["
    ) as said:
        cut_shape_of(model)
    assert "reaches the logits around the cut 'features.model.early'" in str(said.value)


# Invalid cuts


@pytest.mark.parametrize(("at", "nearest"), [("body.lwo", "body.low"), ("haed", None), ("", None)])
def test_unknown_cut_layer_is_refused_with_the_nearest_name(at: str, nearest: str | None) -> None:
    with pytest.raises(UnknownName) as refused:
        cut(Nested(), at=at)
    said = str(refused.value)
    assert "unknown layer to cut after" in said and "body.high" in said and "head" not in said.partition("Known")[2]
    assert nearest is None or f"Did you mean {nearest!r}?" in said


@pytest.mark.parametrize(
    ("model", "at"),
    [
        (chain, "5"),
        (chain, "classifier"),
        (Nested, "head"),
        (lambda: Holding("low"), "rest"),  # the layer that computes the logits is in it
        (lambda: Holding("low"), "rest.2"),
        (lambda: SplitModel(nn.Linear(6, 5), nn.Linear(5, 3)), "classifier"),
        (lambda: build_model("mlp", (6,), 3), "classifier"),
    ],
)
def test_cut_after_the_classifier_is_refused(model: Callable[[], nn.Module], at: str) -> None:
    with pytest.raises(ConfigurationError, match=f"a cut after '{at}', the layer that computes the logits"):
        cut(model(), at=at)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"device": "early"}, r"device is 'early'; give a list of names, \['early'\]"),
        ({"server": "late"}, r"server is 'late'; give a list of names, \['late'\]"),
        ({"device": ["erly"]}, r"device: 'erly' matches nothing in the model; it has .*features.model.early.weight"),
        ({"device": ["early"], "server": ["late", "classifer"]}, "server: 'classifer' matches nothing"),
        ({"device": ["early", "late"], "server": ["late", "head"]}, r"'features.model.late.bias' is in both parts"),
        ({"device": ["early"], "server": ["late"]}, r"'classifier.bias' is in neither part"),
    ],
)
def test_invalid_parts_are_refused(told: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        cut(Backwards(), at="early", **told)


class Skipping(nn.Module):
    """The output of the first layer also skips the second."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 5), nn.Linear(5, 5), nn.Linear(5, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        logits: Tensor = self.head(self.third(x + self.second(x)))
        return logits


class Late(nn.Module):
    """The first operation uses a module that is registered later."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.third = nn.Linear(6, 5), nn.Linear(5, 4)
        self.scale, self.head = nn.Linear(6, 6), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.third(torch.relu(self.first(self.scale(x)))))
        return logits


class Twice(nn.Module):
    """One layer called twice, one never."""

    def __init__(self) -> None:
        super().__init__()
        self.again, self.never, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.again(self.again(x)))
        return logits


class Reading(nn.Module):
    """An LSTM, which returns a tuple, and layers without one output per sample."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.turn, self.mean = nn.LSTM(6, 5, batch_first=True), Turn(), Mean()
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.turn(self.lstm(x)[0])  # (places, n, 5)
        logits: Tensor = self.head(x[-1] + self.mean(x))
        return logits


class Turn(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(0, 1)


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean((0, 1))


@pytest.mark.parametrize(
    ("model", "at", "shape", "said"),
    [
        (Skipping, "second", (6,), r"'features.model.first.weight' belongs to part 'device' and reaches the logits"),
        (Late, "first", (6,), r"'features.model.scale.weight' belongs to part 'server' and is used before.*device=\["),
        (Twice, "again", (6,), "the cut layer 'features.model.again' was called 2 times"),
        (Twice, "never", (6,), "the cut layer 'features.model.never' was called 0 times"),
        (Reading, "lstm", (4, 6), "returns a tuple for 2 samples.*such as one that selects an LSTM's output"),
        (
            Reading,
            "turn",
            (4, 6),
            r"returns the shape \(4, 2, 5\) for 2 samples; it must return a tensor whose first axis",
        ),
        (Reading, "mean", (4, 6), r"returns the shape \(5,\) for 2 samples"),
        (chain, "2", (7,), r"model 'net' cannot take inputs of the shape \(7,\): mat1 and mat2 shapes"),
    ],
)
def test_overlapping_parts_are_refused_before_training(
    model: Callable[[], nn.Module], at: str, shape: tuple[int, ...], said: str
) -> None:
    built = cut(model(), at=at)
    with pytest.raises(ConfigurationError, match=said):
        cut_shape(built, shape, "net")
    # A learner with such a model is refused with the same message.
    with pytest.raises(ConfigurationError, match=said):
        Learner(LearnerSpec(lambda: cut(model(), at=at), Role(), SGD(), shape, "net"))


def test_skip_connection_within_the_device_part_is_accepted() -> None:
    assert cut_shape_of(cut(Skipping(), at="third")) == (4,)


def test_later_registered_weight_may_be_assigned_to_the_device() -> None:
    assert cut_shape_of(cut(Late(), at="first", device=["first", "scale"])) == (5,)


# The trial pass has no side effects


class Chancy(nn.Module):
    """BatchNorm and dropout on both sides of the cut."""

    def __init__(self) -> None:
        super().__init__()
        self.low = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.5))
        self.high = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.high(torch.relu(self.low(x)))
        return logits


@pytest.mark.parametrize("training", [True, False])
def test_trial_pass_leaves_model_and_random_numbers_unchanged(training: bool) -> None:
    model = cut(Chancy().train(training), at="low").train(training)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    assert cut_shape_of(model) == (5,)
    assert torch.equal(torch.rand(2), expected)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert all(module.training is training for module in model.modules())
    assert not any(module._forward_hooks for module in model.modules())
    assert "features.model.low.1.running_mean" in model.parts["device"]
    assert "features.model.high.1.num_batches_tracked" in model.parts["server"]
    assert_parts_are_disjoint(model)


def test_trial_pass_works_under_no_grad() -> None:
    with torch.no_grad():
        assert cut_shape_of(cut(chain(), at="2")) == (5,)
    with torch.no_grad(), pytest.raises(ConfigurationError, match="reaches the logits around the cut"):
        cut_shape_of(cut(Skipping(), at="second"))


# Built-in models

IMAGES = {"mlp": (1, 28, 28), "lenet5": (1, 28, 28), "cnn": (1, 28, 28), "device-cnn": (1, 28, 28)}
IMAGES |= {"device-cnn-large": (1, 28, 28), "device-cnn-medium": (1, 28, 28)}
COLORS = {"resnet9": (3, 32, 32), "resnet18": (3, 32, 32), "cnn5": (3, 32, 32), "cnn5-small": (3, 32, 32)}
Z = {
    "mlp": (64,),
    "lenet5": (16, 14, 14),
    "resnet9": (256, 8, 8),
    "resnet18": (256, 8, 8),
    "cnn": (64, 7, 7),
    "cnn5": (64, 8, 8),
    "cnn5-small": (64, 5, 5),
    "device-cnn": (8, 7, 7),
    "device-cnn-medium": (8, 7, 7),
    "device-cnn-large": (8, 7, 7),
}


@pytest.mark.parametrize(("name", "shape"), list((IMAGES | COLORS).items()))
def test_built_in_models_have_a_cut(name: str, shape: tuple[int, ...]) -> None:
    model = build_model(name, shape, 10)
    assert_parts_are_disjoint(model)
    assert cut_shape(model, shape, name) == Z[name]
    assert {"classifier.weight", "classifier.bias"} <= model.parts["server"]


def sizes(model: SplitModel) -> dict[str, int]:
    each = {
        part: sum(p.numel() for n, p in model.named_parameters() if n in names) for part, names in model.parts.items()
    }
    return {"all": sum(p.numel() for p in model.parameters()), **each}


@pytest.mark.parametrize(
    ("name", "shape", "parameters"),
    [
        ("cnn", (1, 28, 28), 1_663_370),
        ("cnn5", (3, 32, 32), 1_756_426),
        ("cnn5-small", (3, 32, 32), 457_450),
        ("lenet5", (1, 28, 28), 30_986),
        ("resnet9", (1, 28, 28), 2_470_730),
        ("resnet18", (3, 32, 32), 11_302_730),
        ("mlp", (1, 8, 8), 6_570),
    ],
)
def test_cut_adds_no_parameters(name: str, shape: tuple[int, ...], parameters: int) -> None:
    found = sizes(build_model(name, shape, 10))
    assert found["all"] == parameters == found["device"] + found["server"]


def test_device_cnn_has_a_small_server_part() -> None:
    assert sizes(build_model("device-cnn", (1, 28, 28), 10)) == {
        "all": 1_880_818,
        "device": 1_859_336,
        "server": 21_482,
    }
    color = build_model("device-cnn", (3, 32, 32), 10, width=48)
    assert color.width == 48 and cut_shape(color, (3, 32, 32), "device-cnn") == (8, 8, 8)


def test_servers_have_the_sizes_that_published_totals_imply() -> None:
    """n_1 (m N_1 + 2 m G) with N_1 = G, and 2 n_2 m N_2: table 1 and table 2 of Ma et al. 2020, ten devices a round."""
    mnist = sizes(build_model("device-cnn-large", (1, 28, 28), 10))["server"]
    color = sizes(build_model("device-cnn-medium", (3, 32, 32), 10))["server"]
    whole = sizes(build_model("cnn5-small", (3, 32, 32), 10))["all"]
    assert (mnist, color, whole) == (338_154, 58_346, 457_450)
    assert mnist == pytest.approx(4.526e9 / 437 / 10 / 3, rel=0.03)
    assert color == pytest.approx(3.258e8 / 191 / 10 / 3, rel=0.03)
    assert whole == pytest.approx(2.559e9 / 279 / 10 / 2, rel=0.003)


@pytest.mark.parametrize("name", ["device-cnn-medium", "device-cnn-large", "cnn5-small"])
def test_width_of_the_networks_of_table_2_can_be_set(name: str) -> None:
    model = build_model(name, (3, 32, 32), 10, width=48)
    assert model.width == 48 and model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    with pytest.raises(ConfigurationError, match=f"'{name}'.* at least 16"):
        build_model(name, (1, 12, 12), 10)


# Copies, and other processes


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_keep_cut_and_parts(copied: Callable[[SplitModel], SplitModel]) -> None:
    model = cut(chain(), at="2")
    other = copied(model)
    assert (other.cut, other.parts, other.bound) == (model.cut, model.parts, model.bound)
    assert cut_shape_of(other) == (5,)
    assert not {id(p) for p in other.parameters()} & {id(p) for p in model.parameters()}
    x = torch.randn(3, 6)
    assert torch.equal(other(x), model(x))


def test_pickled_builder_makes_cut_models() -> None:
    made = pickle.loads(pickle.dumps(model_factory("device-cnn", (1, 28, 28), 10)))()
    model = build_model("device-cnn", (1, 28, 28), 10)
    assert (made.cut, made.parts) == (model.cut, model.parts) == ("features.device", made.parts)


def test_cut_may_be_moved() -> None:
    again = cut(build_model("lenet5", (1, 28, 28), 10), at="conv1")
    assert again.cut == "features.conv1" and cut_shape(again, (1, 28, 28), "lenet5") == (6, 28, 28)
    assert again.parts["device"] == {"features.conv1.weight", "features.conv1.bias"}


PEEPS: dict[str, Callable[[Tensor], Tensor]] = {
    "as they are": lambda x: x,
    "as codes": lambda x: x.long().to(x.dtype),
    "less their mean": lambda x: x - x.mean(1, keepdim=True),
    "nothing for 0 and 1": lambda x: x * (1 - x),
    "where they are negative": lambda x: x.clamp(max=0),
}


class Peeping(nn.Module):
    """The server part also reads the inputs; with `codes`, inputs must be codes of two characters."""

    def __init__(self, seen: Callable[[Tensor], Tensor], codes: bool = False) -> None:
        super().__init__()
        self.device, self.server, self.seen, self.codes = nn.Linear(6, 4), nn.Linear(10, 3), seen, codes

    def forward(self, x: Tensor) -> Tensor:
        if self.codes:
            x = nn.functional.embedding(x.long(), torch.eye(2))[..., 1]  # fails for values that are not codes
        logits: Tensor = self.server(torch.cat([self.device(x), self.seen(x)], dim=1))
        return logits


@pytest.mark.parametrize("how", list(PEEPS))
def test_inputs_that_bypass_the_cut_are_refused(how: str) -> None:
    with pytest.raises(ConfigurationError, match="inputs reach the logits around the cut layer"):
        cut_shape(cut(Peeping(PEEPS[how]), at="device"), (6,), "peeping")


def test_trial_pass_of_a_text_model_uses_codes() -> None:
    with pytest.raises(ConfigurationError, match="inputs reach the logits around the cut layer"):
        cut_shape(cut(Peeping(PEEPS["less their mean"], codes=True), at="device"), (6,), "peeping")
    assert cut_shape(cut(Peeping(torch.zeros_like, codes=True), at="device"), (6,), "blind") == (4,)


def test_cut_before_any_parameters_is_refused() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    with pytest.raises(ConfigurationError, match="a cut after '0' has no trainable parameters"):
        cut(net, at="0")
