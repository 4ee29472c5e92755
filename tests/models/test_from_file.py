"""Custom models: any network with a linear layer at its end, and models from a Python file."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from copy import deepcopy
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from consilience import Dataset, load, simulate
from consilience.errors import ConfigurationError, UnknownName
from consilience.models import (
    SplitModel,
    absolute_model_name,
    build_model,
    is_model_file,
    load_builder,
    model_digest,
    split,
    to_split_model,
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load("digits", train=24, test=10)


class Net(nn.Module):
    """A custom network: the layer that computes the logits is neither registered last nor called classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.fc = nn.Linear(64, 5), nn.Linear(5, 10)
        self.norm = nn.BatchNorm1d(5)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.norm(F.relu(self.hidden(x.flatten(1)))) * self.scale)
        return F.softmax(logits, dim=1)


class Deep(nn.Module):
    """The layer of the logits is nested three levels deep, and later operations expect its output shape."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(64, 4)
        self.head = nn.ModuleDict({"top": nn.Sequential(nn.Tanh(), nn.Linear(4, 10))})
        self.prior = nn.Parameter(torch.zeros(10))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head["top"](self.body(x.flatten(1)))
        return logits.reshape(-1, 10) + self.prior


class Reading(nn.Module):
    """A body, a last layer, and a given forward function."""

    def __init__(self, read: Callable[[Any, Tensor], object]) -> None:
        super().__init__()
        self.body, self.fc, self.read = nn.Linear(6, 3), nn.Linear(3, 2), read

    def forward(self, x: Tensor) -> object:
        return self.read(self, x)


# --- split any network


def test_inputs_of_the_last_linear_layer_are_the_features() -> None:
    net = Net().eval()
    model, x = split(net, bound=3.0).eval(), torch.randn(4, 1, 8, 8)
    assert (model.width, model.classes, model.bound) == (5, 10, 3.0) and model.classifier is net.fc
    features = net.norm(F.relu(net.hidden(x.flatten(1)))) * 2.0
    torch.testing.assert_close(model.features(x), features)
    torch.testing.assert_close(model(x).softmax(1), net(x))  # the model returns logits, without the softmax


def test_split_leaves_the_original_unchanged_and_shares_parameters() -> None:
    net = Net()
    state, modules = {k: v.clone() for k, v in net.state_dict().items()}, dict(net.named_modules())
    model = split(net, "fc")
    assert dict(net.named_modules()) == modules and type(net.fc) is nn.Linear
    assert all(torch.equal(state[k], v) for k, v in net.state_dict().items())
    assert {id(p) for p in model.parameters()} == {id(p) for p in net.parameters()}
    optimizer, x = torch.optim.SGD(net.parameters(), lr=0.1), torch.randn(4, 1, 8, 8)
    torch.autograd.backward(F.cross_entropy(model(x), torch.arange(4)))
    optimizer.step()  # an optimizer of the original updates both
    assert not torch.equal(net.fc.weight, state["fc.weight"]) and not torch.equal(net.scale, state["scale"])
    torch.testing.assert_close(model.eval()(x).softmax(1), net.eval()(x))


def test_every_parameter_appears_once_with_a_readable_name() -> None:
    names = [name for name, _ in split(Net()).named_parameters()]
    assert names == [
        *("features.model.scale", "features.model.hidden.weight", "features.model.hidden.bias"),
        *("features.model.norm.weight", "features.model.norm.bias", "classifier.weight", "classifier.bias"),
    ]


def test_nested_classifier_is_split_off() -> None:
    net, x = Deep(), torch.randn(3, 1, 8, 8)
    model = split(net, at="head.top.1")
    torch.testing.assert_close(model.features(x), torch.tanh(net.body(x.flatten(1))))
    torch.testing.assert_close(model(x), net(x))
    assert isinstance(net.head["top"], nn.Sequential) and isinstance(net.head["top"][1], nn.Linear)


def test_split_at_a_middle_layer() -> None:
    net, x = Net().eval(), torch.randn(3, 64)
    model = split(net, at="hidden")
    assert (model.width, model.classes) == (64, 5) and torch.equal(model.features(x), x)


def test_split_network_supports_deepcopy_and_load_state_dict() -> None:
    torch.manual_seed(0)
    one, x = split(Net()), torch.randn(4, 64)
    torch.autograd.backward(one(x).sum())  # a pass leaves nothing that cannot be copied
    twin, other = deepcopy(one).eval(), split(Net()).eval()
    assert not torch.equal(twin(x), other(x))
    other.load_state_dict(one.state_dict())
    assert torch.equal(twin(x), other(x)) and torch.equal(twin(x), one.eval()(x))
    with torch.no_grad():
        twin.classifier.bias.add_(1.0)
    assert not torch.equal(twin(x), one(x))


def test_stacked_split_networks_equal_single_networks() -> None:
    models = [split(Net()).double().eval() for _ in range(3)]
    weights, buffers = stack_module_state([*models])
    x = torch.randn(3, 4, 64, dtype=torch.float64)  # (learners, batch, pixels)
    stacked = vmap(lambda w, b, x: functional_call(models[0], (w, b), (x,)))(weights, buffers, x)
    for i, model in enumerate(models):
        torch.testing.assert_close(stacked[i], model(x[i]))


@pytest.mark.parametrize("method", ["fedavg", "representation-sharing"])
def test_loop_equals_stack_for_a_split_network(method: str, data: Dataset) -> None:
    def own() -> SplitModel:
        return split(Net(), at="fc")

    settings: dict[str, Any] = {"data": data, "model": own, "method": method, "precision": "float64"}
    loop, stack = (simulate(**settings, rounds=1, learners=2, engine=engine, workers=0) for engine in ("loop", "stack"))
    assert (loop.engine, stack.engine) == ("loop", "stack")
    np.testing.assert_allclose(stack.history["loss.cross_entropy"], loop.history["loss.cross_entropy"], rtol=1e-9)
    np.testing.assert_array_equal(stack.accuracy, loop.accuracy)


def test_network_is_split_at_the_last_linear_layer_by_default(data: Dataset) -> None:
    model = to_split_model(Net())
    assert isinstance(model, SplitModel) and model.width == 5 and model.bound == math.inf
    net = Net()
    for bound, believed in (
        (2.0, 2.0),
        (net.forward, math.inf),
        ("tight", math.inf),
    ):  # the attribute may have another meaning
        vars(net)["bound"] = bound
        assert to_split_model(net).bound == believed
    assert simulate(data=data, model=Deep, method="fedavg", rounds=1, learners=2, workers=0).finished


# --- networks that cannot be split


@pytest.mark.parametrize(
    ("model", "at", "says"),
    [
        (Net(), "fcc", r"unknown linear layer 'fcc' of Net. Did you mean 'fc'\? Known: fc, hidden"),
        (Net(), "", "unknown linear layer '' of Net"),
        (Net(), "norm", r"layer 'norm' of Net is a BatchNorm1d.*torch.nn.Linear: hidden, fc"),
        (nn.Sequential(nn.Flatten()), None, "Sequential has no torch.nn.Linear to compute"),
        (nn.Linear(3, 2), None, "is a torch.nn.Linear, and its classifier must be a layer inside of it"),
        (nn.ModuleList([nn.Linear(3, 2)]), None, "ModuleList has no forward"),
        (Net, None, "a torch.nn.Module, got the class Net"),
    ],
)
def test_invalid_split_layer_is_refused(model: nn.Module, at: str | None, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        split(model, at)


def test_unknown_layer_error_has_the_nearest_name() -> None:
    with pytest.raises(UnknownName) as caught:
        split(Deep(), "head.top.0x")
    assert caught.value.nearest == "head.top.1"


def tied() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    net[1].weight = net[0].weight
    return net


def twice() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer)


@pytest.mark.parametrize(("net", "at"), [(tied(), "1"), (tied(), "0"), (twice(), "0"), (twice(), "2")])
def test_tied_weights_are_refused(net: nn.Module, at: str) -> None:
    with pytest.raises(
        ConfigurationError, match=f"layer '{at}' of Sequential shares its parameters with '[012].weight'"
    ):
        split(net, at)


@pytest.mark.parametrize(
    ("read", "says"),
    [
        (lambda net, x: net.body(x), "layer 'fc' of Reading was never called"),
        (lambda net, x: F.linear(net.body(x), net.fc.classes * torch.ones(2, 3)), "was never called"),
        (lambda net, x: net.fc(net.body(x)) + net.fc(net.body(x)), "was called 2 times in one forward pass"),
        (lambda net, x: net.fc(net.body(x)[:, None]), r"shape \(4, 1, 3\) for 4 samples.*\(4, 3\); flatten"),
        (lambda net, x: net.fc(net.body(x)[:2]), r"shape \(2, 3\) for 4 samples"),
        (lambda net, x: net.fc(x), r"shape \(4, 6\) for 4 samples, and must read \(4, 3\)"),
    ],
)
def test_layer_not_used_as_a_classifier_is_refused(read: Callable[[Any, Tensor], object], says: str) -> None:
    model = split(Reading(read))
    with pytest.raises(ConfigurationError, match=says):
        model(torch.zeros(4, 6))
    deepcopy(model)  # captured features are dropped after an error


# --- names of files


@pytest.mark.parametrize("name", ["net.py:Net", "a/net.py:Net@fc", "net.py", "net.txt:Net", "mlp:Net"])
def test_model_files_are_distinguished_from_model_names(name: str) -> None:
    assert is_model_file(name) and not is_model_file("resnet18")


def test_model_file_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    assert absolute_model_name("a/net.py:Net@head.2") == f"{tmp_path}/a/net.py:Net@head.2"
    assert absolute_model_name("~/x@y/net.py:Net") == "/home/me/x@y/net.py:Net"
    assert absolute_model_name("net.py") == f"{tmp_path}/net.py" and absolute_model_name("mlp") == "mlp"


NET = """
from __future__ import annotations
from dataclasses import dataclass
import torch
from torch import nn

