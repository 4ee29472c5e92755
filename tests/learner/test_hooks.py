"""Every hook of exchanges and objectives, tested by a tiny one in a real run on digits."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from consilience import simulate
from consilience.channels import MovingMean, StandingMean
from consilience.config.config import make_config
from consilience.data import Dataset, load
from consilience.errors import ConfigurationError
from consilience.exchanges import (
    Contribution,
    Exchange,
    Observations,
    Prototypes,
    Received,
    State,
    Update,
    View,
    Weights,
)
from consilience.learner.batches import LearnerKey, LocalWork, plan_batches
from consilience.learner.initial_state import common_seed, learner_seed
from consilience.learner.state import LearnerState
from consilience.method import Method, Role
from consilience.models import SplitModel, build_model
from consilience.randomness import uniform
from consilience.simulation.engines.loop.engine import LoopEngine
from consilience.simulation.records.history import History
from consilience.simulation.records.run_folder import RunFolder
from consilience.simulation.round.round import Rounds
from consilience.simulation.setup.setup import build_setup
from consilience.task import Task, names_in_part
from consilience.wire import schema
from consilience.wire.encodings import BIT
from tests.method_tools import Dimmed

SETTINGS: dict[str, Any] = {
    "learners": 2,
    "batch_size": 8,
    "optimizer": "sgd",
    "lr": 0.1,
    "precision": "float64",
    "rounds": 2,
}


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load("digits", train=48, test=20)


def method(*exchanges: Exchange, **more: Any) -> Method:
    return Method("trial", {"learner": Role(exchanges=exchanges)}, **more)


@contextmanager
def rounds_of(chosen: Method, data: Dataset, **settings: Any) -> Iterator[Rounds]:
    """A federation before its first round."""
    setup = build_setup(make_config(SETTINGS | settings), chosen, data, ["mlp"])
    with LoopEngine(list(setup.cohorts.plans), data, workers=0) as engine:
        yield Rounds(setup, engine)


def cohort_and_row(rounds: Rounds, learner: int) -> tuple[int, int]:
    """The cohort and row of a learner's state."""
    return int(rounds.setup.cohorts.main[0, learner]), int(rounds.setup.cohorts.rows[:, 0, learner].max())


def state(rounds: Rounds, learner: int) -> LearnerState:
    cohort, number = cohort_and_row(rounds, learner)
    return rounds.engine.read(cohort).row(number)


def parameters(rounds: Rounds, learner: int) -> dict[str, Tensor]:
    """One learner's parameters by name, copied."""
    cohort, _ = cohort_and_row(rounds, learner)
    views = rounds.learners[cohort].binding.parameters.views(state(rounds, learner).parameters)
    return {name: view.clone() for name, view in views.items()}


def local_batches(rounds: Rounds, data: Dataset, learner: int, round_: int) -> list[tuple[Tensor, Tensor]]:
    """The batches of a learner in a round, according to the plan."""
    cohort, number = cohort_and_row(rounds, learner)
    samples = rounds.engine.plans[cohort].members.samples(number)
    key = LearnerKey(rounds.setup.federations.seeds[0], learner)
    planned = plan_batches(LocalWork(8, 1, 1, False), key, round_, len(samples), even=True)
    return [
        (torch.from_numpy(data.inputs[samples[p]]).double(), torch.from_numpy(data.targets[samples[p]]))
        for p in planned
    ]


