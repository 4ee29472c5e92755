"""A hundred devices that learn in two stages, all of them in every round: the loop against the stack.

    python benchmarks/two_stage.py --device cuda --data-dir DATA

Milliseconds that a step of all devices takes (device-cnn, batches of 10, Adam, distance correlation in the loss), and
the whole round with its exchange; the first rounds, in which the stack records its steps, are left out.
"""

from __future__ import annotations

import argparse
from typing import Any

from consilience import simulate

ROUNDS, STEPS, BATCH = 4, 10, 10


def milliseconds(engine: str, method: str, **settings: Any) -> tuple[float, float]:
    """Of a step of all devices, and of a round without tests; the faster of the last two rounds."""
    result = simulate(method=method, engine=engine, rounds=ROUNDS, eval_every=ROUNDS, ensemble="off", **settings)
    train, rest = (result.history[f"seconds.{phase}"][:, 0].sum(1)[-2:] for phase in ("train", "exchange"))
    return 1000 * float(train.min()) / STEPS, 1000 * float((train + rest).min())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--learners", type=int, default=100)
    parser.add_argument("--model", default="device-cnn")
    given = parser.parse_args()
    usual: dict[str, Any] = {"data": "mnist", "data_dir": given.data_dir, "test": 100, "batch_size": BATCH}
    usual |= {"train": given.learners * STEPS * BATCH, "learners": given.learners, "partition": "shards(2)"}
    usual |= {"model": given.model, "device": given.device}
    for method in ("two-stage", "two-stage:alpha_1=0"):
        took = {engine: milliseconds(engine, method, **usual) for engine in ("loop", "stack")}
        for engine, (step, whole) in took.items():
            print(f"{method:22} {engine:6} {step:10.2f} ms a step of all {whole:12.1f} ms a round", flush=True)
        step, whole = (slow / fast for slow, fast in zip(took["loop"], took["stack"], strict=True))
        print(f"{method:22} the stack is {step:.1f}x the loop in training, {whole:.1f}x in a round", flush=True)


if __name__ == "__main__":
    main()
