"""Two-stage learning: the loss and its gradients by hand, the ensemble, and the dependence of a layer on the inputs."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import dcor
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from consilience.config.config import Config, make_config
from consilience.data import Dataset, load
from consilience.errors import ConfigurationError, UnknownName
from consilience.exchanges import Gradients
from consilience.functional.distance_correlation import log_distance_correlation
from consilience.learner.batches import batch_widths
from consilience.learner.initial_state import template_state
from consilience.learner.learner import Batch, Learner
from consilience.learner.passes import layer_outputs
from consilience.learner.spec import LearnerSpec
from consilience.method import Method, Role
from consilience.methods import build_method
from consilience.models import SplitModel, build_model, cut
from consilience.objectives import TwoStage
from consilience.objectives.two_stage import inputs_for_distances
from consilience.optimizers import SGD
from consilience.simulation.engines.inspection import SAMPLES
from consilience.simulation.engines.loop.engine import LoopEngine
from consilience.simulation.engines.stack.engine import StackEngine
from consilience.simulation.records.checkpoint import run_checkpoint
from consilience.simulation.records.export import read_saved_run
from consilience.simulation.records.history import History
from consilience.simulation.records.run_folder import RunFolder
from consilience.simulation.round.round import Rounds
from consilience.simulation.setup.setup import build_setup
from consilience.simulation.simulate import simulate
from consilience.task import PARTS, Task
from tests.peer_tools import federation, net
from tests.relay_tools import serving

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load("digits", train=120, test=40)


def settings(**others: Any) -> Config:
    method = {"name": "two-stage", **others.pop("method", {})}
    return make_config({"learners": 3, "rounds": 2, "batch_size": 16, "workers": 0, "method": method, **others})


# The loss, by hand


def bound_learner(objective: TwoStage, model: Callable[[], nn.Module] | None = None, symbols: int = 0) -> Learner:
    """A learner on digits, in double precision."""
    made = model or (lambda: build_model("mlp", (1, 8, 8), 10))
    shape = (1, 8, 8) if not symbols else (5,)
    role, dtype = Role(objective), torch.float64
    learner = Learner(LearnerSpec(made, role, SGD(0.1), shape, "net", dtype, symbols=symbols))
    template_state(learner)
    return learner


def batch(rows: int = 12) -> Batch:
    chance = torch.Generator().manual_seed(4)
    inputs = torch.randn(rows, 1, 8, 8, generator=chance, dtype=torch.float64)
    return Batch(inputs, torch.randint(10, (rows,), generator=chance))


def z_of(learner: Learner, inputs: Tensor) -> Tensor:
    z: Tensor = learner.model.get_submodule("features.hidden")(inputs.flatten(1))
    return z


@pytest.mark.parametrize(
    "weights", [(0.1, 1.0, 1.0), (0.7, 0.3, 2.0), (0.0, 1.0, 1.0), (1.0, 0.0, 0.5), (1.0, 1.0, 0.0)]
)
def test_loss_of_a_batch_has_three_terms(weights: tuple[float, float, float]) -> None:
    alpha_1, alpha_2, lam = weights
    learner, some = bound_learner(TwoStage(alpha_1, alpha_2, lam)), batch()
    loss, told = learner.losses(some, learner.count(12), {})
    z = z_of(learner, some.inputs)
    server = learner.model.classifier(torch.tanh(learner.model.get_submodule("features.linear")(torch.relu(z))))
    head = learner.modules.extra["two_stage"]["head"](z)
    by_library = dcor.distance_correlation(some.inputs.flatten(1).numpy(), z.detach().numpy())
    expected = alpha_1 * np.log(by_library) + alpha_2 * F.cross_entropy(head, some.targets).item()
    expected += lam * F.cross_entropy(server, some.targets).item()
    assert loss.item() == pytest.approx(expected, rel=1e-9)
    assert told[0].item() == loss.item()
    right = (server.argmax(1) == some.targets).double().mean().item()
    assert told[-1].item() == pytest.approx(right), "accuracy in training is the server's"
    assert log_distance_correlation(some.inputs, z).item() == pytest.approx(np.log(by_library), rel=1e-9)


def largest_gradients(objective: TwoStage) -> dict[str, float]:
    """The largest gradient of each part, and of the device's own head."""
    learner, some = bound_learner(objective), batch()
    learner.losses(some, learner.count(12), {})[0].backward()  # type: ignore[no-untyped-call]
    named = {n: learner.binding.tensor(n).grad for n in learner.task.parameters}
    found = {}
    for part in ("device", "server"):
        own = [named[n] for n in learner.model.parts[part] if n in named]
        found[part] = max(float(g.abs().max()) for g in own if g is not None)
    head = named["two_stage/head.weight"]
    assert head is not None
    return found | {"head": float(head.abs().max())}


