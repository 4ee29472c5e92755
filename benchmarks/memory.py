"""What LeNet5 learners hold on the stack engine, on a CPU, and what their first weights take.

    python -m benchmarks.memory [--learners 200] [--group-mib 200] [--method representation-sharing]
    python -m benchmarks.memory --first 4000 [--method fedproto]

The first prints every kind of tensor that torch held at the largest moment of a round, by where it was made, in KiB per
learner of 12 samples, and the largest resident size. `--group-mib` is the memory of a group that trains at once. The
second prints processor seconds of first weights.
"""

from __future__ import annotations

import argparse
import resource
import time
import traceback
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.simulation import images
from consilience.config.config import make_config
from consilience.methods import build_method
from consilience.simulation.engines.stack import memory_budget
from consilience.simulation.engines.stack.engine import StackEngine
from consilience.simulation.round.round import Rounds
from consilience.simulation.round.start import start_learners
from consilience.simulation.setup.setup import build_setup

SAMPLES = 12


class Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Which tensors of more than `least` bytes there are, and were when they took most."""

    def __init__(self, least: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.least, self.now, self.peak = least, 0, 0
        self.live: dict[int, tuple[int, str]] = {}
        self.at_peak: Counter[str] = Counter()

    def note(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Run an operation, and note what it returns."""
        found = func(*args, **(kwargs or {}))
        for tensor in found if isinstance(found, list | tuple) else [found]:
            if isinstance(tensor, Tensor):
                self._add(tensor, str(func))
        return found

    def _add(self, tensor: Tensor, func: str) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if size < self.least or key in self.live:
            return
        ours = [f for f in traceback.extract_stack(limit=60) if "/consilience/" in f.filename][-2:]
        where = " < ".join(f"{Path(f.filename).name}: {f.name}" for f in reversed(ours))
        self.live[key] = size, f"{func.removeprefix('aten.')}, {where}"
        self.now += size
        weakref.finalize(storage, self._drop, key)
        if self.now > self.peak:
            self.peak, self.at_peak = self.now, Counter()
            for held, what in self.live.values():
                self.at_peak[what] += held

    def _drop(self, key: int) -> None:
        self.now -= self.live.pop(key)[0]


Allocations.__torch_dispatch__ = Allocations.note  # type: ignore[assignment, method-assign]  # see learner/recorded_draw


def rounds_of(learners: int, method: str) -> Rounds:
    """Learners before their first round."""
    data = images(learners * SAMPLES)
    config = make_config({"learners": learners, "model": "lenet5", "device": "cpu"})
    setup = build_setup(config, build_method(method), data, ["lenet5"])
    return Rounds(setup, StackEngine(list(setup.cohorts.plans), data))


def account(learners: int, method: str) -> None:
    """Print what a round holds at most."""
    before, held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, Allocations(64 * learners)
    with held:
        rounds = rounds_of(learners, method)
        rounds.start()
        for _ in range(2):
            rounds.run(evaluate=False)
    for what, size in held.at_peak.most_common(20):
        print(f"{size / learners / 1024:9.1f} KiB  {what}")
    resident = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / learners
    print(f"{held.peak / learners / 1024:9.1f} KiB  allocated at most, and {resident:.0f} KiB resident, per learner")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learners", type=int, default=200)
    parser.add_argument("--group-mib", type=float, default=None)
    parser.add_argument("--method", default="representation-sharing")
    parser.add_argument("--first", type=int, default=0, help="first weights of so many learners, and nothing else")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.group_mib is not None:
        memory_budget._GROUP_BYTES = int(options.group_mib * 2**20)
    if not options.first:
        account(options.learners, options.method)
        return
    rounds, started, cpu = rounds_of(options.first, options.method), time.perf_counter(), time.process_time()
    start_learners(rounds)
    spent = f"{time.process_time() - cpu:.2f} processor seconds, {time.perf_counter() - started:.2f} s"
    print(f"first weights of {options.first} learners, {options.method}: {spent}")


if __name__ == "__main__":
    main()
