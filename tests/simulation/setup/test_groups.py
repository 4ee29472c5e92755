"""Groups of learners with their own settings: penalty weights, uploads, downloads, sharing and training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from consilience import simulate
from consilience.channels import EntryPool, MovingMean, StandingMean
from consilience.config.config import make_config, read_config
from consilience.config.schedules import Schedule
from consilience.data import Dataset, load
from consilience.errors import ConfigurationError, UnknownName
from consilience.exchanges import Exchange, Prototypes, Weights
from consilience.exchanges.base import Contribution, Received, State, View
from consilience.method import Method, Role
from consilience.methods import build_method
from consilience.models import SplitModel
from consilience.simulation.engines.loop.engine import LoopEngine
from consilience.simulation.engines.stack.engine import StackEngine
from consilience.simulation.round.round import Rounds
from consilience.simulation.setup.setup import build_setup
from consilience.task import Task
from consilience.wire import schema

pytestmark = pytest.mark.usefixtures("one_thread")
SHARING = "representation-sharing"


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load("digits", train=90, test=40)


@contextmanager
def open_rounds(
    data: Dataset, method: str | Method = SHARING, engine: str = "loop", own: Any = None, **settings: Any
) -> Iterator[Rounds]:
    named = {"name": method, **(own or {})} if isinstance(method, str) else {"name": method.name}
    config = make_config({"learners": 3, "rounds": 4, "workers": 0, "method": named, **settings})
    chosen = build_method(method, own) if isinstance(method, str) else method
    setup = build_setup(config, chosen, data, config.model_name.split(","))
    plans = list(setup.cohorts.plans)
    with LoopEngine(plans, setup.data.train, 0) if engine == "loop" else StackEngine(plans, setup.data.train) as opened:
        yield Rounds(setup, opened)


def run_rounds(rounds: Rounds, count: int = 2) -> list[dict[str, np.ndarray]]:
    return [rounds.start(), *(rounds.run(evaluate=True) for _ in range(count))]


def parameters(rounds: Rounds, learner: int) -> Tensor:
    cohort, row = rounds.setup.cohorts.main[0, learner], rounds.setup.cohorts.rows[:, 0, learner].max()
    found: Tensor = rounds.engine.read(cohort).parameters[row].clone()
    return found


def independent_parameters(data: Dataset, learner: int, **settings: Any) -> Tensor:
    """A learner's parameters after two rounds without exchange."""
    with open_rounds(data, "independent", **settings) as rounds:
        run_rounds(rounds)
        return parameters(rounds, learner)


# --- penalty weights of a group


def test_group_with_zero_penalty_weights_trains_as_if_independent(data: Dataset) -> None:
    with open_rounds(data, groups={"deaf": {"learners": [1], "method": {"kd": 0.0, "contrast": 0.0}}}) as rounds:
        assert len(rounds.engine.plans) == 1  # penalty weights do not split a stack
        run_rounds(rounds)
        assert torch.equal(parameters(rounds, 1), independent_parameters(data, 1))
        assert not torch.equal(parameters(rounds, 0), independent_parameters(data, 0))


def test_each_learner_has_its_own_penalty_weight(data: Dataset) -> None:
    groups = {"a": {"learners": "0-1", "method": {"kd": 3}}, "b": {"learners": 2, "method": {"kd": 5}}}
    with open_rounds(data, groups=groups) as rounds:
        rounds.start()
        assert rounds.engine.read(0).settings["prototypes"]["weight"].tolist() == [3, 3, 5]


def test_settings_that_change_shapes_make_another_cohort(data: Dataset) -> None:
    with open_rounds(data, groups={"few": {"learners": [0], "method": {"n_avg": 3}}}) as rounds:
        run_rounds(rounds)
        assert [plan.spec.role.exchanges[1].n_avg for plan in rounds.engine.plans] == [3, 10]  # type: ignore[attr-defined]


# --- schedules


def test_penalty_weight_follows_its_schedule(data: Dataset) -> None:
    with open_rounds(data, own={"kd": "ramp(0, 10, 4)"}) as rounds:
        rounds.start()
        seen = []
        for _ in range(4):
            rounds.run(evaluate=False)
            seen.append(rounds.engine.read(0).settings["prototypes"]["weight"].tolist())
        assert seen == [[2.5] * 3, [5.0] * 3, [7.5] * 3, [10.0] * 3]


