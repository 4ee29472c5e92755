"""Learners with different architectures learn together, because their features have the same width.

Two learners have a LeNet5, two a perceptron, two a small convolutional network; all have d' = 32 features. FedAvg is
impossible here. Prototypes and observations have shape (classes, d') for every architecture. The table compares each
learner with itself trained independently.

    python examples/mixed_architectures.py
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from consilience import Result, SplitModel, simulate
from consilience.models import build_model

WIDTH = 32  # d', the same for all learners
SHAPE = (1, 8, 8)  # of an input
CLASSES = 10


def lenet5() -> SplitModel:
    """The built-in LeNet5 with 32 features instead of 84."""
    return build_model("lenet5", SHAPE, CLASSES, width=WIDTH)


def mlp() -> SplitModel:
    """The built-in perceptron."""
    return build_model("mlp", SHAPE, CLASSES, width=WIDTH)


def patches() -> SplitModel:
    """One convolution over 2 x 2 patches: (n, 1, 8, 8) -> (n, 24, 4, 4) -> (n, 32)."""
    features = nn.Sequential(
        nn.Conv2d(1, 24, kernel_size=2, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(24 * 4 * 4, WIDTH), nn.Tanh()
    )
    return SplitModel(features, nn.Linear(WIDTH, CLASSES), bound=1.0)


MODELS: list[Callable[[], SplitModel]] = [lenet5, lenet5, mlp, mlp, patches, patches]  # one per learner


def run(method: str) -> Result:
    """Six learners with 30 digits each, two seeds."""
    return simulate(
        method=method, model=MODELS, learners=6, train=180, epochs=5, rounds=25, seeds=2, eval_every=25, workers=0
    )


def main() -> None:
    """Print each learner's accuracy, trained independently and together."""
    independent, together = run("independent"), run("representation-sharing")
    before, after = independent.accuracy.mean(0), together.accuracy.mean(0)  # (seeds, learners) -> (learners,)
    print("learner  model    independent %  together %   gain")
    for learner, model in enumerate(MODELS):
        gain = after[learner] - before[learner]
        print(f"{learner:7}  {model.__name__:8} {before[learner]:12.1f} {after[learner]:11.1f} {gain:+7.1f}")
    print(f"{'mean':17} {before.mean():12.1f} {after.mean():11.1f} {after.mean() - before.mean():+7.1f}")
    upload, seeds = together.message_bytes["up"], len(together.history.seeds)
    print(f"{upload:,} bytes uploaded per learner and round, for every model; means over {seeds} seeds")


if __name__ == "__main__":
    main()
