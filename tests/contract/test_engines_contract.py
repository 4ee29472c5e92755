"""The contract of the engines: loop equals stack for all methods, models and absences; also on a GPU if any.

The branches engine shares all but the steps with the stack, and is compared with the loop where steps differ: every
method with learners that come and go, every way to train, every kind of model. On a CPU its branches run in turn.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from consilience.config.config import Config, make_config
from consilience.data import Dataset, load
from consilience.data.local_test_sets import LocalTestSets
from consilience.errors import ConfigurationError, ConsilienceError, TrainingError
from consilience.exchanges import Contribution, Exchange, Prototypes, Received, State, Update, View, Weights
from consilience.learner.passes import EVALUATED_ROWS
from consilience.method import Method, Role
from consilience.methods import METHODS, build_method
from consilience.models import SplitModel
from consilience.objectives import Objective
from consilience.simulation.engines.branches.engine import BranchEngine
from consilience.simulation.engines.choose import torch_configured_for
from consilience.simulation.engines.cohort import CohortPlan
from consilience.simulation.engines.loop.engine import LoopEngine
from consilience.simulation.engines.stack import memory_budget as room_module
from consilience.simulation.engines.stack import trainer_cache
from consilience.simulation.engines.stack.engine import StackEngine
from consilience.simulation.engines.stack.stacked_trainer import StackedTrainer
from consilience.simulation.records.checkpoint import run_checkpoint
from consilience.simulation.records.history import History
from consilience.simulation.records.round_record import Record
from consilience.simulation.records.run_folder import RunFolder
from consilience.simulation.round import round as rounds_module
from consilience.simulation.round.participation import Presence, draw_presence
from consilience.simulation.round.round import Rounds
from consilience.simulation.setup.federations import Federations
from consilience.simulation.setup.participants import Model
from consilience.simulation.setup.setup import Setup, build_setup
from consilience.simulation.simulate import simulate
from consilience.task import Task, names_in_part
from consilience.wire import schema
from consilience.wire.encodings import BIT
from tests.method_tools import Dimmed

Arrays = dict[str, np.ndarray]
Played = tuple[Arrays, list[Record]]
"""All that a next round would depend on, and what each round was like."""
Variation = Mapping[str, Mapping[str, np.ndarray]]
"""Settings that differ between rows, by exchange (or the optimizer) and field."""

ALONE = [name for name in METHODS if len(build_method(name).roles) == 1]
"""Methods of one role; the others have a contract of their own, in test_unlabeled_contract.py."""
CASES: dict[str, tuple[str, Mapping[str, Any]]] = {name: (name, {}) for name in ALONE} | {
    "fedavg different starts": ("fedavg", {"start": "different"}),
    "fedavg classifier only": ("fedavg", {"part": "classifier"}),
    "fedavg every 2": ("fedavg", {"every": 2}),
    "fedavg int8": ("fedavg", {"up": "int8", "down": "int8"}),
    "fedavg int4 down": ("fedavg", {"up": "bit", "down": "int4"}),
    "consilience every 2": ("consilience", {"every": 2}),
    "fedavg two answers": ("fedavg", {"objective": "calibrated", "own_head": True}),
    "representations 2 up 3 down": ("representation-sharing", {"up": 2, "down": 3}),
    "representations int8": ("representation-sharing", {"up": 2, "down": 3, "encoding": "int8"}),
    "representations some dimensions": ("representation-sharing", {"dimensions": 0.3}),
    "prototypes random dimensions": ("fedproto", {"dimensions": 0.3, "subspace": "random"}),
    "representations random dimensions": (
        "representation-sharing",
        {"dimensions": 0.3, "subspace": "random", "encoding": "float16", "up": 2, "down": 3},
    ),
    "representations top dimensions": ("representation-sharing", {"dimensions": 0.3, "subspace": "top-variance"}),
    "representations seen some dimensions": ("representation-sharing", {"dimensions": 0.3, "means": "seen"}),
    "representations seen": ("representation-sharing", {"means": "seen", "down": 2}),
    "representations equal": ("representation-sharing", {"weighting": "equal"}),
    "two-stage calibrated": ("two-stage", {"calibrated": True}),
    "two-stage inner batch": ("two-stage", {"inner": "batch", "delta": 0.01}),
    "representations exponential": ("representation-sharing", {"discriminator": "exponential"}),
    "representations exponential-mlp": ("representation-sharing", {"discriminator": "exponential-mlp"}),
}
each_case = pytest.mark.parametrize("case", list(CASES))
each_together = pytest.mark.parametrize(
    "case", [name for name, (method, _) in CASES.items() if method != "centralized"]
)
PARTIAL_PARTICIPATION: dict[str, Any] = {
    "partition": "dirichlet(0.5)",
    "participation": 0.5,
    "offline": 0.3,
    "seeds": 2,
}
ENGINES = ("loop", "stack", "branches")
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def data() -> Dataset:
    """Thirty samples for each of four learners: a whole batch of 16 and a partial one."""
    return load("digits", train=120, test=40)


def settings(case: str, device: str, **others: Any) -> Config:
    method, own = CASES[case]
    small = {"learners": 4, "batch_size": 16, "precision": "float64", "device": device, "workers": 0}
    return make_config({**small, "method": {"name": method, **own}, **others})


@contextmanager
def stage(
    engine: str,
    config: Config,
    data: Dataset,
    method: Method | None = None,
    models: Sequence[Model] = (),
    varied: Variation | None = None,
) -> Iterator[Rounds]:
    """A federation before its first round, on one of the engines."""
    chosen = method or build_method(config.method.name, config.method.settings)
    setup = build_setup(config, chosen, data, models or config.model_name.split(","))
    setup = with_own_settings(setup, varied) if varied else setup
    plans, dealt, own = list(setup.cohorts.plans), setup.data.train, setup.data.local_test_sets
    with open_one(engine, plans, dealt, own) as opened:
        yield Rounds(setup, opened)


def open_one(
    engine: str, plans: list[CohortPlan], data: Dataset, own: LocalTestSets | None
) -> LoopEngine | StackEngine:
    if engine == "loop":
        return LoopEngine(plans, data, 0, own)
    return (BranchEngine if engine == "branches" else StackEngine)(plans, data, own)


def with_own_settings(setup: Setup, varied: Variation) -> Setup:
    (plan,) = setup.cohorts.plans
    spec = replace(plan.spec, varied={owner: tuple(fields) for owner, fields in varied.items()})
    values = {(owner, name): tuple(v) for owner, fields in varied.items() for name, v in fields.items()}
    plans = (replace(plan, spec=spec, settings=values),)
    return replace(setup, cohorts=replace(setup.cohorts, plans=plans))


def run_rounds(rounds: Rounds, count: int = 3) -> Played:
    records = [rounds.start(), *(rounds.run(evaluate=True) for _ in range(count))]
    return {k: v.copy() for k, v in run_checkpoint(rounds).arrays.items()}, records


def assert_close(one: Played, other: Played, rtol: float = 1e-9) -> None:
    """Every array and every metric, relative to its own largest magnitude; integers exactly.

    Differences below 1e-15 count as 0: for example the residual of a one-bit answer to a one-bit upload.
    """
    pairs = [(one[0], other[0]), *zip(one[1], other[1], strict=True)]
    for number, (a, b) in enumerate(pairs):
        assert set(a) == set(b)
        for key in (k for k in a if not k.startswith(("seconds.", "wall."))):
            assert a[key].dtype == b[key].dtype, key
            largest = np.abs(np.nan_to_num(a[key])).max(initial=0.0)
            slack = max(rtol * largest, 1e-15) if a[key].dtype.kind == "f" else 0.0
            where = f"{key} in {f'round {number - 1}' if number else 'the state'}"
            np.testing.assert_allclose(b[key], a[key], rtol=0, atol=slack, err_msg=where)


def assert_engines_agree(
    config: Config, data: Dataset, *, count: int = 3, rtol: float = 1e-9, branches: bool = False, **more: Any
) -> Played:
    """The loop and the stack, and the branches where asked for; returns what the stack played."""
    played = {}
    for engine in ("loop", "stack", "branches") if branches else ("loop", "stack"):
        with stage(engine, config, data, **more) as rounds:
            played[engine] = run_rounds(rounds, count)
        assert_close(played["loop"], played[engine], rtol)
    return played["stack"]


# Every method


@each_case
def test_loop_equals_stack(case: str, device: str, data: Dataset) -> None:
    assert_engines_agree(settings(case, device), data)


@each_case
def test_loop_equals_stack_with_unequal_and_partly_absent_learners(case: str, device: str, data: Dataset) -> None:
    assert_engines_agree(settings(case, device, **PARTIAL_PARTICIPATION), data, branches=True)


@pytest.mark.parametrize("case", ["independent", "fedprox", "federated-distillation", "representation-sharing"])
def test_loop_equals_stack_in_single_precision_after_one_step(case: str, device: str, data: Dataset) -> None:
    config = settings(case, device, precision="float32", batch_size=64, optimizer="sgd", lr=0.1)
    assert_engines_agree(config, data, count=1, rtol=1e-5, branches=True)


# Every way to train


SCHEDULES: dict[str, Mapping[str, Any]] = {
    "unequal": {"partition": "dirichlet(0.5)"},
    "half take part": {"participation": 0.5},
    "some are offline": {"offline": 0.3},
    "all are offline": {"offline": 1.0},
    "two in turn": {"reachable": "turns(2)"},
    "two epochs": {"epochs": 2},
    "two epochs of unequal sizes": {"epochs": 2, "partition": "dirichlet(0.5)"},
    "two seeds": {"seeds": 2, "seed": 3},
    "one sample a batch": {"batch_size": 1, "learners": 12},
    "one batch": {"batch_size": 500},
    "momentum": {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
    "nesterov": {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": True, "clip": 0.5},
    "decay": {"weight_decay": 0.1},
    "sign-sgd": {"optimizer": "sign-sgd", "lr": 0.001, "weight_decay": 0.01, "partition": "dirichlet(0.5)"},
    "adamw, clipped, unequal": {"optimizer": "adamw", "weight_decay": 0.1, "clip": 0.3, "partition": "dirichlet(0.5)"},
    "augmented, unequal": {"augment": "crop+flip", "partition": "dirichlet(0.5)", "epochs": 2},
    "reset": {"optimizer_state": "reset", "epochs": 2},
    "a single learner": {"learners": 1},
    "convolutions": {"model": "lenet5", "batch_size": 20},
}


@pytest.mark.parametrize("case", ["consilience", "fedprox"])
@pytest.mark.parametrize("schedule", list(SCHEDULES))
def test_loop_equals_stack_under_every_schedule(schedule: str, case: str, device: str, data: Dataset) -> None:
    assert_engines_agree(settings(case, device, **SCHEDULES[schedule]), data, branches=case == "consilience")


RESISTING: dict[str, Mapping[str, Any]] = {
    "trimmed, signs flipped": {
        "aggregation": "trimmed(0.3)",
        "groups": {"bad": {"learners": 0, "attack": "sign-flip"}},
    },
    "median, scaled, partly absent": {
        **PARTIAL_PARTICIPATION,
        "aggregation": "median",
        "groups": {"bad": {"learners": 0, "attack": "scale(10)"}},
    },
    "clipped and capped, claimed": {
        "clip_norm": 0.4,
        "clip_ratio": 1.1,
        "weight_cap": 20,
        "groups": {"bad": {"learners": 1, "attack": "claim(100)+scale(3)"}},
    },
    "swapped, labels flipped": {"groups": {"bad": {"learners": "0,2", "attack": "prototype-swap+label-flip"}}},
}


@pytest.mark.parametrize(
    "case",
    ["consilience", "representations int8", "representations equal", "fedavg different starts", "two-stage"],
)
@pytest.mark.parametrize("resisting", list(RESISTING))
def test_loop_equals_stack_with_learners_that_misbehave(resisting: str, case: str, device: str, data: Dataset) -> None:
    if (case, resisting) in REFUSED:
        with pytest.raises(ConfigurationError), stage("loop", settings(case, device, **RESISTING[resisting]), data):
            pass
        return
    assert_engines_agree(settings(case, device, **RESISTING[resisting]), data)


REFUSED = {
    ("fedavg different starts", "swapped, labels flipped"),  # nothing is uploaded by class
    ("two-stage", "swapped, labels flipped"),
    ("two-stage", "clipped and capped, claimed"),  # votes all have the same norm
}


WITHIN: dict[str, Mapping[str, Any]] = {
    "listed": {
        "partners": "listed",
        "groups": {"a": {"learners": "0-1", "partners": "0-2"}, "b": {"learners": "2-3", "partners": 3}},
    },
    "similar": {"partners": "similar(2)", "partners_from": 0, "partners_every": 2},
    "useful, partly absent": {**PARTIAL_PARTICIPATION, "partners": "useful(1)", "validation": 0.2},
    "ring with losses": {"topology": "ring", "lost": 0.3},
    "new graphs, two steps, partly absent": {
        **PARTIAL_PARTICIPATION,
        "topology": "regular(2)",
        "topology_every": 1,
        "gossip_steps": 2,
    },
    "relevant": {"choose": "relevant", "participation": 0.5},
    "useful observations": {**PARTIAL_PARTICIPATION, "choose": "useful", "validation": 0.2},
}


SHARING = ("representations 2 up 3 down", "representations random dimensions")


@pytest.mark.parametrize("case", [*SHARING, "representations seen", "fedavg different starts"])
@pytest.mark.parametrize("within", list(WITHIN))
def test_loop_equals_stack_with_some_learners_only(within: str, case: str, device: str, data: Dataset) -> None:
    config = settings(case, device, **WITHIN[within])
    if within in UNCOMPARED and case not in SHARING and (within, case) not in ALLOWED:
        with pytest.raises(ConfigurationError), stage("loop", config, data):
            pass
        return
    assert_engines_agree(config, data)


UNCOMPARED = ("similar", "useful, partly absent", "relevant", "useful observations")
"""These need class means, or observations, that not all methods upload."""
ALLOWED = (("relevant", "representations seen"), ("useful observations", "representations seen"))


def test_loop_equals_stack_with_partners_who_share_weights_at_one_bit(device: str, data: Dataset) -> None:
    config = settings("consilience", device, partners="similar(2)", **PARTIAL_PARTICIPATION)
    assert_engines_agree(config, data)


def test_loop_equals_stack_where_the_norm_leaves_out_parts_that_exchanges_move(device: str, data: Dataset) -> None:
    config = settings("two-stage", device, clip=0.05, optimizer="sgd", lr=0.5)
    stack = assert_engines_agree(config, data, branches=True)
    with stage("loop", settings("two-stage", device, optimizer="sgd", lr=0.5), data) as rounds:
        unclipped = run_rounds(rounds)
    assert any(not np.allclose(unclipped[0][key], stack[0][key]) for key in stack[0] if "parameters" in key)


def test_partition_gives_learners_different_numbers_of_steps(data: Dataset) -> None:
    """The tests with unequal sizes assume that some learners have fewer steps than others."""
    config = settings("independent", "cpu", partition="dirichlet(0.5)", seeds=2)
    sizes = build_setup(config, build_method("independent"), data, ["mlp"]).cohorts.plans[0].members.sizes
    assert len(set((-(-sizes // 16)).tolist())) > 1


def test_federations_of_equal_and_unequal_sizes_in_one_run(
    device: str, data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of different widths cannot share a step: rows are trained separately and uploaded together."""
    cuts = iter([[30, 60, 90], [10, 50, 70]] * 3)

    def split(targets: np.ndarray, *others: Any, **more: Any) -> list[np.ndarray]:
        return np.split(np.arange(len(targets)), next(cuts))

    monkeypatch.setattr("consilience.data.local_datasets.partition_samples", split)
    assert_engines_agree(settings("consilience", device, seeds=2), data, branches=True)


