"""The loop engine against a plain PyTorch loop with the same workload.

    python benchmarks/simulation.py [--rounds 5] [--federations 64]

Workload: FedAvg, LeNet5, batch 32, Adam with state kept, one local epoch, no evaluation. The plain loop has a module
and a torch.optim.Adam for each learner and uses two threads; the engine uses two processes with one thread each. Rounds
of both alternate, and the ratio is that of their medians, so that other load on the machine affects both equally.

With `--federations N` only the channels are measured: uploads and answers of N federations of five learners, who share
representations of 10 classes of width 84, in one operation over all federations and one federation after the other.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import numpy as np
import torch
from torch import nn

from consilience.config.config import make_config
from consilience.data import Dataset
from consilience.methods import build_method
from consilience.models import build_model
from consilience.simulation import stacked_channels
from consilience.simulation.engines.loop.engine import LoopEngine
from consilience.simulation.federation import Federation
from consilience.simulation.records.memory import memory_mb
from consilience.simulation.round.round import Rounds
from consilience.simulation.setup.setup import build_setup
from consilience.wire import schema

SHAPE, CLASSES, THREADS = (1, 28, 28), 10, 2
CASES = ((10, 120), (100, 120), (1000, 12))


def images(count: int) -> Dataset:
    """Random images with labels in turn; the cost of a step does not depend on the content of images."""
    inputs = np.random.default_rng(0).standard_normal((count, *SHAPE), dtype=np.float32)
    targets = np.arange(count) % CLASSES
    return Dataset("noise", inputs, targets, inputs[:CLASSES], targets[:CLASSES], CLASSES)


class PlainLoop:
    """The plain PyTorch loop: a model and an optimizer for each learner, one learner after the other."""

    def __init__(self, learners: int, samples: int) -> None:
        data = images(learners * samples)
        self.inputs = torch.from_numpy(data.inputs).view(learners, samples, *SHAPE)
        self.targets = torch.from_numpy(data.targets).view(learners, samples)
        self.models = [build_model("lenet5", SHAPE, CLASSES) for _ in range(learners)]
        self.optimizers = [torch.optim.Adam(m.parameters(), lr=1e-3) for m in self.models]
        self.common = {k: v.clone() for k, v in self.models[0].state_dict().items()}

    def round(self) -> None:
        torch.set_num_threads(THREADS)
        total = {k: torch.zeros_like(v) for k, v in self.common.items()}
        for model, optimizer, inputs, targets in zip(
            self.models, self.optimizers, self.inputs, self.targets, strict=True
        ):
            model.load_state_dict(self.common)
            self._epoch(model, optimizer, inputs, targets)
            for key, value in model.state_dict().items():
                total[key] += value
        self.common = {k: v / len(self.models) for k, v in total.items()}

    def _epoch(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, targets: torch.Tensor
    ) -> None:
        model.train()
        for chosen in torch.split(torch.randperm(len(targets)), 32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[chosen]), targets[chosen]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()


class Engine:
    """The same workload on the loop engine."""

    def __init__(self, learners: int, samples: int) -> None:
        data = images(learners * samples)
        config = make_config({"learners": learners, "model": "lenet5", "method": {"name": "fedavg"}})
        setup = build_setup(config, build_method("fedavg"), data, ["lenet5"])
        self.engine = LoopEngine(list(setup.cohorts.plans), data, workers=THREADS)
        self.rounds = Rounds(setup, self.engine)
        self.rounds.start()

    def round(self) -> None:
        torch.set_num_threads(1)
        self.rounds.run(evaluate=False)

    def memory_mb(self) -> float:
        return memory_mb([os.getpid(), *self.engine.processes])

    def close(self) -> None:
        self.engine.__exit__(None, None, None)


def seconds(work: PlainLoop | Engine) -> float:
    started = time.perf_counter()
    work.round()
    return time.perf_counter() - started


def speed(learners: int, samples: int, rounds: int) -> None:
    plain, engine = PlainLoop(learners, samples), Engine(learners, samples)
    seconds(plain), seconds(engine)  # warm up
    short = max(1, 50 // learners)  # repeat short rounds more often, because they are noisier
    pairs = [(seconds(plain), seconds(engine)) for _ in range(rounds * short)]
    plain_time, engine_time = (statistics.median(column) for column in zip(*pairs, strict=True))
    engine.close()
    ratio = engine_time / plain_time
    print(f"{learners:>9} x {samples:<7} {plain_time:>11.3f} {engine_time:>11.3f} {ratio:>8.2f}", flush=True)


def memory(samples: int = 12) -> None:
    """Print the memory per learner, compared with the size of its parameters, optimizer state and data."""
    parameters = sum(p.numel() for p in build_model("lenet5", SHAPE, CLASSES).parameters())
    own = (3 * parameters + samples * int(np.prod(SHAPE))) * 4 + samples * 8
    held = {}
    for learners in (200, 1000):
        engine = Engine(learners, samples)
        engine.round()
        engine.round()
        held[learners] = engine.memory_mb()
        engine.close()
        del engine
    growth = (held[1000] - held[200]) * 2**20 / 800
    print(f"\nmemory: {held[200]:.0f} MiB with 200 learners, {held[1000]:.0f} MiB with 1000,", end=" ")
    print(f"{growth / 1024:.0f} KiB per learner;")
    print(f"its parameters, optimizer state and data are {own / 1024:.0f} KiB; ratio {growth / own:.2f}")


def channels(count: int, rounds: int, members: int = 5) -> None:
    """Print processor time of uploads and answers of many federations: one after the other, and stacked."""
    shapes, rows_of = {"mean": schema.Tensor((CLASSES, 84))}, (CLASSES,)
    exchanged = {"means": schema.Mean("means", shapes, rows_of), "pool": schema.Pool("pool", shapes, rows_of)}
    readers = {f: np.arange(members) for f in range(count)}
    rows = np.repeat(np.arange(count), members), np.tile(np.arange(members), count), np.arange(count * members)
    values, weights = torch.rand(count * members, CLASSES, 84), torch.ones(count * members, CLASSES)
    uploads = {"means": (values, weights), "pool": (values[:, None], weights[:, None])}

    def exchange(federations: list[Federation], turn: int, worth: int) -> float:
        stacked_channels._WORTH, started = worth, time.process_time()
        for name, (tensor, weight) in uploads.items():
            for f in stacked_channels.upload_stacked(federations, name, rows, {"mean": tensor}, weight, turn):
                own = slice(f * members, (f + 1) * members)
                federations[f].upload(name, readers[f], {"mean": tensor[own]}, weight[own], readers[f], turn)
            for f in stacked_channels.answer_stacked(federations, name, readers, turn, 0)[1]:
                federations[f].answers(name, readers[f], turn, 0)
        return time.process_time() - started

    torch.set_num_threads(1)
    for seeds, what in ((range(count), "seeds"), ([0] * count, "settings of one seed")):
        alone, stacked = ([Federation(s, exchanged, members, {}, torch.zeros(1)) for s in seeds] for _ in range(2))
        pairs = [(exchange(alone, t, count + 1), exchange(stacked, t, 2)) for t in range(4 * rounds)][rounds:]
        before, after = (1e3 * statistics.median(column) for column in zip(*pairs, strict=True))
        print(f"{count} {what}: {before:.1f} ms one by one, {after:.1f} ms stacked, {before / after:.1f} times")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="rounds to time in each case")
    parser.add_argument("--federations", type=int, help="measure the channels of so many federations, and nothing else")
    arguments = parser.parse_args()
    if arguments.federations:
        channels(arguments.federations, arguments.rounds)
        return
    print(f"{'learners':>9} x {'samples':<7} {'plain s':>11} {'engine s':>11} {'ratio':>8}")
    for learners, samples in CASES:
        speed(learners, samples, arguments.rounds)
    memory()


if __name__ == "__main__":
    main()
