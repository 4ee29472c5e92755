"""How large the experiments of two-stage learning are, and what all of them have in common (Ma et al. 2020, section 4).

Every number that may be changed is in the tables of this file. The paper names data, models and how many take part, and
leaves the rest to McMahan et al. (2017), whose rates and batches these are where they say them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from consilience.papers.cells import Outcome, Scale
from consilience.papers.sizes import Sizes
from consilience.presentation.tables import plural
from consilience.simulation.records.run_folder import PROVENANCE, RunFolder

SEEDS = 1
"""Published are means of 50 runs; ask for more with --seeds."""
ATTACKED, ATTACK_EPOCHS = 10, 30
"""Devices whose images an attacker rebuilds, at most, and how long it trains for each."""
TWO_STAGE, ONE_BIT, FEDAVG, FEDPROX, INDEPENDENT = "two-stage", "two-stage-1bit", "fedavg", "fedprox", "independent"
ROWS = (TWO_STAGE, ONE_BIT, FEDAVG, FEDPROX, INDEPENDENT)
"""Two are not in the paper: two-stage whose devices' part is shared, too, at one bit a weight; and a control, devices
that send nothing at all."""
COMPARED = (ONE_BIT, FEDAVG, FEDPROX)
"""Those with one model for all: what each took until it was as good as the others."""


@dataclass(frozen=True)
class Task:
    """A data set, who has it, and how it is learned; a number that is not given is that of MNIST.

    split: the model with a private part, trained by Adam; whole: that of methods that share all, trained by SGD.
    """

    data: str = "mnist"
    learners: int = 100
    partition: str = "shards(2)"
    participation: float = 0.1
    train: int | None = None
    test: int | None = None
    rounds: int = 200
    eval_every: int = 20
    epochs: int = 1
    batch_size: int = 10
    split: str = "device-cnn"
    whole: str = "cnn"
    adam: float = 1e-3
    sgd: float = 0.05
    alpha_1: float = 0.1
    alpha_2: float = 1.0
    lam: float = 1.0
    delta: float = 1e-3
    mu: float = 0.01  # of fedprox
    engine: str = "auto"

    def settings(self, scale: Scale, row: str, **method: Any) -> dict[str, Any]:
        """A run of one of the rows; method: what is other than usual in the method's own settings."""
        split, private = row not in (FEDAVG, FEDPROX), row in (TWO_STAGE, INDEPENDENT)
        return {
            **scale.settings(SEEDS),
            "data": self.data,
            "train": self.train,
            "test": self.test,
            "learners": self.learners,
            "partition": self.partition,
            "participation": self.participation,
            "model": self.split if split else self.whole,
            "optimizer": "adam" if split else "sgd",
            "lr": self.adam if split else self.sgd,
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            "rounds": self.rounds,
            "eval_every": self.eval_every,
            "ensemble": "on" if private else "off",
            "engine": self.engine,
            "method": {"name": TWO_STAGE if row == ONE_BIT else row, **self._own(row), **method},
        }

    def _own(self, row: str) -> dict[str, Any]:
        if row in (TWO_STAGE, ONE_BIT):
            own = {"alpha_1": self.alpha_1, "alpha_2": self.alpha_2, "lam": self.lam, "delta": self.delta}
            return own | {"device": "1bit" if row == ONE_BIT else "private"}
        return {"mu": self.mu} if row == FEDPROX else {}


@dataclass(frozen=True)
class Joining:
    """A device that is new to a federation: how many rounds the others had before, and how many samples it has."""

    task: Task
    before: int
    samples: int = 1000
    shift: str = "rotate(90)"


@dataclass(frozen=True)
class Leaking:
    """What a layer tells of the inputs: how much alpha_1 counts, from 0, which is a control.

    watched: the layer of a model that is not in two parts, its first convolution.
    """

    task: Task
    watched: str = "features.0"
    alphas: tuple[float, ...] = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 3.0, 10.0)


@dataclass(frozen=True)
class Size:
    """How large the experiments are: the data sets of table 2 by name, the newcomer's, and that of leakage."""

    tasks: Mapping[str, Task]
    joining: Joining
    leaking: Leaking


