"""The search for the default method: settings of `consilience` side by side on the cells of Table 1.

    python benchmarks/default_method.py --task Fashion-MNIST --learners 10,5,2 --seeds 2 --device cuda --set FILE.json

FILE.json lists settings as `sweep` has them, such as [{"method.kd": 1, "lr": "cosine(0.001, 0, 20)"}]; all of them run
beside each other in one stack. What is printed is their accuracy in percent beside the best that was published for the
cell (all rows but the centralized one), cell by cell, so that what is there when time runs out is of use.
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
    """One cell of the table under all settings."""
    base = {**TASKS[task], "learners": learners, "method": {"name": "consilience"}, **more}
    started = time.perf_counter()
    found = simulate(make_config({**base, "eval_every": base["rounds"], "variants": settings})).summary()
    seconds = time.perf_counter() - started
    rows = [{"set": s, **v["accuracy"]} for s, v in zip(settings, found["variants"], strict=True)]
    best = best_published(task, learners)
    print(f"\n{task} N={learners}: best published {best}; {seconds:.0f} s {found.get('seconds')}")
    for row in sorted(rows, key=lambda row: -row["mean"]):
        spread = "" if row["std_seeds"] is None else f" ± {row['std_seeds']:.2f}"
        print(f"  {row['mean']:6.2f}{spread}  {row['mean'] - best:+.2f}  {row['set']}", flush=True)
    return {"task": task, "learners": learners, "best": best, "seconds": seconds, "rows": rows}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--task", choices=list(TASKS), default="Fashion-MNIST")
    asked.add_argument("--learners", default="10,5,2")
    asked.add_argument("--seeds", type=int, default=2)
    asked.add_argument("--device", default="cpu")
    asked.add_argument("--precision", default="float32")
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--data-dir")
    asked.add_argument("--set", type=Path, required=True)
    asked.add_argument("--out", type=Path)
    given = asked.parse_args()
    more = {name: getattr(given, name) for name in ("seed", "seeds", "device", "precision")} | (
        {"data_dir": given.data_dir} if given.data_dir else {}
    )
    settings = json.loads(given.set.read_text(encoding="utf-8"))
    told = []
    for learners in map(int, given.learners.split(",")):
        told.append(cell(given.task, learners, settings, **more))
        if given.out:
            given.out.write_text(json.dumps(told, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
