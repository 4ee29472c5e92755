"""How large the experiments of FLESD are, and what all of them have in common (Shi et al. 2021, section 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from consilience.papers.cells import Outcome, Scale
from consilience.papers.sizes import Sizes
from consilience.simulation.records.run_folder import RunFolder

LEARNERS = 6
TRAIN = 20_000
"""Images of CIFAR-10 that are trained on; the paper has all 50,000."""
SEED = 5
"""The first that deals every learner more than a thousand images at alpha 0.01; seed 0 leaves the public set 119 of one
class, on which nothing can be distilled."""
OBJECTIVE = "simclr(0.4)"


@dataclass(frozen=True)
class Size:
    """How large an experiment is; a number that is not given is the published one.

    Epochs are a learner's, alphas those of the Dirichlet draw, the middle one the usual.
    """

    train: int = TRAIN
    test: int | None = None
    total_epochs: int = 200  # of all rounds together
    distill_epochs: int = 200
    batch_size: int = 1024
    probe: str = "both"
    data: str = "cifar10"
    model: str = "encoder18"
    alphas: tuple[float, ...] = (100, 1, 0.01)
    queue: int = 2048
    averaged: int = 10  # rounds of FedAvg and FedProx
    mus: tuple[float, ...] = (0.001, 0.01, 0.1, 1)  # of FedProx
    supervised: tuple[int, int] = (100, 128)  # epochs and batch size of training with labels
    rounds: tuple[int, ...] = (1, 2, 4, 10, 20, 40)  # that share the total epochs
    lasting: tuple[int, int] = (20, 100)  # rounds, and epochs in each
    local: tuple[int, ...] = (10, 25, 50, 100)  # epochs in each of two rounds
    converging: tuple[int, int, int] = (2000, 5, 20)  # epochs in all, rounds of FLESD, rounds of FedAvg

    @property
    def alpha(self) -> float:
        """The alpha of experiments that have one only."""
        return self.alphas[(len(self.alphas) - 1) // 2]

    def settings(self, scale: Scale, alpha: float, rounds: int, **method: Any) -> dict[str, Any]:
        """A run of so many rounds that share the total epochs, tested after the last."""
        return {
            **scale.settings(1),
            "data": self.data,
            "train": self.train,
            "test": self.test,
            "learners": LEARNERS,
            "seed": SEED,
            "partition": f"dirichlet({alpha:g})",
            "model": self.model,
            "optimizer": "adam",
            "lr": 1e-3,
            "weight_decay": 1e-6,
            "batch_size": self.batch_size,
            "rounds": rounds,
            "total_epochs": self.total_epochs,
            "eval_every": rounds,
            "probe": self.probe,
            "method": method,
        }

    def distilled(self, name: str = "flesd", **others: Any) -> dict[str, Any]:
        """FLESD as a method's settings."""
        own = {"objective": OBJECTIVE, "distill_epochs": self.distill_epochs, "queue": self.queue}
        return {"name": name, **own, **others}


PUBLISHED = Size()
SHORT = Size(
    total_epochs=60,
    distill_epochs=60,
    batch_size=256,
    supervised=(20, 128),
    rounds=(1, 2, 4, 10),
    lasting=(4, 20),
    local=(5, 10, 20, 40),
    converging=(100, 5, 20),
)
"""Three tenths of the epochs, in smaller batches so that there are enough steps: minutes of one large GPU."""
QUICK = Size(
    train=1200,
    test=500,
    total_epochs=8,
    distill_epochs=8,
    batch_size=32,
    model="lenet5",
    alphas=(100, 0.01),
    queue=128,
    averaged=4,
    mus=(0.01, 1),
    supervised=(8, 32),
    rounds=(1, 2, 4),
    lasting=(3, 4),
    local=(2, 4),
    converging=(16, 2, 8),
)
"""For two cores: everything has its place, and little is learned."""
SIZES = Sizes(PUBLISHED, SHORT, QUICK, fewer="epochs")


def circumstances(outcome: Outcome, batches: bool = True) -> str:
    """In a sentence: what was trained, on how much, and how; batches: whether theirs are all of one size."""
    config = RunFolder(outcome.folder).config
    published = " (published: all 50,000)" if config.data == "cifar10" else ""
    quick = (
        " This is the quick size: the published probe takes so few steps here that it may tell nothing; the nearest "
        "neighbors tell more."
        if (config.train or TRAIN) < TRAIN
        else ""
    )
    alike = f", weight decay {config.weight_decay:g}, batches of {config.batch_size}" if batches else ""
    return (
        f"{config.data}, {config.train:,} images{published} among {LEARNERS} learners, {config.model}; Adam, lr "
        f"{config.lr}{alike}.{quick}"
    )


def alpha_of(value: float) -> str:
    """An alpha as a label."""
    return f"alpha {value:g}"
