"""Runs as tests of the report make them by hand, and what is on a page."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from consilience.config.config import Config, make_config
from consilience.report.page import write_report

pytest.importorskip("altair")
pytest.importorskip("vl_convert")

TINY = {"train": 60, "test": 40, "workers": 0}
TERMS = ("cross_entropy", "prototypes", "observations")


def settings(**changes: Any) -> Config:
    return make_config({"data": "digits", "learners": 2, "rounds": 2, "seeds": 2} | changes)


def line(round_: int, seed: int, learner: int, accuracy: float | None, **more: Any) -> dict[str, Any]:
    """A line of metrics as a run writes it: 100 bytes up and 50 down a round, and 10 up before the first."""
    return {
        "round": round_,
        "seed": seed,
        "learner": learner,
        "loss": dict.fromkeys(TERMS, None if round_ == 0 else 1 / round_),
        "accuracy": accuracy,
        "accuracy_own": accuracy,
        "mutual_information": None if round_ == 0 else 0.1 * round_,
        "bytes": {"up": 100 if round_ else 10, "down": 50 if round_ else 0},
        "seconds": {"train": 1.0},
        "participated": True,
    } | more


def run_folder(path: Path, lines: Sequence[dict[str, Any]] | None = None, **changes: Any) -> Path:
    """A run folder written by hand: accuracy is 10 x round + 2 x seed + learner."""
    config = settings(**changes)
    path.mkdir(parents=True)
    (path / "config.toml").write_text(config.to_toml())
    where = product(
        range(config.training.rounds + 1), range(config.federation.seeds), range(config.federation.learners)
    )
    found = [line(r, s, w, 10.0 * r + 2 * s + w if r else None) for r, s, w in where] if lines is None else lines
    (path / "metrics.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in found))
    about = {"data": {"name": "digits", "labels": []}, "partition": config.federation.partition, "shift": "none"}
    case = {"figure": "7c", "description": "learners differ in p(y)"}
    data = about | {"case": case, "class_counts": {"10": [[4] * 10] * 2, "9": [[7] * 10] * 2}}
    (path / "data.json").write_text(json.dumps(data))
    accuracy = {"mean": 21.5, "std_seeds": 1.4, "std_learners": 0.5}
    kind: dict[str, Any] = {"model": "mlp", "accuracy": accuracy, "accuracy_own": accuracy}
    kind["bytes"] = {"up": 100.0, "down": 50.0}
    method = {"method": config.method.name, "settings": config.method.settings}
    extent = {
        "rounds": config.training.rounds,
        "seeds": config.federation.seeds,
        "bytes_total": 640.0,
        "diverged": [],
        "finished": True,
    }
    result: dict[str, Any] = {**method, **extent, **kind}
    result["seconds"] = {"total": 3.0, "train": 1.5, "represent": 0.5, "exchange": 0.5, "evaluate": 0.5}
    result["groups"] = {"skeptics": kind}
    (path / "result.json").write_text(json.dumps(result))
    return path


def run_with_gain(path: Path, method: str, gain: float, sent: float) -> Path:
    """A run whose second learner gains on its own distribution."""
    lines = [
        line(r, s, w, 10.0 * r + 2 * s + w if r else None)
        | ({"accuracy_own": 50.0 + 10 * s + gain * w} if r == 2 else {})
        for r, s, w in product(range(3), range(2), range(2))
    ]
    folder = run_folder(path, lines, method={"name": method})
    result = json.loads((folder / "result.json").read_text()) | {"bytes_total": sent, "groups": {}}
    (folder / "result.json").write_text(json.dumps(result))
    return folder


def page_of(tmp_path: Path, *folders: Path) -> str:
    """A report's page, without the scripts at its end."""
    out = write_report(folders, tmp_path / "report.html", None)
    return out.read_text(encoding="utf-8").partition('<script type="module">')[0]


def shown(page: str) -> list[str]:
    """Names of the charts in a page."""
    return re.findall(r'<figure data-chart="([^"]*)"', page)


def cells_of(page: str) -> list[tuple[str, str]]:
    """The heading and the text of each cell in the tables of a page, row by row, without the names of rows."""
    found: list[tuple[str, str]] = []
    for head, body in re.findall(r"<table><thead>(.*?)</thead><tbody>(.*?)</tbody></table>", page, re.S):
        columns = re.findall(r"<th[^>]*>([^<]*)</th>", head)[1:]
        for row in re.findall(r"<tr.*?</tr>", body, re.S):
            found += zip(columns, re.findall(r"<td[^>]*>([^<]*)</td>", row), strict=True)
    return found


def specs_of(page: str) -> dict[str, Any]:
    found = re.findall(r'<figure data-chart="([^"]*)".*?<script type="application/json">(.*?)</script>', page, re.S)
    return {name: json.loads(text) for name, text in found}


def values_of(spec: Any) -> list[dict[str, Any]]:
    """All rows in a chart, those of its layers too."""
    if isinstance(spec, list):
        return [row for each in spec for row in values_of(each)]
    if not isinstance(spec, dict):
        return []
    rows = spec["data"].get("values", []) if isinstance(spec.get("data"), dict) else []
    return rows + [row for key, each in spec.items() if key != "data" for row in values_of(each)]


ALL = ["bytes", "accuracy", "learners", "partition", "losses", "mutual-information", "time"]
