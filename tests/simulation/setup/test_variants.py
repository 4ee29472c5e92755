"""Variants: federations of one run that differ in weights and rates; each equals a separate run."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consilience import build_method, simulate
from consilience.config.config import make_config
from consilience.data import Dataset, load
from consilience.errors import ConfigurationError, TrainingError, UnknownName
from consilience.simulation.records.history import History
from consilience.simulation.records.run_folder import RunFolder
from consilience.simulation.result import Result
from consilience.simulation.setup.setup import build_setup
from consilience.simulation.setup.variants import variants_of

Changes = dict[str, Any]
SMALL: dict[str, Any] = {
    **{"learners": 3, "rounds": 2, "seeds": 2, "batch_size": 8},
    **{"engine": "loop", "workers": 0, "precision": "float64"},
}
CASES: dict[str, tuple[str, list[Changes], dict[str, Any]]] = {
    "two weights, each 0 once": (
        "representation-sharing",
        [
            {"method.kd": 0, "method.contrast": 1.0},
            {"method.kd": 10.0, "method.contrast": 0.0},
            {"method.kd": 1, "method.contrast": 2},
        ],
        {},
    ),
    "learning rates": ("consilience", [{"lr": 0.001}, {"lr": 0.02}], {}),
    "fedprox": ("fedprox", [{"method.mu": 0.0}, {"method.mu": 0.1}, {"method.mu": 5}], {}),
    "half take part": (
        "consilience",
        [{"method.kd": 1.0, "lr": 0.01}, {"method.kd": 20.0, "lr": 0.02}],
        {"participation": 0.5, "learners": 4, "rounds": 3},
    ),
    "two architectures": (
        "federated-distillation",
        [{"method.kd": 1.0}, {"method.kd": 20.0, "lr": 0.01}],
        {"model": "mlp,lenet5", "learners": 2},
    ),
}
METRICS_OF_WEIGHT = {
    "method.kd": {"loss.prototypes"},
    "method.contrast": {"loss.observations", "mutual_information"},
    "method.mu": {"loss.weights"},
}
"""Metrics that a penalty of weight zero does not report in a separate run."""
pytestmark = pytest.mark.usefixtures("one_thread")
each_engine = pytest.mark.parametrize("engine", ["loop", "stack"])


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load("digits", train=60, test=40)


def with_variants(data: Dataset, method: str, variants: list[Changes], **others: Any) -> Result:
    return simulate(data=data, method=method, variants=variants, **SMALL | others)


def separate_run(data: Dataset, method: str, changes: Changes, **others: Any) -> Result:
    own = {key.removeprefix("method."): value for key, value in changes.items() if key.startswith("method.")}
    rest = {key: value for key, value in changes.items() if "." not in key}
    return simulate(make_config({"method": {"name": method, **own}}), data=data, **SMALL | others | rest)


def metrics_without_times(result: Result) -> dict[str, np.ndarray]:
    """All recorded metrics except times: (rounds, federations, learners)."""
    return {m: result.history[m] for m in result.history if not m.startswith("seconds.")}


def assert_same_bits(a: Result, b: Result) -> None:
    one, other = metrics_without_times(a), metrics_without_times(b)
    assert set(one) == set(other)
    assert [m for m in one if not np.array_equal(one[m], other[m], equal_nan=True)] == []


# Settings that differ


def test_only_settings_that_differ_are_varied(data: Dataset) -> None:
    variants = [{"method.kd": 0, "method.contrast": 2, "lr": 0.1}, {"method.kd": 3, "method.contrast": 2, "lr": 0.2}]
    config = make_config({"learners": 2, "method": {"name": "consilience", "contrast": 2}, "variants": variants})
    setup = build_setup(config, build_method("consilience", {"contrast": 2}), data, ["mlp"])
    assert setup.variants.names == ("method.kd=0 method.contrast=2 lr=0.1", "method.kd=3 method.contrast=2 lr=0.2")
    (plan,) = setup.cohorts.plans
    assert plan.spec.varied == {"prototypes": ("weight",), "optimizer": ("lr",)}
    assert plan.settings == {
        ("prototypes", "weight"): (0.0, 0.0, 3.0, 3.0),
        ("optimizer", "lr"): (0.1, 0.1, 0.2, 0.2),
    }


def test_run_without_variants_has_one_federation_per_seed() -> None:
    found = variants_of(make_config({}), build_method("consilience"), ["mlp"])
    assert (found.count, found.names, len(found.participants[0])) == (1, (), 5)


# Each variant equals a separate run


@each_engine
@pytest.mark.parametrize("case", list(CASES))
def test_variant_equals_a_separate_run(case: str, engine: str, data: Dataset) -> None:
    method, variants, others = CASES[case]
    together = with_variants(data, method, variants, engine=engine, **others)
    assert together.engine == engine and together.diverged == {}
    for changes, own in zip(variants, together.variants, strict=True):
        apart = metrics_without_times(separate_run(data, method, changes, engine=engine, **others))
        silent: set[str] = set().union(*(METRICS_OF_WEIGHT[key] for key, value in changes.items() if value == 0))
        assert set(metrics_without_times(own)) == set(apart)
        for metric in set(apart) - silent:
            np.testing.assert_allclose(
                metrics_without_times(own)[metric], apart[metric], rtol=1e-9, err_msg=f"{changes}, {metric}"
            )
    courses = [own.history["loss.cross_entropy"][-1] for own in together.variants]
    assert not any(np.allclose(courses[0], other, rtol=1e-6, equal_nan=True) for other in courses[1:]), "they do differ"


@each_engine
def test_penalty_of_weight_zero_is_measured_beside_other_variants(engine: str, data: Dataset) -> None:
    variants = [{"method.contrast": 0.0}, {"method.contrast": 1.0}]
    silent, heard = with_variants(data, "representation-sharing", variants, engine=engine).variants
    apart = separate_run(data, "representation-sharing", variants[0], engine=engine)
    assert (apart.history["loss.observations"] == 0).all() and np.isnan(apart.history["mutual_information"]).all()
    assert (silent.history["loss.observations"] > 0.1).all()
    # Theorem 1: log(C - 1) - C x penalty.
    bound = np.log(9) - 10 * silent.history["loss.observations"]
    np.testing.assert_allclose(silent.history["mutual_information"], bound)
    # The first step starts from the same weights, so that both measure about the same.
    np.testing.assert_allclose(silent.history["loss.observations"], heard.history["loss.observations"], rtol=0.05)


def test_base_value_of_a_varied_setting_does_not_matter(data: Dataset) -> None:
    method, variants, _ = CASES["fedprox"]
    assert_same_bits(
        with_variants(data, f"{method}:mu=0.0", variants), with_variants(data, f"{method}:mu=7.0", variants)
    )


def test_variants_are_bit_identical_with_two_workers(data: Dataset) -> None:
    method, variants, others = CASES["half take part"]
    assert_same_bits(
        with_variants(data, method, variants, **others),
        with_variants(data, method, variants, workers=2, **others),
    )


def test_variants_have_the_same_start_and_participation(data: Dataset) -> None:
    method, variants, others = CASES["half take part"]
    first, second = with_variants(data, method, variants, **others).variants
    assert np.array_equal(first.history["participated"], second.history["participated"])
    assert np.array_equal(first.history.records[0]["bytes.up"], second.history.records[0]["bytes.up"])
    assert first.history["participated"].sum(-1).tolist() == [[2, 2]] * 3, "half of 4 in each of 3 rounds and 2 seeds"


# Results


def test_result_of_variants_has_the_expected_shapes(data: Dataset) -> None:
    variants: list[Changes] = [{"lr": 0.001}, {"lr": 0.01}, {"lr": 0.02}]
    result = with_variants(data, "fedproto", variants)
    assert result.history["accuracy"].shape == (2, 3 * 2, 3), "rounds, variants x seeds, learners"
    assert result.accuracy.shape == (6, 3)
    for i, own in enumerate(result.variants):
        assert own.history.seeds == (0, 1) and own.history.variants == 1
        assert own.history["accuracy"].shape == (2, 2, 3) and own.accuracy.shape == (2, 3)
        assert np.array_equal(own.history["accuracy"], result.history["accuracy"][:, 2 * i : 2 * i + 2])
        assert own.config == result.config.variant(i) and own.config.training.lr == variants[i]["lr"]
        assert own.config.variants == ()
    shares = [sum(own.history.seconds.values()) for own in result.variants]
    assert sum(shares) == pytest.approx(sum(result.history.seconds.values()))
    summary = result.summary()
    assert [s["set"] for s in summary["variants"]] == variants
    means = [own.accuracy.mean() for own in result.variants]
    assert [s["accuracy"]["mean"] for s in summary["variants"]] == pytest.approx(means)
    assert summary["seeds"] == 2 and {s["seeds"] for s in summary["variants"]} == {2}
    assert simulate(data=data, **SMALL).variants == [], "a run without variants has none"


@pytest.mark.parametrize("rates", [[0.01], [0.01, 0.02]])
def test_metrics_name_the_variant_if_there_are_several(rates: list[float], data: Dataset, tmp_path: Path) -> None:
    with_variants(data, "fedproto", [{"lr": rate} for rate in rates], out=tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(lines) == 3 * len(rates) * 2 * 3, "rounds 0 to 2, variants, seeds, learners"
    if len(rates) == 1:
        assert not any("variant" in line for line in lines)
    else:
        found = [(line["variant"], line["seed"], line["learner"]) for line in lines[:12]]
        assert found == [(v, s, who) for v in range(2) for s in range(2) for who in range(3)]


def test_saved_configuration_reproduces_the_variants(data: Dataset, tmp_path: Path) -> None:
    method, variants, _ = CASES["fedprox"]
    first = with_variants(data, method, variants, out=tmp_path / "run")
    assert_same_bits(first, simulate(RunFolder.open(tmp_path / "run").config, data=data))


# Diverging variants


LOGITS = "federated-distillation"  # its squared distances of unbounded logits overflow on any processor
WILD: Changes = {"method.kd": 1e300}
SOUND: list[Changes] = [{"method.kd": 0.1}, {"method.kd": 5.0}]


@each_engine
def test_diverging_variant_is_named_and_leaves_others_unchanged(engine: str, data: Dataset) -> None:
    how = {"engine": engine, "optimizer": "sgd", "rounds": 3}
    result = with_variants(data, LOGITS, [SOUND[0], WILD, SOUND[1]], **how)
    what = "method.kd=1e+300), round 1: loss term 'cross_entropy' is NaN or infinite"
    said = [f"learner 0 (seed {seed}, {what}" for seed in (0, 1)]
    assert result.finished and result.diverged == {2: said[0], 3: said[1]}
    assert [own.diverged for own in result.variants] == [{}, {0: said[0], 1: said[1]}, {}]
    summary = result.summary()
    assert summary["diverged"] == [] and [s["diverged"] for s in summary["variants"]] == [[], said, []]
    without = with_variants(data, LOGITS, SOUND, **how)
    for own, expected in zip((result.variants[0], result.variants[2]), without.variants, strict=True):
        assert_same_bits(own, expected)
        assert np.isfinite(own.history["loss.cross_entropy"]).all()
    assert np.isnan(result.variants[1].history["loss.cross_entropy"][1:]).all()


@each_engine
def test_all_diverging_variants_are_named(engine: str, data: Dataset) -> None:
    result = with_variants(data, LOGITS, [WILD, {"method.kd": 1e301}], engine=engine, optimizer="sgd")
    assert result.finished and all(own.diverged for own in result.variants)


def test_variant_that_diverges_in_a_later_round_is_named(data: Dataset) -> None:
    how = {"optimizer": "sgd", "rounds": 3, "precision": "float32", "batch_size": 32}
    result = with_variants(data, "independent", [{"lr": 0.1}, {"lr": 1e38}], **how)
    sound, wild = result.variants
    assert sound.diverged == {} and sorted(wild.diverged) == [0, 1]
    assert wild.diverged[0] == "learner 0 (seed 0, lr=1e+38), round 3: loss term 'cross_entropy' is NaN or infinite"
    assert np.isfinite(wild.history["loss.cross_entropy"][:2]).all()


def interrupt(method: str, round_: int, rounds: int, history: History) -> None:
    if round_ == 2:
        signal.raise_signal(signal.SIGINT)


def saved_arrays_and_metrics(folder: Path) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
    """The arrays of the checkpoint, and the metrics without times."""
    checkpoint = RunFolder.open(folder).load()
    assert checkpoint is not None
    return checkpoint[0], [{**json.loads(line), "seconds": None} for line in RunFolder(folder).lines()]


@each_engine
def test_resumed_variants_are_bit_identical(engine: str, data: Dataset, tmp_path: Path) -> None:
    how = {"engine": engine, "optimizer": "sgd", "rounds": 4}
    variants = [SOUND[0], WILD, SOUND[1] | {"lr": 0.1}]
    whole = with_variants(data, LOGITS, variants, out=tmp_path / "whole", **how)
    stopped = with_variants(data, LOGITS, variants, out=tmp_path / "parts", on_round=interrupt, **how)
    assert not stopped.finished and stopped.history.rounds == 2 and sorted(stopped.diverged) == [2, 3]
    resumed = simulate(data=data, resume=tmp_path / "parts")
    assert resumed.finished and resumed.diverged == whole.diverged
    assert_same_bits(resumed, whole)
    (one, lines), (other, others) = (
        saved_arrays_and_metrics(tmp_path / "parts"),
        saved_arrays_and_metrics(tmp_path / "whole"),
    )
    assert set(one) == set(other) and all(np.array_equal(one[k], other[k], equal_nan=True) for k in one)
    assert lines == others and len(lines) == 5 * 3 * 2 * 3


# Errors


@pytest.mark.parametrize(
    "changes",
    [
        {"method.n_avg": 5},
        {"method.up": 2},
        {"model": "lenet5"},
        {"learners": 2},
        {"rounds": 3},
        {"seeds": 1},
        {"partition": "dirichlet(0.5)"},
        {"batch_size": 16},
        {"optimizer": "sgd"},
        {"weight_decay": 0.1},
        {"participation": 0.5},
        {"method.name": "fedproto"},
        {"lr": 0.1, "epochs": 2},
    ],
    ids=lambda changes: " ".join(changes),
)
def test_variant_of_other_settings_than_weights_and_rates_is_refused(
    changes: Changes, data: Dataset, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        with_variants(data, "representation-sharing", [{"lr": 0.001}, changes], out=tmp_path / "run")
    words = " ".join(f"{key}={value}" for key, value in changes.items())
    assert str(refused.value).startswith(f"{words} changes more than weights and rates") and "sweep" in str(
        refused.value
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("name", "nearest"), [("method.kdd", "kd"), ("lrr", "lr"), ("methods.kd", "method")])
def test_unknown_setting_is_refused_with_the_nearest_name(name: str, nearest: str, data: Dataset) -> None:
    with pytest.raises(UnknownName) as refused:
        with_variants(data, "fedproto", [{"method.kd": 1.0}, {name: 2.0}])
    assert refused.value.nearest == nearest


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method.kd": "much"}, "kd is 'much'; it must be a number"),
        ({"method.kd": -1.0}, "kd is -1.0; it must be a finite number, 0 or more"),
        ({"lr": 0.0}, "lr is 0.0; it must be more than 0"),
        ({"lr.kd": 1.0}, "'lr.kd': 'lr' has no keys of its own"),
    ],
)
def test_invalid_value_in_a_variant_is_refused(changes: Changes, words: str, data: Dataset) -> None:
    with pytest.raises(ConfigurationError, match=words):
        with_variants(data, "fedproto", [{"method.kd": 1.0}, changes])


def test_variants_of_a_method_object_are_refused(data: Dataset) -> None:
    with pytest.raises(ConfigurationError, match="give the method by its name"):
        simulate(data=data, method=build_method("fedproto"), variants=SOUND, **SMALL)


def test_overflowing_weight_diverges_as_in_a_separate_run(data: Dataset) -> None:
    how = {"optimizer": "sgd", "precision": "float32"}
    with pytest.raises(TrainingError):
        separate_run(data, "fedproto", WILD, **how)
    assert sorted(with_variants(data, "fedproto", [SOUND[0], WILD], **how).diverged) == [2, 3]


def test_diverging_variant_does_not_change_others_in_any_order(data: Dataset) -> None:
    how = {"optimizer": "sgd", "batch_size": 32}
    last = with_variants(data, "consilience", [SOUND[0], WILD], **how).variants[1]
    first = with_variants(data, "consilience", [WILD, SOUND[0]], **how).variants[0]
    assert_same_bits(first, last)


def test_metrics_of_a_diverging_variant_are_valid_json(data: Dataset, tmp_path: Path) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    how = {"optimizer": "sgd", "rounds": 3, "precision": "float32", "batch_size": 32, "out": tmp_path / "run"}
    assert with_variants(data, "independent", [{"lr": 0.1}, {"lr": 1e38}], **how).diverged
    for line in RunFolder(tmp_path / "run").lines():
        json.loads(line, parse_constant=refuse)


def test_total_bytes_are_those_of_one_federation(data: Dataset) -> None:
    summary = with_variants(data, "fedproto", SOUND).summary()
    assert summary["bytes_total"] == summary["variants"][0]["bytes_total"]
