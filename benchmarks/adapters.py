"""Peak memory of simulations whose learners train adapters on one frozen backbone.

    python benchmarks/adapters.py [--rounds 2]

The backbone has 10 million parameters, the adapters and the classifier 54,000; FedAvg, Adam with state kept, batches of
8, 16 samples for each learner. Every measurement is a process of its own, whose peak is the largest resident memory
that the system has seen of it. A learner's state is its trained parameters and two slots of the optimizer. The stack
works on all learners at once, so what it computes in a step grows with them as well.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from consilience import simulate
from consilience.config.settings import Settings
from consilience.data import Dataset

WIDTH, LAYERS, RANK, INPUTS, CLASSES = 1024, 9, 2, 784, 10
COUNTS, ENGINES = (10, 50), ("loop", "stack")


class Adapted(nn.Module):
    """A frozen linear layer, and a product of two small matrices that is trained in its place (Hu et al. 2021)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.frozen = nn.Linear(inputs, outputs).requires_grad_(False)
        self.down, self.up = nn.Linear(inputs, RANK, bias=False), nn.Linear(RANK, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs) -> (n, outputs)."""
        adapted: Tensor = self.frozen(x) + self.up(self.down(x))
        return adapted


def network() -> nn.Module:
    """Ten adapted layers and a classifier."""
    layers: list[nn.Module] = [nn.Flatten(), Adapted(INPUTS, WIDTH), nn.Tanh()]
    for _ in range(LAYERS):
        layers += [Adapted(WIDTH, WIDTH), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES))


def data(learners: int) -> Dataset:
    """Random inputs; what a step costs does not depend on them."""
    inputs = np.random.default_rng(0).standard_normal((16 * learners, 1, 28, 28), dtype=np.float32)
    targets = np.arange(len(inputs)) % CLASSES
    return Dataset("noise", inputs, targets, inputs[:16], targets[:16], CLASSES)


def measure(engine: Literal["loop", "stack"], learners: int, rounds: int) -> None:
    """Print the process's peak memory in MB: before a simulation, and with it."""
    network(), data(learners)
    before = _peak()
    settings = Settings(learners=learners, rounds=rounds, eval_every=rounds, batch_size=8, engine=engine, workers=0)
    simulate(method="fedavg", data=data(learners), model=network, **settings)
    print(json.dumps([before, _peak()]))


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


def main() -> None:
    """Measure each engine with few and with many learners, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--measure", nargs=2, metavar=("ENGINE", "LEARNERS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.measure:
        measure(given.measure[0], int(given.measure[1]), given.rounds)
        return
    trained = sum(p.numel() for p in network().parameters() if p.requires_grad)
    frozen = sum(p.numel() for p in network().parameters()) - trained
    state, whole = 12 * trained / 1e6, 12 * (trained + frozen) / 1e6
    print(f"{frozen:,} frozen parameters ({4 * frozen / 1e6:.1f} MB), {trained:,} trained: {state:.2f} MB of state")
    print("engine  MB before  10 learners  50 learners  ratio  MB per learner  with a copy of all each")
    for engine in ENGINES:
        peaks = []
        for learners in COUNTS:
            command = [sys.executable, __file__, "--rounds", str(given.rounds), "--measure", engine, str(learners)]
            before, peak = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            peaks.append(peak)
        each = (peaks[1] - peaks[0]) / (COUNTS[1] - COUNTS[0])
        row = f"{engine:6} {before:10.0f} {peaks[0]:12.0f} {peaks[1]:12.0f} {peaks[1] / peaks[0]:6.2f} {each:15.2f}"
        print(f"{row} {whole:24.1f}")


if __name__ == "__main__":
    main()