def test_each_loss_term_moves_the_expected_parts() -> None:
    dependence = largest_gradients(TwoStage(alpha_1=1.0, alpha_2=1e-300, lam=0.0))
    assert dependence["device"] > 1e-5 and dependence["server"] == 0.0 and dependence["head"] < 1e-290
    own = largest_gradients(TwoStage(alpha_1=0.0, alpha_2=1.0, lam=0.0))
    assert own["device"] > 1e-5 and own["server"] == 0.0 and own["head"] > 1e-5
    served = largest_gradients(TwoStage(alpha_1=0.0, alpha_2=0.0, lam=1.0))
    assert served["device"] > 1e-5 and served["server"] > 1e-5 and served["head"] == 0.0


def test_server_gradient_depends_only_on_lam() -> None:
    assert largest_gradients(TwoStage(0.9, 0.7, 2.0))["server"] == pytest.approx(
        2 * largest_gradients(TwoStage(0.0, 0.0, 1.0))["server"]
    )


def test_head_belongs_to_the_device_part() -> None:
    task = bound_learner(TwoStage()).task
    assert task.cut == (64,)
    head = {"two_stage/head.weight", "two_stage/head.bias"}
    assert head <= task.parts["device"] and not head & task.parts["server"]
    assert task.parts["device"] | task.parts["server"] == set(task.parameters) | set(task.buffers)


def test_distances_of_text_use_one_hot_characters() -> None:
    inputs = torch.tensor([[0.0, 1.0], [0.0, 3.0]])
    coded = inputs_for_distances(Task(4, 2, (2,), symbols=4), inputs)
    assert coded.shape == (2, 2, 4) and coded.dtype == inputs.dtype
    assert coded[0].tolist() == [[1, 0, 0, 0], [0, 1, 0, 0]] and coded.sum().item() == 4.0
    assert inputs_for_distances(Task(4, 2, (2,)), inputs) is inputs


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"lam": 0}, "lam is 0; it must be a finite number"),
        ({"alpha_1": -0.1}, "alpha_1 is -0.1; it must be a finite number, 0 or more"),
        ({"alpha_2": float("nan")}, "alpha_2 is nan"),
        ({"lam": float("inf")}, "lam is inf"),
        ({"alpha_1": "ramp(0, 1, 5)"}, r"alpha_1 is ramp\(0, 1, 5\), and cannot change with the rounds"),
    ],
)
def test_invalid_loss_weights_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        build_method("two-stage", given)


# How many samples a batch needs


def test_single_sample_batches_are_refused(data: Dataset) -> None:
    with pytest.raises(ConfigurationError, match="batch_size is 1, and objective 'two_stage' needs at least 2 samples"):
        simulate(settings(batch_size=1), data=data)
    few = replace(data, inputs=data.inputs[:4], targets=data.targets[:4])
    with pytest.raises(ConfigurationError, match="learner 1 has one sample, and objective 'two_stage' needs two"):
        simulate(settings(learners=3), data=few)


def test_single_sample_batches_work_if_alpha_1_is_zero(data: Dataset) -> None:
    few = replace(data, inputs=data.inputs[:4], targets=data.targets[:4])
    result = simulate(settings(learners=3, batch_size=1, rounds=1, method={"alpha_1": 0.0}), data=few)
    assert np.isfinite(result.history["loss.two_stage"]).all()


