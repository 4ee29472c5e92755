"""The sizes of the experiments of two-stage learning, and the settings they share (Ma et al. 2020, section 4).

Every number that may be changed is in this file. The paper gives data, models and participation, and refers to McMahan
et al. (2017) for the rest: learning rates and batch sizes are theirs where they state them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from consilience.papers.cells import Outcome, Scale
from consilience.papers.metrics_by_round import record_samples
from consilience.papers.sizes import Sizes
from consilience.papers.two_stage.progress import record_progress
from consilience.presentation.tables import plural

SEEDS = 3
"""The paper has means of 50 runs; --seeds runs more or fewer."""
RECORDS = {"progress": record_progress, "samples": record_samples}
"""What the sections of all experiments need of run folders."""
ATTACKED, ATTACK_EPOCHS = 10, 30
"""The number of devices that are attacked, at most, and the epochs of each decoder."""
TWO_STAGE, BATCH, CALIBRATED, ONE_BIT = "two-stage", "two-stage-batch", "two-stage-calibrated", "two-stage-1bit"
FEDAVG, FEDPROX, INDEPENDENT = "fedavg", "fedprox", "independent"
ROWS = (TWO_STAGE, BATCH, CALIBRATED, ONE_BIT, FEDAVG, FEDPROX, INDEPENDENT)
"""Two readings of the paper: one vote per round (equation 9), and a move before every batch (Algorithm 1). Three rows
are not in it: two-stage with calibrated losses; two-stage that also uploads the devices' part, with one bit per weight;
and a control with devices that upload nothing."""
_CHANGES: Mapping[str, Mapping[str, Any]] = {
    TWO_STAGE: {},
    BATCH: {"inner": "batch"},
    CALIBRATED: {"calibrated": True},
    ONE_BIT: {"device": "1bit"},
}
"""What the rows of two-stage set."""
COMPARED = (ONE_BIT, FEDAVG, FEDPROX)
"""The rows with one common model, which are compared at the same accuracy."""


@dataclass(frozen=True)
class ModelSettings:
    """An architecture and its learning rate."""

    name: str
    lr: float


@dataclass(frozen=True)
class Penalties:
    """The settings of the method two-stage, and of fedprox."""

    alpha_1: float = 0.1
    alpha_2: float = 1.0
    lam: float = 1.0
    delta: float = 1e-3
    batch_delta: float = 2e-5
    """With a move before every batch: about as far in a round of 50 or 60 batches as delta."""
    fedprox_mu: float = 0.01
    """Of fedprox."""


@dataclass(frozen=True)
class TwoStageTask:
    """A data set, its split among learners, and their training; the defaults are those of MNIST.

    split: the model with a private part, trained with Adam; whole: the model of methods that upload all weights, with
    SGD.
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
    split: ModelSettings = ModelSettings("device-cnn-large", 1e-3)
    whole: ModelSettings = ModelSettings("cnn", 0.05)
    penalties: Penalties = Penalties()
    engine: str = "auto"
    seeds: int = SEEDS

    def settings(self, scale: Scale, row: str, **method: Any) -> dict[str, Any]:
        """The settings of a run of one row; method: changes to the settings of the method."""
        split, private = row not in (FEDAVG, FEDPROX), row not in (FEDAVG, FEDPROX, ONE_BIT)
        model = self.split if split else self.whole
        return {
            **scale.settings(self.seeds),
            "data": self.data,
            "train": self.train,
            "test": self.test,
            "learners": self.learners,
            "partition": self.partition,
            "participation": self.participation,
            "model": model.name,
            "optimizer": "adam" if split else "sgd",
            "lr": model.lr,
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            "rounds": self.rounds,
            "eval_every": self.eval_every,
            "ensemble": "on" if private else "off",
            "engine": self.engine,
            "method": {"name": TWO_STAGE if row in _CHANGES else row, **self._method_settings(row), **method},
        }

    def _method_settings(self, row: str) -> dict[str, Any]:
        if row in _CHANGES:
            chosen = asdict(self.penalties)
            per_batch, _ = chosen.pop("batch_delta"), chosen.pop("fedprox_mu")
            return {**chosen, **({"delta": per_batch} if row == BATCH else {}), **_CHANGES[row]}
        return {"mu": self.penalties.fedprox_mu} if row == FEDPROX else {}


@dataclass(frozen=True)
class NewcomerSize:
    """Figure 4: a device joins a federation after some rounds."""

    task: TwoStageTask
    rounds_before: int
    samples: int = 1000
    shift: str = "rotate(90)"


@dataclass(frozen=True)
class LeakageSize:
    """Figures 5 and 6: the leakage of a layer by alpha_1; alpha_1 = 0 is a control.

    watched: the layer of a model without a private part, its first convolution.
    """

    task: TwoStageTask
    watched: str = "features.0"
    alphas: tuple[float, ...] = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 3.0, 10.0)