def model_of(seed: int, data: Dataset) -> SplitModel:
    """The model that a seed gives."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build_model("mlp", data.shape, data.classes).double()


# --- modules, and named outputs


@dataclass(frozen=True)
class Guessing(Exchange):
    """An extra module learns to predict the mean input from a hidden layer; its bias is shared as a standing mean."""

    name: str = "guessing"
    layers: tuple[str, ...] = ("features.hidden",)
    weight: float = 0.5

    def modules(self, task: Task) -> dict[str, nn.Module]:
        return {"guess": nn.Linear(64, 1)}

    def channel(self, task: Task) -> schema.Mean:
        return schema.Mean(self.name, {"guess": schema.Tensor((1,)), "hidden": schema.Tensor((64,))})

    def penalty(self, state: State, view: View, received: Received) -> Tensor:
        guess = view.modules["guess"](view.outputs["features.hidden"])  # (rows, 1)
        return (guess - view.inputs.flatten(1).mean(1, keepdim=True)).square().mean()

    def contribute(self, state: State, view: View, received: Received) -> Contribution:
        hidden = view.outputs["features.hidden"].mean(0)
        return Contribution({"guess": view.modules["guess"](hidden), "hidden": hidden}, view.samples)


def test_modules_are_trained_by_the_local_optimizer_on_named_outputs(digits: Dataset) -> None:
    """Two rounds against torch.optim over the model and the module together."""
    with rounds_of(method(Guessing()), digits) as rounds:
        rounds.start()
        records = [rounds.run(evaluate=False) for _ in range(2)]
        expected: list[tuple[Tensor, Tensor]] = []
        for learner in range(2):
            with torch.random.fork_rng():
                torch.manual_seed(learner_seed(rounds.setup.federations.seeds[0], learner))
                model, guess = build_model("mlp", digits.shape, digits.classes).double(), nn.Linear(64, 1).double()
            optimizer = torch.optim.SGD([*model.parameters(), *guess.parameters()], lr=0.1)
            hidden = model.get_submodule("features.hidden")
            for round_ in (1, 2):
                terms = []
                for inputs, targets in local_batches(rounds, digits, learner, round_):
                    wanted = inputs.flatten(1).mean(1, keepdim=True)
                    term = (guess(hidden(inputs.flatten(1))) - wanted).square().mean()
                    optimizer.zero_grad()
                    (F.cross_entropy(model(inputs), targets) + 0.5 * term).backward()
                    optimizer.step()
                    terms.append(term.item())
                assert records[round_ - 1]["loss.guessing"][0, learner] == pytest.approx(np.mean(terms), rel=1e-9)
            mine = parameters(rounds, learner)
            for name, parameter in [*model.named_parameters(), *guess.named_parameters(prefix="guessing/guess")]:
                torch.testing.assert_close(mine[name], parameter.data, rtol=1e-9, atol=1e-12)
            every = torch.cat([inputs for inputs, _ in local_batches(rounds, digits, learner, 1)]).flatten(1)
            seen = hidden(every).mean(0).detach()
            expected.append((guess(seen).detach(), seen))
        (answer,), _ = rounds.federations[0].answers("guessing", np.arange(2))
        assert answer.count == 48
        for key, both in zip(("guess", "hidden"), zip(*expected, strict=True), strict=True):
            torch.testing.assert_close(answer.tensors[key], torch.stack(both).mean(0), rtol=1e-9, atol=1e-12)


# --- init_state, on_batch, and persistent state


@dataclass(frozen=True)
class Counting(Exchange):
    """Counts mini-batches and samples, and keeps a momentum of the classifier's bias."""

    name: str = "counting"

    def channel(self, task: Task) -> schema.Mean:
        return schema.Mean(self.name, {"steps": schema.Tensor(())})

    def init_state(self, view: View) -> State:
        return {
            "steps": torch.zeros((), dtype=torch.int64),
            "samples": torch.zeros((), dtype=torch.float64),
            "momentum": view.parameters["classifier.bias"],
        }

    def on_batch(self, state: State, view: View) -> State:
        return {
            "steps": state["steps"] + 1,
            "samples": state["samples"] + view.valid.sum(),
            "momentum": 0.9 * state["momentum"] + 0.1 * view.parameters["classifier.bias"],
        }

    def contribute(self, state: State, view: View, received: Received) -> Contribution:
        return Contribution({"steps": state["steps"].double()}, view.samples)


def test_state_is_initialized_once_and_changes_with_every_batch(digits: Dataset) -> None:
    """24 samples in batches of 8, two epochs per round: six steps per round."""
    with rounds_of(method(Counting()), digits, epochs=2) as rounds:
        rounds.start()
        first = [parameters(rounds, i)["classifier.bias"] for i in range(2)]
        for i in range(2):
            assert torch.equal(state(rounds, i).exchange_state["counting"]["momentum"], first[i])
        assert not torch.equal(first[0], first[1])
        for played in (1, 2):
            rounds.run(evaluate=False)
            for i in range(2):
                mine = state(rounds, i).exchange_state["counting"]
                assert (int(mine["steps"]), float(mine["samples"])) == (
                    6 * played,
                    48 * played,
                )
            (answer,), which = rounds.federations[0].answers("counting", np.arange(2))
            assert (float(answer.tensors["steps"]), which.tolist()) == (6.0 * played, [0, 0])