def test_last_batch_has_at_least_two_samples(data: Dataset) -> None:
    """17 samples in batches of 16 leave one sample, which has no distance to another."""
    some = replace(data, inputs=data.inputs[:51], targets=data.targets[:51])
    config = settings(precision="float64")
    (plan,) = build_setup(config, build_method("two-stage"), some, ["mlp"]).cohorts.plans
    assert plan.members.sizes.tolist() == [17, 17, 17] and plan.work.smallest_batch == 2
    assert batch_widths(plan.work, 17, even=bool(plan.members.even[0])) == [16, 2]
    result = simulate(config, data=some)
    assert np.isfinite(result.history["loss.two_stage"]).all()


def whole() -> SplitModel:
    return SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh()), nn.Linear(8, 10), bound=1.0)


def model_with_cut() -> SplitModel:
    return cut(whole(), at="1")


def test_model_without_a_cut_is_refused(data: Dataset) -> None:
    with pytest.raises(ConfigurationError, match=r"whole is in one part.*cut it after a layer, cut\(model, at=...\)"):
        simulate(settings(), data=data, model=whole)
    with pytest.raises(ConfigurationError, match=r"whole is in one part.*cut it after a layer, cut\(model, at=...\)"):
        looking = Role(TwoStage(), (Gradients(part="classifier"),))
        simulate(settings(), data=data, model=whole, method=Method("own", {"learner": looking}))
    simulate(settings(rounds=1), data=data, model=model_with_cut)


# Both engines, and resume


def run_engine(engine: str, config: Config, data: Dataset) -> tuple[dict[str, np.ndarray], list[Any]]:
    setup = build_setup(config, build_method("two-stage", config.method.settings), data, config.model_name.split(","))
    plans = list(setup.cohorts.plans)
    with LoopEngine(plans, setup.data.train, 0) if engine == "loop" else StackEngine(plans, setup.data.train) as opened:
        rounds = Rounds(setup, opened)
        records = [rounds.start(), *(rounds.run(evaluate=True) for _ in range(3))]
        return {k: v.copy() for k, v in run_checkpoint(rounds).arrays.items()}, records


@pytest.mark.parametrize("device", ["private", "1bit"])
@pytest.mark.parametrize("model", ["mlp", "lenet5"])
def test_loop_equals_stack(model: str, device: str, data: Dataset) -> None:
    config = settings(
        **{"learners": 6, "model": model, "partition": "shards(2)", "participation": 0.5, "precision": "float64"},
        **{"watch": "cut", "method": {"alpha_1": 0.5, "delta": 0.01, "device": device}},
    )
    (one, first), (other, second) = run_engine("loop", config, data), run_engine("stack", config, data)
    assert set(one) == set(other)
    for key, value in one.items():
        slack = 1e-9 * max(1.0, np.abs(value).max(initial=0))
        np.testing.assert_allclose(other[key], value, rtol=0, atol=slack, err_msg=key)
    for a, b in zip(first, second, strict=True):
        for key in (k for k in a if not k.startswith(("seconds.", "wall."))):
            np.testing.assert_allclose(b[key], a[key], rtol=1e-9, atol=1e-9, err_msg=key)
    assert np.isfinite(first[-1]["dependence"]).all() and np.isfinite(first[-1]["accuracy_ensemble"]).all()


@pytest.mark.parametrize("start", ["common", "different"])
@pytest.mark.parametrize("device", ["private", "1bit"])
def test_device_part_starts_and_is_shared_as_configured(device: str, start: str, data: Dataset) -> None:
    config = settings(learners=2, method={"device": device, "start": start})
    setup = build_setup(config, build_method("two-stage", config.method.settings), data, ["mlp"])
    with LoopEngine(list(setup.cohorts.plans), data, 0) as engine:
        rounds = Rounds(setup, engine)
        rounds.start()
        learner = rounds.learners[0]
        masks = [learner.binding.parameters.mask(set(learner.task.covered(p, learner.task.parameters))) for p in PARTS]

        def alike() -> list[bool]:
            one, other = engine.read(0).parameters
            return [torch.equal(one[mask], other[mask]) for mask in masks]

        assert alike() == [start == "common", True]
        rounds.run(evaluate=False)
        assert alike() == [device == "1bit", True]
        assert list(learner.channels) == (["gradients", "weights"] if device == "1bit" else ["gradients"])


