"""Tasks of several labels and of numbers, from settings to tables, reports and predictions."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import f1_score, r2_score

from consilience.config.config import make_config
from consilience.data import Dataset, load
from consilience.data.local_datasets import make_local_datasets
from consilience.errors import ConfigurationError
from consilience.export.predict import predict_samples
from consilience.leakage.audit import AuditSettings, prepare_audit
from consilience.presentation.scatter_charts import scatter
from consilience.report.feature_map import map_features
from consilience.report.page import write_report
from consilience.report.runs import read_runs
from consilience.simulation.compare import compare
from consilience.simulation.records.export import read_saved_run
from consilience.simulation.records.provenance import describe_split
from consilience.simulation.result import Result
from consilience.simulation.simulate import simulate
from consilience.simulation.sweep import sweep

SMALL: dict[str, Any] = {"learners": 3, "rounds": 2, "workers": 0, "lr": 0.01}


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return simulate(data="diabetes", out=tmp_path_factory.mktemp("numbers") / "run", **SMALL)


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return simulate(data="digit-pairs", out=tmp_path_factory.mktemp("labels") / "run", **SMALL | {"rounds": 8})


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def test_results_say_what_their_score_is(numbers: Result, labels: Result) -> None:
    assert (numbers.summary()["metric"], labels.summary()["metric"]) == ("r2", "f1")
    assert simulate(data="digits", train=60, test=20, **SMALL).summary()["metric"] == "accuracy"
    for result, name in ((numbers, "R²"), (labels, "F1")):
        table = result.table()
        assert name in table and "ccuracy" not in table
        assert f"{name} " in repr(result)
        assert result.plot().to_dict()["layer"][0]["encoding"]["y"]["title"] == f"{name}, %"
        assert result.folder is not None and Result.load(result.folder).metric == result.metric


def test_an_exported_regression_predicts_in_the_user_s_unit(numbers: Result, tmp_path: Path) -> None:
    (folder,) = numbers.export(tmp_path / "model", learner=1)
    predictions = predict_samples(folder, "diabetes")
    (tmp_path / "p.csv").write_text(predictions.csv(), encoding="utf-8")
    rows = read(tmp_path / "p.csv")
    assert list(rows[0]) == ["sample", "predicted", "known"] and len(rows) == 100
    known, found = (np.array([float(row[key]) for row in rows]) for key in ("known", "predicted"))
    assert known[:3].tolist() == load("diabetes").test_targets[:3].tolist() or known.min() >= 25
    assert 100 * r2_score(known, found) == pytest.approx(numbers.accuracy[0, 1], abs=1e-3)
    rmse = float(np.sqrt(np.mean((known - found) ** 2)))
    assert rmse == pytest.approx(numbers.history.last("rmse")[0, 1], rel=1e-4)
    assert predictions.describe() == f"100 samples, R² {numbers.accuracy[0, 1]:.2f} %, RMSE {rmse:.4g} of 100 known"


def test_an_exported_multi_label_model_gives_a_probability_and_a_decision_for_each_label(
    labels: Result, tmp_path: Path
) -> None:
    (folder,) = labels.export(tmp_path / "model", learner=0)
    predictions = predict_samples(folder, "digit-pairs")
    (tmp_path / "p.csv").write_text(predictions.csv(), encoding="utf-8")
    rows = read(tmp_path / "p.csv")
    assert list(rows[0])[:3] == ["sample", "probability of 0", "0"] and "known 9" in rows[0]
    given, known = (np.array([[int(row[f"{mark}{d}"]) for d in range(10)] for row in rows]) for mark in ("", "known "))
    chance = np.array([[float(row[f"probability of {d}"]) for d in range(10)] for row in rows])
    assert ((chance > 0.5) == given).all() and (known == load("digit-pairs").test_targets).all()
    found = 100 * f1_score(known, given, average="micro", zero_division=0)
    assert found == pytest.approx(labels.accuracy[0, 0], abs=1e-6)


def test_new_samples_of_a_table_need_no_targets(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    for name, extra in (("all", {"y": x @ [2.0, 1.0]}), ("new", {})):
        columns = {"a": x[:, 0], "b": x[:, 1], **extra}
        lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines), encoding="utf-8")
    result = simulate(data=str(tmp_path / "all.csv"), label="y", out=tmp_path / "run", **SMALL)
    (folder,) = result.export(tmp_path / "model", learner=0)
    assert "known" not in predict_samples(folder, str(tmp_path / "new.csv")).csv()
    assert "known" in predict_samples(folder, str(tmp_path / "all.csv")).csv()


def test_reports_and_comparisons_call_the_score_by_its_name(tmp_path: Path) -> None:
    found = compare(
        methods=["independent", "fedproto"],
        data="diabetes",
        out=tmp_path / "c",
        seeds=2,
        against="independent",
        **SMALL,
    )
    text = str(found.table())
    assert "R²" in text and "Own R²" in text and "ccuracy" not in text
    page = write_report([tmp_path / "c"], tmp_path / "page.html").read_text(encoding="utf-8")
    assert "R² over rounds" in page and "Samples of each bin" in page and "Accuracy over" not in page
    data = json.loads((tmp_path / "c" / "fedproto" / "data.json").read_text(encoding="utf-8"))
    assert data["data"]["target"]["kind"] == "regression" and len(data["data"]["groups"]) == 5


def test_a_report_maps_features_by_bins_and_tells_what_is_predicted(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 2))
    columns = {"a": x[:, 0], "b": x[:, 1], "y": 1e9 + 1e8 * (x @ [2.0, 1.0]), "z": x @ [1.0, -1.0]}
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    (tmp_path / "t.csv").write_text("\n".join(lines), encoding="utf-8")
    shared: dict[str, Any] = {"data": str(tmp_path / "t.csv"), "validation": 0.2, **SMALL}
    first = simulate(label="y", drop="z", out=tmp_path / "y", **shared)
    assert "Validation: R² on the samples" in " ".join(first.table().split()) and "ccuracy" not in first.table()
    simulate(label="z", drop="y", method="independent", out=tmp_path / "z", **shared)
    found = read_runs([tmp_path / "y", tmp_path / "z"])
    assert [f"({label})" in run.task for run, label in zip(found.runs, "yz", strict=True)] == [True, True]
    drawn = map_features(read_saved_run(tmp_path / "y"))  # the default method, whose head is the plain one here
    assert drawn.group == "bin" and {row["class"] for row in drawn.rows} <= set(drawn.order)
    domain = scatter(drawn.rows, drawn.group, drawn.order).to_dict()["layer"][0]["encoding"]["fill"]["scale"]["domain"]
    assert domain == [name for name in drawn.order if name in set(domain)] and len(domain) == 5
    data = load(tmp_path / "t.csv", label="y", drop="z")
    split = describe_split(make_config({"learners": 3}), data, make_local_datasets(data, 3, seed=0))
    assert all(name in split.splitlines()[1] for name in data.group_names) and "e+0" in data.group_names[0]


def test_sweeps_rank_by_the_score(tmp_path: Path) -> None:
    found = sweep(data="digit-pairs", method="fedproto", grid={"method.kd": [0, 1]}, **SMALL)
    assert found.best is not None and "F1" in str(found.table())


def test_own_scores_weigh_groups_as_in_the_learner_s_data() -> None:
    skewed = simulate(data="diabetes", method="independent", partition="dirichlet(0.1)", **SMALL | {"rounds": 20})
    own, common = skewed.history.last("accuracy_own"), skewed.accuracy
    assert (own != common).all() and own.mean() > common.mean()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"method": "two-stage"}, "'two-stage' does not serve regression: its objective 'two_stage'.*use fedavg, fedproto"),
    ({"method": "split-learning"}, "does not serve regression: in split learning the class of each sample"),
    ({"method": "flesd"}, "'flesd' does not serve regression: its objective"),
    ({"method": "representation-sharing"}, "'observations' is for single-label, with discriminator='exponential'"),
    ({"metrics": ("f1",)}, "are of classes, and data set 'diabetes' is for regression.*R² and rmse, are always"),
    ({"shift": "relabel(0.5)"}, "shift 'relabel' changes the classes.*use a shift of inputs"),
    ({"probe": "linear"}, "probe is 'linear', a classifier.*leave probe out"),
    ({"partners": "useful(1)", "validation": 0.2, "method": "fedproto"}, "partners is 'useful.*use similar partners"),
    (
        {"groups": {"a": {"learners": (0,), "never_share": (1,)}}},
        "never_share names 1.*has no classes; mark the samples",
    ),
    ({"groups": {"a": {"learners": (0,), "attack": "label-flip"}}}, "attack 'label-flip'.*use an attack on uploads"),
]


@pytest.mark.parametrize(("settings", "says"), REFUSED)
def test_what_needs_a_class_per_sample_is_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=f"(?s){says}"):
        simulate(data="diabetes", **SMALL | settings)


def test_a_label_may_be_kept_from_uploads() -> None:
    data = load("digit-pairs", train=200)
    shared: dict[str, Any] = {"groups": {"a": {"learners": (0,), "never_share": (3,)}}, "method": "fedproto"}
    result = simulate(data=data, **SMALL | {"rounds": 1}, **shared)
    assert np.isfinite(result.accuracy).all()
    with pytest.raises(ConfigurationError, match="'weights' shares what was learned from"):
        simulate(data=data, **SMALL, groups=shared["groups"], method="fedavg")


def test_means_of_several_labels_are_not_made_private_for_single_samples() -> None:
    private: dict[str, Any] = {"private": "training", "epsilon": 8.0, "method": "fedproto"}
    with pytest.raises(ConfigurationError, match=r"counts in the mean of each of its labels.*use private='upload'"):
        simulate(data="digit-pairs", **SMALL, **private)


def test_audits_are_of_classes() -> None:
    with pytest.raises(ConfigurationError, match=r"an audit is measured on samples of one class each.*'diabetes'"):
        prepare_audit(make_config({"data": "diabetes"}), AuditSettings())


def test_a_model_with_another_number_of_outputs_is_refused() -> None:
    from torch import nn

    from consilience.models import SplitModel

    def build() -> SplitModel:
        return SplitModel(nn.Sequential(nn.Linear(10, 4), nn.Tanh()), nn.Linear(4, 2))

    with pytest.raises(
        ConfigurationError, match="has 2 outputs, and regression of data set 'diabetes' needs 1; end it"
    ):
        simulate(data="diabetes", model=build, **SMALL)


def test_a_learner_without_any_label_takes_part() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 4)), np.zeros((60, 2), dtype=int)
    y[20:, 0], y[30:50, 1] = 1, 1
    data = Dataset.from_arrays("mine", x, y, x[-20:], y[-20:], owners=np.arange(60) // 20)
    result = simulate(data=data, partition="owners", method="consilience", **SMALL)
    assert np.isfinite(result.accuracy).all()
