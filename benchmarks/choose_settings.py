"""Choose settings of reproductions by samples that are not reported: validation samples, and seeds from 1000 on.

    python benchmarks/choose_settings.py privacy-upload privacy-training two-stage --device cuda --out chosen.jsonl

privacy-alone, privacy-upload, privacy-training: learning rates, weights, clips and numbers of uploads of
`reproduce privacy`, by the accuracy on a fifth of every learner's samples. two-stage: how far
a vote moves the shared part in `reproduce two-stage-table2`, by the accuracy on training images that no device has.
One line of JSON per setting; printed last, the best ones first. --only takes labels, such as "size=120 images".
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from consilience import load, simulate
from consilience.config.config import make_config
from consilience.papers.cells import Scale
from consilience.papers.privacy import MECHANISMS, SIZES
from consilience.papers.two_stage.experiment import SHORT

SEED, EPSILON = 1000, 4.0
Job = tuple[dict[str, Any], dict[str, Any]]
"""What is printed of a run, and its settings."""


def privacy_job(label: dict[str, Any], method: dict[str, Any], seeds: int, own: dict[str, Any]) -> Job:
    """A run of `reproduce privacy`, with a fifth of the samples held out; the test set is not looked at."""
    common = SIZES[label["size"]].common | {"test": 100, "validation": 0.2, "seed": SEED, "seeds": seeds}
    return label, common | own | {"method": method}


def privacy_alone(seeds: int) -> Iterator[Job]:
    for size, method, lr in product(SIZES, ("independent", "self-distillation"), (1e-3, 3e-3, 1e-2)):
        yield privacy_job({"size": size, "method": method, "lr": lr}, {"name": method}, seeds, {"lr": lr})


def privacy_upload(seeds: int) -> Iterator[Job]:
    for size, uploads, kd, lr in product(SIZES, (1, 5), (0.03, 0.1, 0.3), (1e-3, 3e-3, 1e-2)):
        own = {"private": "upload", "epsilon": EPSILON, "private_clip": 1.0, "private_uploads": uploads, "lr": lr}
        label = {"size": size, "private_uploads": uploads, "kd": kd, "lr": lr}
        yield privacy_job(label, {"name": MECHANISMS["upload"], "kd": kd}, seeds, own)


def privacy_training(seeds: int) -> Iterator[Job]:
    rates = {"sgd": (0.1, 0.5, 2.0), "adam": (3e-3, 0.01, 0.03, 0.1)}
    for size, optimizer in product(SIZES, rates):
        batch = SIZES[size].rows["training"].get("batch_size", 32)
        for lr in rates[optimizer]:
            own = {"private": "training", "epsilon": EPSILON, "optimizer": optimizer, "batch_size": batch, "lr": lr}
            label = {"size": size, "optimizer": optimizer, "lr": lr}
            yield privacy_job(label, {"name": MECHANISMS["training"]}, seeds, own)


def two_stage(folder: Path) -> Iterator[Job]:
    """Votes of MNIST and CIFAR-10; the last training images stand for the test set."""
    for name, steps in {"mnist": (1e-4, 1e-3), "cifar10": (3e-4, 1e-3, 3e-3)}.items():
        data = load(name)
        held = len(data.targets) // 6
        x, y = data.inputs, data.targets
        file = folder / f"{name}.npz"
        np.savez(file, x=x[:-held], y=y[:-held], test_x=x[-held:][:2000], test_y=y[-held:][:2000])
        task = SHORT.tasks[name]
        batches = task.epochs * -(-(len(y) - held) // task.learners // task.batch_size)
        common = task.settings(Scale(), "two-stage") | {"data": str(file), "seed": SEED, "seeds": 1, "test": None}
        common |= {"eval_every": task.rounds}
        method = common.pop("method")
        rows = {"two-stage": {}, "two-stage-calibrated": {"calibrated": True}}
        for row, delta in product(rows, steps):
            chosen = method | rows[row] | {"delta": delta}
            yield {"data": name, "row": row, "delta": delta}, common | {"method": chosen}
        for delta in (1e-4 / batches, 1e-3 / batches, 1e-2 / batches):
            chosen = method | {"inner": "batch", "delta": delta}
            yield {"data": name, "row": "two-stage-batch", "delta": delta}, common | {"method": chosen}


def run(job: Job, device: str) -> dict[str, Any]:
    """A setting with the accuracy that chooses."""
    label, settings = job
    summary = simulate(make_config(settings | {"device": device})).summary()
    by = "accuracy_validation" if summary["accuracy_validation"]["mean"] is not None else "ensemble"
    return {**label, "by": by, "chosen_by": summary[by]["mean"], "by_seed": summary[by]["by_seed"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    searches = {"privacy-alone": privacy_alone, "privacy-upload": privacy_upload, "privacy-training": privacy_training}
    parser.add_argument("searches", nargs="+", choices=(*searches, "two-stage"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=[], metavar="LABEL=VALUE", help="such as data=mnist")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    wanted = dict(text.split("=", 1) for text in arguments.only)
    found = []
    with tempfile.TemporaryDirectory() as folder, arguments.out.open("a") as out:
        for name in arguments.searches:
            for job in two_stage(Path(folder)) if name == "two-stage" else searches[name](arguments.seeds):
                if any(str(job[0].get(key)) != value for key, value in wanted.items()):
                    continue
                found.append({"search": name} | run(job, arguments.device))
                print(json.dumps(found[-1]), file=out, flush=True)
                os.fsync(out.fileno())
    for line in sorted(found, key=lambda each: -(each["chosen_by"] or 0)):
        print(line)


if __name__ == "__main__":
    main()