@pytest.mark.parametrize("engine", ["loop", "stack"])
def test_resumed_run_is_bit_identical(engine: str, data: Dataset, tmp_path: Path) -> None:
    config = settings(rounds=3, engine=engine, participation=0.7, offline=0.2, learners=4, watch="cut")

    def stop(method: str, round_: int, total: int, history: History) -> None:
        if round_ == 1:
            signal.raise_signal(signal.SIGINT)

    once = simulate(config, data=data, out=tmp_path / "whole")
    parts = simulate(config, data=data, out=tmp_path / "parts", on_round=stop)
    assert not parts.finished and parts.history.rounds == 1
    parts = simulate(data=data, resume=tmp_path / "parts")
    assert parts.finished
    one, other = (RunFolder.open(tmp_path / name).load() for name in ("whole", "parts"))
    assert one is not None and other is not None
    assert [key for key in one[0] if one[0][key].tobytes() != other[0][key].tobytes()] == []
    for metric in (m for m in once.history.records[0] if not m.startswith(("seconds.", "wall."))):
        assert np.array_equal(once.history[metric], parts.history[metric], equal_nan=True), metric


# The ensemble of all learners


def test_ensemble_is_the_mean_of_all_logits(tmp_path: Path) -> None:
    config = settings(learners=5, rounds=3, partition="shards(2)", train=200, test=100)
    result = simulate(config, out=tmp_path / "run")
    kept = read_saved_run(tmp_path / "run")
    inputs = torch.from_numpy(kept.data.test_inputs)
    with torch.no_grad():
        logits = torch.stack([kept.learner(who).model.eval()(inputs) for who in range(5)]).double()  # (learners, n, 10)
    right = (logits.mean(0).argmax(1).numpy() == kept.data.test_targets).mean()
    assert result.history["accuracy_ensemble"][-1].tolist() == [[pytest.approx(100 * right)] * 5]
    each = (logits.argmax(2).numpy() == kept.data.test_targets).mean(axis=1)
    np.testing.assert_allclose(result.history["accuracy"][-1][0], 100 * each)
    assert len(set(each.tolist())) > 1 and right != each.mean(), "or the test shows nothing"
    assert result.summary()["ensemble"]["mean"] == pytest.approx(100 * right)


def test_ensemble_of_device_heads_is_evaluated(tmp_path: Path) -> None:
    result = simulate(settings(rounds=2, partition="shards(2)", method={"name": "two-stage"}), out=tmp_path / "run")
    kept = read_saved_run(tmp_path / "run")
    inputs = torch.from_numpy(kept.data.test_inputs)
    learners = [kept.learner(who) for who in range(kept.learners)]
    with torch.no_grad():
        told = [
            one.modules.extra["two_stage"]["head"](layer_outputs(one, inputs, ["cut"])["cut"].flatten(1))
            for one in learners
        ]
    right = (torch.stack(told).sum(0).argmax(1).numpy() == kept.data.test_targets).mean()
    assert result.summary()["heads"]["mean"] == pytest.approx(100 * right)
    alone = simulate(settings(rounds=1, method={"name": "independent"}, ensemble="on"))
    assert alone.summary()["heads"]["mean"] is None and "accuracy_heads" not in alone.history


def test_cut_output_is_unchanged_by_inplace_layers_after_it() -> None:
    def chain(inplace: bool) -> SplitModel:
        torch.manual_seed(0)
        layers = [nn.Flatten(), nn.Linear(64, 16), nn.ReLU(inplace=inplace), nn.Linear(16, 10)]
        return cut(nn.Sequential(*layers), at="1")

    seen = []
    for inplace in (False, True):
        learner, one = bound_learner(TwoStage(alpha_1=1.0), partial(chain, inplace)), batch()
        loss, _ = learner.losses(one, learner.count(12), {})
        seen.append((float(loss.detach()), layer_outputs(learner, one.inputs, ["cut"])["cut"]))
    assert seen[0][0] == seen[1][0]
    assert torch.equal(seen[0][1], seen[1][1]) and (seen[1][1] < 0).any()


