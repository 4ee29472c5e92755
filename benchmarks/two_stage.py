"""Two-stage learning with a hundred devices, all in every round: the loop engine against the stack engine.

    python benchmarks/two_stage.py --device cuda [--data-dir DATA] [--out results.json]

Prints the milliseconds of one step of all devices (device-cnn, batches of 10, Adam, distance correlation in the loss)
and of a whole round with its exchange. The first rounds, in which the stack records its steps, are left out. The images
are those of MNIST in DATA, and without it random ones of their size: the time of a step does not depend on what is in
them. Numbers are saved one after the other; what fails is noted.
"""

from __future__ import annotations

import argparse
import json
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from consilience import simulate
from consilience.data import Dataset, load

ROUNDS, STEPS, BATCH = 4, 10, 10


def images(data_dir: str | None, train: int) -> Dataset:
    """MNIST, or random pixels and labels in turn."""
    if data_dir is not None:
        return load("mnist", directory=data_dir, train=train, test=100)
    inputs = np.random.default_rng(0).random((train, 1, 28, 28), dtype=np.float32)
    targets = np.arange(train) % 10
    return Dataset("noise", inputs, targets, inputs[:100], targets[:100], 10)


def milliseconds(engine: Literal["loop", "stack"], method: str, **settings: Any) -> tuple[float, float]:
    """Time of one step of all devices, and of a round without evaluation: the faster of the last two rounds."""
    result = simulate(method=method, engine=engine, rounds=ROUNDS, eval_every=ROUNDS, ensemble="off", **settings)
    train, rest = (result.history[f"seconds.{phase}"][:, 0].sum(1)[-2:] for phase in ("train", "exchange"))
    return 1000 * float(train.min()) / STEPS, 1000 * float((train + rest).min())


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--learners", type=int, default=100)
    parser.add_argument("--model", default="device-cnn")
    parser.add_argument("--out", type=Path, help="write all numbers to this file as JSON")
    arguments = parser.parse_args(given)
    settings: dict[str, Any] = {"data": images(arguments.data_dir, arguments.learners * STEPS * BATCH)}
    settings |= {"learners": arguments.learners, "partition": "shards(2)", "batch_size": BATCH}
    settings |= {"model": arguments.model, "device": arguments.device}
    found: dict[str, Any] = {}
    for method in ("two-stage", "two-stage:alpha_1=0"):
        times: dict[str, tuple[float, float]] = {}
        for engine in ("stack", "loop"):
            try:
                step, whole = times[engine] = milliseconds(engine, method, **settings)
                found[f"{method} {engine}"] = {"step_ms": step, "round_ms": whole}
                print(f"{method:22} {engine:6} {step:10.2f} ms per step {whole:12.1f} ms per round", flush=True)
            except Exception as error:  # the others have numbers of their own
                traceback.print_exc()
                found[f"{method} {engine}"] = f"{type(error).__name__}: {error}"
            if arguments.out is not None:
                arguments.out.write_text(json.dumps(found, indent=1), encoding="utf-8")
        if len(times) == 2:
            step, whole = (slow / fast for slow, fast in zip(times["loop"], times["stack"], strict=True))
            print(f"{method:22} stack against loop: training {step:.1f}x, round {whole:.1f}x", flush=True)


if __name__ == "__main__":
    main()