@pytest.mark.parametrize("engine", ["loop", "stack"])
def test_constant_schedule_equals_the_number(data: Dataset, engine: str) -> None:
    with open_rounds(data, engine=engine, own={"kd": "constant(4)"}) as rounds:
        run_rounds(rounds)
        found = parameters(rounds, 0)
    with open_rounds(data, engine=engine, own={"kd": 4}) as rounds:
        run_rounds(rounds)
        assert torch.allclose(found, parameters(rounds, 0), rtol=0, atol=1e-6)


def test_learning_rate_follows_its_schedule_except_in_a_group(data: Dataset) -> None:
    groups = {"slow": {"learners": 2, "lr": 0.0005}}
    with open_rounds(data, "independent", lr="ramp(0.001, 0.003, 2)", groups=groups) as rounds:
        rounds.start()
        rates = []
        for _ in range(3):
            rounds.run(evaluate=False)
            rates.append(rounds.engine.read(0).settings["optimizer"]["lr"].tolist())
        assert np.allclose(rates, [[0.002, 0.002, 0.0005], [0.003, 0.003, 0.0005], [0.003, 0.003, 0.0005]])


def test_custom_exchange_accepts_a_schedule(data: Dataset) -> None:
    ramp = Method("mine", {"learner": Role(exchanges=(Prototypes(weight=Schedule("ramp", 0, 8, 2)),))})
    with open_rounds(data, ramp) as rounds:
        rounds.start()
        rounds.run(evaluate=False)
        assert rounds.engine.read(0).settings["prototypes"]["weight"].tolist() == [4.0] * 3


def test_schedule_longer_than_the_run_is_refused(data: Dataset) -> None:
    with pytest.raises(ConfigurationError, match=r"prototypes's weight is ramp\(0, 10, 5\), over 5 rounds.*has 4"):
        open_rounds(data, own={"kd": "ramp(0, 10, 5)"}).__enter__()
    with pytest.raises(ConfigurationError, match=r"kd is ramp\(-1, 10, 3\)"):
        open_rounds(data, own={"kd": "ramp(-1, 10, 3)"}).__enter__()


def test_schedule_continues_after_resume(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"learners": 2, "train": 40, "test": 20, "rounds": 4, "workers": 0}
    method = f"{SHARING}:kd=ramp(0, 10, 4)"
    whole = simulate(method=method, **settings)

    def stop(name: str, round_: int, rounds: int, history: Any) -> None:
        if round_ == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(method=method, out=tmp_path / "run", on_round=stop, **settings)
    assert np.array_equal(simulate(resume=tmp_path / "run").history["accuracy"], whole.history["accuracy"])


# --- uploads and downloads


def test_download_only_learner_uploads_nothing_and_enters_no_mean(data: Dataset) -> None:
    with open_rounds(data, groups={"quiet": {"learners": [2], "uploads": False}}) as rounds:
        records = run_rounds(rounds)
        assert [r["bytes.up"][0, 2] for r in records] == [0, 0, 0]
        assert records[1]["bytes.up"][0, 0] > 0 < records[1]["bytes.down"][0, 2]
        means = rounds.federations[0].channels["prototypes"]
        assert isinstance(means, StandingMean)
        counts = rounds.setup.data.counts[0]
        assert means.answer().count.tolist() == counts[:2].sum(0).tolist()
        pool = rounds.federations[0].channels["observations"]
        assert isinstance(pool, EntryPool)
        assert pool.present[:, 0].tolist() == [True, True, False]
        assert not torch.equal(parameters(rounds, 2), independent_parameters(data, 2))


def test_upload_only_learner_trains_as_if_independent(data: Dataset) -> None:
    with open_rounds(data, groups={"giver": {"learners": [0], "downloads": False}}) as rounds:
        records = run_rounds(rounds)
        assert [r["bytes.down"][0, 0] for r in records] == [0, 0, 0]
        assert records[1]["bytes.up"][0, 0] > 0
        assert torch.equal(parameters(rounds, 0), independent_parameters(data, 0))
        means = rounds.federations[0].channels["prototypes"]
        assert isinstance(means, StandingMean)
        assert means.answer().count.tolist() == rounds.setup.data.counts[0].sum(0).tolist()


