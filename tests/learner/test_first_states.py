"""First states of many learners at once have the bits of first states made one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from consilience.learner import first_states
from consilience.learner.first_states import FirstStates, Starts
from consilience.learner.initial_state import common_values, first_state
from consilience.learner.learner import Learner
from consilience.learner.recorded_draw import NotRepeatable, RecordedDraw, record_draw
from consilience.learner.spec import OPTIMIZER, LearnerSpec
from consilience.learner.state import Tensors
from consilience.method import Role
from consilience.methods import build_method
from consilience.models import build_model
from consilience.models.registry import MODELS
from consilience.optimizers import SGD, Adam

SHAPE, CLASSES, SEED = (1, 16, 16), 10, 7
NUMBERS = [3, 0, 11, 5, 4]
IMAGE_MODELS = [name for name in MODELS if "lstm" not in name]


class Unusual(nn.Module):
    """Draws without torch.nn.init: its own random tensors, a permutation, and constants changed in place."""

    def __init__(self) -> None:
        super().__init__()
        linear = nn.Linear(256, 6)
        self.features = nn.Sequential(nn.Flatten(), linear, nn.BatchNorm1d(6))
        self.own = nn.Parameter(torch.randn(3, 2) * 0.5 + torch.rand(2))
        self.features.register_parameter("own", self.own)
        self.features.register_buffer("order", torch.randperm(5))
        self.features.register_buffer("count", torch.tensor(4).add_(1))
        self.classifier = nn.Linear(6, CLASSES)
        nn.init.orthogonal_(self.classifier.weight)
        with torch.no_grad():
            linear.weight[1:3].normal_()


class DependsOnValues(Unusual):
    """Draws once more where the first number drawn is large."""

    def __init__(self) -> None:
        super().__init__()
        if self.own[0, 0] > 0:
            nn.init.normal_(self.own)


class Rejects(Unusual):
    """torch draws a truncated normal again and again until all numbers are within its bounds."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.trunc_normal_(self.own, std=3.0)


class BesideTorch(Unusual):
    """Reads the seed where no operation of torch shows it."""

    def __init__(self) -> None:
        super().__init__()
        self.features.register_parameter("seed", nn.Parameter(torch.tensor([float(torch.initial_seed() % 9973)])))


def learner_of(build: Callable[[], nn.Module], role: Role | None = None, **spec: object) -> Learner:
    role = Role() if role is None else role
    return Learner(LearnerSpec(build, role, spec.pop("optimizer", Adam(0.1)), SHAPE, **spec))  # type: ignore[arg-type]


def role_of(method: str) -> Role:
    return next(iter(build_method(method).roles.values()))


def equal_to_single_states(learner: Learner, settings: dict[str, dict[str, np.ndarray]] | None = None) -> None:
    """Compare the states of `NUMBERS` with those made one by one."""
    common = common_values(learner, SEED)
    counts = np.arange(len(NUMBERS) * CLASSES).reshape(-1, CLASSES) % 4
    counts[2] = counts[0]
    own = settings or {}
    found = FirstStates(learner).states(Starts(SEED, NUMBERS, common, counts, own)).flatten()
    for row, number in enumerate(NUMBERS):
        mine = {o: {k: torch.tensor(v[row]) for k, v in named.items()} for o, named in own.items()}
        expected = first_state(learner, SEED, number, common, counts[row], mine).flatten()
        for path, tensor in expected.items():
            if path[0] in ("optimizer", "residuals"):  # zeros, as the engines' memory is before
                assert not tensor.any() and path not in found
                continue
            assert found[path].dtype == tensor.dtype and torch.equal(found[path][row], tensor), path
        assert len(found) == sum(path[0] not in ("optimizer", "residuals") for path in expected)


@pytest.mark.parametrize("name", IMAGE_MODELS)
def test_every_model_is_repeated_from_a_recording(name: str) -> None:
    build = partial(build_model, name, (3, 32, 32), CLASSES)

    def tensors() -> tuple[Tensors, Tensors]:
        model = build()
        return dict(model.named_parameters()), dict(model.named_buffers())

    memory = record_draw(tensors, 1).memory()
    for seed in (2, 2**63 - 5):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            parameters, buffers = tensors()
        drawn = memory.draw(seed)
        for key, tensor in {**parameters, **buffers}.items():
            assert torch.equal(drawn[key], tensor) and drawn[key].dtype == tensor.dtype, key


@pytest.mark.parametrize(
    "method",
    [
        "independent",
        "fedavg",
        "fedavg:part=features",
        "fedproto",
        "representation-sharing",
        "consilience",
        "split-learning",
        "two-stage",
    ],
)
def test_states_equal_single_ones(method: str) -> None:
    name, _, setting = method.partition(":")
    given = dict([setting.split("=")]) if setting else {}
    role = next(iter(build_method(name, given).roles.values()))
    for dtype in (torch.float32, torch.float64):
        equal_to_single_states(learner_of(partial(build_model, "lenet5", SHAPE, CLASSES), role, dtype=dtype))


def test_states_with_buffers_and_own_settings_equal_single_ones() -> None:
    varied = {OPTIMIZER: ("lr",), "prototypes": ("weight",)}
    settings = {OPTIMIZER: {"lr": np.array([0.1, 0.2, 1e60, 0.4, 0.5])}, "prototypes": {"weight": np.arange(5.0)}}
    build = partial(build_model, "resnet9", (3, 32, 32), CLASSES)
    learner = Learner(LearnerSpec(build, role_of("fedproto"), SGD(0.1), (3, 32, 32), varied=varied))
    equal_to_single_states(learner, settings)


@pytest.mark.parametrize("build", [Unusual, DependsOnValues, Rejects, BesideTorch])
def test_models_of_ones_own_equal_single_ones(build: Callable[[], nn.Module]) -> None:
    equal_to_single_states(learner_of(build))


def test_only_builds_that_can_be_repeated_are(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    original = first_states._draw_in_threads

    def counted(recorded: RecordedDraw, seeds: Sequence[int], into: Mapping[str, Tensor]) -> None:
        drawn.append(len(seeds))
        original(recorded, seeds, into)

    monkeypatch.setattr(first_states, "_draw_in_threads", counted)
    for build, repeated in ((Unusual, True), (DependsOnValues, False), (Rejects, False), (BesideTorch, False)):
        drawn.clear()
        equal_to_single_states(learner_of(build))
        assert bool(drawn) is repeated, build


def test_a_build_that_asks_for_values_is_not_recorded() -> None:
    def tensors() -> tuple[Tensors, Tensors]:
        values: Tensor = torch.randn(3)
        return {"a": values if bool(values[0] > 0) else -values}, {}

    with pytest.raises(NotRepeatable, match="scalar"):
        record_draw(tensors, 0)


def test_weights_that_are_replaced_are_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learner_of(partial(build_model, "lenet5", SHAPE, CLASSES), role_of("fedavg"))
    common = common_values(learner, SEED)
    built: list[int] = []
    monkeypatch.setattr(learner.modules, "draw", built.append)
    counts = np.ones((2, CLASSES), dtype=np.int64)
    state = FirstStates(learner).states(Starts(SEED, [0, 1], common, counts, {}))
    assert not built and torch.equal(state.parameters[0], state.parameters[1])
