"""The report page of runs without labels: probes, loss terms, and similarities of public samples."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from consilience import simulate
from consilience.data.local_datasets import make_local_datasets
from consilience.evaluation import knn_probe
from consilience.report.feature_map import feature_map
from consilience.report.page import write_report
from consilience.report.runs import read_runs
from consilience.report.similarities import SAMPLES, similarities
from consilience.simulation.records.export import SavedRun, read_saved_run
from tests.conftest import Command

pytest.importorskip("altair")
pytest.importorskip("vl_convert")
from tests.report_tools import cells_of

DISTILLED = "flesd:distill_epochs=2:queue=16:temperature=0.5"
RUNS: dict[str, dict[str, Any]] = {
    "distiller": {"method": f"{DISTILLED}:form=pool"},
    "learner": {"method": f"{DISTILLED}:form=pool:distill=learner"},
    "means": {"method": f"{DISTILLED}:form=mean:keep=0.5"},
    "fedavg": {"method": "fedavg:objective=simclr", "seeds": 2},
    "nearest": {"method": "independent:objective=simclr", "probe": "knn"},
    "probed": {"method": "fedavg", "probe": "both"},
    "supervised": {"method": "fedavg"},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of small runs, each under its name."""
    folder, before = tmp_path_factory.mktemp("runs"), torch.get_num_threads()
    torch.set_num_threads(1)
    common: dict[str, Any] = {"data": "digits", "train": 160, "test": 60, "model": "mlp", "learners": 4}
    common |= {"rounds": 2, "batch_size": 16, "workers": 0}
    for name, changes in RUNS.items():
        simulate(**common | changes, out=folder / name)
    yield folder
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def pages(runs: Path) -> dict[str, str]:
    """A page for each run, without the scripts at its end."""
    texts = {}
    for name in RUNS:
        out = write_report([runs / name], runs / f"{name}.html", None)
        texts[name] = out.read_text(encoding="utf-8").partition('<script type="module">')[0]
    return texts


def charts_of(page: str) -> dict[str, Any]:
    """The charts of a page by name."""
    found = re.findall(r'<figure data-chart="([^"]*)".*?<script type="application/json">(.*?)</script>', page, re.S)
    return {name: json.loads(text) for name, text in found}


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines()]


def mean(run: Path, round_: int, name: str) -> float:
    """The mean of a metric over all learners and seeds that have it."""
    first, _, inner = name.partition(".")
    here = [line[first][inner] if inner else line[first] for line in lines(run) if line["round"] == round_]
    return float(np.mean([value for value in here if value is not None]))


KEYS = {"linear probe": "accuracy_linear", "scaled linear probe": "accuracy_scaled", "kNN": "accuracy_knn"}


# -- probes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["distiller", "learner", "fedavg", "probed"])
def test_probes_have_curves_and_columns(runs: Path, pages: dict[str, str], name: str) -> None:
    rows = probe_rows(pages[name])
    assert len(rows) == 4
    for row in rows:
        key = KEYS[row["probe"]]
        assert row["accuracy"] == pytest.approx(mean(runs / name, row["round"], key), rel=1e-3)
    told = dict(cells_of(pages[name]))
    first = "linear probe" if name == "probed" else "scaled linear probe"
    assert float(told[first].split()[0]) == pytest.approx(mean(runs / name, 2, KEYS[first]), abs=0.051)
    assert float(told["kNN"].split()[0]) == pytest.approx(mean(runs / name, 2, "accuracy_knn"), abs=0.051)
    assert ("±" in told["kNN"]) == (name == "fedavg")  # spread over seeds
    assert ("the accuracy is that of the scaled linear probe" in pages[name]) == (name != "probed")


def probe_rows(page: str) -> list[dict[str, Any]]:
    chart = charts_of(page)["probes"]
    rows: list[dict[str, Any]] = chart["data"]["values"] if "data" in chart else chart["layer"][0]["data"]["values"]
    return rows


def test_knn_probe_is_the_accuracy_if_it_is_the_only_probe(pages: dict[str, str]) -> None:
    assert "the accuracy is that of the kNN" in pages["nearest"] and "linear probe" not in pages["nearest"]
    told = dict(cells_of(pages["nearest"]))
    assert told["accuracy %"] == told["kNN"]