def test_download_only_learner_in_fedavg_takes_the_mean_of_the_others(data: Dataset) -> None:
    with open_rounds(data, "fedavg", groups={"quiet": {"learners": [2], "uploads": False}}) as rounds:
        records = run_rounds(rounds, 1)
        common = common_weights(rounds)
        for learner in range(3):
            assert torch.equal(parameters(rounds, learner), common)
        assert records[1]["bytes.up"][0].tolist()[2] == 0
    start = Weights()
    both = Method("two", {"learner": Role(exchanges=(start,)), "quiet": Role()}, members={2: "quiet"})
    with open_rounds(data, both) as rounds:
        run_rounds(rounds, 1)
        assert torch.allclose(common_weights(rounds), common)


def test_upload_only_learner_in_fedavg_keeps_its_weights(data: Dataset) -> None:
    with open_rounds(data, "fedavg", groups={"giver": {"learners": [0], "downloads": False}}) as rounds:
        rounds.start()
        record = rounds.run(evaluate=True)
        first = parameters(rounds, 0)
        common = common_weights(rounds)
        assert torch.equal(parameters(rounds, 1), common)
        assert not torch.equal(first, common)
        assert record["bytes.down"][0, 0] > 0  # the weights from which the update is computed
        rounds.run(evaluate=True)
        moved = common_weights(rounds)
        after = torch.stack([parameters(rounds, 0), moved])
        # The second update is relative to the common weights, so these are the mean of all learners again.
        assert not torch.equal(after[0], after[1])
    assert torch.isfinite(after).all()


def common_weights(rounds: Rounds) -> Tensor:
    channel = rounds.federations[0].channels["weights"]
    assert isinstance(channel, MovingMean)
    return rounds.learners[0].binding.parameters.flat(channel.common)


def test_group_selects_exchanges_uploads_and_downloads(data: Dataset) -> None:
    groups = {
        "means only": {"learners": [0], "exchanges": ["prototypes"]},
        "gives means": {"learners": [1], "uploads": ["prototypes"], "downloads": ["observations"]},
    }
    with open_rounds(data, groups=groups) as rounds:
        records = run_rounds(rounds)
        assert np.isnan(records[1]["loss.observations"][0, 0]) and np.isfinite(records[1]["loss.observations"][0, 1])
        pool = rounds.federations[0].channels["observations"]
        assert isinstance(pool, EntryPool)
        assert pool.present[:, 0].tolist() == [False, False, True]
        up, down = records[1]["bytes.up"][0], records[1]["bytes.down"][0]
        assert 0 < up[0] == up[1] < up[2]
        assert down[0] == up[0]
        assert 0 < down[1] < down[2]


def test_each_group_sets_its_numbers_of_observations(data: Dataset) -> None:
    groups = {"rich": {"learners": [0], "method": {"up": 3, "down": 2}}, "poor": {"learners": [2], "method": {"up": 2}}}
    with open_rounds(data, groups=groups) as rounds:
        records = run_rounds(rounds)
        pool = rounds.federations[0].channels["observations"]
        assert isinstance(pool, EntryPool)
        assert pool.present.sum(1).tolist() == [3, 1, 2]  # of the last round only
        up, down = records[1]["bytes.up"][0], records[1]["bytes.down"][0]
        assert up[0] > up[2] > up[1]
        assert down[0] > down[1] == down[2]


def test_no_bytes_are_sent_if_nobody_uploads(data: Dataset) -> None:
    with open_rounds(data, groups={"all": {"learners": "0-2", "uploads": False}}) as rounds:
        records = run_rounds(rounds)
        assert sum(r["bytes.up"].sum() + r["bytes.down"].sum() for r in records) == 0


def test_learner_that_exchanges_every_second_round_keeps_its_weights(data: Dataset) -> None:
    with open_rounds(data, "fedavg", groups={"slow": {"learners": [2], "method": {"every": 2}}}) as rounds:
        rounds.start()
        record = rounds.run(evaluate=False)
        assert record["bytes.down"][0, 2] == record["bytes.up"][0, 2] == 0 < record["bytes.down"][0, 0]
        assert not torch.equal(parameters(rounds, 2), common_weights(rounds))
        record = rounds.run(evaluate=False)
        assert torch.equal(parameters(rounds, 2), common_weights(rounds))
        assert record["bytes.down"][0, 2] > 0


# --- data that is never shared


def test_never_shared_classes_are_in_no_upload(data: Dataset) -> None:
    with open_rounds(data, groups={"private": {"learners": [0], "never_share": [3, 5]}}) as rounds:
        run_rounds(rounds)
        counts = rounds.setup.data.counts[0].copy()
        assert counts[0, 3] >= 2 and counts[0, 5] >= 2  # there are samples to share
        counts[0, [3, 5]] = 0
        means, pool = (rounds.federations[0].channels[n] for n in ("prototypes", "observations"))
        assert isinstance(means, StandingMean) and isinstance(pool, EntryPool)
        assert means.answer().count.tolist() == counts.sum(0).tolist()
        assert torch.as_tensor(pool.weights)[0, 0, [3, 5]].tolist() == [0, 0]


