"""Does advice say yes where working together pays, and not where it does not?

    python benchmarks/advise.py --seeds 10 --out benchmarks/results/advise.json

Federations of five learners with handwritten digits whose answer is known, or can be argued about. For every kind and
seed the file keeps the verdict and its numbers; what it has already is not run again. Settings were chosen with seeds
from 1000 on.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from consilience import Advice, Dataset, advise, load

LEARNERS, ODD = 5, 3


def same(samples: int, seed: int) -> dict[str, Any]:
    """Learners with samples of the same kind."""
    return {"data": load("digits", train=LEARNERS * samples), "seed": seed}


def skewed(samples: int, seed: int) -> dict[str, Any]:
    """Learners with mostly a few of the ten digits each."""
    return same(samples, seed) | {"partition": "dirichlet(0.3)"}


def unrelated(samples: int, seed: int) -> dict[str, Any]:
    """Learners of whom each numbers the digits in its own random way."""
    return {"data": renamed(samples, seed, range(LEARNERS)), "seed": seed}


def odd(samples: int, seed: int) -> dict[str, Any]:
    """One learner numbers the digits in its own random way, and the others alike."""
    return {"data": renamed(samples, seed, [ODD]), "seed": seed}


def renamed(samples: int, seed: int, who: Sequence[int]) -> list[tuple[np.ndarray, ...]]:
    """One data set per learner, of random digits; the classes of some learners have other names.

    Each has test samples too, so that the trial, which removes them, has all the others.
    """
    digits: Dataset = load("digits")
    inputs, targets = digits.inputs, digits.targets
    if LEARNERS * samples > len(targets):  # the test samples too: nothing is tested on them
        inputs = np.concatenate([inputs, digits.test_inputs])
        targets = np.concatenate([targets, digits.test_targets])
    generator = np.random.default_rng(seed)
    drawn = generator.permutation(len(targets))[: LEARNERS * samples].reshape(LEARNERS, samples)
    orders = [generator.permutation(10) if learner in who else np.arange(10) for learner in range(LEARNERS)]
    return [
        (inputs[mine], order[targets[mine]], digits.test_inputs, order[digits.test_targets])
        for mine, order in zip(drawn, orders, strict=True)
    ]


KINDS: dict[str, tuple[Callable[[int, int], dict[str, Any]], int]] = {
    "same, 100 digits": (same, 100),
    "unrelated labels, 200 digits": (unrelated, 200),
    "unrelated labels, 350 digits": (unrelated, 350),
    "one odd learner, 200 digits": (odd, 200),
    "skewed labels, 100 digits": (skewed, 100),
    "same, 20 digits": (same, 20),
}
"""Each kind of federation, and the samples of a learner."""


def numbers(advice: Advice) -> dict[str, Any]:
    """What the file keeps of an advice."""
    kept = advice.to_dict()
    by_learner = [[each.effect, round(each.gain, 2)] for each in advice.learners]
    control = Counter(each.effect for each in advice.control)
    chosen = {key: kept[key] for key in ("verdict", "for_some", "gain", "common_gain", "method", "alone")}
    return chosen | {"learners": by_learner, "control": dict(control)}


HEADINGS = (
    "federation", "seeds", "yes", "no", "not clear", "for some learners", "gain (lowest to highest)",
    "learners helped", "harmed", "by chance", "odd learner helped, harmed", "method",
)  # fmt: skip


def table(cells: dict[str, dict[str, Any]]) -> str:
    """One line per kind of federation, as Markdown: verdicts, gains, learners, methods."""
    rows = [
        HEADINGS,
        ("---",) * len(HEADINGS),
        *(_row(kind, list(by_seed.values())) for kind, by_seed in cells.items()),
    ]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)


def _row(kind: str, found: list[dict[str, Any]]) -> tuple[object, ...]:
    verdicts = Counter(each["verdict"] for each in found)
    gains = [each["gain"]["mean"] for each in found]
    effects = Counter(effect for each in found for effect, _ in each["learners"])
    chance = Counter(effect for each in found for effect, n in each["control"].items() for _ in range(n))
    odd = Counter(each["learners"][ODD][0] for each in found)
    methods = Counter(each["method"] for each in found)
    return (
        kind,
        len(found),
        *(verdicts[verdict] for verdict in ("yes", "no", "not clear")),
        sum(each["for_some"] for each in found),
        f"{np.mean(gains):+.1f} ({min(gains):+.1f} to {max(gains):+.1f})",
        f"{effects['helped']} of {LEARNERS * len(found)}",
        effects["harmed"],
        f"{chance['helped']}, {chance['harmed']}",
        f"{odd['helped']}, {odd['harmed']}" if kind.startswith("one odd") else "",
        ", ".join(f"{method} {count}" for method, count in methods.most_common()),
    )


def main() -> None:
    """Run what the file does not have yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="the first seed; from 1000 on to choose settings")
    parser.add_argument("--kinds", help="names of the table, separated by semicolons; all without it")
    parser.add_argument("--out", type=Path, default=Path("advise.json"))
    options = parser.parse_args()
    cells: dict[str, dict[str, Any]] = json.loads(options.out.read_text()) if options.out.exists() else {}
    for seed in range(options.first, options.first + options.seeds):
        for kind, (make, samples) in KINDS.items():
            by_seed = cells.setdefault(kind, {})
            if str(seed) in by_seed or (options.kinds and kind not in options.kinds.split(";")):
                continue
            given = make(samples, 100 * seed)  # a trial has seeds of its own
            advice = advise(**given, model="mlp", learners=LEARNERS)
            by_seed[str(seed)] = numbers(advice)
            print(f"{kind}, seed {seed}: {advice!r}", flush=True)
            options.out.write_text(json.dumps(cells, indent=1))
    print(table({kind: by_seed for kind, by_seed in cells.items() if by_seed}))


if __name__ == "__main__":
    main()
