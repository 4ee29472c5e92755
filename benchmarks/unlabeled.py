"""Contrastive learning with six ResNet18: the loop engine, a stack of all six, and a stack of one learner at a time.

    python benchmarks/unlabeled.py --device cuda [--data-dir DATA] [--out results.json]

Prints the seconds of a round of one epoch (two views of each sample), and of an epoch of distillation by one learner.
The first rounds, in which the stack records its steps, are left out. The images are those of CIFAR-10 in DATA, and
without it random ones of their size: the time of a step does not depend on what is in them. Numbers are saved one after
the other; what fails is noted.
"""

from __future__ import annotations

import argparse
import json
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import numpy as np

from consilience import simulate
from consilience.data import Dataset, load
from consilience.simulation.engines.stack import memory_budget

ROUNDS = 4


def images(data_dir: str | None, train: int) -> Dataset:
    """CIFAR-10, or random pixels and labels in turn."""
    if data_dir is not None:
        return load("cifar10", directory=data_dir, train=train, test=500)
    inputs = np.random.default_rng(0).random((train, 3, 32, 32), dtype=np.float32)
    targets = np.arange(train) % 10
    return Dataset("noise", inputs, targets, inputs[:500], targets[:500], 10)


def seconds(engine: Literal["loop", "stack"], together: int | None, method: str, term: str, **settings: Any) -> float:
    """Training time of a round, summed over the learners that have the loss term: the faster of the last two rounds."""
    fit = memory_budget.MemoryNeeds.fit

    def few(needs: memory_budget.MemoryNeeds, budget: float, rows: int) -> int:
        return min(fit(needs, budget, rows), together or rows)

    with mock.patch.object(memory_budget.MemoryNeeds, "fit", few):
        result = simulate(method=method, engine=engine, rounds=ROUNDS, probe="none", eval_every=ROUNDS, **settings)
    spent, has = result.history["seconds.train"][:, 0], result.history[f"loss.{term}"][-1, 0]
    return float(spent[-2:, ~np.isnan(has)].sum(1).min())


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--train", type=int, default=20_000)
    parser.add_argument("--model", default="encoder18")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--out", type=Path, help="write all numbers to this file as JSON")
    arguments = parser.parse_args(given)
    settings: dict[str, Any] = {"data": images(arguments.data_dir, arguments.train), "learners": 6}
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
    found: dict[str, float | str] = {}
    for precision in ("bf16", "float32"):
        for work, (method, term) in workloads.items():
            for way, (engine, together) in engines.items():
                name = f"{precision:8} {work:26} {way:22}"
                try:
                    spent = seconds(engine, together, method, term, precision=precision, **settings)
                    found[name], shown = spent, f"{spent:8.3f} s"
                except Exception as error:  # the others have numbers of their own
                    traceback.print_exc()
                    found[name] = shown = f"{type(error).__name__}: {error}"
                print(name, shown, flush=True)
                if arguments.out is not None:
                    arguments.out.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