def test_on_batch_sees_the_parameters_before_the_optimizer_step(digits: Dataset) -> None:
    """A momentum encoder is updated from the student and encodes the batch before the penalty is computed."""
    with rounds_of(method(Counting()), digits, batch_size=24) as rounds:  # a single step per round
        rounds.start()
        slow = state(rounds, 0).exchange_state["counting"]["momentum"].clone()
        for _ in range(2):
            seen = parameters(rounds, 0)["classifier.bias"]
            rounds.run(evaluate=False)
            slow = 0.9 * slow + 0.1 * seen
        assert not torch.allclose(parameters(rounds, 0)["classifier.bias"], seen)
        torch.testing.assert_close(state(rounds, 0).exchange_state["counting"]["momentum"], slow)


def kept(folder: Path) -> dict[str, np.ndarray]:
    found = RunFolder(folder).load()
    assert found is not None
    return found[0]


def test_state_is_saved_in_checkpoints_and_resumed(digits: Dataset, tmp_path: Path) -> None:
    chosen = method(Counting(), Steering(), Guessing())

    def interrupt(name: str, round_: int, of: int, history: History) -> None:
        signal.raise_signal(signal.SIGINT)

    whole = simulate(data=digits, method=chosen, model="mlp", out=tmp_path / "whole", **SETTINGS)
    half = simulate(data=digits, method=chosen, model="mlp", out=tmp_path / "half", on_round=interrupt, **SETTINGS)
    assert (whole.finished, half.finished, half.history.rounds) == (True, False, 1)
    assert kept(tmp_path / "half")["learners.0.exchange_state.counting.steps"].tolist() == [3, 3]
    resumed = simulate(resume=tmp_path / "half", data=digits, method=chosen)
    assert resumed.finished
    assert kept(tmp_path / "half")["learners.0.exchange_state.counting.steps"].tolist() == [6, 6]
    one, other = kept(tmp_path / "whole"), kept(tmp_path / "half")
    assert one.keys() == other.keys()
    for key, value in one.items():
        assert value.tobytes() == other[key].tobytes(), key


# --- owned parts


@dataclass(frozen=True)
class Steering(Exchange):
    """The classifier moves only against the mean gradient of all learners."""

    name: str = "steering"
    owned_part: str | None = "classifier"
    start: Any = "common"
    rate: float = 0.3
    every: int = 1

    def channel(self, task: Task) -> schema.Mean:
        tensors = {n: schema.Tensor(task.parameters[n]) for n in names_in_part("classifier", task.parameters)}
        return schema.Mean(self.name, tensors, moving=True)

    def common_values(self, view: View) -> dict[str, Tensor]:
        return {n: view.parameters[n] for n in names_in_part("classifier", view.parameters)}

    def contribute(self, state: State, view: View, received: Received) -> Contribution:
        return Contribution({n: -self.rate * g for n, g in view.gradients.items()}, view.samples)

    def receive(self, state: State, view: View, received: Received) -> Update:
        now = view.parameters
        return Update({n: torch.where(received.fresh, t, now[n]) for n, t in received.tensors.items()}, state=state)


def mean_gradient(model: SplitModel, learner_batches: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """Train the features by hand with SGD; returns the classifier's mean gradient."""
    optimizer = torch.optim.SGD(model.features.parameters(), lr=0.1)
    model.classifier.zero_grad()
    for inputs, targets in learner_batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]  # the classifier's gradients add up meanwhile
        optimizer.step()
    gradients = {}
    for name, parameter in model.classifier.named_parameters(prefix="classifier"):
        assert parameter.grad is not None
        gradients[name] = parameter.grad / len(learner_batches)
    return gradients


def test_owned_parts_are_changed_by_the_exchange_only(digits: Dataset) -> None:
    """Two rounds by hand: features by local SGD, the common classifier by 0.3 times the mean of mean gradients."""
    with rounds_of(method(Steering()), digits) as rounds:
        rounds.start()
        models = [model_of(learner_seed(rounds.setup.federations.seeds[0], i), digits) for i in range(2)]
        common = {
            n: p.detach().clone()
            for n, p in model_of(common_seed(rounds.setup.federations.seeds[0]), digits).named_parameters()
        }
        for round_ in (1, 2):
            gradients = []
            for learner, model in enumerate(models):
                with torch.no_grad():
                    for name, parameter in model.classifier.named_parameters(prefix="classifier"):
                        parameter.copy_(common[name])
                gradients.append(mean_gradient(model, local_batches(rounds, digits, learner, round_)))
            rounds.run(evaluate=False)
            for name in ("classifier.weight", "classifier.bias"):
                common[name] = common[name] - 0.3 * (gradients[0][name] + gradients[1][name]) / 2
            for learner, model in enumerate(models):
                mine = parameters(rounds, learner)
                for name in mine:
                    expected = common[name] if name.startswith("classifier") else model.get_parameter(name).data
                    torch.testing.assert_close(mine[name], expected, rtol=1e-9, atol=1e-12)


