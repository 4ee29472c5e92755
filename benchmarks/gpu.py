"""The stack engine on a GPU: its correctness, and its speed compared with a plain loop.

    python benchmarks/gpu.py [--data-dir FOLDER_WITH_MNIST] [--only PART ...] [--out results.json]

Workload: LeNet5 on 28 x 28 images, batch 32, Adam with state kept, 120 samples per learner (as published for ten
learners). The plain loop has a module and a torch.optim.Adam for each learner on the same GPU, and trains one learner
after the other. The tables:

- steps: time of a learner's training step, and the speedup of the stack; the stack's time includes planning the round
  and copying states in and out.
- rounds: whole rounds of representation sharing, including the exchange.
- sweep: the ablation of the thesis, 64 settings x 5 learners x 100 rounds of MNIST, tested after the last round.
- many: 10,000 learners with 12 samples each.

The numbers are saved after every part; a part that fails is noted, and the others are measured. `--only` names parts.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from consilience.config.config import make_config
from consilience.data import Dataset
from consilience.methods import build_method
from consilience.models import SplitModel, build_model
from consilience.simulation.engines.stack.engine import StackEngine
from consilience.simulation.engines.stack.memory_budget import free_unused
from consilience.simulation.records.round_record import PHASES
from consilience.simulation.round.round import Rounds
from consilience.simulation.setup.setup import build_setup
from consilience.simulation.simulate import simulate

SHAPE, CLASSES, BATCH, SAMPLES = (1, 28, 28), 10, 32, 120
LEARNERS = (10, 100, 1000)
STEPS = -(-SAMPLES // BATCH)
WEIGHTS = [0, 0.1, 0.5, 1, 2, 4, 8, 10]
REPOSITORY = Path(__file__).resolve().parent.parent


def images(count: int) -> Dataset:
    """Random images with labels in turn; the cost of a step does not depend on the content of images."""
    inputs = np.random.default_rng(0).standard_normal((count, *SHAPE), dtype=np.float32)
    targets = np.arange(count) % CLASSES
    return Dataset("noise", inputs, targets, inputs[:1000], targets[:1000], CLASSES)


# The plain PyTorch loop


class PlainLoop:
    """A model and an optimizer for each learner, one after the other."""

    def __init__(self, learners: int) -> None:
        data = images(learners * SAMPLES)
        self.inputs = torch.from_numpy(data.inputs).view(learners, SAMPLES, *SHAPE).cuda()
        self.targets = torch.from_numpy(data.targets).view(learners, SAMPLES).cuda()
        self.models = [build_model("lenet5", SHAPE, CLASSES).cuda() for _ in range(learners)]
        self.optimizers = [torch.optim.Adam(m.parameters(), lr=1e-3) for m in self.models]
        self.prototypes = torch.zeros(CLASSES, self.models[0].width).cuda()
        self.observations = [self.prototypes for _ in self.models]

    def train(self, sharing: bool = False) -> None:
        """One local epoch of every learner."""
        for i, (model, optimizer) in enumerate(zip(self.models, self.optimizers, strict=True)):
            model.train()
            for chosen in torch.split(torch.randperm(SAMPLES, device="cuda"), BATCH):
                optimizer.zero_grad()
                loss = self._loss(i, model, self.inputs[i][chosen], self.targets[i][chosen], sharing)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()

    def _loss(self, i: int, model: SplitModel, x: Tensor, y: Tensor, sharing: bool) -> Tensor:
        features = model.features(x)
        logits = model.classifier(features)
        loss = F.cross_entropy(logits, y)
        if not sharing:
            return loss
        same = logits.softmax(1) @ model.classifier(self.observations[i]).softmax(1).T  # (batch, classes)
        contrast = F.binary_cross_entropy(same.clamp(1e-7, 1 - 1e-7), F.one_hot(y, CLASSES).float())
        return loss + 10 * F.mse_loss(features, self.prototypes[y]) + contrast

    @torch.no_grad()
    def share(self) -> None:
        """Class means over all learners, and a random member's observation for each learner."""
        means, observations = torch.zeros_like(self.prototypes), []
        for i, model in enumerate(self.models):
            model.eval()
            features, member = model.features(self.inputs[i]), F.one_hot(self.targets[i], CLASSES).float()
            means += member.T @ features
            rank = (member * torch.rand(SAMPLES, 1, device="cuda")).argsort(0, descending=True).argsort(0)
            chosen = member * (rank < 10)
            observations.append((chosen.T @ features) / chosen.sum(0).clamp(min=1)[:, None])
        self.prototypes = means / (len(self.models) * SAMPLES / CLASSES)
        self.observations = [observations[k] for k in np.random.randint(0, len(self.models), len(self.models))]

    def round(self) -> None:
        """A whole round of representation sharing."""
        self.train(sharing=True)
        self.share()


# The same workload on the stack engine