# Settings per learner

TERMS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "own weights": (
        "representation-sharing",
        {},
        {"groups": {"a": {"learners": "0-1", "method": {"kd": 3, "contrast": 0}}, "b": {"learners": 3, "lr": 0.01}}},
    ),
    "schedules": (
        "consilience",
        {"kd": "ramp(0, 10, 3)", "contrast": "cosine(2, 0, 2)"},
        {"lr": "cosine(0.01, 0.001, 3)", "groups": {"a": {"learners": 1, "method": {"kd": "constant(4)"}}}},
    ),
    "own observations": (
        "representation-sharing",
        {},
        {"groups": {"rich": {"learners": [2], "method": {"up": 3, "down": 2, "n_avg": 4}}}},
    ),
    "listening and giving": (
        "consilience",
        {},
        {"groups": {"quiet": {"learners": [0], "uploads": False}, "giver": {"learners": [3], "downloads": False}}},
    ),
    "some exchanges, some classes": (
        "consilience",
        {},
        {
            "groups": {
                "private": {"learners": "1-2", "exchanges": ["prototypes", "observations"], "never_share": [3, 5]},
                "eager": {"learners": 0, "epochs": 2, "batch_size": 8},
            }
        },
    ),
    "who come and go": (
        "consilience",
        {"kd": "ramp(0, 10, 3)"},
        {
            **PARTIAL_PARTICIPATION,
            "groups": {"quiet": {"learners": [1], "uploads": False}, "giver": {"learners": 2, "downloads": False}},
        },
    ),
    "other data": ("representation-sharing", {}, {"shift": "rotate(60)+noise(0.3)+swap(0.8)", "seeds": 2}),
}