def test_owned_parts_do_not_change_in_rounds_without_their_exchange(digits: Dataset) -> None:
    with rounds_of(method(Steering(every=2)), digits) as rounds:
        rounds.start()
        start = parameters(rounds, 0)
        rounds.run(evaluate=False)
        between = parameters(rounds, 0)
        rounds.run(evaluate=False)
        end = parameters(rounds, 0)
    still = [torch.equal(start[n], between[n]) for n in start]
    assert still == [n.startswith("classifier") for n in start]
    assert not any(torch.equal(between[n], end[n]) for n in start)


def test_owned_part_together_with_an_eager_exchange(digits: Dataset) -> None:
    """Before the first round there is no gradient yet, and none is requested."""
    with rounds_of(method(Steering(), Prototypes()), digits) as rounds:
        assert (rounds.start()["bytes.up"] > 0).all()
        rounds.run(evaluate=True)


# --- every, eager


@dataclass(frozen=True)
class Tallying(Exchange):
    """Uploads its number of uploads; its penalty is the newest answer, so that losses show what had been received."""

    name: str = "tally"
    weight: float = 1.0
    every: int = 1

    def channel(self, task: Task) -> schema.Mean:
        return schema.Mean(self.name, {"told": schema.Tensor(())})

    def init_state(self, view: View) -> State:
        return {"batches": torch.zeros((), dtype=torch.float64)}

    def on_batch(self, state: State, view: View) -> State:
        return {"batches": state["batches"] + 1}

    def penalty(self, state: State, view: View, received: Received) -> Tensor:
        return received.tensors["told"] + 0.0 * view.logits.sum()

    def contribute(self, state: State, view: View, received: Received) -> Contribution:
        return Contribution({"told": state["batches"] / 3 + 1}, view.samples)  # three batches per round


@dataclass(frozen=True)
class EagerTallying(Tallying):
    uploads_before_training: ClassVar[bool] = True


def losses(rounds: Rounds, learner: int, count: int, name: str = "tally") -> list[float]:
    rounds.start()
    return [float(rounds.run(evaluate=False)[f"loss.{name}"][0, learner]) for _ in range(count)]


def test_eager_exchange_uploads_before_the_first_round(digits: Dataset) -> None:
    for exchange, known in ((EagerTallying(), [1.0, 2.0, 3.0]), (Tallying(), [0.0, 2.0, 3.0])):
        with rounds_of(method(exchange), digits) as rounds:
            assert losses(rounds, 0, 3) == known
        with rounds_of(method(exchange), digits) as rounds:
            first = rounds.start()
            assert ((first["bytes.up"] > 0) == exchange.uploads_before_training).all()
            assert ((first["bytes.down"] > 0) == exchange.uploads_before_training).all()


def test_untrained_representations_are_received_in_the_first_round(digits: Dataset) -> None:
    with rounds_of(method(Prototypes(), Observations(), Weights()), digits) as rounds:
        rounds.start()
        for name in ("prototypes", "observations"):
            answers, _ = rounds.federations[0].answers(name, np.arange(2), 0, 0)
            assert (answers.count > 0).all()
        assert rounds.federations[0].version("weights") == 0
        record = rounds.run(evaluate=False)
        assert (record["loss.prototypes"] > 0).all() and (record["loss.observations"] > 0).all()


def test_exchange_runs_in_every_kth_round(digits: Dataset) -> None:
    with rounds_of(method(Tallying(every=2)), digits) as rounds:
        assert losses(rounds, 0, 5) == [0.0, 0.0, 3.0, 3.0, 5.0]
    with rounds_of(method(Tallying(every=2)), digits) as rounds:
        rounds.start()
        sent = [rounds.run(evaluate=False) for _ in range(4)]
        assert [bool((r["bytes.up"] > 0).all()) for r in sent] == [False, True, False, True]
        assert [bool((r["bytes.down"] > 0).all()) for r in sent] == [False, True, False, True]
        assert [bool((r["bytes.up"] > 0).any()) for r in sent] == [False, True, False, True]