torch.manual_seed(7)
torch.rand(3)
runs = []

@dataclass
class Sizes:  # looks its module up
    inner: int = 3

class Net(nn.Module):
    def __init__(self, num_classes, hidden=Sizes().inner):
        super().__init__()
        runs.append(1)
        self.a = nn.Linear(64, hidden)
        self.fc = nn.Linear(hidden, num_classes)
        self.extra = nn.Linear(num_classes, num_classes)

    def forward(self, x):
        return self.extra(self.fc(torch.relu(self.a(x.flatten(1)))))

def sized(shape, channels, classes, width=4):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * shape[1] * shape[2], width), nn.Linear(width, classes))

def count():
    return nn.Sequential(nn.Identity(), nn.Linear(1, len(runs)))

def anything(*args, **kwargs):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""


@pytest.fixture
def net(tmp_path: Path) -> Path:
    file = tmp_path / "net.py"
    file.write_text(NET)
    return file


def test_builder_from_a_file_gets_the_arguments_it_declares(net: Path) -> None:
    model = build_model(f"{net}:Net@fc", (1, 8, 8), 9)
    assert (model.width, model.classes) == (3, 9) and model(torch.zeros(2, 1, 8, 8)).shape == (2, 9)
    assert build_model(f"{net}:Net", (1, 8, 8), 9).width == 9  # the last linear layer by default
    assert build_model(f"{net}:sized", (2, 3, 4), 5).features(torch.zeros(1, 2, 3, 4)).shape == (1, 4)
    assert build_model(f"{net}:sized", (2, 3, 4), 5, width=6).width == 6
    assert build_model(f"{net}:anything", (1, 8, 8), 9).classes == 10
    made = load_builder(f"{net}:sized")((2, 3, 4), 5)
    assert type(made) is nn.Sequential


