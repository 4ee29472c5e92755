"""The sizes of FLESD's experiments, and the settings that all of them share (Shi et al. 2021, section 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from consilience.errors import ConfigurationError
from consilience.papers.cells import Outcome, Scale
from consilience.papers.sizes import Sizes

LEARNERS = 6
TRAIN = 20_000
"""Training images of CIFAR-10; the paper uses all 50,000."""
SEEDS = (5, 6, 7, 11, 12)
"""The first seeds by the rule of `seeds.py` for the first 20,000 images of CIFAR-10; a test derives them again."""
OBJECTIVE = "simclr(0.4)"
PROBE = "both"


@dataclass(frozen=True)
class TableRows:
    """Table 1: how many seeds, the rounds of FedAvg and FedProx, and the values of mu."""

    seeds: int = 1
    fedavg_rounds: int = 10
    fedprox_mus: tuple[float, ...] = (0.001, 0.01, 0.1, 1)
    all_distill: bool = True  # also FLESD in which every learner distills its own model


@dataclass(frozen=True)
class SupervisedTraining:
    """Training with labels, for figure 2."""

    epochs: int = 100
    batch_size: int = 128


@dataclass(frozen=True)
class CommunicationSchemes:
    """Figure 4: how the epochs are divided into rounds; the paper does not say how many epochs its right part has."""

    rounds: tuple[int, ...] = (1, 2, 4, 10, 20, 40)  # that share the total epochs
    fixed_rounds: int = 20  # with fixed_epochs in each
    fixed_epochs: int = 100
    local_epochs: tuple[int, ...] = (10, 25, 50, 100)  # in each of two rounds


@dataclass(frozen=True)
class LongTraining:
    """Figure 5: the total epochs, and the rounds that share them."""

    epochs: int = 2000
    flesd_rounds: int = 5
    fedavg_rounds: int = 20


@dataclass(frozen=True)
class EncoderPair:
    """A small and a large encoder, for teachers and students of different size."""

    small: str = "encoder18"
    large: str = "encoder50"
    width: int = 2048  # of the wider representation


@dataclass(frozen=True)
class FlesdSize:
    """The size of the experiments; the defaults are the published numbers.

    alphas: of the Dirichlet distribution; the middle one is used where an experiment has one only. seeds: those that
    the rule of `seeds.py` gives for these images, in order; an experiment uses the first ones.
    """

    train: int = TRAIN
    test: int | None = None
    total_epochs: int = 200  # of a learner, over all rounds
    distill_epochs: int = 200
    batch_size: int = 1024
    data: str = "cifar10"
    model: str = "encoder18"
    alphas: tuple[float, ...] = (100, 1, 0.01)
    queue: int = 2048
    seeds: tuple[int, ...] = SEEDS
    table: TableRows = TableRows()
    encoders: EncoderPair = EncoderPair()
    supervised: SupervisedTraining = SupervisedTraining()
    communication: CommunicationSchemes = CommunicationSchemes()
    convergence: LongTraining = LongTraining()

    @property
    def alpha(self) -> float:
        """The alpha of experiments that have one only."""
        return self.alphas[(len(self.alphas) - 1) // 2]

    def seeds_for(self, scale: Scale, default: int = 1) -> tuple[int, ...]:
        """The first seeds by the rule: as many as --seeds says, else `default`, and one with --quick."""
        wanted = scale.seeds or (1 if scale.quick else default)
        if wanted > len(self.seeds):
            raise ConfigurationError(
                f"{wanted} seeds are wanted, and FLESD's rule for seeds has been applied to find {len(self.seeds)}; "
                f"use at most {len(self.seeds)}, or add more to papers/flesd/experiment.py"
            )
        return self.seeds[:wanted]

    def settings(self, scale: Scale, alpha: float, rounds: int, seed: int, **method: Any) -> dict[str, Any]:
        """A run of these rounds, which share the total epochs, tested after the last round."""
        return {
            **scale.settings(1),
            "seeds": 1,
            "data": self.data,
            "train": self.train,
            "test": self.test,
            "learners": LEARNERS,
            "seed": seed,
            "partition": f"dirichlet({alpha:g})",
            "model": self.model,
            "optimizer": "adam",
            "lr": 1e-3,
            "weight_decay": 1e-6,
            "batch_size": self.batch_size,
            "rounds": rounds,
            "total_epochs": self.total_epochs,
            "eval_every": rounds,
            "probe": PROBE,
            "method": method,
        }

    def flesd(self, name: str = "flesd", **others: Any) -> dict[str, Any]:
        """The settings of FLESD as a method."""
        own = {"objective": OBJECTIVE, "distill_epochs": self.distill_epochs, "queue": self.queue}
        return {"name": name, **own, **others}


FEDAVG: dict[str, Any] = {"name": "fedavg", "objective": OBJECTIVE}
"""FedAvg without labels, as a method's settings."""
PUBLISHED = FlesdSize()
SHORT = FlesdSize(
    train=10_000,
    test=3000,
    total_epochs=60,
    distill_epochs=60,
    batch_size=128,
    seeds=(1, 3, 7, 18, 26),
    table=TableRows(seeds=3, fedprox_mus=(0.01,), all_distill=False),
    encoders=EncoderPair("resnet9", "encoder18", 512),
    supervised=SupervisedTraining(20, 128),
    communication=CommunicationSchemes((1, 2, 4, 10), 4, 20, (5, 10, 20, 40)),
    convergence=LongTraining(100, 5, 20),
)
"""Half of the images and three tenths of the epochs, in small batches so that there are enough steps: half a minute per
cell on one large GPU."""
QUICK = FlesdSize(
    train=1200,
    test=500,
    total_epochs=8,
    distill_epochs=8,
    batch_size=32,
    model="lenet5",
    alphas=(100, 0.01),
    queue=128,
    seeds=(0, 4, 10),
    table=TableRows(fedavg_rounds=4, fedprox_mus=(0.01,)),
    encoders=EncoderPair("mlp", "lenet5", 84),  # both fast: the smaller one in computation, not in parameters
    supervised=SupervisedTraining(8, 32),
    communication=CommunicationSchemes((1, 2, 4), 3, 4, (2, 4)),
    convergence=LongTraining(16, 2, 8),
)
"""For two cores: every part of the experiment runs, and models learn little."""
SIZES = Sizes(PUBLISHED, SHORT, QUICK, fewer="epochs")


def flesd_setup(outcome: Outcome, batches: bool = True, model: str | None = None) -> str:
    """Data, learners, model and optimizer in a sentence; batches: whether all runs have the same batch size.

    model: where runs have different ones, their names.
    """
    config = outcome.config
    published = " (published: all 50,000)" if config.data.source == "cifar10" else ""
    quick = (
        " This is the quick size: the published probe takes few steps here, and its accuracy may be that of chance; "
        "the accuracy of the nearest neighbors says more."
        if (config.data.train or TRAIN) < SHORT.train
        else ""
    )
    data, training = config.data, config.training
    common = f", weight decay {training.weight_decay:g}, batches of {training.batch_size}" if batches else ""
    return (
        f"{data.source}, {data.train:,} images{published} among {LEARNERS} learners, {model or config.model.name}; "
        f"Adam, lr {training.lr}{common}.{quick}"
    )


def alpha_label(value: float) -> str:
    """The label of an alpha."""
    return f"alpha {value:g}"