@pytest.mark.parametrize("engine", ["loop", "stack"])
def test_never_shared_samples_do_not_change_uploaded_means(data: Dataset, engine: str) -> None:
    """Other pixels in the marked samples do not change the uploads of an untrained model."""
    share = np.ones(len(data.targets), dtype=bool)
    share[::7] = False
    inputs = data.inputs.copy()
    inputs[::7] = 3.0
    found = []
    for marked in (replace(data, shareable=share), replace(data, shareable=share, inputs=inputs)):
        with open_rounds(marked, engine=engine) as rounds:
            rounds.start()
            means = rounds.federations[0].channels["prototypes"]
            assert isinstance(means, StandingMean)
            found.append(means.answer())
    assert torch.allclose(torch.as_tensor(found[0].tensors["mean"]), torch.as_tensor(found[1].tensors["mean"]))
    assert found[0].count.sum() == share.sum() or found[0].count.sum() < share.sum()  # single samples are left out too


def test_never_share_is_refused_with_shared_weights(data: Dataset) -> None:
    with pytest.raises(ConfigurationError, match=r"learner 1 has samples that are never to be shared, and 'weights'"):
        open_rounds(data, "consilience", groups={"private": {"learners": [1], "never_share": [0]}}).__enter__()
    quiet = {"private": {"learners": [1], "never_share": [0], "exchanges": ["prototypes", "observations"]}}
    with open_rounds(data, "consilience", groups=quiet) as rounds:
        run_rounds(rounds)


@dataclass(frozen=True)
class BatchMeanExchange(Exchange):
    """Remembers the mean input of the last batch and uploads it."""

    name: str = "telling"

    def channel(self, task: Task) -> schema.Mean:
        return schema.Mean(self.name, {"seen": schema.Tensor(task.inputs)})

    def describe_upload(self) -> str:
        return "a mean input"

    def init_state(self, view: View) -> State:
        return {"seen": torch.zeros(view.task.inputs)}

    def on_batch(self, state: State, view: View) -> State:
        return {"seen": view.inputs.mean(0)}

    def contribute(self, state: State, view: View, received: Received) -> Contribution:
        return Contribution({"seen": state["seen"]}, view.samples)


def test_never_share_is_refused_with_an_exchange_that_reads_batches(data: Dataset) -> None:
    mine = Method("mine", {"learner": Role(exchanges=(BatchMeanExchange(),))})
    with open_rounds(data, mine) as rounds:
        run_rounds(rounds, 1)
    with pytest.raises(ConfigurationError, match="'telling' shares what was learned from all of them"):
        open_rounds(data, mine, groups={"private": {"learners": [1], "never_share": [0]}}).__enter__()


def test_never_share_accepts_class_names(data: Dataset) -> None:
    named = replace(data, labels=tuple("abcdefghij"))
    with open_rounds(named, groups={"private": {"learners": [0], "never_share": ["c"]}}) as rounds:
        marks = rounds.engine.plans[0].members.shareable(0)
        assert marks is not None
        mine = named.targets[rounds.engine.plans[0].members.samples(0)]
        assert marks.tolist() == (mine != 2).tolist()
    with pytest.raises(UnknownName, match="unknown class 'z'"):
        open_rounds(named, groups={"private": {"learners": [0], "never_share": ["z"]}}).__enter__()
    with open_rounds(data, groups={"private": {"learners": [0], "never_share": ["4"]}}) as rounds:
        assert rounds.engine.plans[0].members.shared is not None
    with pytest.raises(ConfigurationError, match="never_share names class 10"):
        open_rounds(data, groups={"private": {"learners": [0], "never_share": [10]}}).__enter__()


# --- training


def test_group_sets_epochs_batch_size_and_model(data: Dataset) -> None:
    groups = {"eager": {"learners": [0], "epochs": 3, "batch_size": 5}, "large": {"learners": [1], "model": "lenet5"}}
    with open_rounds(data, width=16, groups=groups) as rounds:
        run_rounds(rounds, 1)
        steps = [int(rounds.engine.read(rounds.setup.cohorts.main[0, w]).step[0]) for w in range(3)]
        assert steps == [18, 1, 1]
        assert [learner.task.model for learner in rounds.learners] == ["mlp", "lenet5", "mlp"]
        assert {learner.task.width for learner in rounds.learners} == {16}