class Stack:
    """A federation on the stack engine, before its first round."""

    def __init__(self, learners: int, method: str, precision: str = "float32", samples: int = SAMPLES) -> None:
        data = images(learners * samples)
        config = make_config({"learners": learners, "model": "lenet5", "device": "cuda", "precision": precision})
        setup = build_setup(config, build_method(method), data, ["lenet5"])
        self.engine = StackEngine(list(setup.cohorts.plans), data)
        self.rounds = Rounds(setup, self.engine)
        self.rounds.start()
        for _ in range(3):  # warm up: select kernels, record graphs
            self.rounds.run(evaluate=False)

    def close(self) -> None:
        """Free the memory."""
        self.engine.__exit__(None, None, None)
        del self.engine, self.rounds
        torch.cuda.empty_cache()


def seconds(work: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def median(work: Callable[[], float], times: int) -> float:
    return statistics.median(work() for _ in range(times))


def time_plain_loop(learners: int, times: int) -> tuple[float, float]:
    """Seconds of a learner's step, and of a whole round, in the plain loop."""
    plain = PlainLoop(learners)
    plain.train()
    plain.round()  # warm up
    repeat = max(1, min(times, 200 // learners))
    step = median(lambda: seconds(plain.train), repeat) / learners / STEPS
    return step, median(lambda: seconds(plain.round), repeat)


def time_stack(learners: int, precision: str, times: int) -> tuple[float, float, dict[str, float]]:
    """The same on the stack, and the time of each phase of a round with evaluation."""
    independent = Stack(learners, "independent", precision)
    step = median(lambda: float(independent.rounds.run(evaluate=False)["wall.train"]), times) / learners / STEPS
    independent.close()
    sharing = Stack(learners, "representation-sharing", precision)
    whole = median(lambda: seconds(lambda: sharing.rounds.run(evaluate=False)), times)
    tested = [sharing.rounds.run(evaluate=True) for _ in range(3)][-1]
    sharing.close()
    return step, whole, {phase: float(tested[f"wall.{phase}"]) * 1e3 for phase in PHASES}


def compare(learners: int, times: int) -> dict[str, Any]:
    """Time steps and whole rounds, in the plain loop and on the stack."""
    plain_step, plain_round = time_plain_loop(learners, times)
    times_found: dict[str, Any] = {"learners": learners, "plain_step_us": plain_step * 1e6}
    times_found["plain_round_ms"] = plain_round * 1e3
    for precision in ("float32", "bf16"):
        step, whole, phases = time_stack(learners, precision, times)
        times_found[precision] = {
            "step_us": step * 1e6,
            "step_ratio": plain_step / step,
            "round_ms": whole * 1e3,
            "round_ratio": plain_round / whole,
            "phases_ms": phases,
        }
    return times_found


def sweep(data_dir: str | None) -> dict[str, Any]:
    """The ablation of the thesis in one run, saved in a folder as the command does."""
    variants = tuple({"method.kd": kd, "method.contrast": c} for kd in WEIGHTS for c in WEIGHTS)
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        result = simulate(
            method="representation-sharing",
            variants=variants,
            data="mnist",
            data_dir=data_dir,
            train=1200,
            learners=5,
            rounds=100,
            eval_every=100,
            device="cuda",
            out=Path(folder) / "sweep",
        )
        elapsed = time.perf_counter() - started
    accuracy = [float(v.accuracy.mean()) for v in result.variants]
    best = int(np.argmax(accuracy))
    return {
        "seconds": elapsed,
        "engine": result.engine,
        "phases_s": result.history.seconds,
        "none": accuracy[0],
        "best": accuracy[best],
        "best_setting": variants[best],
    }


def many(learners: int = 10_000, samples: int = 12) -> dict[str, Any]:
    """Many learners with few samples each."""
    torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    stack = Stack(learners, "representation-sharing", samples=samples)
    began = time.perf_counter() - started
    spent = median(lambda: seconds(lambda: stack.rounds.run(evaluate=False)), 3)
    tested = seconds(lambda: stack.rounds.run(evaluate=True))
    peak = torch.cuda.max_memory_allocated() / 2**30
    plan = stack.engine.memory.describe()
    stack.close()
    times = {"begin_s": began, "round_s": spent, "tested_round_s": tested}
    return {"learners": learners, **times, "peak_gib": peak, "memory_plan": plan}


def with_little_memory(learners: int = 1000, share: float = 0.04) -> dict[str, Any]:
    """Too little memory for the planned group: the group shrinks, and the losses do not change."""
    losses, rows = [], 0
    try:
        for fraction in (1.0, share):
            free_unused(torch.device("cuda"))  # memory reserved by earlier stacks counts toward the fraction
            torch.cuda.set_per_process_memory_fraction(fraction)
            stack = Stack(learners, "representation-sharing")
            losses.append(stack.rounds.run(evaluate=True)["loss.cross_entropy"])
            rows = stack.engine.memory.rows[0]
            stack.close()
            del stack
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    difference = float(np.abs(losses[0] - losses[1]).max())
    return {"learners": learners, "learners_at_once": rows, "largest_loss_difference": difference}


def repeats_bits() -> bool:
    """Whether two deterministic runs with the same seed give the same bits."""
    config: dict[str, Any] = {"learners": 8, "rounds": 5, "device": "cuda", "deterministic": True}
    runs = [simulate(data=images(8 * SAMPLES), model="lenet5", method="consilience", **config) for _ in range(2)]
    names = [m for m in runs[0].history if not m.startswith(("seconds.", "wall."))]
    return all(np.array_equal(runs[0].history[m], runs[1].history[m], equal_nan=True) for m in names)


def contract(seconds: float) -> str:
    """Run the engines' contract suite on this GPU, for so long at most; return its last line."""
    options = ["-q", "-o", "addopts=", "--import-mode=importlib", "-p", "no:cacheprovider", "-k", "cuda"]
    options += ["-W", "default"]  # of warnings of this machine's packages nothing follows
    if importlib.util.find_spec("pytest_timeout") is None:  # the project's settings need it
        options += ["-c", os.devnull, "--rootdir", str(REPOSITORY)]
    suite = [sys.executable, "-m", "pytest", *options, "tests/contract/test_engines_contract.py"]
    with tempfile.TemporaryFile("w+") as said:
        try:
            failed = subprocess.run(suite, cwd=REPOSITORY, stdout=said, stderr=said, timeout=seconds).returncode
        except subprocess.TimeoutExpired:
            failed = -1
        said.seek(0)
        lines = said.read().strip().splitlines()
    if failed:
        print("\n".join(lines[-40:]))
    return f"not finished in {seconds:.0f} s" if failed == -1 else lines[-1] if lines else "no output"


def tables(rows: Sequence[dict[str, Any]]) -> None:
    print(f"\n{'learners':>8} {'plain':>9} {'stack':>9} {'':>7} {'bf16':>9} {'':>7}   one learner's step, microseconds")
    for r in rows:
        a, b = r["float32"], r["bf16"]
        print(f"{r['learners']:>8} {r['plain_step_us']:>9.1f} {a['step_us']:>9.1f} {a['step_ratio']:>6.1f}x", end=" ")
        print(f"{b['step_us']:>9.1f} {b['step_ratio']:>6.1f}x")
    print(f"\n{'learners':>8} {'plain':>9} {'stack':>9} {'':>7} {'of step':>8} {'bf16':>9} {'':>7}   one round, ms")
    for r in rows:
        a, b = r["float32"], r["bf16"]
        share = a["round_ratio"] / a["step_ratio"]
        print(
            f"{r['learners']:>8} {r['plain_round_ms']:>9.1f} {a['round_ms']:>9.1f} {a['round_ratio']:>6.1f}x", end=" "
        )
        print(f"{share:>8.2f} {b['round_ms']:>9.1f} {b['round_ratio']:>6.1f}x")
    print(f"\n{'learners':>8} " + " ".join(f"{p:>10}" for p in PHASES) + "   ms per phase (1,000 test images)")
    for r in rows:
        print(f"{r['learners']:>8} " + " ".join(f"{r['float32']['phases_ms'][p]:>10.2f}" for p in PHASES))


def measure(parts: dict[str, Callable[[], Any]], found: dict[str, Any], out: Path | None) -> None:
    """Measure part after part, and save what is found after each; what fails is noted."""
    for name, part in parts.items():
        started = time.perf_counter()
        try:
            found[name] = part()
        except Exception as error:  # the other parts have numbers of their own
            traceback.print_exc()
            found[name] = {"error": f"{type(error).__name__}: {error}"}
            free_unused(torch.device("cuda"))
        print(f"{name} ({time.perf_counter() - started:.0f} s): {json.dumps(found[name])}", flush=True)
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(found, indent=1), encoding="utf-8")


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", help="folder with the files of MNIST")
    parser.add_argument("--times", type=int, default=10, help="rounds to time in each case")
    parser.add_argument("--only", nargs="+", metavar="PART", help="parts to measure; by default all")
    parser.add_argument("--seconds", type=float, default=3600, help="for the contract suite, at most")
    parser.add_argument("--out", type=Path, help="write all numbers to this file as JSON")
    arguments = parser.parse_args(given)
    parts: dict[str, Callable[[], Any]] = {
        "contract": partial(contract, arguments.seconds),
        "same_bits": repeats_bits,
        **{f"learners_{n}": partial(compare, n, arguments.times) for n in LEARNERS},
        "little_memory": with_little_memory,
        "many": many,
        "sweep": partial(sweep, arguments.data_dir),
    }
    if unknown := set(arguments.only or ()) - set(parts):
        parser.error(f"unknown parts {', '.join(sorted(unknown))}; there are {', '.join(parts)}")
    if not torch.cuda.is_available():
        sys.exit("torch finds no GPU")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    found: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    print(f"{found['device']}, torch {found['torch']}", flush=True)
    measure({name: part for name, part in parts.items() if name in (arguments.only or parts)}, found, arguments.out)
    tables([row for n in LEARNERS if "float32" in (row := found.get(f"learners_{n}", {}))])


if __name__ == "__main__":
    main()