def test_fixed_width_of_a_file_model_must_match_the_setting(net: Path) -> None:
    assert build_model(f"{net}:Net@fc", (1, 8, 8), 9, width=3).width == 3
    with pytest.raises(ConfigurationError, match=r"net.py:Net@fc' has features of width 3, and width is 8"):
        build_model(f"{net}:Net@fc", (1, 8, 8), 9, width=8)


def test_model_file_is_executed_once_until_it_changes(net: Path) -> None:
    path = list(sys.path)
    for _ in range(3):
        build_model(f"{net}:Net@fc", (1, 8, 8), 9)
    assert build_model(f"{net}:count", (1,), 1).classes == 3  # the module is executed once
    before = model_digest(f"{net}:Net")
    net.write_text(NET.replace("inner: int = 3", "inner: int = 6"))  # of the same size, in the same second
    assert build_model(f"{net}:Net@fc", (1, 8, 8), 9).width == 6
    assert build_model(f"{net}:count", (1,), 1).classes == 1
    assert before != model_digest(f"{net}:count@x") == sha256(net.read_bytes()).hexdigest()
    assert sys.path == path and not (net.parent / "__pycache__").exists() and "net" not in sys.modules


def test_loading_a_model_file_keeps_the_global_random_state(net: Path) -> None:
    weights = []
    for _ in range(2):  # the file, which seeds torch, is executed only once
        torch.manual_seed(1)
        weights.append(build_model(f"{net}:Net@fc", (1, 8, 8), 9).classifier.weight)
    assert torch.equal(*weights)


