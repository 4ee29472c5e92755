"""Training steps on a GPU by the stack and by the branches, beside a plain loop and what the device can do at best.

    python benchmarks/branches.py --out FOLDER                            # on an NVIDIA GPU
    python benchmarks/branches.py --device cpu --quick --out FOLDER       # tiny sizes: does it run?

One learner's step in microseconds, batch 32, Adam, bf16, random images:

- loop: a model and a fused Adam for each learner, channels last, one learner after the other, in plain PyTorch.
- stack, branches: the engines; the time includes planning the round and copying states in and out.
- limit: one model trained on the images of all learners in one batch, with fused Adam, replayed from a CUDA graph.

Models with dropout or an LSTM cannot be stacked. Ratios are of one run; the table comes last.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from consilience.config.config import make_config
from consilience.data import Dataset
from consilience.errors import first_sentence
from consilience.methods import build_method
from consilience.models import SplitModel, build_model
from consilience.simulation.engines.branches.engine import BranchEngine
from consilience.simulation.engines.stack.engine import StackEngine
from consilience.simulation.engines.stack.memory_budget import free_unused
from consilience.simulation.round.round import Rounds
from consilience.simulation.setup.setup import build_setup

CLASSES, LR = 10, 1e-3
WARM_UPS = 3  # rounds: each step is run twice and then recorded


@dataclass(frozen=True)
class Case:
    """A model, and how many learners train it."""

    name: str
    shape: tuple[int, int, int]
    learners: int
    build: Callable[[], SplitModel]
    stackable: bool = True
    batch: int = 32
    steps: int = 4  # of each learner in a round


def forgetful(shape: tuple[int, int, int]) -> SplitModel:
    """A convolutional network with dropout."""
    side = shape[1] // 4
    features = nn.Sequential(
        nn.Conv2d(shape[0], 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d(0.1),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(64 * side * side, 128), nn.Dropout(0.5), nn.Tanh(),
    )  # fmt: skip
    return SplitModel(features, nn.Linear(128, CLASSES), bound=1.0)


class Rows(nn.Module):
    """Reads an image row by row."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """The output after the last row."""
        outputs: Tensor = self.lstm(x[:, 0])[0]
        return outputs[:, -1]


def recurrent(shape: tuple[int, int, int]) -> SplitModel:
    """An LSTM of width 128."""
    return SplitModel(Rows(shape[2], 128), nn.Linear(128, CLASSES), bound=1.0)


def cases(quick: bool) -> list[Case]:
    """All cases; quick: tiny ones."""
    mnist = (1, 16, 16) if quick else (1, 28, 28)
    small: dict[str, Any] = {"batch": 2, "steps": 1} if quick else {}

    def one(name: str, shape: tuple[int, int, int], learners: int, **more: Any) -> Case:
        return Case(name, shape, learners, partial(build_model, name, shape, CLASSES), **small | more)

    few = 2 if quick else 10
    found = [] if quick else [one("resnet18", (3, 32, 32), few)]
    found += [one("resnet9", mnist, few), one("lenet5", mnist, few)]
    found += [one("lenet5", mnist, 5 if quick else 1000, steps=1)]
    found += [Case("cnn with dropout", mnist, few, partial(forgetful, mnist), False, **small)]
    return [*found, Case("lstm", mnist, few, partial(recurrent, mnist), False, **small)]


# -- plain PyTorch


def half(device: torch.device) -> AbstractContextManager[object]:
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)


def on(device: torch.device, model: SplitModel) -> SplitModel:
    moved: SplitModel = model.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return moved


def adam(model: nn.Module, device: torch.device) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), lr=LR, fused=True, capturable=device.type == "cuda")


def step(model: SplitModel, optimizer: torch.optim.Adam, inputs: Tensor, targets: Tensor) -> None:
    """One ordinary training step."""
    optimizer.zero_grad(set_to_none=False)
    with half(inputs.device):
        loss = F.cross_entropy(model.classifier(model.features(inputs)), targets)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def samples(case: Case, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(count, *case.shape, device=device).to(memory_format=torch.channels_last)
    return inputs, torch.arange(count, device=device) % CLASSES


def time_loop(case: Case, device: torch.device, times: int) -> float:
    """Seconds of a learner's step in a plain loop over the learners."""
    models = [on(device, case.build()) for _ in range(case.learners)]
    optimizers = [adam(model, device) for model in models]
    inputs, targets = samples(case, case.batch, device)

    def work() -> None:
        for model, optimizer in zip(models, optimizers, strict=True):
            step(model, optimizer, inputs, targets)

    return median(work, device, min(times, 10 if case.learners < 100 else 2)) / case.learners


def time_limit(case: Case, device: torch.device, times: int) -> float:
    """Seconds of a learner's step if all learners' images were one batch of one model."""
    model = on(device, case.build())
    work: Callable[[], object] = partial(
        step, model, adam(model, device), *samples(case, case.batch * case.learners, device)
    )
    if device.type == "cuda":
        work = recorded(work)
    return median(work, device, times * case.steps) / case.learners


