"""Labels and numbers: the default method, its control and others against learning alone, each with its best settings.

    python benchmarks/task_kinds.py choose --out benchmarks/results/task-kinds.json
    python benchmarks/task_kinds.py report --out benchmarks/results/task-kinds.json

choose: for every data set and method the learning rate, the weight of the pull and the number of rounds with the
highest score on validation samples, with seeds from 1000 on; the test set is not looked at. report: the test score with
these settings and seeds from 0 on, and the difference to learning alone, paired by seed, with its 95 % interval. What
the file has already is not run again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from consilience import simulate
from consilience.presentation.paired import paired_difference

SEED, VALIDATION = 1000, 0.2
RATES = (0.001, 0.003, 0.01)
ROUNDS, EVERY = 50, 5
LEARNERS = 5
DATA = ("diabetes", "digit-pairs")
METHODS: dict[str, tuple[float, ...]] = {
    "independent": (),
    "self-distillation": (0.1, 1.0, 10.0),
    "consilience": (),
    "fedavg": (),
    "fedproto": (1.0, 10.0),
    "federated-distillation": (1.0, 10.0),
}
"""What is compared, and the weights of the pull that are tried; the default method keeps its own."""
CONTROL = "independent:batch_order=1"
Cell = dict[str, Any]


def options_of(kds: tuple[float, ...]) -> list[dict[str, float]]:
    """Every combination of a learning rate and a weight."""
    return [{"lr": lr} | ({"method.kd": kd} if kds else {}) for lr, kd in product(RATES, kds or (0.0,))]


def chosen_settings(data: str, method: str) -> Cell:
    """The settings and the number of rounds with the highest mean score on validation samples."""
    tried = options_of(METHODS[method])
    result = simulate(
        data=data, method=method, variants=tried, learners=LEARNERS, rounds=ROUNDS,
        eval_every=EVERY, validation=VALIDATION, seed=SEED, seeds=5, engine="stack",
    )  # fmt: skip
    after = range(EVERY, ROUNDS + 1, EVERY)
    scores = np.array([[_score(each.history.records[r]) for r in after] for each in result.variants])  # (tried, rounds)
    best, when = np.unravel_index(int(np.nanargmax(scores)), scores.shape)
    return {"set": tried[best], "rounds": after[int(when)], "validation": round(float(scores[best, when]), 1)}


def _score(record: Mapping[str, np.ndarray]) -> float:
    """The mean score on validation samples over seeds and learners."""
    return float(record["accuracy_validation"].mean())


def tested(data: str, method: str, chosen: Cell, seeds: int) -> Cell:
    """The scores of every learner on the test set after the last round, (seeds, learners)."""
    started = time.perf_counter()
    result = simulate(
        data=data, method=method, variants=[chosen["set"]], learners=LEARNERS,
        rounds=chosen["rounds"], eval_every=chosen["rounds"], seeds=seeds, engine="stack",
    ).variants[0]  # fmt: skip
    keys = [key for key in ("accuracy", "accuracy_own", "rmse") if key in result.history.records[0]]
    return {key: np.round(result.history.last(key), 2).tolist() for key in keys} | {
        "kilobytes": round(result.summary()["bytes_total"] / 1000, 1),
        "seconds": round(time.perf_counter() - started, 1),
    }


def table(rows: Mapping[str, Cell]) -> str:
    """One line per method: its settings, both scores, and the differences to learning alone with the same seeds."""
    alone = rows["independent"]["tested"]
    head = ("method", "set", "rounds", "common %", "own %", "rmse", "common, difference", "own, difference", "kB")
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, row in rows.items():
        cell, shown = row["tested"], []
        for key in ("accuracy", "accuracy_own", "rmse"):
            by_seed = np.array(cell[key]).mean(1) if key in cell else None
            shown.append("" if by_seed is None else f"{by_seed.mean():.1f} ± {by_seed.std(ddof=1):.1f}")
        for key in ("accuracy", "accuracy_own"):
            ours, theirs = (dict(enumerate(np.array(each[key]).mean(1))) for each in (cell, alone))
            found = paired_difference(ours, theirs)
            assert found is not None and found.low is not None and found.high is not None
            interval = f"{found.mean:+.1f} ({found.low:+.1f} to {found.high:+.1f})"
            shown.append("" if name == "independent" else interval)
        settings = ", ".join(f"{key.removeprefix('method.')} {value:g}" for key, value in row["chosen"]["set"].items())
        cells = (name, settings, str(row["chosen"]["rounds"]), *shown, f"{cell['kilobytes']:g}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run what the file does not have yet; after `report`, print a table for each data set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("choose", "report"))
    parser.add_argument("--methods", default=",".join((*METHODS, CONTROL)), help="names, separated by commas")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("task-kinds.json"))
    options = parser.parse_args()
    cells: dict[str, dict[str, Cell]] = json.loads(options.out.read_text()) if options.out.exists() else {}
    for data in DATA:
        rows = cells.setdefault(data, {})
        for method in (name for name in (*METHODS, CONTROL) if name in options.methods.split(",")):
            row = rows.setdefault(method, {})
            if "chosen" not in row:
                row["chosen"] = rows["independent"]["chosen"] if method == CONTROL else chosen_settings(data, method)
            if options.step == "report" and "tested" not in row:
                row["tested"] = tested(data, method, row["chosen"], options.seeds)
            print(f"{data}, {method}: {row}", flush=True)
            options.out.write_text(json.dumps(cells, separators=(",", ":")))
        if options.step == "report":
            print(table({name: row for name, row in rows.items() if "tested" in row}), flush=True)


if __name__ == "__main__":
    main()
