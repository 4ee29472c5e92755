"""The contract of every method: run over all methods, and over settings that change what is uploaded or downloaded.

Methods with several roles, whose learners are in several cohorts, have their own contract in
test_unlabeled_contract.py.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from consilience.channels import Answer, MovingMean, StandingMean
from consilience.config.config import Config, make_config
from consilience.data import Dataset, load
from consilience.exchanges import Contribution, Exchange, Weights
from consilience.exchanges.dimensions import SHARED
from consilience.learner.initial_state import common_seed, drawn_state
from consilience.learner.learner import Learner
from consilience.learner.state import LearnerState
from consilience.method import Method, Role
from consilience.methods import METHODS, build_method
from consilience.simulation.engines.loop import worker_pool
from consilience.simulation.engines.loop.engine import LoopEngine
from consilience.simulation.federation import Federation
from consilience.simulation.records.checkpoint import run_checkpoint
from consilience.simulation.records.history import History
from consilience.simulation.records.round_record import Record
from consilience.simulation.records.run_folder import RunFolder
from consilience.simulation.round import round as rounds_module
from consilience.simulation.round import start as start_module
from consilience.simulation.round.participation import Presence, draw_presence
from consilience.simulation.round.round import Rounds
from consilience.simulation.setup.federations import Federations
from consilience.simulation.setup.setup import build_setup
from consilience.simulation.simulate import simulate
from consilience.wire import codec, schema
from consilience.wire.encodings import BIT

Case = tuple[str, Mapping[str, Any]]
Arrays = dict[str, np.ndarray]

VARIANTS: dict[str, Case] = {
    "fedavg different starts": ("fedavg", {"start": "different"}),
    "fedavg classifier only": ("fedavg", {"part": "classifier"}),
    "fedavg every 2": ("fedavg", {"every": 2}),
    "fedavg int8": ("fedavg", {"up": "int8", "down": "int8"}),
    "fedavg int4 down": ("fedavg", {"up": "bit", "down": "int4"}),
    "consilience every 2": ("consilience", {"every": 2}),
    "fedavg two answers": ("fedavg", {"objective": "calibrated", "own_head": True}),
    "representations 2 up 3 down": ("representation-sharing", {"up": 2, "down": 3}),
    "representations int8": ("representation-sharing", {"up": 2, "down": 3, "encoding": "int8"}),
    "representations random dimensions": ("representation-sharing", {"dimensions": 0.3, "subspace": "random"}),
    "prototypes top dimensions": ("fedproto", {"dimensions": 0.3, "subspace": "top-variance"}),
    "representations equal": ("representation-sharing", {"weighting": "equal"}),
    "representations exponential": ("representation-sharing", {"discriminator": "exponential"}),
    "representations exponential-mlp": ("representation-sharing", {"discriminator": "exponential-mlp"}),
}
CASES: dict[str, Case] = {name: (name, {}) for name in METHODS if len(build_method(name).roles) == 1} | VARIANTS
TOGETHER = [name for name, (method, _) in CASES.items() if method != "centralized"]
each_case = pytest.mark.parametrize("case", list(CASES))
each_together = pytest.mark.parametrize("case", TOGETHER)
IN_TURN = {name for name, (method, own) in CASES.items() if build_method(method, own).roles["learner"].turns}
"""Cases whose learners need the server for every batch: offline they cannot train. See test_split_learning.py."""
each_at_once = pytest.mark.parametrize("case", [name for name in CASES if name not in IN_TURN])
each_together_at_once = pytest.mark.parametrize("case", [name for name in TOGETHER if name not in IN_TURN])


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load("digits", train=60, test=40)


def settings(case: str, **others: Any) -> Config:
    method, own = CASES[case]
    small = {"train": 60, "test": 40, "learners": 3, "rounds": 2, "workers": 0}
    return make_config({**small, "method": {"name": method, **own}, **others})


@contextmanager
def stage(config: Config, data: Dataset, method: Method | None = None) -> Iterator[Rounds]:
    """A federation before its first round, in this process."""
    chosen = method or build_method(config.method.name, config.method.settings)
    setup = build_setup(config, chosen, data, config.model_name.split(","))
    with LoopEngine(list(setup.cohorts.plans), data, 0) as engine:
        yield Rounds(setup, engine)


def final_state(config: Config, data: Dataset) -> Arrays:
    """Everything the next round would depend on, after all rounds."""
    with stage(config, data) as rounds:
        rounds.start()
        for _ in range(config.training.rounds):
            rounds.run(evaluate=False)
        return {k: v.copy() for k, v in run_checkpoint(rounds).arrays.items()}


def differing(a: Arrays, b: Arrays) -> list[str]:
    assert set(a) == set(b)
    return [k for k in a if a[k].dtype != b[k].dtype or not np.array_equal(a[k], b[k])]


def parameters(rounds: Rounds) -> Tensor:
    return rounds.engine.read(0).parameters.clone()


def all_state(rounds: Rounds) -> LearnerState:
    return rounds.engine.read(0).clone()


def common_of(rounds: Rounds) -> dict[str, Tensor]:
    channel = rounds.federations[0].channels["weights"]
    assert isinstance(channel, MovingMean)
    return channel.common


def parameters_by_name(rounds: Rounds, row: int) -> dict[str, Tensor]:
    """A learner's parameters by name."""
    learner = rounds.learners[0]
    return {k: v.clone() for k, v in learner.binding.parameters.views(parameters(rounds)[row]).items()}