def recorded(work: Callable[[], object]) -> Callable[[], object]:
    """Work as a CUDA graph."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


# -- the engines


def images(case: Case) -> Dataset:
    count = case.learners * case.batch * case.steps
    inputs = np.random.default_rng(0).standard_normal((count, *case.shape), dtype=np.float32)
    targets = np.arange(count) % CLASSES
    return Dataset("noise", inputs, targets, inputs[:10], targets[:10], CLASSES)


def time_engine(kind: type[StackEngine], case: Case, device: torch.device, times: int) -> dict[str, Any]:
    """Seconds of a learner's step on an engine, the memory it took, and what it recorded."""
    data = images(case)
    settings = {"learners": case.learners, "batch_size": case.batch, "device": device.type, "precision": "bf16"}
    setup = build_setup(make_config(settings | {"lr": LR}), build_method("independent"), data, [case.build])
    free_unused(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with kind(list(setup.cohorts.plans), data) as engine:
        rounds = Rounds(setup, engine)
        rounds.start()
        for _ in range(WARM_UPS if device.type == "cuda" else 0):
            rounds.run(evaluate=False)
        each = [float(rounds.run(evaluate=False)["wall.train"]) for _ in range(times)]
        trainers = engine.trainers._trainers.values()
        steps = [key for trainer in trainers for key in trainer.graphs._recorded if key[:1] == ("step",)]  # type: ignore[index]
        refused = [str(key) for trainer in trainers for key in trainer.graphs._not_recordable]
        peak = torch.cuda.max_memory_allocated() / 2**20 if device.type == "cuda" else 0.0
        plan = engine.memory.describe()
    return {
        "seconds": statistics.median(each) / case.learners / case.steps,
        "peak_mib": peak,
        "recorded": len(steps),
        "not_recorded": refused,
        "plan": plan,
    }


# -- times and tables


def median(work: Callable[[], object], device: torch.device, times: int) -> float:
    """Seconds of some work, after it was done once."""
    wait: Callable[[], object] = torch.cuda.synchronize if device.type == "cuda" else nullcontext
    found = []
    for _ in range(times + 1):
        wait()
        started = time.perf_counter()
        work()
        wait()
        found.append(time.perf_counter() - started)
    return statistics.median(found[1:])


def measure(case: Case, device: torch.device, times: int) -> dict[str, Any]:
    """All times of a case; what fails is noted, and the others are measured."""
    found: dict[str, Any] = {"model": case.name, "learners": case.learners}
    plain: dict[str, Callable[[], float]] = {
        "loop": partial(time_loop, case, device, times),
        "limit": partial(time_limit, case, device, times),
    }
    engines: dict[str, type[StackEngine]] = {"branches": BranchEngine}
    if case.stackable:
        engines["stack"] = StackEngine
    for name in (*plain, *engines):
        free_unused(device)
        try:
            if name in plain:
                found[f"{name}_us"] = 1e6 * plain[name]()
            else:
                found[name] = time_engine(engines[name], case, device, times)
                found[f"{name}_us"] = 1e6 * found[name]["seconds"]
        except Exception as error:  # the others have numbers of their own
            found[f"{name}_error"] = "".join(traceback.format_exception(error))
            print(f"{case.name}, {case.learners} learners, {name}: {first_sentence(error)}", flush=True)
    return found


def ratio(slow: float | None, fast: float | None) -> str:
    return f"{'-' if slow is None or fast is None else f'{slow / fast:.2f}x':>8}"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Microseconds of one learner's step, and how many times as fast the branches are."""
    head = f"{'model':>16} {'learners':>8} {'loop':>9} {'stack':>9} {'branches':>9} {'limit':>9}"
    lines = [f"{head} {'/ loop':>8} {'/ stack':>8} {'x limit':>8}   one learner's step, microseconds"]
    for row in rows:
        loop, stack, branches, limit = (row.get(f"{name}_us") for name in ("loop", "stack", "branches", "limit"))
        times = [f"{'-' if each is None else f'{each:.1f}':>9}" for each in (loop, stack, branches, limit)]
        ratios = ratio(loop, branches), ratio(stack, branches), ratio(branches, limit)
        lines.append(" ".join([f"{row['model']:>16}", f"{row['learners']:>8}", *times, *ratios]))
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny sizes")
    parser.add_argument("--times", type=int, help="rounds to time in each case (10; quick: 1)")
    parser.add_argument("--out", type=Path, help="write all numbers to branches.json in this folder")
    asked = parser.parse_args(arguments)
    if asked.device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch finds no GPU; --device cpu --quick shows whether the program runs")
    logging.basicConfig(level=logging.WARNING, format="%(message)s")  # a step that is not recorded is a warning
    if asked.device == "cpu":
        torch.set_num_threads(1)
    device, times = torch.device(asked.device), asked.times or (1 if asked.quick else 10)
    name = torch.cuda.get_device_name() if asked.device == "cuda" else "cpu"
    found: dict[str, Any] = {"device": name, "torch": torch.__version__, "quick": asked.quick, "cases": []}
    started = time.perf_counter()
    for case in cases(asked.quick):
        began = time.perf_counter()
        found["cases"].append(measure(case, device, times))
        found["seconds"] = time.perf_counter() - started
        if asked.out:  # after every case, so that its numbers stay where the program is ended
            asked.out.mkdir(parents=True, exist_ok=True)
            (asked.out / "branches.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
        print(f"{case.name}, {case.learners} learners: done in {time.perf_counter() - began:.1f} s", flush=True)
    print(f"\n{name}, torch {torch.__version__}\n{table(found['cases'])}")


if __name__ == "__main__":
    main()
