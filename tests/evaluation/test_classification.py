"""Further measures of classifiers: by hand, against scikit-learn, and in whole runs on both engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix as their_confusion
from sklearn.metrics import f1_score, roc_auc_score, top_k_accuracy_score

from consilience import Result, simulate, sweep
from consilience.cli.main import main
from consilience.config.config import make_config
from consilience.errors import ConfigurationError, UnknownName
from consilience.evaluation.classification import (
    classification_metrics,
    confusion_matrix,
    macro_f1,
    metric_keys,
    roc_auc,
    top5_accuracy,
)
from consilience.report.tracking import mean_metrics

pytestmark = pytest.mark.usefixtures("one_thread")
ALL = ("top5", "f1", "auc", "confusion")
SMALL: dict[str, Any] = {"learners": 3, "rounds": 3, "train": 90, "test": 40, "precision": "float64", "workers": 0}


def drawn(samples: int = 200, classes: int = 8, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    targets = generator.integers(0, classes, samples)
    return generator.normal(size=(samples, classes)) + 1.5 * np.eye(classes)[targets], targets


def test_a_confusion_matrix_and_f1_by_hand() -> None:
    logits = np.array([[2.0, 1.0, 0.0], [0.0, 1.0, 0.0], [3.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    targets = np.array([0, 0, 1, 1])
    assert confusion_matrix(logits, targets).tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 0]]
    assert macro_f1(logits, targets) == pytest.approx(50.0)  # the third class neither occurs nor is predicted


def test_an_area_by_hand_with_equal_scores() -> None:
    logits = np.array([[0.0, 2.0], [0.0, 1.0], [0.0, 1.0], [0.0, 0.0]])
    assert roc_auc(logits, np.array([1, 0, 1, 0])) == pytest.approx(100 * 3.5 / 4)
    assert np.isnan(roc_auc(logits, np.array([1, 1, 1, 1])))


def test_of_equal_logits_the_first_class_counts_as_in_the_accuracy() -> None:
    logits, targets = np.zeros((7, 7)), np.arange(7)
    assert top5_accuracy(logits, targets) == pytest.approx(100 * 5 / 7)


@pytest.mark.parametrize("seed", range(3))
def test_measures_agree_with_scikit_learn(seed: int) -> None:
    logits, targets = drawn(seed=seed)
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = np.arange(8)
    assert top5_accuracy(logits, targets) == pytest.approx(100 * top_k_accuracy_score(targets, logits, k=5))
    assert macro_f1(logits, targets) == pytest.approx(100 * f1_score(targets, logits.argmax(1), average="macro"))
    ours = roc_auc(logits, targets)
    assert ours == pytest.approx(100 * roc_auc_score(targets, chances, multi_class="ovr"), abs=1e-9)
    assert np.array_equal(confusion_matrix(logits, targets), their_confusion(targets, logits.argmax(1), labels=labels))


def test_keys_are_those_of_the_record_and_damaged_logits_have_no_measures() -> None:
    logits, targets = drawn(20, 6)
    found = classification_metrics(logits, targets, ALL)
    assert list(found) == metric_keys(ALL, 6) and len(found) == 3 + 36
    assert set(classification_metrics(logits, targets, ("f1",))) == {"f1"}
    logits[3, 2] = np.inf
    assert all(np.isnan(value) for value in classification_metrics(logits, targets, ALL).values())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs") / "measured"


@pytest.fixture(scope="module")
def result(folder: Path) -> Result:
    return simulate(method="fedproto", metrics=ALL, partition="dirichlet(0.5)", engine="loop", out=folder, **SMALL)


def test_a_run_records_them_and_accuracy_follows_from_the_confusion(result: Result, folder: Path) -> None:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    last = lines[-1]
    counts = np.array(last["confusion"])
    assert counts.shape == (10, 10) and counts.sum() == 40
    assert 100 * np.trace(counts) / counts.sum() == pytest.approx(last["accuracy"])
    assert last["top5"] >= last["accuracy"] and lines[0]["f1"] is None
    assert result.confusion().sum() == 3 * 40 and result.summary()["confusion"] == result.confusion().tolist()
    assert result.summary()["auc"]["mean"] == pytest.approx(float(result.history["auc"][-1].mean()))
    assert "macro" in result.table() and "confusion.0.0" not in repr(result.history)
    assert "confusion.0.0" not in mean_metrics(result.history, 3, 0) and "f1" in mean_metrics(result.history, 3, 0)


def test_both_engines_measure_the_same(result: Result) -> None:
    stacked = simulate(method="fedproto", metrics=ALL, partition="dirichlet(0.5)", engine="stack", **SMALL)
    for key in metric_keys(ALL, 10):
        np.testing.assert_allclose(stacked.history[key], result.history[key], rtol=1e-9)


def test_measures_change_no_other_number_and_are_not_taken_unasked(result: Result) -> None:
    plain = simulate(method="fedproto", partition="dirichlet(0.5)", engine="loop", **SMALL)
    assert set(result.history) - set(plain.history) == set(metric_keys(ALL, 10))
    for key in (key for key in plain.history if not key.startswith("seconds.")):
        np.testing.assert_array_equal(plain.history[key], result.history[key])
    with pytest.raises(ConfigurationError, match="recorded no confusion matrix"):
        plain.confusion()


def test_a_resumed_run_has_the_same_measures(result: Result, tmp_path: Path) -> None:
    def stop(*seen: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(result.config, out=tmp_path / "run", on_round=stop)
    resumed = simulate(resume=tmp_path / "run")
    for key in metric_keys(ALL, 10):
        np.testing.assert_array_equal(resumed.history[key], result.history[key])


def test_a_sweep_has_them_in_its_table(tmp_path: Path) -> None:
    sweep(method="fedproto", grid={"method.kd": [0, 1]}, metrics="f1", out=tmp_path / "sweep", **SMALL)
    header, first, *_ = (tmp_path / "sweep" / "sweep.csv").read_text(encoding="utf-8").splitlines()
    assert 0 < float(first.split(",")[header.split(",").index("f1")]) < 100


def test_the_report_has_a_heatmap(result: Result, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["report", str(folder), "--out", str(tmp_path / "page.html")])
    assert not ended.value.code and "Confusion matrix" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_names_are_a_list_or_separated_by_commas() -> None:
    assert make_config({"metrics": "f1, auc"}) == make_config({"metrics": ["f1", "auc"]})
    with pytest.raises(UnknownName, match="Did you mean 'top5'"):
        make_config({"metrics": "top-5"})
    with pytest.raises(ConfigurationError, match="metrics"):
        make_config({"metrics": 3})


def test_what_cannot_be_measured_is_refused() -> None:
    unlabeled = {"method": {"name": "independent", "objective": "simclr"}, "metrics": "f1"}
    with pytest.raises(ConfigurationError, match="they measure the classifier, which is not trained"):
        simulate(make_config(unlabeled | SMALL))