def held_by(rounds: Rounds, row: int) -> dict[str, int]:
    """The numbers of the answers a learner holds."""
    return {name: int(numbers[row]) for name, numbers in rounds.answers.held[0].items()}


def assert_sound(record: Record) -> None:
    """Losses of participants are finite, and percentages are between 0 and 100."""
    took_part = record["participated"].astype(bool)
    for name, values in record.items():
        if name.startswith("loss."):
            assert np.isfinite(values[took_part]).all(), name
            assert np.isnan(values[~took_part]).all(), name
    for name in ("accuracy", "accuracy_own"):
        assert ((record[name] >= 0) & (record[name] <= 100)).all(), name


# Uploads and answers, recorded during a run


@dataclass
class RecordedUpload:
    """One member's contribution to one channel."""

    name: str
    member: int
    tensors: dict[str, Tensor]
    weight: Tensor
    version: int
    newest: int  # the channel's version at the upload


@dataclass
class Recording:
    puts: list[RecordedUpload] = field(default_factory=list)
    answers: dict[str, dict[int, Answer]] = field(default_factory=dict)  # by channel and reader
    replies: dict[str, Tensor] = field(default_factory=dict)  # of the moving mean
    wanted: list[tuple[str, dict[str, Tensor], Tensor]] = field(default_factory=list)  # before rounding, by learner
    made: list[tuple[Any, ...]] = field(default_factory=list)  # arguments of the federations

    def clear(self) -> None:
        self.puts, self.answers, self.replies, self.wanted = [], {}, {}, []


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Recording:
    seen = Recording()
    reply_of, encoded_by = MovingMean._quantize, Learner.encode

    class RecordingFederation(Federation):
        def __init__(self, *given: Any) -> None:
            seen.made.append(given)
            super().__init__(*given)

        def upload(self, name: str, members: Any, tensors: Any, weights: Tensor, versions: Any, now: int) -> list[int]:
            newest = self.version(name)
            for i, member in enumerate(members):
                mine = {k: t[i].clone() for k, t in tensors.items()}
                seen.puts.append(RecordedUpload(name, int(member), mine, weights[i].clone(), int(versions[i]), newest))
            return super().upload(name, members, tensors, weights, versions, now)

        def answers(
            self, name: str, readers: np.ndarray, *when: int, draw: int = 0, losses: np.ndarray | None = None
        ) -> tuple[Answer, np.ndarray]:
            batch, which = super().answers(name, readers, *when, draw=draw, losses=losses)
            heard = {int(r): batch[int(i)] for r, i in zip(readers, which, strict=True)}
            seen.answers.setdefault(name, {}).update(heard)
            return batch, which

    def reply(self: MovingMean, name: str, change: Tensor) -> Tensor:
        seen.replies[name] = reply_of(self, name, change)
        return seen.replies[name]

    def encoded(self: Learner, exchange: Exchange, put: Contribution) -> Contribution:
        residuals = self.state.residuals.get(exchange.name, {})
        wanted = {k: t + residuals[k] if k in residuals else t.clone() for k, t in put.tensors.items()}
        seen.wanted.append((exchange.name, wanted, put.weight.clone()))
        return encoded_by(self, exchange, put)

    monkeypatch.setattr(start_module, "Federation", RecordingFederation)
    monkeypatch.setattr(MovingMean, "_quantize", reply)
    monkeypatch.setattr(Learner, "encode", encoded)
    return seen


