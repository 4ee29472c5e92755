"""Contrastive learning with six ResNet18: the loop engine, a stack of all six, and a stack of one learner at a time.

    python benchmarks/unlabeled.py --device cuda --data-dir DATA

Prints the seconds of a round of one epoch (two views of each sample), and of an epoch of distillation by one learner.
The first rounds, in which the stack records its steps, are left out.
"""

from __future__ import annotations

import argparse
from typing import Any, Literal
from unittest import mock

import numpy as np

from consilience import simulate
from consilience.simulation.engines.stack import memory_budget

ROUNDS = 4


def seconds(engine: Literal["loop", "stack"], together: int | None, method: str, term: str, **settings: Any) -> float:
    """Training time of a round, summed over the learners that have the loss term: the faster of the last two rounds."""
    fit = memory_budget.MemoryNeeds.fit

    def few(needs: memory_budget.MemoryNeeds, budget: float, rows: int) -> int:
        return min(fit(needs, budget, rows), together or rows)

    with mock.patch.object(memory_budget.MemoryNeeds, "fit", few):
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
    arguments = parser.parse_args()
    settings: dict[str, Any] = {
        "data": "cifar10",
        "data_dir": arguments.data_dir,
        "train": arguments.train,
        "test": 500,
        "learners": 6,
    }
    settings |= {"model": arguments.model, "device": arguments.device, "batch_size": arguments.batch_size}
    engines: dict[str, tuple[Literal["loop", "stack"], int | None]] = {
        "loop": ("loop", None),
        "stack, all at once": ("stack", None),
        "stack, one at a time": ("stack", 1),
    }
    workloads = {
        "an epoch of six learners": ("independent:objective=simclr", "simclr"),
        "an epoch of distillation": ("flesd:distill_epochs=1", "similarity"),
    }
    for precision in ("bf16", "float32"):
        for work, (method, term) in workloads.items():
            for way, (engine, together) in engines.items():
                spent = seconds(engine, together, method, term, precision=precision, **settings)
                print(f"{precision:8} {work:26} {way:22} {spent:8.3f} s", flush=True)


if __name__ == "__main__":
    main()
