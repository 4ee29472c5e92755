"""An epoch of six ResNet18 that learn by contrast: the loop, a stack of all, and a stack of one after the other.

    python benchmarks/unlabeled.py --device cuda --data-dir DATA

Seconds a round of one epoch (two views of each of the samples), and of an epoch of distillation by one learner; the
first rounds, in which the stack records its steps, are left out.
"""

from __future__ import annotations

import argparse
from typing import Any
from unittest import mock

import numpy as np

from consilience import simulate
from consilience.simulation.engines.stack import memory_budget

ROUNDS = 4


def seconds(engine: str, together: int | None, method: str, term: str, **settings: Any) -> float:
    """Of training in a round, the fastest of the last two, for all learners that have the loss term."""
    fit = memory_budget.Needs.fit

    def few(needs: memory_budget.Needs, budget: float, rows: int) -> int:
        return min(fit(needs, budget, rows), together or rows)

    with mock.patch.object(memory_budget.Needs, "fit", few):
        result = simulate(method=method, engine=engine, rounds=ROUNDS, probe="none", eval_every=ROUNDS, **settings)
    spent, has = result.history["seconds.train"][:, 0], result.history[f"loss.{term}"][-1, 0]
    return float(spent[-2:, ~np.isnan(has)].sum(1).min())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--train", type=int, default=20_000)
    parser.add_argument("--model", default="encoder18")
    parser.add_argument("--batch-size", type=int, default=1024)
    given = parser.parse_args()
    usual: dict[str, Any] = {
        "data": "cifar10",
        "data_dir": given.data_dir,
        "train": given.train,
        "test": 500,
        "learners": 6,
    }
    usual |= {"model": given.model, "device": given.device, "batch_size": given.batch_size}
    ways = {"loop": ("loop", None), "stack, all at once": ("stack", None), "stack, one at a time": ("stack", 1)}
    works = {
        "an epoch of six learners": ("independent:objective=simclr", "simclr"),
        "an epoch of distillation": ("flesd:distill_epochs=1", "similarity"),
    }
    for precision in ("bf16", "float32"):
        for work, (method, term) in works.items():
            for way, (engine, together) in ways.items():
                took = seconds(engine, together, method, term, precision=precision, **usual)
                print(f"{precision:8} {work:26} {way:22} {took:8.3f} s", flush=True)


if __name__ == "__main__":
    main()