@pytest.mark.parametrize("terms", list(TERMS))
def test_loop_equals_stack_with_settings_per_group(terms: str, device: str, data: Dataset) -> None:
    method, own, others = TERMS[terms]
    config = settings(method, device, **others).settings() | {"method": {"name": method, **own}}
    assert_engines_agree(make_config(config), data, branches=True)


# Every kind of model


def slim() -> SplitModel:
    """As wide at its end as the mlp, so that they can share prototypes and the classifier."""
    return SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh()), nn.Linear(32, 10), bound=1.0)


@pytest.mark.parametrize("case", ["independent", "fedavg classifier only", "representation-sharing"])
def test_two_architectures_in_one_federation(case: str, device: str, data: Dataset) -> None:
    config = settings(case, device, **PARTIAL_PARTICIPATION)
    state, _ = assert_engines_agree(config, data, models=["mlp", slim, "mlp", slim], branches=True)
    assert state["learners.0.parameters"].shape != state["learners.1.parameters"].shape


@pytest.mark.parametrize("case", ["representation-sharing", "consilience", "fedavg int8", "fedavg classifier only"])
def test_padding_rows_do_not_change_results(
    case: str, device: str, data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_cache, "_MAX_COUNTS", 0)
    monkeypatch.setattr(trainer_cache, "_PADDED_SIZES", 1)  # every trainer has as many rows as the cohort
    assert_engines_agree(settings(case, device, **PARTIAL_PARTICIPATION), data, branches=True)