def test_objective_without_a_classification_loss_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="alpha_2 and lam are both 0, so nothing is learned"):
        TwoStage(alpha_2=0.0, lam=0.0)


@pytest.mark.parametrize(
    ("method", "ensemble", "there"),
    [
        ("two-stage", "auto", True),
        ("two-stage", "on", True),
        ("two-stage", "off", False),
        ("fedavg", "auto", False),
        ("fedavg", "on", True),
        ("independent", "on", True),
    ],
)
def test_ensemble_setting_controls_the_ensemble_accuracy(
    method: str, ensemble: str, there: bool, data: Dataset
) -> None:
    result = simulate(settings(rounds=1, method={"name": method}, ensemble=ensemble), data=data)
    assert ("accuracy_ensemble" in result.history) is there
    assert (result.summary()["ensemble"]["mean"] is not None) is there
    if method == "fedavg" and there:  # all have one model, so the ensemble predicts the same as each learner
        np.testing.assert_array_equal(result.history["accuracy_ensemble"], result.history["accuracy"])


def test_ensemble_spans_architectures_but_not_seeds(data: Dataset) -> None:
    common: dict[str, Any] = {"learners": 2, "model": "mlp,lenet5", "method": {"name": "independent"}, "ensemble": "on"}
    both = simulate(settings(seeds=2, **common), data=data).history["accuracy_ensemble"]
    assert both.shape == (2, 2, 2)
    for place in (0, 1):
        alone = simulate(settings(seed=place, **common), data=data).history["accuracy_ensemble"]
        np.testing.assert_array_equal(both[:, place], alone[:, 0])
        assert (alone[..., 0] == alone[..., 1]).all()


# Dependence of a layer on the inputs


@pytest.mark.parametrize(("watch", "layer"), [("cut", "features.hidden"), ("features", "features")])
def test_watched_dependence_equals_dcor_distance_correlation(watch: str, layer: str, tmp_path: Path) -> None:
    config = settings(learners=2, train=60, test=SAMPLES + 100, watch=watch)
    result = simulate(config, out=tmp_path / "run")
    kept = read_saved_run(tmp_path / "run")
    inputs = kept.data.test_inputs[:SAMPLES]
    for who in range(2):
        learner = kept.learner(who)
        z = layer_outputs(learner, torch.from_numpy(inputs), [layer])[layer].numpy().astype(np.float64)
        expected = dcor.distance_correlation(inputs.reshape(SAMPLES, -1).astype(np.float64), z)
        assert result.history["dependence"][-1, 0, who] == pytest.approx(expected, rel=1e-5)
    assert 0 < result.summary()["dependence"]["mean"] < 1


def test_no_dependence_is_recorded_by_default(data: Dataset) -> None:
    result = simulate(settings(rounds=1), data=data)
    assert "dependence" not in result.history and result.summary()["dependence"]["mean"] is None


@pytest.mark.parametrize(
    ("model", "watch", "said"),
    [
        ("mlp", "features.hiden", r"unknown layer 'features.hiden' of mlp. Did you mean 'features.hidden'\?"),
        ("lenet5", "features.conv", r"unknown layer 'features.conv' of lenet5. Did you mean 'features.conv"),
        ("mlp", "", "unknown layer '' of mlp"),
        (whole, "cut", r"whole is in one part, and this run needs the output of.*cut it after a layer"),
    ],
)
def test_unknown_watched_layer_is_refused_before_training(
    model: Any, watch: str, said: str, data: Dataset, tmp_path: Path
) -> None:
    played: list[int] = []
    config = settings(method={"name": "fedavg"}, watch=watch)
    with pytest.raises((ConfigurationError, UnknownName), match=said):
        simulate(config, data=data, model=model, out=tmp_path / "run", on_round=lambda *given: played.append(1))
    assert not played and not (tmp_path / "run").exists()