# --- invalid settings


@pytest.mark.parametrize(
    "group, said",
    [
        ({"learners": [3]}, "groups.g.learners names learner 3; there are learners 0 to 2"),
        ({"learners": "2-1"}, "groups.g.learners is '2-1'"),
        ({"learners": []}, "groups.g.learners is empty"),
        ({"learners": [0], "uploads": ["protoypes"]}, "Did you mean 'prototypes'"),
        ({"learners": [0], "exchanges": ["weights"]}, "unknown exchange 'weights' of groups.g.exchanges"),
        ({"learners": [0], "method": {"kdd": 1}}, "Did you mean 'kd'"),
        ({"learners": [0], "weight": 1}, "unknown setting 'weight' of group 'g'"),
        ({"learners": "0-400000000"}, "groups.g.learners names learner 3; there are learners 0 to 2"),
        ({"learners": True}, "groups.g.learners is True; it must be a whole number or a word or a list"),
        ({"uploads": False}, "groups.g.learners is missing"),
        (
            {"learners": [0], "uploads": "prototypes"},
            "groups.g.uploads is 'prototypes'; it must be true or false or a list",
        ),
        ({"learners": [0], "exchanges": "prototypes"}, "groups.g.exchanges is 'prototypes'; it must be a list"),
        ({"learners": [0], "never_share": 3}, "groups.g.never_share is 3; it must be a list"),
        ({"learners": [0], "model": "resnet9"}, "resnet9"),
        ({"learners": [0], "epochs": 0}, "groups.g.epochs is 0; it must be 1 or more"),
    ],
)
def test_invalid_settings_of_a_group_are_refused(data: Dataset, group: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        open_rounds(data, groups={"g": group}).__enter__()
    assert said in str(refused.value)


def test_method_object_has_no_settings_for_groups(data: Dataset) -> None:
    mine = Method("mine", {"learner": Role(exchanges=(Prototypes(),))})
    with open_rounds(data, mine, groups={"g": {"learners": [0], "uploads": False}}) as rounds:
        run_rounds(rounds, 1)
    with pytest.raises(ConfigurationError, match="put together by hand, so 'kd' cannot be set by name"):
        open_rounds(data, mine, groups={"g": {"learners": [0], "method": {"kd": 1}}}).__enter__()


def test_schedule_object_is_saved_as_text(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"learners": 2, "train": 40, "test": 20, "rounds": 2, "workers": 0}
    ramp = Schedule("ramp", 0, 4, 2)
    method = build_method("fedproto", {"kd": ramp})
    result = simulate(method=method, lr=Schedule("cosine", 0.01, 0.001, 2), out=tmp_path / "run", **settings)
    assert result.config.training.lr == "cosine(0.01, 0.001, 2)" and result.config.method.settings == {
        "kd": "ramp(0, 4, 2)"
    }
    again = simulate(read_config(tmp_path / "run" / "config.toml"))
    assert np.array_equal(again.history["accuracy"], result.history["accuracy"])


def test_message_bytes_is_the_largest_upload(data: Dataset) -> None:
    groups: dict[str, dict[str, Any]]
    groups = {"quiet": {"learners": [0], "uploads": False}, "rich": {"learners": [2], "method": {"up": 3}}}
    method = build_method(SHARING)
    result = simulate(data=data, method=method, learners=3, rounds=1, workers=0, groups=groups)
    assert result.message_bytes["up"] == result.history["bytes.up"][0, 0, 2] > result.history["bytes.up"][0, 0, 1]


def test_data_settings_apply_to_a_dataset_object_or_are_refused(data: Dataset) -> None:
    result = simulate(data=data, method="independent", learners=2, rounds=1, train=20, test=10, workers=0)
    assert result.config.data.train == 20
    with pytest.raises(ConfigurationError, match="train is 1000, and data set 'digits' has 90"):
        simulate(data=data, train=1000)
    with pytest.raises(ConfigurationError, match="image_size is for folders"):
        simulate(data=data, image_size=8)
    with pytest.raises(ConfigurationError, match=r"width is 16, and model 'narrow' has features of width 8"):
        simulate(data=data, model=narrow, width=16)


def narrow() -> SplitModel:
    features = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh())
    return SplitModel(features, nn.Linear(8, 10), bound=1.0)