def test_page_of_supervised_runs_has_no_probe_sections(pages: dict[str, str]) -> None:
    page = pages["supervised"]
    assert not {"probes", "similarities"} & set(charts_of(page))
    assert (
        "robe" not in page.partition("Reproduce these runs")[0] and "kNN" not in page and "without labels" not in page
    )


def test_page_states_which_accuracy_is_of_a_probe(runs: Path, tmp_path: Path) -> None:
    out = write_report([runs / "supervised", runs / "fedavg"], tmp_path / "page.html", None)
    page = out.read_text(encoding="utf-8")
    assert "the accuracy of fedavg objective=simclr is that of the scaled linear probe" in page
    first = [text for name, text in cells_of(page) if name in ("scaled linear probe", "kNN")][:2]
    assert first == ["–", "–"]  # the classifiers'


def test_probes_of_an_interrupted_run_are_read_from_its_metrics(runs: Path, tmp_path: Path) -> None:
    for file in ("config.toml", "data.json", "metrics.jsonl"):
        (tmp_path / file).write_bytes((runs / "fedavg" / file).read_bytes())
    (run,), (whole,) = read_runs([tmp_path]).runs, read_runs([runs / "fedavg"]).runs
    assert not run.labeled and set(run.summary["probes"]) == {"scaled", "knn"}
    for probe, told in run.summary["probes"].items():
        assert told == pytest.approx({key: whole.summary["probes"][probe][key] for key in told})


def test_show_command_prints_the_knn_accuracy(runs: Path, command: Command) -> None:
    code, out, _ = command("show", str(runs / "distiller"))
    assert code == 0 and "kNN" in out and f" {mean(runs / 'distiller', 2, 'accuracy_knn'):.1f} " in out
    assert "kNN" not in command("show", str(runs / "supervised"))[1]


# -- loss terms --------------------------------------------------------------------------------------------------------


def test_loss_terms_are_means_over_learners_that_have_them(runs: Path, pages: dict[str, str]) -> None:
    rows = charts_of(pages["distiller"])["losses"]["data"]["values"]
    assert {(row["term"], row["round"]) for row in rows} == {(t, r) for t in ("simclr", "similarity") for r in (1, 2)}
    for row in rows:
        assert row["value"] == pytest.approx(mean(runs / "distiller", row["round"], f"loss.{row['term']}"), rel=1e-3)


# -- similarities ------------------------------------------------------------------------------------------------------


def matrices(page: str) -> dict[str, np.ndarray]:
    rows = charts_of(page)["similarities"]["data"]["values"]
    return {whose: np.array([r["similar"] for r in rows if r["whose"] == whose], dtype=float) for whose in _whose(rows)}


def _whose(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["whose"] for row in rows))


def cosine_similarities(features: np.ndarray) -> np.ndarray:
    rows = features / np.linalg.norm(features, axis=1, keepdims=True)
    product: np.ndarray = rows @ rows.T
    return product


def order_by_class(kept: SavedRun) -> np.ndarray:
    """The order by class of a public set that has as many samples as a matrix."""
    targets = kept.public[1]
    assert len(targets) == SAMPLES
    return np.argsort(targets, kind="stable")


@pytest.mark.parametrize("name", ["distiller", "learner"])
def test_similarity_matrices_match_uploads_ensemble_and_distilled_model(
    runs: Path, pages: dict[str, str], name: str
) -> None:
    kept, found = read_saved_run(runs / name), matrices(pages[name])
    assert list(found) == ["learner 1", "learner 2", "learner 3", "ensemble", "distilled, learner 0"]
    order = order_by_class(kept)
    put = [
        cosine_similarities(kept.checkpoint.arrays["channels.0.similarity.values.rows"][who, 0][order])
        for who in (1, 2, 3)
    ]
    for who in (1, 2, 3):
        np.testing.assert_allclose(found[f"learner {who}"], put[who - 1], atol=0.006)
    np.testing.assert_allclose(found["ensemble"], np.mean([np.exp((m - 1) / 0.5) for m in put], axis=0), atol=0.006)
    after = cosine_similarities(kept.features(0, kept.public[0][order]))
    np.testing.assert_allclose(found["distilled, learner 0"], after, atol=0.006)
    assert np.abs(after - put[0]).max() > 0.02  # another model