# --- start


def test_start_setting_gives_common_or_different_initial_weights(digits: Dataset) -> None:
    """With a learning rate of almost 0 the first aggregate is the mean of the initial weights."""
    for start in ("common", "different"):
        with rounds_of(method(Weights(start=start)), digits, lr=1e-300) as rounds:
            rounds.start()
            first = [parameters(rounds, i) for i in range(2)]
            common = dict(model_of(common_seed(rounds.setup.federations.seeds[0]), digits).named_parameters())
            own = dict(model_of(learner_seed(rounds.setup.federations.seeds[0], 1), digits).named_parameters())
            rounds.run(evaluate=False)
            for name, merged in parameters(rounds, 0).items():
                assert torch.equal(first[1][name], (common if start == "common" else own)[name])
                torch.testing.assert_close(merged, (first[0][name] + first[1][name]) / 2, rtol=1e-12, atol=1e-15)
                assert torch.equal(merged, parameters(rounds, 1)[name])


# --- roles


@dataclass(frozen=True)
class Downloading(Exchange):
    """Downloads the tally and never uploads."""

    name: str = "tally"
    weight: float = 1.0

    def channel(self, task: Task) -> schema.Mean:
        return Tallying().channel(task)

    def penalty(self, state: State, view: View, received: Received) -> Tensor:
        return received.tensors["told"] + 0.0 * view.logits.sum()


def two_roles(*order: str) -> Method:
    roles = {"speaker": Role(exchanges=(Tallying(),)), "listener": Role(exchanges=(Downloading(),), epochs=2)}
    return Method("trial", {name: roles[name] for name in order}, {0: "speaker", 1: "speaker", 2: "listener"})


def test_roles_act_in_order_within_a_round(digits: Dataset) -> None:
    """The second role receives uploads of the same round; the first role receives them one round later."""
    with rounds_of(two_roles("speaker", "listener"), digits, learners=3, batch_size=6) as rounds:
        assert losses(rounds, 2, 3) == pytest.approx([1 + 3 / 3, 1 + 6 / 3, 1 + 9 / 3])
    with rounds_of(two_roles("listener", "speaker"), digits, learners=3, batch_size=6) as rounds:
        assert losses(rounds, 2, 3) == pytest.approx([0, 1 + 3 / 3, 1 + 6 / 3])


def test_download_only_role_trains_and_uploads_nothing(digits: Dataset) -> None:
    with rounds_of(two_roles("speaker", "listener"), digits, learners=3, batch_size=6) as rounds:
        rounds.start()
        start = parameters(rounds, 2)
        record = rounds.run(evaluate=True)
        channel = rounds.federations[0].channels["tally"]
        assert isinstance(channel, StandingMean)
        assert channel.uploaded_at.tolist() == [1, 1, -1] and float(channel.count) == 32
        assert (record["bytes.up"][0] > 0).tolist() == [True, True, False]
        assert (record["bytes.down"][0] > 0).tolist() == [True, True, True]
        assert len(set(record["bytes.down"][0])) == 1  # one answer each: no learner receives two
        assert int(state(rounds, 2).step) == 6 and int(state(rounds, 0).step) == 3  # the role's own epochs
        assert not torch.equal(parameters(rounds, 2)["classifier.bias"], start["classifier.bias"])
        assert np.isfinite(record["accuracy"]).all()


@dataclass(frozen=True)
class Following(Weights):
    """Receives the common weights and uploads nothing."""

    def contribute(self, state: State, view: View, received: Received) -> Contribution:
        return Contribution({n: 0 * t for n, t in received.tensors.items()}, 0 * view.samples)


def test_download_only_role_follows_a_moving_mean_without_changing_it(digits: Dataset) -> None:
    chosen = Method(
        "trial",
        {"worker": Role(exchanges=(Weights(),)), "follower": Role(exchanges=(Following(),))},
        {0: "worker", 1: "worker", 2: "follower"},
    )
    with rounds_of(chosen, digits, learners=3) as rounds:
        rounds.start()
        for played in (1, 2):
            rounds.run(evaluate=False)
            channel = rounds.federations[0].channels["weights"]
            assert isinstance(channel, MovingMean) and channel.version == played
            common, models = channel.answer().tensors, [parameters(rounds, i) for i in range(3)]
            for name, value in common.items():
                assert torch.equal(models[0][name], value) and torch.equal(models[1][name], value)
                # The follower has trained from there: an unchanged mean does not undo that training.
                assert not torch.equal(models[2][name], value)