def rounds_with(monkeypatch: pytest.MonkeyPatch, change: Callable[[int, Presence], Presence]) -> None:
    """Let `change` decide which learners are present, given the round and those originally present."""

    def decided(federations: Federations, host: int | None, round_: int) -> Presence:
        return change(round_, draw_presence(federations, host, round_))

    monkeypatch.setattr(rounds_module, "draw_presence", decided)


def without(rounds: range, member: int) -> Callable[[int, Presence], Presence]:
    """A member is offline in these rounds."""

    def change(round_: int, there: Presence) -> Presence:
        online = there.online.copy()
        online[:, member] &= round_ not in rounds
        return replace(there, online=online)

    return change


# The order of learners does not matter


def first_uploads(notes: Recording) -> list[RecordedUpload]:
    """Each member's first contribution to each channel, in order of arrival."""
    first: dict[tuple[str, int], RecordedUpload] = {}
    for put in notes.puts:
        first.setdefault((put.name, put.member), put)
    return list(first.values())


def replay_uploads(
    made: tuple[Any, ...], puts: list[RecordedUpload], members: list[int], readers: list[int]
) -> dict[str, Any]:
    """The answers of a new federation that receives these uploads in this order from these members."""
    federation = Federation(*made)
    names = dict.fromkeys(p.name for p in puts)
    for name in names:
        federation.expect(name, np.sort([m for p, m in zip(puts, members, strict=True) if p.name == name]))
    for put, member in zip(puts, members, strict=True):
        tensors = {k: t[None] for k, t in put.tensors.items()}
        federation.upload(put.name, np.array([member]), tensors, put.weight[None], np.array([0]), 1)
    federation.aggregate(names)
    found = {name: federation.answers(name, np.array(readers), 1, 0) for name in names}
    return {n: {r: batch[int(which[i])] for i, r in enumerate(readers)} for n, (batch, which) in found.items()}


def assert_same(a: Answer, b: Answer) -> None:
    assert torch.equal(a.count, b.count)
    for key, value in a.tensors.items():
        torch.testing.assert_close(value, b.tensors[key], rtol=1e-12, atol=1e-14)


@each_together
def test_answers_do_not_depend_on_upload_order(case: str, data: Dataset, notes: Recording) -> None:
    with stage(settings(case, learners=4, precision="float64"), data) as rounds:
        rounds.start()
        notes.clear()
        rounds.run(evaluate=False)
        rounds.run(evaluate=False)
    puts = first_uploads(notes)
    members, everybody = [p.member for p in puts], list(range(4))
    once = replay_uploads(notes.made[0], puts, members, everybody)
    shuffled = replay_uploads(notes.made[0], puts[::-1], members[::-1], everybody)
    for name, answers in once.items():
        for reader, answer in answers.items():
            assert_same(shuffled[name][reader], answer)
            if name == "weights":  # summed in the order of members, not of arrival
                assert all(torch.equal(shuffled[name][reader].tensors[k], v) for k, v in answer.tensors.items())