def test_matrices_of_the_mean_form_match_the_uploaded_similarities(runs: Path, pages: dict[str, str]) -> None:
    kept, found = read_saved_run(runs / "means"), matrices(pages["means"])
    order, size = order_by_class(kept), SAMPLES
    sharp = np.eye(size)
    sharp[np.triu_indices(size, 1)] = kept.checkpoint.arrays["channels.0.similarity.values.similar"][2]
    sharp = np.maximum(sharp, sharp.T)[order][:, order]
    there = sharp > 0
    assert 0.2 < there.mean() < 0.9  # half of each row is uploaded
    np.testing.assert_array_equal(np.isfinite(found["learner 2"]), there)
    np.testing.assert_allclose(found["learner 2"][there], 1 + 0.5 * np.log(sharp[there]), atol=0.006)
    assert found["ensemble"].diagonal().tolist() == [1.0] * size
    off = kept.checkpoint.arrays["channels.0.similarity.sums.similar"] / 3
    assert found["ensemble"].sum() == pytest.approx(size + 2 * off.sum(), rel=0.01)


def test_matrices_share_one_color_scale_and_are_sorted_by_class(runs: Path, pages: dict[str, str]) -> None:
    chart, found = charts_of(pages["distiller"])["similarities"], matrices(pages["distiller"])
    everything = np.concatenate([matrix.ravel() for matrix in found.values()])
    assert chart["spec"]["encoding"]["color"]["scale"]["domain"] == [everything.min(), everything.max()]
    seen = similarities(read_saved_run(runs / "distiller"), samples=20)
    assert seen is not None and len(seen.classes) == 20 and seen.classes == sorted(seen.classes)
    assert len(set(seen.classes)) == 10 and len(seen.rows) == 5 * 20
    assert seen.text.startswith("20 samples of the public set, sorted by class, after round 2:")


@pytest.mark.parametrize("name", ["fedavg", "nearest", "supervised"])
def test_no_similarity_matrices_without_a_public_set(pages: dict[str, str], name: str) -> None:
    assert "similarities" not in charts_of(pages[name]) and "features" in charts_of(pages[name])


def test_learner_with_several_roles_has_the_model_of_its_first_role(runs: Path) -> None:
    kept = read_saved_run(runs / "learner")
    assert [participant.role_name for participant in kept.participants if participant.learner == 1] == [
        "learner",
        "witness",
        "distiller",
    ]
    found = feature_map(runs / "learner")
    weights = [kept.checkpoint.arrays["learners.0.parameters"][0], kept.checkpoint.arrays["learners.1.parameters"][0]]
    inputs = kept.data.test_inputs.reshape(60, 64)
    for who, flat in enumerate(weights):  # the distiller and the first learner: the MLP by hand
        hidden = np.maximum(inputs @ flat[: 64 * 64].reshape(64, 64).T + flat[4096:4160], 0)
        last = hidden @ flat[4160:6208].reshape(32, 64).T + flat[6208:6240]
        np.testing.assert_allclose(found.features[who], np.tanh(last), atol=1e-4)
    same = feature_map(runs / "distiller").features  # all learners have the common weights
    np.testing.assert_array_equal(same[0], same[1])


def test_models_are_found_if_public_sets_differ_in_size_between_seeds(tmp_path: Path) -> None:
    """There is a cohort for each size, and a saved model predicts the same as in the run."""
    more: dict[str, Any] = {"train": 160, "test": 60, "learners": 4, "rounds": 1, "workers": 0, "batch_size": 32}
    more |= {"data": "digits", "model": "mlp", "partition": "dirichlet(1)", "seeds": 3, "probe": "knn"}
    simulate(method="flesd:distill=learner:distill_epochs=1", out=tmp_path / "run", **more)
    kept = read_saved_run(tmp_path / "run")
    sizes = {len(make_local_datasets(kept.data, 4, partition="dirichlet(1)", seed=seed).parts[0]) for seed in range(3)}
    assert len(sizes) == 3
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    told = {line["learner"]: line["accuracy"] for line in lines if line["seed"] == 0 and line["round"] == 1}
    for who in range(4):
        seen, tests = (torch.from_numpy(kept.features(who, x)) for x in (kept.data.inputs, kept.data.test_inputs))
        right = knn_probe(seen, torch.from_numpy(kept.data.targets), tests, 10).numpy() == kept.data.test_targets
        assert 100 * right.mean() == pytest.approx(told[who])