def test_model_files_import_modules_of_their_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path = list(sys.path)
    for folder, width in (("a", 3), ("b", 5)):
        (tmp_path / folder / "parts_of_it").mkdir(parents=True)
        (tmp_path / folder / "sizes_of_it.py").write_text(f"width = {width}\n")
        (tmp_path / folder / "parts_of_it" / "__init__.py").write_text("")
        (tmp_path / folder / "parts_of_it" / "late.py").write_text(f"more = {width}\n")
        (tmp_path / folder / "net.py").write_text(
            "from torch import nn\n"
            "from sizes_of_it import width\n"
            "def build(classes):\n"
            "    from parts_of_it.late import more\n"
            "    return nn.Sequential(nn.Flatten(), nn.Linear(width + more, classes))\n"
        )
    names = [f"{tmp_path}/{folder}/net.py:build" for folder in "abab"]
    assert [build_model(name, (1,), 2).width for name in names] == [6, 10, 6, 10]
    assert sys.path == path
    for name in ("sizes_of_it", "parts_of_it", "parts_of_it.late"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("code", "thing", "says"),
    [
        ("import torch\n\n1 / 0\n", "Net", r"cannot be imported \(line 3\): ZeroDivisionError: division by zero"),
        ("x = 1\ndef f(:\n", "Net", r"cannot be imported \(line 2\): SyntaxError"),
        ("\nimport not_there_at_all\n", "Net", r"\(line 2\): ModuleNotFoundError: No module named 'not_there_at_all'"),
        ("import sys\nsys.exit(3)\n", "Net", r"cannot be imported \(line 2\): SystemExit: 3"),
        ("raise SystemExit\n", "Net", r"\(line 1\): SystemExit; fix it"),
        ("x = '\0'\n", "Net", "cannot be imported.*null byte"),
        (
            "class Net: pass\nfrom math import floor",
            "Nett",
            r"unknown model 'Nett' of .*net.py. Did you mean 'Net'\? Known: Net$",
        ),
        ("Net = 3\n", "Net", "Net is int; name a function or class"),
        ("from torch import nn\nNet = nn.Linear(2, 2)\n", "Net", r"Net is Linear\(2, 2\); name a function or class"),
        ("def Net(depth): pass\n", "Net", "net.py:Net' has the parameter 'depth', which is unknown"),
        ("def Net(width): pass\n", "Net", "net.py:Net' has the parameter 'width', and no width is set"),
        ("def Net():\n    raise KeyError('ah')\n", "Net", r"net.py: Net failed \(line 2\): KeyError: 'ah'"),
        ("import sys\ndef Net():\n    sys.exit()\n", "Net", r"Net failed \(line 3\): SystemExit"),
        ("def Net(): return 3\n", "Net", "net.py: Net returned int, and must return a torch.nn.Module"),
        ("from torch import nn\ndef Net(): return nn.Flatten()\n", "Net", "Flatten has no torch.nn.Linear"),
        (
            "from torch import nn\ndef Net(): return nn.Sequential(nn.Linear(1, 2))\n",
            "Net@1",
            "unknown linear layer '1'",
        ),
    ],
)
def test_invalid_model_file_is_refused(code: str, thing: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(code)
    known = set(sys.modules)
    with pytest.raises(ConfigurationError, match=says):
        build_model(f"{tmp_path}/net.py:{thing}", (1, 8, 8), 10)
    left = {name for name in set(sys.modules) - known if "consilience_own" in name}
    assert len(left) == (0 if "cannot be imported" in says or "Error: No" in says or "SystemExit;" in says else 1)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nowhere.py:Net", r"nowhere.py: no such file; write path/to/file.py:NAME"),
        ("net.txt:Net", "net.txt: not a Python file"),
        ("mlp:Net", "mlp: not a Python file"),
        ("folder.py:Net", "folder.py: cannot be read: Is a directory"),
        ("net.py", "'net.py' does not name a model in a file; write"),
        ("net.py:", "does not name a model in a file"),
        ("net.py:@fc", "does not name a model in a file"),
        ("net.py:Net@", "does not name a model in a file"),
    ],
)
def test_invalid_path_of_a_model_file_is_refused(
    name: str, says: str, net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.txt").write_text(NET)
    (tmp_path / "folder.py").mkdir()
    for ask in (model_digest, lambda name: build_model(name, (1, 8, 8), 10)):
        with pytest.raises(ConfigurationError, match=says):
            ask(name)


def test_worker_processes_load_the_model_file(net: Path, data: Dataset) -> None:
    settings: dict[str, Any] = {"data": data, "model": f"{net}:Net@fc", "method": "fedavg", "rounds": 1, "learners": 2}
    alone = simulate(**settings, engine="loop", workers=0)
    shared = simulate(**settings, engine="loop", workers=2)
    np.testing.assert_array_equal(alone.history["loss.cross_entropy"], shared.history["loss.cross_entropy"])
    assert shared.finished and np.isfinite(alone.history["loss.cross_entropy"][1:]).all()
