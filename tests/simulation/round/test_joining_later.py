"""Learners that join later, and groups with their own participation, samples and shifts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from consilience import simulate
from consilience.config.config import make_config
from consilience.data import Dataset, load
from consilience.data.local_datasets import make_local_datasets
from consilience.data.local_shifts import DataOverride
from consilience.data.local_test_sets import local_test_sets
from consilience.data.partition import partition_samples
from consilience.data.shifts import rotate_images
from consilience.errors import ConfigurationError
from consilience.randomness import seed_of
from consilience.report.runs import read_runs
from consilience.simulation.records.export import read_saved_run
from consilience.simulation.round.participation import draw_presence
from consilience.simulation.setup.federations import Federations, ParticipationGroup
from consilience.simulation.sweep_plan import SweepPlan
from tests.simulation.setup.test_groups import open_rounds, parameters, run_rounds

pytestmark = pytest.mark.usefixtures("one_thread")
NEW: dict[str, Any] = {"learners": 2, "joins": 3}
SMALL: dict[str, Any] = {"learners": 3, "rounds": 4, "train": 90, "test": 40, "workers": 0}


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load("digits", train=90, test=40)


# --- errors


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"groups": {"a": {"learners": 0, "joins": 0}}}, r"joins"),
        ({"groups": {"a": {"learners": 0, "joins": 5}}}, r"groups.a.joins is 5, and the run has 4 rounds"),
        (
            {"groups": {"a": {"learners": "0-1", "joins": 2}, "b": {"learners": 2, "joins": 3}}},
            r"no learner joins before round 2; let at least one join in round 1",
        ),
        ({"groups": {"a": {"learners": 0, "participation": 0}}}, r"participation"),
        ({"groups": {"a": {"learners": 0, "samples": 0}}}, r"samples"),
        ({"groups": {"a": {"learners": "0-1", "samples": 5}}, "public": 9}, r"public is 9, and groups.a.samples is 5"),
    ],
)
def test_invalid_group_settings_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        make_config({"learners": 3, "rounds": 4, **settings})


def test_too_many_samples_and_unknown_shifts_of_a_group_are_refused(data: Dataset) -> None:
    for own, said in (
        ({"learners": 2, "samples": 89}, r"groups.new.samples is 89, and there are 90 training samples for it and 2 l"),
        ({"learners": "1-2", "samples": 45}, r"groups.new.samples is 45, 90 for 2 learners, and there are 90 training"),
        ({"learners": 2, "shift": "spin(3)"}, r"spin"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            open_rounds(data, groups={"new": own}).__enter__()


def test_host_of_the_public_set_cannot_join_later(data: Dataset) -> None:
    with pytest.raises(ConfigurationError, match=r"groups.late.joins is 2, and learner 0 has the public set of method"):
        open_rounds(data, "flesd", groups={"late": {"learners": 0, "joins": 2}}).__enter__()


# --- participation


def test_learners_that_have_not_joined_are_not_drawn() -> None:
    joins = np.array([1] * 8 + [5] * 4)
    for round_, many in ((4, 4), (5, 6)):
        there = draw_presence(Federations(tuple(range(20)), 12, 0.5, 0.0, joins, ()), None, round_).participates
        assert (there.sum(1) == many).all() and there[:, 8:].any() == (round_ == 5)


def test_participation_of_a_group_is_drawn_within_the_group() -> None:
    groups_ = (ParticipationGroup(np.array([1, 3]), 1.0), ParticipationGroup(np.arange(6, 10), 0.25))
    there = draw_presence(Federations(tuple(range(20)), 12, 0.5, 0.0, np.ones(12), groups_), None, 2).participates
    assert there[:, [1, 3]].all() and (there[:, 6:10].sum(1) == 1).all()
    assert (there[:, [0, 2, 4, 5, 10, 11]].sum(1) == 3).all()


def test_host_participates_in_addition_to_the_drawn_learners() -> None:
    groups_ = (ParticipationGroup(np.arange(5), 0.5),)
    there = draw_presence(Federations(tuple(range(20)), 10, 0.2, 0.0, np.ones(10), groups_), 0, 2).participates
    assert there[:, 0].all() and (there[:, 1:5].sum(1) == 2).all() and (there[:, 5:].sum(1) == 1).all()


# --- data of groups


def test_group_samples_are_drawn_first_and_the_rest_is_partitioned(data: Dataset) -> None:
    overrides = {1: DataOverride(20), 3: DataOverride(7)}
    parts = make_local_datasets(data, 4, partition="dirichlet(1)", seed=3, overrides=overrides).parts
    assert [len(parts[1]), len(parts[3])] == [20, 7]
    assert np.sort(np.concatenate(parts)).tolist() == list(range(90))
    order = np.random.default_rng(seed_of("public", 3)).permutation(90)
    assert parts[1].tolist() == np.sort(order[:20]).tolist() and parts[3].tolist() == np.sort(order[20:27]).tolist()
    rest, generator = np.sort(order[27:]), np.random.default_rng(seed_of("partition", 3))
    others = partition_samples(data.targets[rest], 2, "dirichlet(1)", generator)
    assert [parts[0].tolist(), parts[2].tolist()] == [rest[part].tolist() for part in others]


def test_public_setting_equals_samples_of_learner_0(data: Dataset) -> None:
    with open_rounds(data, public=30) as rounds:
        public = rounds.setup.data.local_datasets[0].parts
    with open_rounds(data, groups={"first": {"learners": 0, "samples": 30}}) as rounds:
        own = rounds.setup.data.local_datasets[0].parts
    assert len(own[0]) == 30 and all(np.array_equal(a, b) for a, b in zip(public, own, strict=True))


def test_samples_set_for_all_learners_leave_the_rest_unassigned(data: Dataset) -> None:
    result = simulate(data=data, method="fedavg", **SMALL, groups={"all": {"learners": "0-2", "samples": 10}})
    assert np.isfinite(result.accuracy).all()
    local = make_local_datasets(data, 3, seed=0, overrides=dict.fromkeys(range(3), DataOverride(10)))
    assert local.class_counts().sum(1).tolist() == [10, 10, 10] and len(np.unique(np.concatenate(local.parts))) == 30


def test_group_shift_replaces_the_shift_of_the_run_at_full_strength(data: Dataset) -> None:
    overrides = {0: DataOverride(shift="rotate(90)"), 2: DataOverride(shift="none")}
    plain, local = (
        make_local_datasets(data, 3, seed=1),
        make_local_datasets(data, 3, shift="contrast(3)+swap(1)", seed=1, overrides=overrides),
    )
    first, middle, last = plain.parts
    assert all(np.array_equal(a, b) for a, b in zip(plain.parts, local.parts, strict=True))
    assert np.array_equal(local.inputs[first], rotate_images(data.inputs[first], 90))
    assert np.array_equal(local.inputs[last], data.inputs[last])
    assert not np.array_equal(local.inputs[middle], data.inputs[middle])
    for part, same in ((first, True), (middle, False), (last, True)):
        assert np.array_equal(local.targets[part], data.targets[part]) == same
    assert local.strength.tolist() == [2.0, 0.5, 0.0]  # the group's shift, the run's shift at half strength, none


def test_group_shift_replaces_an_ambiguous_shift_of_the_run(data: Dataset) -> None:
    local = make_local_datasets(data, 3, shift="ambiguous", seed=1, overrides={1: DataOverride(shift="noise(1)")})
    same = [(local.targets[part] == data.targets[part]).mean() for part in local.parts]
    assert same[1] == 1 and max(same[0], same[2]) < 0.8
    alone = make_local_datasets(data, 3, seed=1, overrides={1: DataOverride(shift="ambiguous")})
    same = [(alone.targets[part] == data.targets[part]).mean() for part in alone.parts]
    assert same[0] == same[2] == 1 and same[1] < 0.8


@pytest.mark.parametrize(
    ("partition", "shift", "own", "figure"),
    [
        ("iid", "none", {2: "rotate(90)"}, "7g"),
        ("dirichlet(1)", "none", {2: "rotate(90)"}, "7i"),
        ("iid", "swap(1)", {2: "rotate(90)"}, "7b"),
        ("iid", "none", {2: "ambiguous"}, "7d"),
        ("iid", "none", {2: "prefer(0.9)"}, "7c"),
        ("iid", "rotate(90)", dict.fromkeys(range(3), "rotate(90)"), ""),
        ("iid", "none", {0: "none", 1: "none", 2: "swap(1)"}, "7d"),
    ],
)
def test_heterogeneity_case_includes_group_shifts(
    data: Dataset, partition: str, shift: str, own: dict[int, str], figure: str
) -> None:
    overrides = {who: DataOverride(shift=each) for who, each in own.items()}
    assert (
        make_local_datasets(data, 3, partition=partition, shift=shift, seed=0, overrides=overrides).case.figure
        == figure
    )


def test_local_test_sets_follow_group_shifts(data: Dataset) -> None:
    found = local_test_sets(data, 3, shift="none", most=20, overrides={1: DataOverride(shift="rotate(90)")})
    assert found is not None and found.inputs.shape == (3, 20, 1, 8, 8)
    assert np.array_equal(found.inputs[1], rotate_images(found.inputs[0], 90))
    assert np.array_equal(found.inputs[0], found.inputs[2]) and (found.targets == found.targets[0]).all()
    assert local_test_sets(data, 3, shift="none", overrides={1: DataOverride(20)}) is None
    assert local_test_sets(data, 1, shift="rotate(90)", overrides={0: DataOverride(shift="swap(1)")}) is not None


def test_centralized_learner_has_all_samples_with_group_shifts(data: Dataset) -> None:
    groups = {"new": {"learners": 2, "joins": 3, "shift": "rotate(90)", "samples": 20, "participation": 1.0}}
    with open_rounds(data, "centralized", groups=groups) as rounds:
        records = run_rounds(rounds)
        seen = rounds.setup.data.train.inputs[rounds.engine.plans[0].members.index]
        local = rounds.setup.data.local_datasets[0]
    assert len(seen) == 90 and np.isfinite(records[1]["accuracy"]).all()
    turned = local.parts[2]
    assert len(turned) == 20 and np.array_equal(seen[turned], rotate_images(data.inputs[turned], 90))


# --- joining


@pytest.mark.parametrize("engine", ["loop", "stack"])
@pytest.mark.parametrize("method", ["fedavg", "representation-sharing", "fedavg-1bit"])
def test_learner_is_inactive_before_it_joins(data: Dataset, method: str, engine: str) -> None:
    with open_rounds(data, method, engine, groups={"new": NEW}) as rounds:
        records = [rounds.start()]
        first = parameters(rounds, 2)
        records += [rounds.run(evaluate=True) for _ in range(2)]
        assert torch.equal(parameters(rounds, 2), first)
        records += [rounds.run(evaluate=True) for _ in range(2)]
        heard = rounds.byte_counts[0].down(
            rounds.learners[0].channels, {"weights": 2} if method != "representation-sharing" else {}
        )
    for name in ("accuracy", "accuracy_own", "loss.cross_entropy"):
        known = np.stack([np.isfinite(record[name][0]) for record in records[1:]])
        assert known[:, :2].all() and known[:, 2].tolist() == [False, False, True, True], name
    for way in ("up", "down"):
        moved = np.stack([record[f"bytes.{way}"][0] for record in records])
        assert (moved[:3, 2] == 0).all() and (moved[1:, :2] > 0).all() and moved[4, 2] == moved[4, 0]
    assert moved[3, 2] == moved[3, 0] + heard, "what was said meanwhile, and this round's answer"
    assert [record["participated"][0, 2] for record in records] == [0, 0, 0, 1, 1]


def test_learners_are_unaffected_by_a_learner_that_has_not_joined(data: Dataset) -> None:
    early, late = (
        simulate(data=data, method="representation-sharing", **SMALL, groups={"new": {"learners": 2, "joins": joins}})
        for joins in (3, 4)
    )
    others = [result.history["loss.prototypes"][:, 0, :2] for result in (early, late)]
    assert np.array_equal(others[0][:3], others[1][:3]), "those of round 3 trained before they heard of anybody"
    assert not np.array_equal(others[0][3], others[1][3])


def test_loop_equals_stack_with_learners_that_join_later(data: Dataset) -> None:
    groups = {"new": NEW | {"shift": "rotate(90)", "samples": 25}}
    loop, stack = (
        simulate(data=data, method="consilience", **SMALL, groups=groups, precision="float64", engine=engine)
        for engine in ("loop", "stack")
    )
    for metric in ("accuracy", "accuracy_own", "loss.cross_entropy", "bytes.down"):
        there = np.isfinite(loop.history[metric][:, 0, 2])
        assert there.tolist() == [False, False, True, True] or metric == "bytes.down"
        found = loop.history[metric], stack.history[metric]
        assert np.allclose(*found, rtol=0, atol=1e-9, equal_nan=True), metric


@pytest.mark.parametrize("start", ["common", "different"])
def test_joining_learner_starts_with_own_or_current_common_weights(data: Dataset, start: str) -> None:
    still: dict[str, Any] = {"groups": {"new": NEW | {"lr": 1e-30}}, "lr": 0.01, "epochs": 3}
    with open_rounds(data, "fedavg", own={"start": start}, **still) as rounds:
        _, _, before, joining = run_rounds(rounds, 3)
    assert joining["accuracy_before"][0, 2] == before["accuracy"][0, 0] or start == "different"
    assert joining["accuracy_before"][0, 2] < before["accuracy"][0, 0] - 10 or start == "common"


def test_first_update_of_a_joining_learner_is_relative_to_common_weights(data: Dataset) -> None:
    """Training changes no weights here, so that the mean shows where the new learner started."""
    still: dict[str, Any] = {"optimizer": "sgd", "lr": 1e-30, "precision": "float64"}
    with open_rounds(data, "fedavg", own={"start": "different"}, groups={"new": NEW}, **still) as rounds:
        rounds.start()
        first = [parameters(rounds, who) for who in range(3)]
        for _ in range(2):
            rounds.run(evaluate=False)
        common, counts = parameters(rounds, 0), rounds.setup.data.counts[0].sum(-1)
        rounds.run(evaluate=False)
        after = [parameters(rounds, who) for who in range(3)]
    own = (counts[:2].sum() * common + counts[2] * first[2]) / counts.sum()
    assert torch.equal(after[0], after[2])
    assert torch.allclose(after[0], own, rtol=0, atol=1e-12) and not torch.allclose(own, common)


def test_public_set_is_sent_when_a_learner_joins() -> None:
    result = simulate(
        method="flesd:distill_epochs=1", learners=4, public=17, rounds=3, workers=0, probe="none", train=90, test=40,
        groups={"new": {"learners": 3, "joins": 2}},
    )  # fmt: skip
    sent = np.stack([record["bytes.public"][0] for record in result.history.records])
    assert sent.tolist() == [[0, 17 * 64, 17 * 64, 0], [0, 0, 0, 0], [0, 0, 0, 17 * 64], [0, 0, 0, 0]]
    assert result.summary()["public_bytes"] == 3 * 17 * 64


def test_group_settings_combine_over_several_seeds(data: Dataset) -> None:
    groups = {"new": {"learners": "4-7", "joins": 2, "participation": 0.5, "samples": 5}}
    result = simulate(
        data=data, method="fedavg", learners=8, rounds=3, workers=0, participation=0.75, seeds=2, groups=groups
    )
    took = result.history["participated"]  # (rounds, seeds, learners)
    assert (took[:, :, :4].sum(-1) == 3).all() and took[:, :, 4:].sum(-1).tolist() == [[0, 0], [2, 2], [2, 2]]
    assert np.isfinite(result.accuracy).all(), "all who have joined are tested, whoever took part"


# --- saved, resumed, reported


@pytest.mark.parametrize("stopped", [1, 2, 3])
@pytest.mark.parametrize("method", ["fedavg:start=different", "representation-sharing", "fedavg-1bit"])
def test_resumed_run_with_later_learners_is_bit_identical(tmp_path: Path, method: str, stopped: int) -> None:
    own = {"shift": "rotate(90)", "samples": 20, "participation": 1.0}
    settings: dict[str, Any] = SMALL | {"groups": {"new": NEW | own}, "offline": 0.2, "participation": 0.5}
    whole = simulate(method=method, **settings)

    def stop(name: str, round_: int, rounds: int, history: Any) -> None:
        if round_ == stopped:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(method=method, out=tmp_path / "run", on_round=stop, **settings)
    again = simulate(resume=tmp_path / "run")
    for metric in ("accuracy", "accuracy_own", "loss.cross_entropy", "bytes.down", "participated"):
        assert np.array_equal(again.history[metric], whole.history[metric], equal_nan=True), metric


def test_means_cover_only_learners_that_have_joined(tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = simulate(method="independent", out=run, **SMALL | {"rounds": 3}, groups={"new": NEW})
    accuracy = result.history["accuracy"][:, 0]  # (rounds, learners)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    told = [line["accuracy"] for line in lines if line["learner"] == 2]
    assert told == [None, None, None, accuracy[2, 2]]
    (read,) = read_runs([run]).runs
    curve = {row["round"]: row["accuracy"] for row in read.metrics.curve("accuracy")}
    assert np.allclose(
        [curve[1], curve[2], curve[3]], [accuracy[0, :2].mean(), accuracy[1, :2].mean(), accuracy[2].mean()]
    )
    assert [row["round"] for row in read.metrics.groups["new"].curve("accuracy_own")] == [3]
    assert [row["round"] for row in read.metrics.groups["others (mlp)"].curve("accuracy_own")] == [1, 2, 3]


def test_run_stopped_before_the_join_reports_the_other_learners(tmp_path: Path) -> None:
    def stop(name: str, round_: int, rounds: int, history: Any) -> None:
        if round_ == 2:
            raise KeyboardInterrupt

    run = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        simulate(method="fedavg", out=run, on_round=stop, **SMALL, groups={"new": NEW})
    (read,) = read_runs([run]).runs
    assert read.summary["accuracy"]["mean"] is not None and not read.summary["finished"]
    assert not read.metrics.groups["new"].curve("accuracy")


def test_provenance_names_the_shift_of_a_group(tmp_path: Path) -> None:
    groups = {"new": NEW | {"shift": "rotate(90)"}}
    simulate(method="fedavg", out=tmp_path / "run", **SMALL, shift="swap(0.5)", groups=groups)
    (read,) = read_runs([tmp_path / "run"]).runs
    assert read.provenance is not None and read.provenance["split"] == "iid, swap(0.5), rotate(90) at new"
    assert read.task.endswith("swap(0.5), rotate(90) at new, 90 samples")


def test_saved_run_has_models_of_learners_that_joined(tmp_path: Path) -> None:
    groups = {"new": NEW | {"samples": 20, "shift": "rotate(90)"}}
    simulate(method="flesd:distill_epochs=1", out=tmp_path / "run", **SMALL, probe="none", groups=groups)
    kept = read_saved_run(tmp_path / "run")
    inputs, _ = kept.public
    assert len(inputs) == 35 and kept.features(2, inputs).shape[0] == 35, "half of what the newcomer has not"


# --- variants and sweeps


def test_group_settings_of_presence_and_data_cannot_be_variants(tmp_path: Path) -> None:
    base = make_config(SMALL | {"method": {"name": "fedavg"}, "groups": {"new": NEW}})
    for key, values in (
        ("joins", (2, 3)), ("participation", (0.5, 1.0)), ("samples", (10, 20)), ("shift", ("noise(1)", "noise(2)"))
    ):  # fmt: skip
        variants = [{f"groups.new.{key}": value} for value in values]
        with pytest.raises(ConfigurationError, match=r"changes more than weights and rates"):
            simulate(base.replace(variants=tuple(variants)))
    sweep = SweepPlan(base, {"groups.new.joins": [2, 3], "groups.new.lr": [0.001, 0.01]}, tmp_path)
    assert len(sweep.parts) == 2
