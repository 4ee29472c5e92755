"""Learners with different models learn together, for what they share is as wide in all of them.

Two have a LeNet5, two a perceptron, two a wide convolution of their own; all end in d' = 32 features. FedAvg could do
nothing here. Prototypes and observations, (classes, d') each, mean the same to all. What each learner reaches
stands beside what it reaches by itself, good or bad.

    python examples/mixed_architectures.py
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from consilience import Result, SplitModel, simulate
from consilience.models import build

WIDTH = 32  # d', the same for all
SHAPE = (1, 8, 8)  # of an input
CLASSES = 10


def lenet5() -> SplitModel:
    """The library's own, narrowed from its 84 features."""
    return build("lenet5", SHAPE, CLASSES, width=WIDTH)


def mlp() -> SplitModel:
    """The library's own."""
    return build("mlp", SHAPE, CLASSES, width=WIDTH)


def patches() -> SplitModel:
    """Neither: one layer of 2 x 2 patches, (n, 1, 8, 8) -> (n, 24, 4, 4) -> (n, 32)."""
    features = nn.Sequential(
        nn.Conv2d(1, 24, kernel_size=2, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(24 * 4 * 4, WIDTH), nn.Tanh()
    )
    return SplitModel(features, nn.Linear(WIDTH, CLASSES), bound=1.0)


MODELS: list[Callable[[], SplitModel]] = [lenet5, lenet5, mlp, mlp, patches, patches]  # one for each learner


def run(method: str) -> Result:
    """Six learners with 30 digits each, two seeds."""
    return simulate(
        method=method, model=MODELS, learners=6, train=180, epochs=5, rounds=25, seeds=2, eval_every=25, workers=0
    )


def main() -> None:
    """Each learner's accuracy, by itself and together."""
    apart, together = run("independent"), run("representation-sharing")
    before, after = apart.accuracy.mean(0), together.accuracy.mean(0)  # (seeds, learners) -> (learners,)
    print("learner  model    independent %  together %   gain")
    for who, model in enumerate(MODELS):
        gain = after[who] - before[who]
        print(f"{who:7}  {model.__name__:8} {before[who]:12.1f} {after[who]:11.1f} {gain:+7.1f}")
    print(f"{'mean':17} {before.mean():12.1f} {after.mean():11.1f} {after.mean() - before.mean():+7.1f}")
    up, seeds = together.message_bytes["up"], len(together.history.seeds)
    print(f"{up:,} bytes up a learner and round, whatever the model; means over {seeds} seeds")


if __name__ == "__main__":
    main()