@dataclass(frozen=True)
class TwoStageSize:
    """The size of all experiments: the tasks of table 2 by name, and those of the figures."""

    tasks: Mapping[str, TwoStageTask]
    newcomer: NewcomerSize
    leakage: LeakageSize


_MNIST = TwoStageTask()
_CIFAR10 = TwoStageTask(
    "cifar10",
    partition="iid",
    rounds=120,
    epochs=5,
    batch_size=50,
    split=ModelSettings("device-cnn-medium", 1e-3),
    whole=ModelSettings("cnn5-small", 0.1),
)
_SHAKESPEARE = TwoStageTask(
    "shakespeare",
    learners=133,
    partition="owners",
    test=2000,
    rounds=400,
    eval_every=20,
    batch_size=50,
    split=ModelSettings("device-lstm", 1e-3),
    whole=ModelSettings("lstm", 0.8),
    engine="loop",
    seeds=1,
)
_NEWCOMER = replace(_CIFAR10, test=2000, rounds=250, eval_every=1)
_LEAKAGE = TwoStageTask(
    learners=20, train=12_000, participation=0.5, rounds=60, eval_every=5, test=2000, epochs=10, batch_size=100
)
"""Fewer devices than published: checkpoints are kept, and those of a hundred devices with Adam's state take 2.3 GB.

A distance correlation needs large batches, and then as many steps as batches of ten would give: the correlation keeps
falling long after the accuracy has settled.
"""

PUBLISHED = TwoStageSize(
    {"mnist": _MNIST, "cifar10": _CIFAR10, "shakespeare": _SHAKESPEARE},
    NewcomerSize(_NEWCOMER, rounds_before=200),
    LeakageSize(_LEAKAGE),
)
SHORT = TwoStageSize(
    {
        "mnist": replace(_MNIST, rounds=100, eval_every=5),
        "cifar10": replace(_CIFAR10, rounds=60, eval_every=5, test=5000),
        "shakespeare": replace(
            _SHAKESPEARE, learners=20, participation=0.25, train=80_000, test=1000, rounds=40, eval_every=5
        ),
    },
    NewcomerSize(replace(_NEWCOMER, test=1000, rounds=60, eval_every=4), rounds_before=40, samples=400),
    LeakageSize(replace(_LEAKAGE, learners=10, train=6000, rounds=30)),
)
"""Fewer rounds and, for slow tasks, fewer learners: minutes on one large GPU."""
_FEW: dict[str, Any] = {"learners": 6, "participation": 0.5, "train": 480, "test": 200, "batch_size": 10, "epochs": 1}
QUICK = TwoStageSize(
    {
        "mnist": replace(_MNIST, **_FEW, rounds=4, eval_every=2),
        "cifar10": replace(_CIFAR10, **_FEW, rounds=4, eval_every=2),
        "shakespeare": replace(
            _SHAKESPEARE, **_FEW | {"learners": 3, "participation": 1, "train": 133 * 60}, rounds=2, eval_every=1
        ),
    },
    NewcomerSize(replace(_CIFAR10, **_FEW | {"train": 580}, rounds=5, eval_every=1), rounds_before=2, samples=100),
    LeakageSize(
        replace(_LEAKAGE, **_FEW | {"learners": 4, "train": 320}, rounds=3, eval_every=1), alphas=(0.0, 0.1, 0.9)
    ),
)
"""For two cores: every part of the experiments runs, and models learn little."""
SIZES = Sizes(PUBLISHED, SHORT, QUICK)
_DESCRIBED = {"alpha_1", "alpha_2", "lam", "delta", "mu"}


def two_stage_setup(outcomes: Sequence[Outcome]) -> str:
    """Data, split, training and models of each row, in a few sentences."""
    found: dict[str, dict[str, dict[str, dict[str, None]]]] = {}
    for outcome in outcomes:
        config, samples = outcome.config, outcome.records["samples"]
        federation, training = config.federation, config.training
        taking_part = "all take" if federation.participation == 1 else f"{federation.participation:.3g} of them take"
        common = (
            f"{config.data.source}: {samples['train']:,} training and {samples['test']:,} test "
            f"samples, {federation.learners} learners ({federation.partition}), {taking_part} part in each of "
            f"{training.rounds} rounds, {plural(training.epochs, 'epoch')} of batches of {training.batch_size}"
        )
        own = f"{outcome.labels['row']}: {config.model.name} with {training.optimizer}, lr {training.lr}"
        settings = found.setdefault(common, {}).setdefault(own, {})
        for key in _DESCRIBED & config.method.settings.keys():
            settings.setdefault(key, {})[f"{float(config.method.settings[key]):g}"] = None
    return " ".join(f"{common}. {'; '.join(map(_with_settings, own.items()))}." for common, own in found.items())


def _with_settings(own: tuple[str, Mapping[str, Mapping[str, None]]]) -> str:
    row, settings = own
    return ", ".join([row, *(f"{key} {' or '.join(settings[key])}" for key in sorted(settings))])