@each_together
def test_answers_do_not_depend_on_member_numbers(case: str, data: Dataset, notes: Recording) -> None:
    with stage(settings(case, learners=4, precision="float64"), data) as rounds:
        rounds.start()
        notes.clear()
        rounds.run(evaluate=False)
        rounds.run(evaluate=False)
        channels = rounds.federations[0].channels
    puts = first_uploads(notes)
    other = [2, 0, 3, 1]  # the new number of each member
    once = replay_uploads(notes.made[0], puts, [p.member for p in puts], list(range(4)))
    moved = replay_uploads(notes.made[0], puts, [other[p.member] for p in puts], list(range(4)))
    for name, answers in once.items():
        channel = channels[name].channel
        for reader, answer in answers.items():
            if channel.scope == "oneself":
                assert_same(moved[name][other[reader]], answer)
            elif isinstance(channel, schema.Mean):
                assert_same(moved[name][reader], answer)
            else:  # the drawn numbers depend only on the draw, so the entries move with the numbers
                mine = {p.member: p for p in puts if p.name == name}
                for entry, new in zip(answer.tensors["mean"], moved[name][reader].tensors["mean"], strict=True):
                    owner, place = owner_of(entry, mine)
                    theirs = mine[other.index(owner)].tensors["mean"][place]
                    torch.testing.assert_close(new, as_sent(theirs, channel))


def owner_of(entry: Tensor, puts: Mapping[int, RecordedUpload]) -> tuple[int, int]:
    """The member of the nearest uploaded entry, and its index among that member's entries."""
    far = {(m, i): float((e - entry).abs().sum()) for m, p in puts.items() for i, e in enumerate(p.tensors["mean"])}
    return min(far, key=lambda place: far[place])


def as_sent(entry: Tensor, channel: schema.Channel) -> Tensor:
    return torch.as_tensor(channel.encoding("mean", "down").quantize(entry[None])[0])


# Classes that some or no learners have


def has_classes(channel: schema.Channel) -> bool:
    """Whether a channel has a row for each of the ten classes; clusters are not classes."""
    return channel.rows[-1:] == (10,)


def without_class(data: Dataset, label: int) -> Dataset:
    keep = data.targets != label
    return replace(data, inputs=data.inputs[keep], targets=data.targets[keep])


@each_case
def test_class_without_samples_is_left_out_of_the_penalty(case: str, data: Dataset, notes: Recording) -> None:
    with stage(settings(case), without_class(data, 9)) as rounds:
        rounds.start()
        for _ in range(2):
            assert_sound(rounds.run(evaluate=True))
        for name, answers in notes.answers.items():
            for answer in answers.values():
                if has_classes(rounds.learners[0].channels[name]):
                    assert (answer.count[..., 9] == 0).all() and (answer.count[..., :9] > 0).any()
                    assert (answer.tensors["mean"][..., 9, :] == 0).all()
        assert torch.isfinite(parameters(rounds)).all()