def test_invalid_role_assignments_are_refused(digits: Dataset) -> None:
    roles = {"speaker": Role(exchanges=(Tallying(),)), "listener": Role(exchanges=(Downloading(),))}
    with pytest.raises(ConfigurationError, match="gives learner 3 a role; there are learners 0 to 2"):
        simulate(data=digits, method=Method("trial", roles, {3: "listener"}), **SETTINGS | {"learners": 3})
    with pytest.raises(ConfigurationError, match="none of 3 learners has the role 'listener'"):
        simulate(data=digits, method=Method("trial", roles), **SETTINGS | {"learners": 3})


# --- custom methods


def test_simulate_accepts_a_custom_method(digits: Dataset) -> None:
    result = simulate(data=digits, model="mlp", method=method(Steering(), Tallying(), Guessing()), **SETTINGS)
    assert result.finished and result.history["loss.tally"][:, 0, 0].tolist() == [0.0, 2.0]
    assert result.config.method.name == "trial"


# --- objectives


def test_objective_has_modules_draws_views_and_named_outputs(digits: Dataset) -> None:
    """One round against torch.optim over the model and the head together."""
    with rounds_of(Method("trial", {"learner": Role(Dimmed())}), digits) as rounds:
        rounds.start()
        record = rounds.run(evaluate=False)
        for learner in range(2):
            with torch.random.fork_rng():
                torch.manual_seed(learner_seed(rounds.setup.federations.seeds[0], learner))
                model, head = build_model("mlp", digits.shape, digits.classes).double(), nn.Linear(64, 1).double()
            optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
            losses = []
            for step, (inputs, targets) in enumerate(local_batches(rounds, digits, learner, 1)):
                dim = torch.from_numpy(uniform("draws dimmed", 0, 1, learner, step, 0, np.arange(len(targets))))
                shown = inputs * dim.view(-1, 1, 1, 1)
                guess = head(model.get_submodule("features.hidden")(shown.flatten(1)))[:, 0]
                loss = (guess - dim).square().mean() + F.cross_entropy(model(shown), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            assert record["loss.dimmed"][0, learner] == pytest.approx(np.mean(losses), rel=1e-9)
            mine = parameters(rounds, learner)
            for name, parameter in [*model.named_parameters(), *head.named_parameters(prefix="dimmed/head")]:
                torch.testing.assert_close(mine[name], parameter.data, rtol=1e-9, atol=1e-12)


# --- two exchanges of one class


def test_role_may_have_two_exchanges_of_one_class_with_different_names(digits: Dataset) -> None:
    head, rest = Weights(part="classifier", name="head"), Weights(part="features", up=BIT, down=BIT)
    with rounds_of(method(head, rest), digits) as rounds, rounds_of(method(Weights(part="classifier")), digits) as one:
        for each in (rounds, one):
            each.start()
            each.run(evaluate=False)
        assert set(rounds.federations[0].channels) == {"head", "weights"}
        both, alone = (parameters(rounds, who) for who in (0, 1)), parameters(one, 0)
        first, second = both
        assert all(torch.equal(first[name], second[name]) for name in first)
        torch.testing.assert_close(first["classifier.weight"], second["classifier.weight"])
        assert not torch.equal(first["features.hidden.weight"], alone["features.hidden.weight"])
        sizes = {n: rounds.byte_counts[0].up([n]) for n in ("head", "weights")}
        assert sizes["head"] > 330 * 4 and sizes["weights"] < 6240 / 8 + 300


def test_exchanges_with_the_same_name_or_tensor_are_refused(digits: Dataset) -> None:
    with pytest.raises(ConfigurationError, match=r"'weights' twice; give one of them another name"):
        method(Weights(), Weights(part="classifier"))
    with (
        pytest.raises(ConfigurationError, match=r"'weights' and 'head' both share 'classifier\.weight'"),
        rounds_of(method(Weights(), Weights(part="classifier", name="head")), digits),
    ):
        pass
