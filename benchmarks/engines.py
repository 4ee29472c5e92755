"""The loop engine against the stack engine on a CPU. `--engine auto` is based on these ratios.

    python benchmarks/engines.py [--rounds 5]

Workload: representation sharing, batch 32, Adam, one local epoch, no evaluation. The loop uses one process per core,
the stack one thread per core. Rounds of both alternate, and the ratio is that of their medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from consilience.config.config import make_config
from consilience.data import Dataset
from consilience.methods import build_method
from consilience.simulation.engines.loop.engine import LoopEngine, default_workers
from consilience.simulation.engines.stack.engine import StackEngine
from consilience.simulation.round.round import Rounds
from consilience.simulation.setup.setup import build_setup

CASES = (
    ("mlp", (1, 8, 8), 5, 120),
    ("mlp", (1, 8, 8), 20, 120),
    ("mlp", (1, 8, 8), 60, 120),
    ("mlp", (1, 8, 8), 200, 120),
    ("mlp", (1, 8, 8), 1000, 24),
    ("lenet5", (1, 28, 28), 10, 120),
    ("lenet5", (1, 28, 28), 100, 120),
    ("resnet9", (1, 28, 28), 4, 64),
)


def images(count: int, shape: tuple[int, int, int]) -> Dataset:
    """Random images with labels 0 to 9 in turn."""
    inputs = np.random.default_rng(0).standard_normal((count, *shape), dtype=np.float32)
    targets = np.arange(count) % 10
    return Dataset("noise", inputs, targets, inputs[:10], targets[:10], 10)


def federation(engine: str, model: str, shape: tuple[int, int, int], learners: int, samples: int) -> Rounds:
    data = images(learners * samples, shape)
    config = make_config({"learners": learners, "model": model, "method": {"name": "representation-sharing"}})
    setup = build_setup(config, build_method("representation-sharing"), data, [model])
    plans, cores = list(setup.cohorts.plans), default_workers()
    threads = torch.get_num_threads()
    rounds = Rounds(setup, LoopEngine(plans, data, cores) if engine == "loop" else StackEngine(plans, data))
    torch.set_num_threads(threads)  # the loop engine has set it to one
    rounds.start()
    return rounds


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def compare(model: str, shape: tuple[int, int, int], learners: int, samples: int, rounds: int) -> None:
    loop, stack = (federation(engine, model, shape, learners, samples) for engine in ("loop", "stack"))
    pairs = [
        (seconds(lambda: loop.run(evaluate=False)), seconds(lambda: stack.run(evaluate=False)))
        for _ in range(rounds + 1)
    ][1:]
    loop_time, stack_time = (statistics.median(column) for column in zip(*pairs, strict=True))
    case, ratio = f"{model:>8} {learners:>9} x {samples:<7}", stack_time / loop_time
    print(f"{case} {loop_time * 1e3:>9.1f} {stack_time * 1e3:>9.1f} {ratio:>10.2f}", flush=True)
    for engine in (loop.engine, stack.engine):
        engine.__exit__(None, None, None)  # type: ignore[attr-defined]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="rounds to time in each case")
    arguments = parser.parse_args()
    torch.set_num_threads(default_workers())
    print(f"{'model':>8} {'learners':>9} x {'samples':<7} {'loop ms':>9} {'stack ms':>9} {'stack/loop':>10}")
    for case in CASES:
        compare(*case, arguments.rounds)


if __name__ == "__main__":
    main()