def test_stacked_trainers_are_reused_for_any_number_of_participants(
    device: str, data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of participants of each of two architectures changes every round."""
    made: list[int] = []
    begin = StackedTrainer.__init__

    def noted(self: StackedTrainer, learner: Any, cohort: Any, data: Any, rows: int, *others: Any) -> None:
        made.append(rows)
        begin(self, learner, cohort, data, rows, *others)

    monkeypatch.setattr(StackedTrainer, "__init__", noted)
    config = settings("independent", device, learners=48, batch_size=2, participation=0.5)
    with stage("stack", config, data, models=["mlp", slim] * 24) as rounds:
        rounds.start()
        for _ in range(16):
            rounds.run(evaluate=False)
        assert all(len(counts) > 4 for counts in rounds.engine.trainers.counts), "or the test shows nothing"  # type: ignore[attr-defined]
    places = [rows for rows in made if rows % 3]  # of 24 rows, eight sizes are the multiples of three
    assert len(places) <= 2 * 3 and len(made) <= 2 * (3 + 4)


class Odd(nn.Module):
    """Two layers with a tied weight, an unused parameter, and buffers of all kinds."""

    mask: Tensor
    passes: Tensor
    largest: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 16)
        self.second.weight = self.first.weight
        self.unused = nn.Parameter(torch.ones(3))
        self.register_buffer("mask", torch.arange(16) % 3 > 0)
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))
        self.register_buffer("largest", torch.zeros(()))
        self.register_buffer("nothing", None)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.second(torch.relu(self.first(x.flatten(1)))))
        if self.training:
            self.passes.add_(1)
            self.largest.copy_(torch.maximum(self.largest, x.detach().max()))
        return torch.tanh(self.last(x)) * self.mask


def odd() -> SplitModel:
    return SplitModel(Odd(), nn.Linear(16, 10), bound=1.0)


@pytest.mark.parametrize("case", ["independent", "consilience"])
def test_loop_equals_stack_with_tied_and_unused_parameters_and_any_buffers(
    case: str, device: str, data: Dataset
) -> None:
    config = settings(case, device, partition="dirichlet(0.5)")
    state, _ = assert_engines_agree(config, data, models=[odd], branches=True)
    steps = state["learners.0.step"]
    assert state["learners.0.other_buffers.int64"][:, 0].tolist() == steps.tolist() and len(set(steps.tolist())) > 1


def backbone() -> SplitModel:
    """A frozen convolution with BatchNorm, and a trained layer and classifier on it."""
    features = nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()).requires_grad_(False),
        nn.Linear(4 * 36, 8),
        nn.Tanh(),
    )
    return SplitModel(features, nn.Linear(8, 10))


TRAINED_SIZE = 4 * 36 * 8 + 8 + 8 * 10 + 10


@pytest.mark.parametrize("case", ["fedavg", "fedavg-1bit", "representation-sharing", "consilience"])
@pytest.mark.parametrize("chance", [{}, PARTIAL_PARTICIPATION], ids=["even", "unequal, come and go"])
def test_frozen_part_is_one_for_all_learners(case: str, chance: Mapping[str, Any], device: str, data: Dataset) -> None:
    config = settings(case, device, weight_decay=0.1, **chance)
    state, _ = assert_engines_agree(config, data, models=[backbone], branches=case == "consilience")
    found = {}
    for engine in ("loop", "stack", "branches"):
        with stage(engine, config, data, models=[backbone]) as rounds:
            started = run_rounds(rounds, 0)[0]
            frozen = rounds.engine.learners[0].modules.frozen
            before = {kind: values.clone() for kind, values in frozen.flat().items()}
            rounds.run(evaluate=False)
            rounds.run(evaluate=True)
            found[engine] = before
            assert all(torch.equal(values, before[kind]) for kind, values in frozen.flat().items())
        head = 8 * 10 + 10 if case == "consilience" else 0
        assert started["learners.0.parameters"].shape[1] == TRAINED_SIZE + head
        assert started["learners.0.buffers"].shape[1] == 0 and "learners.0.other_buffers.int64" not in started
        assert (state["learners.0.parameters"] != started["learners.0.parameters"]).any(axis=1).all()
    assert before.keys() == {"float64", "int64"}
    for other in ("stack", "branches"):
        assert all(torch.equal(values, found["loop"][kind]) for kind, values in found[other].items())


# BatchNorm depends on the whole batch, so a partial batch cannot be padded


def noise(count: int, side: int) -> Dataset:
    """No pixel is constant over all images: behind BatchNorm its gradient would only be rounding error."""
    inputs = np.random.default_rng(0).standard_normal((count, 1, side, side), dtype=np.float32)
    targets = np.arange(count) % 4
    return Dataset("noise", inputs, targets, inputs[:20], targets[:20], 4)


def normalized() -> SplitModel:
    features = nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(64, 8, bias=False),
        nn.BatchNorm1d(8),
        nn.Tanh(),
    )
    return SplitModel(features, nn.Linear(8, 4), bound=1.0)


@pytest.mark.parametrize("buffers", ["share", "local"])
def test_batch_norm_with_private_and_shared_statistics(buffers: str, device: str) -> None:
    method = build_method("fedavg", {"buffers": buffers})
    config = settings("fedavg", device, offline=0.3)
    state, _ = assert_engines_agree(config, noise(120, 6), method=method, models=[normalized], branches=True)
    assert state["learners.0.other_buffers.int64"].tolist() == [[6, 6]] * 4  # two steps in each of three rounds


@pytest.mark.parametrize("case", ["independent", "fedprox", "representation-sharing", "consilience"])
@pytest.mark.parametrize(
    "own",
    [{"batch_size": 14}, {"batch_size": 8, "epochs": 2}, PARTIAL_PARTICIPATION],
    ids=["a last batch of one, made two", "a last batch of five", "unequal"],
)
def test_batch_norm_with_partial_batches_and_unequal_sizes(own: Mapping[str, Any], case: str, device: str) -> None:
    """29 samples each; a learner with fewer steps than others keeps its statistics while they continue."""
    config = settings(case, device, optimizer="sgd", lr=0.1, **own)
    assert_engines_agree(config, noise(116, 6), models=[normalized], branches=True)


def test_resnet9(device: str) -> None:
    config = settings("fedavg", device, model="resnet9", learners=2, batch_size=4, optimizer="sgd", lr=0.05)
    assert_engines_agree(config, noise(12, 16), count=1, branches=True)


# The same bits, repeated or resumed


def bits(config: Config, data: Dataset, engine: str = "stack") -> Arrays:
    with torch_configured_for(config), stage(engine, config, data) as rounds:
        return run_rounds(rounds)[0]


def assert_same_bits(one: Arrays, other: Arrays) -> None:
    assert set(one) == set(other)
    assert [key for key in one if one[key].tobytes() != other[key].tobytes()] == []


@pytest.mark.parametrize(
    ("case", "engine"), [*((case, "stack") for case in CASES), ("consilience", "branches"), ("two-stage", "branches")]
)
@pytest.mark.filterwarnings("ignore:.*deterministic")
def test_same_seed_gives_the_same_bits(case: str, engine: str, device: str, data: Dataset) -> None:
    config = settings(case, device, precision="float32", deterministic=device == "cuda", **PARTIAL_PARTICIPATION)
    once = bits(config, data, engine)
    assert_same_bits(once, bits(config, data, engine))
    other = bits(config.replace(seed=7), data, engine)["learners.0.parameters"]
    assert not (other == once["learners.0.parameters"]).all(axis=1).any()


def interrupt_at(*rounds: int) -> Callable[[str, int, int, History], None]:
    def on_round(method: str, round_: int, total: int, history: History) -> None:
        if round_ in rounds:
            signal.raise_signal(signal.SIGINT)

    return on_round


def kept(folder: Path) -> Arrays:
    checkpoint = RunFolder.open(folder).load()
    assert checkpoint is not None
    return checkpoint[0]


@pytest.mark.parametrize(
    ("case", "within"),
    [
        ("fedavg-1bit", {}),
        ("consilience every 2", {}),
        ("representations 2 up 3 down", {}),
        ("consilience", {"partners": "similar(2)", "partners_every": 2}),
        ("fedavg", {"topology": "regular(2)", "topology_every": 2, "lost": 0.2, "gossip_steps": 2}),
        ("representations seen", {"topology": "ring", "lost": 0.2}),
    ],
)
@pytest.mark.filterwarnings("ignore:.*deterministic")
def test_stopping_and_resuming_gives_the_same_bits(
    case: str, within: Mapping[str, Any], device: str, data: Dataset, tmp_path: Path
) -> None:
    chance = PARTIAL_PARTICIPATION | {"deterministic": device == "cuda", "engine": "stack", "rounds": 4, **within}
    config, stops = settings(case, device, **chance), interrupt_at(1, 3)
    whole = simulate(config, data=data, out=tmp_path / "whole")
    parts = simulate(config, data=data, out=tmp_path / "parts", on_round=stops)
    for stop in (1, 3):
        assert not parts.finished and parts.history.rounds == stop
        parts = simulate(data=data, resume=tmp_path / "parts", on_round=stops)
    assert whole.engine == parts.engine == "stack" and parts.finished
    assert_same_bits(kept(tmp_path / "whole"), kept(tmp_path / "parts"))
    for metric in (m for m in whole.history.records[0] if not m.startswith(("seconds.", "wall."))):
        assert np.array_equal(whole.history[metric], parts.history[metric], equal_nan=True), metric


# Absent learners and missing classes


@each_case
def test_loop_equals_stack_with_a_class_without_samples(case: str, device: str, data: Dataset) -> None:
    keep = data.targets != 9
    without = replace(data, inputs=data.inputs[keep], targets=data.targets[keep])
    assert_engines_agree(settings(case, device, learners=3), without, count=2)


def without(member: int, rounds: range) -> Callable[..., Presence]:
    """A member is offline in these rounds."""

    def decided(federations: Federations, host: int | None, round_: int) -> Presence:
        there = draw_presence(federations, host, round_)
        online = there.online.copy()
        online[:, member] &= round_ not in rounds
        return replace(there, online=online)

    return decided


@each_together
def test_loop_equals_stack_with_a_learner_that_never_answers(
    case: str, device: str, data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds_module, "draw_presence", without(2, range(1, 9)))
    _, records = assert_engines_agree(settings(case, device), data)
    assert not np.any([r["bytes.up"][0, 2] for r in records[1:]])


def test_learner_refused_as_too_stale_keeps_its_residual(
    device: str, data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds_module, "draw_presence", without(2, range(1, 3)))
    strict = Method("strict", {"learner": Role(exchanges=(Weights(up=BIT, down=BIT, max_staleness=1),))})
    assert_engines_agree(settings("fedavg-1bit", device), data, method=strict, count=4)


# Custom exchanges with hooks


@dataclass(frozen=True)
class Counting(Exchange):
    """State that changes with every batch: counts, and a mean of the classifier's bias and of the random draws."""

    name: str = "counting"

    @property
    def batch_draws(self) -> int:
        return 2

    def channel(self, task: Task) -> schema.Mean:
        return schema.Mean(self.name, {"seen": schema.Tensor((task.classes,))})

    def init_state(self, view: View) -> State:
        bias = view.parameters["classifier.bias"]
        return {"steps": torch.zeros((), dtype=torch.int64), "memory": bias, "drawn": 0 * bias[0]}

    def on_batch(self, state: State, view: View) -> State:
        bias, drawn = view.parameters["classifier.bias"], view.draws.to(view.logits.dtype).mean()
        return {
            "steps": state["steps"] + 1,
            "memory": 0.9 * state["memory"] + 0.1 * bias + view.logits.detach().mean(0),
            "drawn": state["drawn"] + drawn,
        }

    def contribute(self, state: State, view: View, received: Received) -> Contribution:
        return Contribution({"seen": state["memory"] + state["drawn"]}, view.samples)


@dataclass(frozen=True)
class Steering(Exchange):
    """Owns the classifier, which moves only against the mean gradient of all learners."""

    name: str = "steering"
    owned_part: str | None = "classifier"
    start: Any = "common"
    needs_representations: ClassVar[bool] = False

    def channel(self, task: Task) -> schema.Mean:
        tensors = {n: schema.Tensor(task.parameters[n]) for n in names_in_part("classifier", task.parameters)}
        return schema.Mean(self.name, tensors, moving=True)

    def common_values(self, view: View) -> dict[str, Tensor]:
        return {n: view.parameters[n] for n in names_in_part("classifier", view.parameters)}

    def contribute(self, state: State, view: View, received: Received) -> Contribution:
        return Contribution({n: -0.3 * g for n, g in view.gradients.items()}, view.samples)

    def receive(self, state: State, view: View, received: Received) -> Update:
        now = view.parameters
        return Update({n: torch.where(received.fresh, t, now[n]) for n, t in received.tensors.items()}, state=state)


@dataclass(frozen=True)
class Guessing(Exchange):
    """An extra module predicts the random draws from a hidden layer; hidden means of random samples are shared."""

    name: str = "guessing"
    layers: tuple[str, ...] = ("features.hidden",)
    weight: float = 0.5

    @property
    def batch_draws(self) -> int:
        return 1

    @property
    def sample_draws(self) -> int:
        return 2

    def modules(self, task: Task) -> dict[str, nn.Module]:
        return {"guess": nn.Linear(64, 1)}

    def channel(self, task: Task) -> schema.Mean:
        return schema.Mean(self.name, {"hidden": schema.Tensor((64,)), "guess": schema.Tensor(())})

    def penalty(self, state: State, view: View, received: Received) -> Tensor:
        hidden = view.outputs["features.hidden"]
        guess = view.modules["guess"](hidden)[:, 0] + received.tensors["guess"]
        return (guess - view.draws[0]).square().mean() + (hidden.mean(0) - received.tensors["hidden"]).square().mean()

    def contribute(self, state: State, view: View, received: Received) -> Contribution:
        hidden, valid = view.outputs["features.hidden"], view.valid[:, None]
        chosen = valid * (view.draws[0] < view.draws[1]).to(hidden.dtype)[:, None]  # (samples, 1)
        mean = (chosen * hidden).sum(0) / chosen.sum().clamp(min=1)
        return Contribution({"hidden": mean, "guess": view.modules["guess"](mean)[0]}, chosen.sum())


def own(*exchanges: Exchange, objective: Objective | None = None) -> Method:
    role = Role(objective, exchanges) if objective else Role(exchanges=exchanges)
    return Method("own", {"learner": role})


CUSTOM_METHODS = {
    "step": own(Counting()),
    "owns": own(Steering()),
    "owns, beside an eager exchange": own(Steering(), Prototypes()),
    "modules, layers and draws": own(Guessing()),
    "an objective": own(objective=Dimmed()),
    "all together": own(Counting(), Steering(), Guessing(), Weights(part="features"), objective=Dimmed()),
    "two of a kind": own(Weights(part="classifier", name="head"), Weights(part="features", up=BIT, down=BIT)),
    "two of a kind, now and then": own(Weights(part="classifier", name="head"), Weights(part="features", every=2)),
    "two roles": Method(
        "own",
        {"worker": Role(exchanges=(Weights(), Prototypes())), "other": Role(exchanges=(Prototypes(),), epochs=2)},
        {0: "worker", 1: "other", 2: "worker", 3: "other"},
    ),
}


@pytest.mark.parametrize("name", list(CUSTOM_METHODS))
@pytest.mark.parametrize("chance", [{}, PARTIAL_PARTICIPATION], ids=["even", "unequal, come and go"])
def test_loop_equals_stack_for_custom_methods(name: str, chance: Mapping[str, Any], device: str, data: Dataset) -> None:
    config = settings("independent", device, **chance)
    assert_engines_agree(config, data, method=CUSTOM_METHODS[name], branches=True)


def test_rows_with_their_own_settings_equal_separate_runs(device: str, data: Dataset) -> None:
    """Each row has its own learning rate and weight, and trains as in a run where all learners have them."""
    rates, weights = np.array([1e-4, 1e-3, 3e-3, 1e-2]), np.array([0.0, 1.0, 10.0, 30.0])
    varied = {"optimizer": {"lr": rates}, "prototypes": {"weight": weights}}
    config = settings("self-distillation", device)
    alone = own(Prototypes(weight=1.0, scope="oneself"))
    state, _ = assert_engines_agree(config, data, method=alone, varied=varied, branches=True)
    for row, (rate, weight) in enumerate(zip(rates.tolist(), weights.tolist(), strict=True)):
        same = config.replace(lr=rate)
        with stage("stack", same, data, own(Prototypes(weight=weight, scope="oneself"))) as rounds:
            expected = run_rounds(rounds)[0]["learners.0.parameters"][row]
        np.testing.assert_allclose(state["learners.0.parameters"][row], expected, rtol=0, atol=1e-12)


# Limited memory


@pytest.mark.parametrize("case", ["consilience", "representations 2 up 3 down"])
@pytest.mark.parametrize("chance", [{"learners": 5}, PARTIAL_PARTICIPATION], ids=["even", "unequal, come and go"])
@pytest.mark.parametrize("engine", ["stack", "branches"])
def test_training_in_groups_equals_training_all_at_once(
    engine: str, case: str, chance: Mapping[str, Any], device: str, data: Dataset
) -> None:
    config = settings(case, device, **chance)
    with stage(engine, config, data) as rounds:
        whole = run_rounds(rounds)
    with stage(engine, config, data) as rounds:
        assert isinstance(rounds.engine, StackEngine)
        rounds.engine.memory.rows[0] = 2
        assert_close(whole, run_rounds(rounds))


@pytest.mark.parametrize("together", [1, 2])
def test_evaluation_pass_in_parts_gives_the_same_results(
    together: int, device: str, data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where few learners fill the device, only that number of learners is evaluated at a time."""
    config = settings("consilience", device, **PARTIAL_PARTICIPATION)
    with stage("stack", config, data) as rounds:
        assert isinstance(rounds.engine, StackEngine)
        sample = rounds.engine.memory.needs[0].sample
        whole = run_rounds(rounds)
    monkeypatch.setattr(room_module, "_PASS_BYTES", together * EVALUATED_ROWS * sample)
    with stage("stack", config, data) as rounds:
        assert isinstance(rounds.engine, StackEngine)
        assert rounds.engine.memory.pass_of(0, 5)[0] == together
        assert_close(whole, run_rounds(rounds))


@pytest.mark.parametrize("engine", ["stack", "branches"])
def test_smallest_memory_budget_trains_one_learner_at_a_time(
    engine: str, device: str, data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One learner at a time; its state is copied from main memory if the device has its own."""
    config = settings("consilience", device, **PARTIAL_PARTICIPATION)
    with stage(engine, config, data) as rounds:
        whole = run_rounds(rounds)
    monkeypatch.setattr(room_module, "free_bytes", lambda device: 1)
    with stage(engine, config, data) as rounds:
        assert isinstance(rounds.engine, StackEngine)
        assert rounds.engine.memory.rows == [1] and rounds.engine.memory.home.type == "cpu"
        assert_close(whole, run_rounds(rounds))


def fit_at_most(rows: int, monkeypatch: pytest.MonkeyPatch, work: str = "train") -> None:
    """Work on more rows than this fails, and only at its end."""
    real: Callable[..., Any] = getattr(StackedTrainer, work)

    def limited(self: StackedTrainer, *given: Any) -> Any:
        done = real(self, *given)
        if len(self.state.step) > rows:
            raise torch.OutOfMemoryError("pretended")
        return done

    monkeypatch.setattr(StackedTrainer, work, limited)


@pytest.mark.parametrize(
    ("engine", "work"),
    [*(("stack", work) for work in ("enter", "train", "represent", "contribute", "summarize")), ("branches", "train")],
)
def test_out_of_memory_continues_with_fewer_learners_at_a_time(
    engine: str, work: str, device: str, data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it happens, no learner trains twice."""
    warned: list[str] = []
    monkeypatch.setattr(room_module.log, "warning", lambda text, *given: warned.append(text % given))
    config = settings("fedavg-1bit", device, learners=5)
    with stage(engine, config, data) as rounds:
        whole = run_rounds(rounds)
    fit_at_most(2, monkeypatch, work)
    with stage(engine, config, data) as rounds:
        assert_close(whole, run_rounds(rounds))
        assert isinstance(rounds.engine, StackEngine) and rounds.engine.memory.rows == [2]
    assert warned == [f"out of memory on {device}: continuing with {n} learners at a time" for n in (3, 2)]


def test_single_learner_that_does_not_fit_is_named(device: str, data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    fit_at_most(0, monkeypatch)
    alone = f"one learner of model 'mlp' does not fit into the memory of {device}"
    with stage("stack", settings("fedavg", device), data) as rounds:
        rounds.start()
        with pytest.raises(ConsilienceError, match=alone):
            rounds.run(evaluate=False)


# NaN and infinite values


def failure(engine: str, config: Config, data: Dataset, **more: Any) -> str:
    with stage(engine, config, data, **more) as rounds, pytest.raises(TrainingError) as caught:
        run_rounds(rounds)
    return str(caught.value)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("batch, what", [(16, "loss term 'cross_entropy'"), (64, "a parameter")])
def test_non_finite_training_names_learner_and_seed(
    engine: str, batch: int, what: str, device: str, data: Dataset
) -> None:
    """Row 5 of two seeds of four learners; a second batch shows it in the loss, otherwise the parameters do."""
    rates = np.full(8, 0.1)
    rates[5] = np.inf
    config = settings("independent", device, seeds=2, optimizer="sgd", batch_size=batch)
    said = failure(engine, config, data, varied={"optimizer": {"lr": rates}})
    assert said.startswith(f"independent: learner 1 (seed 1), round 1: {what} is NaN or infinite")


@dataclass(frozen=True)
class Dividing(Exchange):
    """Uploads an infinite value if a learner has forty samples."""

    name: str = "dividing"

    def channel(self, task: Task) -> schema.Mean:
        return schema.Mean(self.name, {"share": schema.Tensor(())})

    def contribute(self, state: State, view: View, received: Received) -> Contribution:
        return Contribution({"share": 1 / (view.samples - 40)}, view.samples)


@pytest.fixture
def forty_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The third of four learners has forty samples, the others twenty or thirty."""

    def split(targets: np.ndarray, *others: Any, **more: Any) -> list[np.ndarray]:
        return np.split(np.arange(len(targets)), [20, 50, 90])

    monkeypatch.setattr("consilience.data.local_datasets.partition_samples", split)


@pytest.mark.usefixtures("forty_for_one")
@pytest.mark.parametrize("engine", ENGINES)
def test_non_finite_upload_names_learner_and_exchange(engine: str, device: str, data: Dataset) -> None:
    said = failure(engine, settings("independent", device), data, method=own(Prototypes(), Dividing()))
    assert said.startswith("own: learner 2 (seed 0), round 1: the upload to exchange 'dividing' is NaN or infinite")


@pytest.mark.usefixtures("forty_for_one")
def test_non_finite_contribution_of_an_offline_learner_is_ignored(
    device: str, data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds_module, "draw_presence", without(2, range(1, 9)))
    assert_engines_agree(settings("independent", device), data, method=own(Prototypes(), Dividing()))