class Unreached(nn.Module):
    """Has a layer that it never calls."""

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.never, self.head = nn.Linear(64, 8), nn.Linear(8, 8), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.tanh(self.seen(x.flatten(1))))
        return logits


def test_uncalled_watched_layer_is_refused_before_training(data: Dataset) -> None:
    config = settings(method={"name": "fedavg"}, watch="features.model.never")
    with pytest.raises(ConfigurationError, match=r"layer 'features\.model\.never' of Unreached is not reached"):
        simulate(config, data=data, model=Unreached)


def test_larger_alpha_1_lowers_the_dependence_of_z_on_the_inputs() -> None:
    """On digits, a larger weight of the dependence term leads to less dependence."""
    common: dict[str, Any] = {"learners": 2, "rounds": 12, "epochs": 2, "batch_size": 32, "lr": 0.005, "train": 300}
    found = []
    for alpha_1 in (0.0, 0.5, 3.0):
        method = {"alpha_1": alpha_1, "alpha_2": 1.0, "delta": 0.005}
        history = simulate(settings(**common, test=300, watch="cut", eval_every=12, method=method)).history
        found.append([float(history.last(key).mean()) for key in ("dependence", "accuracy_ensemble")])
    (none, told), (some, _), (much, _) = found
    assert none > some > much and none - much > 0.1, found
    assert told > 70, found


# Over a relay


def test_custom_training_loop_needs_its_model(tmp_path: Path) -> None:
    def small() -> SplitModel:
        return cut(net(), at="1")

    with federation(tmp_path / "f", {"name": "two-stage"}, models=[small]) as made, serving(made.store) as running:
        with pytest.raises(ConfigurationError, match="shares weights: give your model"):
            made.join(running.url, 0)
        peer = made.join(running.url, 0, made.common(small))
        with pytest.raises(ConfigurationError, match="has no gradient"):
            peer.take_gradients()


# Calibrated


def test_calibrated_loss_by_hand(data: Dataset) -> None:
    """Both heads see the logits with the log of the device's class shares; the server's own answer does too."""
    counts = torch.tensor([3.0, 0.0, *[1.0] * 8], dtype=torch.float64)
    objective = TwoStage(alpha_1=0.0, alpha_2=0.5, lam=2.0, calibrated=True)
    shares = objective.init_state(Task(10, 4), counts)["log_shares"]
    torch.testing.assert_close(shares, ((counts + 0.05) / 11.5).log())
    learner = Learner(LearnerSpec(partial(build_model, "mlp", (1, 8, 8), 10), Role(objective), SGD(0.1), (1, 8, 8)))
    state = template_state(learner)
    learner.bind(state)
    state.objective_state["log_shares"].copy_(shares)
    inputs, targets = torch.from_numpy(data.inputs[:6]), torch.from_numpy(data.targets[:6])
    loss, terms = learner.losses(Batch(inputs, targets), learner.count(6), {})
    seen, head = learner.modules.forward(inputs), learner.modules.extra["two_stage"]["head"]
    assert isinstance(head, nn.Linear)
    known = shares.to(seen["logits"].dtype)
    expected = 2.0 * F.cross_entropy(seen["logits"] + known, targets)
    expected = expected + 0.5 * F.cross_entropy(head(seen["outputs"]["cut"].flatten(1)) + known, targets)
    torch.testing.assert_close(loss, expected)
    right = ((seen["logits"] + known).argmax(1) == targets).double().mean()
    assert float(terms[-1]) == pytest.approx(float(right))


def test_calibrated_must_be_true_or_false() -> None:
    with pytest.raises(ConfigurationError, match="calibrated is 1; it must be true or false"):
        TwoStage(calibrated=1)  # type: ignore[arg-type]


def test_calibrated_devices_have_an_own_answer(data: Dataset) -> None:
    method = {"calibrated": True, "alpha_1": 0}
    result = simulate(settings(partition="shards(2)", rounds=4, method=method), data=data)
    own, common = (result.summary()[key]["mean"] for key in ("accuracy_own", "accuracy"))
    assert own > common + 20, "on its own classes a device is better than on all"
