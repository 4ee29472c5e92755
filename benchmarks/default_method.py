"""The search for the default method: compare settings of `consilience` on cells of the thesis's Table 1.

    python benchmarks/default_method.py --task Fashion-MNIST --learners 10,5,2 --seeds 2 --device cuda --set FILE.json

FILE.json is a list of settings as in `sweep`, such as [{"method.kd": 1, "lr": "cosine(0.001, 0, 20)"}]; all of them
train in one stack. For each cell it prints the accuracy of every setting in percent, and its difference to the best
published number of the cell (all rows except the centralized one). Each cell is printed as soon as it is finished.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from consilience.config.config import make_config
from consilience.papers.thesis.published import TASKS, best_published
from consilience.simulation.simulate import simulate


def cell(task: str, learners: int, settings: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Run one cell of the table with all settings."""
    base = {**TASKS[task], "learners": learners, "method": {"name": "consilience"}, **more}
    started = time.perf_counter()
    summary = simulate(make_config({**base, "eval_every": base["rounds"], "variants": settings})).summary()
    seconds = time.perf_counter() - started
    rows = [{"set": s, **v["accuracy"]} for s, v in zip(settings, summary["variants"], strict=True)]
    best = best_published(task, learners)
    print(f"\n{task} N={learners}: best published {best}; {seconds:.0f} s {summary.get('seconds')}")
    for row in sorted(rows, key=lambda row: -row["mean"]):
        spread = "" if row["std_seeds"] is None else f" ± {row['std_seeds']:.2f}"
        print(f"  {row['mean']:6.2f}{spread}  {row['mean'] - best:+.2f}  {row['set']}", flush=True)
    return {"task": task, "learners": learners, "best": best, "seconds": seconds, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=list(TASKS), default="Fashion-MNIST")
    parser.add_argument("--learners", default="10,5,2")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data-dir")
    parser.add_argument("--set", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    more = {name: getattr(arguments, name) for name in ("seed", "seeds", "device", "precision")} | (
        {"data_dir": arguments.data_dir} if arguments.data_dir else {}
    )
    settings = json.loads(arguments.set.read_text(encoding="utf-8"))
    cells = []
    for learners in map(int, arguments.learners.split(",")):
        cells.append(cell(arguments.task, learners, settings, **more))
        if arguments.out:
            arguments.out.write_text(json.dumps(cells, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