@each_together
def test_class_missing_at_one_learner_is_the_mean_of_the_others(
    case: str, data: Dataset, notes: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = 3

    def split(targets: np.ndarray, learners: int, *others: Any, **more: Any) -> list[np.ndarray]:
        """Learner 0 has no sample of one class; the others do, learner 2 a single one."""
        mine = np.arange(len(targets)) % learners
        where = np.flatnonzero(targets == lacking)
        mine[where], mine[where[0]] = 1, 2
        return [np.flatnonzero(mine == who) for who in range(learners)]

    monkeypatch.setattr("consilience.data.local_datasets.partition_samples", split)
    with stage(settings(case), data) as rounds:
        rounds.start()
        notes.clear()
        for _ in range(2):
            assert_sound(rounds.run(evaluate=True))
        samples = rounds.setup.data.counts[0, :, lacking]
        assert samples[0] == 0 and samples[1] > 2 and samples[2] == 1
        for name, channel in rounds.federations[0].channels.items():
            if not has_classes(channel.channel):
                continue
            newest = {p.member: p for p in notes.puts if p.name == name}
            for member in (0, 2):  # no sample, and a single sample that stays private
                assert (newest[member].weight[..., lacking] == 0).all()
                assert (newest[member].tensors["mean"][..., lacking, :] == 0).all()
            if isinstance(channel, StandingMean) and channel.channel.scope == "everybody":
                answer = notes.answers[name][0]
                equal = CASES[case][1].get("weighting") == "equal"
                assert answer.count[lacking] == (1 if equal else samples[1])
                torch.testing.assert_close(
                    answer.tensors["mean"][lacking], newest[1].tensors["mean"][lacking], rtol=1e-3, atol=1e-4
                )


# Absent learners


@each_together_at_once
def test_others_continue_without_a_learner_that_never_answers(
    case: str, data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds_with(monkeypatch, without(range(1, 4), member=2))
    with stage(settings(case), data) as rounds:
        rounds.start()
        before, heard = parameters(rounds), held_by(rounds, 2)
        records = [rounds.run(evaluate=True) for _ in range(3)]
        after = parameters(rounds)
        assert [float(r[f"bytes.{way}"][0, 2]) for r in records for way in ("up", "down")] == [0.0] * 6
        assert held_by(rounds, 2) == heard
        assert not torch.equal(before[2], after[2]), "it trains on"
        for record in records:
            assert_sound(record)
        if "weights" in heard:
            every = CASES[case][1].get("every", 1)
            assert rounds.federations[0].version("weights") == 3 // every
            for row in (0, 1):
                if every == 1:
                    assert all(torch.equal(parameters_by_name(rounds, row)[n], v) for n, v in common_of(rounds).items())
            rounds.run(evaluate=False)  # the learner is back
            assert all(torch.equal(parameters_by_name(rounds, 2)[n], v) for n, v in common_of(rounds).items())
            assert rounds.answers.versions(rounds.answers.held[0]["weights"])[2] == 4 // every


@each_at_once
def test_learners_that_are_all_offline_train_and_upload_nothing(case: str, data: Dataset) -> None:
    with stage(settings(case, offline=1.0), data) as rounds:
        rounds.start()
        before = parameters(rounds)
        for _ in range(2):
            record = rounds.run(evaluate=True)
            assert_sound(record)
            assert record["bytes.up"].sum() == record["bytes.down"].sum() == 0
        assert (parameters(rounds) != before).any(dim=1).all()
        assert all(rounds.federations[0].version(name) == 0 for name in rounds.federations[0].channels)


def test_too_stale_upload_is_refused_and_returns_to_the_residual(
    data: Dataset, notes: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds_with(monkeypatch, without(range(1, 4), member=2))
    method = Method("strict", {"learner": Role(exchanges=(Weights(up=BIT, down=BIT, max_staleness=2),))})
    with stage(settings("fedavg-1bit"), data, method) as rounds:
        rounds.start()
        for _ in range(3):
            rounds.run(evaluate=False)
        notes.clear()
        rounds.run(evaluate=False)
        put = next(p for p in notes.puts if p.member == 2)
        assert put.newest - put.version == 3
        # Refused: the upload is added back to the residual, so that the next upload contains it.
        residuals = rounds.engine.read(0).residuals["weights"]
        for name, sent in put.tensors.items():
            torch.testing.assert_close(BIT.quantize(residuals[name][2]), sent)
            assert not torch.allclose(BIT.quantize(residuals[name][1]), sent)
        assert all(torch.equal(parameters_by_name(rounds, 2)[n], v) for n, v in common_of(rounds).items())
        notes.clear()
        rounds.run(evaluate=False)
        put = next(p for p in notes.puts if p.member == 2)
        assert put.version == put.newest


@each_case
def test_single_learner_can_run_every_method(case: str, data: Dataset) -> None:
    with stage(settings(case, learners=1), data) as rounds:
        assert rounds.start()["bytes.up"].shape == (1, 1)
        before = parameters(rounds)
        for _ in range(2):
            assert_sound(rounds.run(evaluate=True))
        assert not torch.equal(before, parameters(rounds))


def test_single_learner_of_fedavg_trains_like_independent(data: Dataset) -> None:
    def trained(method: str) -> Tensor:
        with stage(settings(method, learners=1, precision="float64"), data) as rounds:
            rounds.start()
            if method == "independent":  # from the common weights
                common = drawn_state(rounds.learners[0], common_seed(rounds.setup.federations.seeds[0]))
                rounds.engine.write(0, np.array([0]), common.map(lambda tensor: tensor[None]))
            for _ in range(3):
                rounds.run(evaluate=False)
            return parameters(rounds)

    torch.testing.assert_close(trained("fedavg"), trained("independent"), rtol=1e-9, atol=1e-12)


# Same seed, same bits; stopped or not, in any number of processes


@each_case
def test_same_seed_gives_the_same_bits(case: str, data: Dataset) -> None:
    chance = {"learners": 4, "participation": 0.5, "offline": 0.3, "rounds": 3}
    once, twice = (final_state(settings(case, seed=5, **chance), data) for _ in range(2))
    assert differing(once, twice) == []
    other = final_state(settings(case, seed=6, **chance), data)
    rows = other["learners.0.parameters"] == once["learners.0.parameters"]
    assert not rows.all(axis=1).any()


def assert_same_history(a: History, b: History) -> None:
    """Everything recorded is the same, but for the clock."""
    assert len(a.records) == len(b.records)
    for one, other in zip(a.records, b.records, strict=True):
        assert set(one) == set(other)
        for metric in (m for m in one if not m.startswith("seconds.")):
            assert np.array_equal(one[metric], other[metric], equal_nan=True), metric


def kept(folder: Path) -> Arrays:
    checkpoint = RunFolder.open(folder).load()
    assert checkpoint is not None
    return checkpoint[0]


def interrupt_at(*rounds: int) -> Callable[[str, int, int, History], None]:
    def on_round(method: str, round_: int, total: int, history: History) -> None:
        if round_ in rounds:
            signal.raise_signal(signal.SIGINT)

    return on_round


def assert_resumes(config: Config, data: Dataset, folder: Path, stops: tuple[int, ...]) -> None:
    whole = simulate(config, data=data, out=folder / "whole")
    parts = simulate(config, data=data, out=folder / "parts", on_round=interrupt_at(*stops))
    for stop in stops:
        assert not parts.finished and parts.history.rounds == stop
        parts = simulate(data=data, resume=folder / "parts", on_round=interrupt_at(*stops))
    assert parts.finished and whole.finished
    assert differing(kept(folder / "whole"), kept(folder / "parts")) == []
    assert_same_history(parts.history, whole.history)
    timeless = [{k: v for k, v in r.summary().items() if k not in ("seconds", "run")} for r in (whole, parts)]
    for summary in timeless:
        assert summary.pop("peak_memory_mb") > 0
    assert timeless[0] == timeless[1]


@each_case
def test_stopping_twice_and_resuming_gives_the_same_bits(case: str, data: Dataset, tmp_path: Path) -> None:
    assert_resumes(settings(case, rounds=4), data, tmp_path, stops=(1, 3))


@each_case
def test_resuming_with_partial_participation_gives_the_same_bits(case: str, data: Dataset, tmp_path: Path) -> None:
    config = settings(case, learners=4, rounds=5, participation=0.5, offline=0.3, seeds=2, eval_every=2)
    assert_resumes(config, data, tmp_path, stops=(3,))


@pytest.mark.parametrize("reachable", ["fixed(2)", "turns(2)"])
def test_resuming_with_a_plan_of_who_is_reachable_gives_the_same_bits(
    reachable: str, data: Dataset, tmp_path: Path
) -> None:
    assert_resumes(settings("consilience", rounds=4, reachable=reachable), data, tmp_path, stops=(1, 3))


@pytest.mark.parametrize("case", ["fedavg-1bit", "consilience", "fedavg int8", "fedavg int4 down"])
def test_resuming_convolutions_gives_the_same_bits(case: str, data: Dataset, tmp_path: Path) -> None:
    assert_resumes(settings(case, model="lenet5", rounds=3), data, tmp_path, stops=(1, 2))


def test_two_architectures_give_the_same_bits_stopped_or_in_workers(data: Dataset, tmp_path: Path) -> None:
    mixed = {"model": "mlp,lenet5,mlp", "rounds": 3, "offline": 0.3}
    assert_resumes(settings("federated-distillation", **mixed), data, tmp_path, stops=(1, 2))
    simulate(settings("federated-distillation", workers=2, **mixed), data=data, out=tmp_path / "workers")
    assert differing(kept(tmp_path / "whole"), kept(tmp_path / "workers")) == []


def test_resuming_after_a_crash_gives_the_same_bits(data: Dataset, tmp_path: Path) -> None:
    """A crash leaves metrics beyond the newest checkpoint: these rounds are run again."""

    def crash(method: str, round_: int, total: int, history: History) -> None:
        if round_ == 2:
            raise OSError("power cut")

    config = settings("consilience", rounds=3)
    whole = simulate(config, data=data, out=tmp_path / "whole")
    with pytest.raises(OSError, match="power cut"):
        simulate(config, data=data, out=tmp_path / "parts", on_round=crash)
    lines = (tmp_path / "parts" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 3 * 3, "rounds 0, 1 and 2"
    parts = simulate(data=data, resume=tmp_path / "parts")
    assert differing(kept(tmp_path / "whole"), kept(tmp_path / "parts")) == []
    assert_same_history(parts.history, whole.history)


@each_case
def test_worker_processes_give_the_same_bits_as_none(case: str, data: Dataset, tmp_path: Path) -> None:
    chance = {"learners": 4, "participation": 0.75, "offline": 0.3, "rounds": 3}
    results = [simulate(settings(case, workers=n, **chance), data=data, out=tmp_path / str(n)) for n in (0, 2)]
    assert [w.process.poll() for w in worker_pool._pools[2].workers] == [None, None], "two are waiting for more"
    assert differing(kept(tmp_path / "0"), kept(tmp_path / "2")) == []
    assert_same_history(results[0].history, results[1].history)


@pytest.mark.parametrize("case", ["consilience", "fedavg"])
def test_worker_processes_give_the_same_bits_for_convolutions(case: str, data: Dataset, tmp_path: Path) -> None:
    for n in (0, 2):
        simulate(settings(case, workers=n, rounds=3, model="lenet5"), data=data, out=tmp_path / str(n))
    assert differing(kept(tmp_path / "0"), kept(tmp_path / "2")) == []


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("case", ["consilience", "federated-distillation", "representations 2 up 3 down"])
def test_several_seeds_in_one_run_equal_separate_runs(case: str, precision: str, data: Dataset) -> None:
    """Twelve seeds of three learners are enough for jobs of several rows that span federations."""
    common = {"precision": precision, "participation": 0.7, "rounds": 3}
    many = final_state(settings(case, seed=3, seeds=12, **common), data)
    one = final_state(settings(case, seed=8, **common), data)
    for key, value in one.items():
        if key.startswith("learners."):
            assert np.array_equal(many[key][15:18], value), key
        if key.startswith("channels."):
            assert np.array_equal(many[key.replace("channels.0.", "channels.5.")], value), key


# Counted bytes are encoded bytes


def encoded(message: schema.Message, body: Mapping[str, Tensor]) -> tuple[int, dict[str, np.ndarray]]:
    """The length of the body, and the values that the receiver decodes."""
    sent = codec.encode(message, {k: v.numpy(force=True) for k, v in body.items()})
    return len(sent), codec.decode(message, sent)


def assert_reads(read: Mapping[str, np.ndarray], message: schema.Message, seen: Mapping[str, Tensor]) -> None:
    """Exactly, except for one-bit and eight-bit scales: libraries may round a mean or a scaled maximum differently."""
    assert set(read) == set(seen)
    for name, value in seen.items():
        slack = 1e-6 if message[name].encoding.feedback else 0.0
        torch.testing.assert_close(torch.from_numpy(read[name]).double(), value.double(), rtol=slack, atol=0.0)


def body_of(name: str, tensors: Mapping[str, Tensor], count: Tensor, channel: schema.Channel) -> dict[str, Tensor]:
    if channel.scope == "oneself":
        return {}
    return {f"{name}.{k}": t for k, t in tensors.items()} | ({f"{name}.count": count} if channel.rows else {})


def shared_columns(rounds: Rounds, body: dict[str, Tensor]) -> dict[str, Tensor]:
    """A body with only the dimensions of class means that are shared in this round, where others are in every round."""
    federation = rounds.federations[0]
    if federation.subspace is None:
        return body
    columns = federation.shared > 0
    assert int(columns.sum()) == federation.subspace.count
    sent = {k: v for k, v in body.items() if not k.endswith(f".{SHARED}")}  # the mask does not travel
    return {k: v[..., columns] if v.shape[-1] == federation.subspace.width else v for k, v in sent.items()}


def assert_bytes(rounds: Rounds, record: Record, notes: Recording) -> None:
    """Every learner's bodies of a round, up and down, have the recorded size and decode to the intended values."""
    traffic, channels = rounds.byte_counts[0], rounds.learners[0].channels
    names, shared = {p.name for p in notes.puts}, partial(shared_columns, rounds)
    each = len(notes.wanted) // rounds.setup.federations.learners
    for who in range(rounds.setup.federations.learners):
        wanted, put = notes.wanted[who * each : (who + 1) * each], [p for p in notes.puts if p.member == who]
        up = {k: v for name, tensors, w in wanted for k, v in shared(body_of(name, tensors, w, channels[name])).items()}
        seen = {k: v for p in put for k, v in shared(body_of(p.name, p.tensors, p.weight, channels[p.name])).items()}
        size, read = encoded(traffic.message("up", names), up)
        assert size == record["bytes.up"][0, who]
        assert_reads(read, traffic.message("up", names), seen)
        down: dict[str, Tensor] = {}
        for name in names:
            answer = notes.answers[name][who]
            tensors = notes.replies if channels[name].moves else answer.tensors
            down |= shared(body_of(name, tensors, answer.count, channels[name]))
        size, read = encoded(traffic.message("down", names), down)
        assert size == record["bytes.down"][0, who]
        assert_reads(read, traffic.message("down", names), down)


@each_at_once
def test_counted_bytes_are_encoded_bytes(case: str, data: Dataset, notes: Recording) -> None:
    with stage(settings(case), data) as rounds:
        record = rounds.start()
        eager = [e for e in rounds.learners[0].exchanges if e.uploads_before_training]
        assert {p.name for p in notes.puts} == {e.name for e in eager}
        assert_bytes(rounds, record, notes)
        moved = 0.0
        for round_ in (1, 2, 3):
            notes.clear()
            record = rounds.run(evaluate=False)
            active = {e.name for e in rounds.learners[0].exchanges if round_ % e.every == 0}
            assert {p.name for p in notes.puts} == active
            assert_bytes(rounds, record, notes)
            moved += record["bytes.up"].sum()
        assert (moved > 0) == (case not in ("centralized", "independent", "self-distillation"))


# Partial participation


@each_together_at_once
def test_absent_learners_do_not_change_and_returning_ones_catch_up(case: str, data: Dataset, notes: Recording) -> None:
    config = settings(case, learners=4, participation=0.5)
    absent_before = np.zeros(4, dtype=bool)
    returned = 0
    with stage(config, data) as rounds:
        rounds.start()
        for round_ in range(1, 6):
            notes.clear()
            before = all_state(rounds)
            record = rounds.run(evaluate=True)
            after, there = all_state(rounds), record["participated"][0].astype(bool)
            assert_sound(record)
            assert there.sum() == 2
            new = after.flatten()
            for path, value in before.flatten().items():
                if path[0] != "settings":  # a schedule follows the federation's rounds
                    assert torch.equal(value[~there], new[path][~there]), path
            assert (before.parameters[there] != after.parameters[there]).any(dim=1).all()
            assert record["bytes.up"][0, ~there].sum() == record["bytes.down"][0, ~there].sum() == 0
            assert all(p.version == p.newest for p in notes.puts), "whoever is back heard first what was said meanwhile"
            returned += int((there & absent_before).sum())
            absent_before = ~there
            if "weights" in rounds.federations[0].channels and round_ % CASES[case][1].get("every", 1) == 0:
                for row in np.flatnonzero(there).tolist():
                    assert all(torch.equal(parameters_by_name(rounds, row)[n], v) for n, v in common_of(rounds).items())
    assert returned > 0