_MNIST = Task()
_CIFAR10 = Task("cifar10", partition="iid", rounds=120, epochs=5, batch_size=50, whole="cnn5", sgd=0.1)
_SHAKESPEARE = Task(
    "shakespeare",
    learners=133,
    partition="owners",
    test=2000,
    rounds=400,
    eval_every=20,
    batch_size=50,
    split="device-lstm",
    whole="lstm",
    sgd=0.8,
    engine="loop",
)
_NEW = replace(_CIFAR10, test=2000, rounds=250, eval_every=1)
_LEAK = Task(
    learners=20, train=12_000, participation=0.5, rounds=60, eval_every=5, test=2000, epochs=10, batch_size=100
)
"""Fewer devices than published: their models are kept, and a hundred of them with what Adam remembers are 2.3 GB.

A distance correlation needs batches of many, and then as many steps as batches of ten would make: z goes on telling
less of the inputs long after the accuracy has settled.
"""

PUBLISHED = Size(
    {"mnist": _MNIST, "cifar10": _CIFAR10, "shakespeare": _SHAKESPEARE},
    Joining(_NEW, before=200),
    Leaking(_LEAK),
)
SHORT = Size(
    {
        "mnist": replace(_MNIST, rounds=100, eval_every=5),
        "cifar10": replace(_CIFAR10, rounds=60, eval_every=5, test=5000),
        "shakespeare": replace(
            _SHAKESPEARE, learners=20, participation=0.25, train=80_000, test=1000, rounds=40, eval_every=5
        ),
    },
    Joining(replace(_NEW, test=1000, rounds=60, eval_every=4), before=40, samples=400),
    Leaking(replace(_LEAK, learners=10, train=6000, rounds=30)),
)
"""Fewer rounds and, of what is slow, fewer learners: minutes of one large GPU."""
_FEW: dict[str, Any] = {"learners": 6, "participation": 0.5, "train": 480, "test": 200, "batch_size": 10, "epochs": 1}
QUICK = Size(
    {
        "mnist": replace(_MNIST, **_FEW, rounds=4, eval_every=2),
        "cifar10": replace(_CIFAR10, **_FEW, rounds=4, eval_every=2),
        "shakespeare": replace(
            _SHAKESPEARE, **_FEW | {"learners": 3, "participation": 1, "train": 133 * 60}, rounds=2, eval_every=1
        ),
    },
    Joining(replace(_CIFAR10, **_FEW | {"train": 580}, rounds=5, eval_every=1), before=2, samples=100),
    Leaking(replace(_LEAK, **_FEW | {"learners": 4, "train": 320}, rounds=3, eval_every=1), alphas=(0.0, 0.1, 0.9)),
)
"""For two cores: everything has its place, and little is learned."""
SIZES = Sizes(PUBLISHED, SHORT, QUICK)
_SAID = {"alpha_1", "alpha_2", "lam", "delta", "mu"}


def circumstances(outcomes: Sequence[Outcome]) -> str:
    """In a few sentences: what was trained by each row, on how much, and how."""
    found: dict[str, dict[str, dict[str, dict[str, None]]]] = {}
    for outcome in outcomes:
        config = RunFolder(outcome.folder).config
        taking = "all take" if config.participation == 1 else f"{config.participation:.3g} of them take"
        common = (
            f"{config.data}: {_samples(outcome):,} training and {_tests(outcome):,} test samples, {config.learners} "
            f"learners ({config.partition}), {taking} part in each of {config.rounds} rounds, "
            f"{plural(config.epochs, 'epoch')} of batches of {config.batch_size}"
        )
        own = f"{outcome.labels['row']}: {config.model} by {config.optimizer} at {config.lr}"
        settings = found.setdefault(common, {}).setdefault(own, {})
        for key in _SAID & config.method.settings.keys():
            settings.setdefault(key, {})[f"{config.method.settings[key]:g}"] = None
    return " ".join(f"{common}. {'; '.join(map(_with_settings, own.items()))}." for common, own in found.items())


def _with_settings(own: tuple[str, Mapping[str, Mapping[str, None]]]) -> str:
    row, settings = own
    return ", ".join([row, *(f"{key} {' or '.join(settings[key])}" for key in sorted(settings))])


def _samples(outcome: Outcome) -> int:
    """Training samples that learners had, of the first seed."""
    table = next(iter(_about(outcome)["class_counts"].values()))
    return sum(sum(counts) for counts in table)


def _tests(outcome: Outcome) -> int:
    return int(_about(outcome)["data"]["test_samples"])


def _about(outcome: Outcome) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((outcome.folder / PROVENANCE).read_text(encoding="utf-8"))
    return found
