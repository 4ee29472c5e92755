"""Two-stage learning with a hundred devices, all in every round: the loop engine against the stack engine.

    python benchmarks/two_stage.py --device cuda --data-dir DATA

Prints the milliseconds of one step of all devices (device-cnn, batches of 10, Adam, distance correlation in the loss)
and of a whole round with its exchange. The first rounds, in which the stack records its steps, are left out.
"""

from __future__ import annotations

import argparse
from typing import Any, Literal

from consilience import simulate

ROUNDS, STEPS, BATCH = 4, 10, 10


def milliseconds(engine: Literal["loop", "stack"], method: str, **settings: Any) -> tuple[float, float]:
    """Time of one step of all devices, and of a round without evaluation: the faster of the last two rounds."""
    result = simulate(method=method, engine=engine, rounds=ROUNDS, eval_every=ROUNDS, ensemble="off", **settings)
    train, rest = (result.history[f"seconds.{phase}"][:, 0].sum(1)[-2:] for phase in ("train", "exchange"))
    return 1000 * float(train.min()) / STEPS, 1000 * float((train + rest).min())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--learners", type=int, default=100)
    parser.add_argument("--model", default="device-cnn")
    arguments = parser.parse_args()
    settings: dict[str, Any] = {"data": "mnist", "data_dir": arguments.data_dir, "test": 100, "batch_size": BATCH}
    settings |= {"train": arguments.learners * STEPS * BATCH, "learners": arguments.learners, "partition": "shards(2)"}
    settings |= {"model": arguments.model, "device": arguments.device}
    for method in ("two-stage", "two-stage:alpha_1=0"):
        times = {engine: milliseconds(engine, method, **settings) for engine in ("loop", "stack")}
        for engine, (step, whole) in times.items():
            print(f"{method:22} {engine:6} {step:10.2f} ms per step {whole:12.1f} ms per round", flush=True)
        step, whole = (slow / fast for slow, fast in zip(times["loop"], times["stack"], strict=True))
        print(f"{method:22} stack against loop: training {step:.1f}x, round {whole:.1f}x", flush=True)


if __name__ == "__main__":
    main()
