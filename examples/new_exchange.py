"""A new exchange in one file: learners share how similar their classes are, and nothing else.

A learner uploads a (classes, classes) table: the mean cosine between the features of two samples, by their classes. No
feature leaves the learner, and the table has the same size for every model, so learners may even have different feature
widths. The penalty pulls the cosine of every pair of samples in a mini-batch toward the federation's mean for their two
classes. The result is compared with representation sharing.

    python examples/new_exchange.py

The commands take it by name, with its fields as settings:

    consilience compare --methods independent,examples/new_exchange.py:ClassSimilarity:weight=3
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from consilience import (
    Contribution,
    Exchange,
    Method,
    Received,
    Role,
    State,
    Task,
    View,
    build_model,
    class_means,
    schema,
    simulate,
)


@dataclass(frozen=True)
class ClassSimilarity(Exchange):
    """Pull the cosine of each pair of samples toward the mean cosine of their two classes over all learners."""

    name: str = "class-similarity"
    weight: float = 1.0

    def describe_upload(self) -> str:
        """Say in a few words what leaves the learner."""
        return "the mean cosine of each pair of classes"

    def channel(self, task: Task) -> schema.Mean:
        """A mean over learners of (classes, classes); each entry is over the learners that have both classes."""
        shape = (task.classes, task.classes)
        return schema.Mean(self.name, {"cosine": schema.Tensor(shape, low=-1.001, high=1.001)}, rows=shape)

    def contribute(self, state: State, view: View, received: Received) -> Contribution:
        """The mean cosine over all pairs of samples is the dot product of the classes' mean directions."""
        direction = F.normalize(view.features, dim=1)  # (rows, width)
        # means: (classes, width), count: (classes,)
        means, count = class_means(direction, view.targets, view.task.classes, view.valid, min_count=2)
        present = (count > 0).to(means.dtype)  # (classes,)
        return Contribution({"cosine": means @ means.T}, present[:, None] * present)  # both (classes, classes)

    def penalty(self, state: State, view: View, received: Received) -> Tensor:
        """Mean squared difference to the federation's cosines, over the pairs for which there is one."""
        direction = F.normalize(view.features, dim=1)  # (rows, width)
        cosine = direction @ direction.T  # (rows, rows)
        classes = view.targets[:, None], view.targets[None, :]
        target = received.tensors["cosine"][classes]  # (rows, rows)
        # The cosine of a sample with itself is always 1, and before the first download all counts are 0.
        known = (received.count[classes] > 0).to(cosine.dtype) * (1 - torch.eye(len(cosine), device=cosine.device))
        return ((cosine - target).square() * known).sum() / known.sum().clamp(min=1)


def main() -> None:
    """Compare the new method with built-in ones; then run it with models of different feature widths."""
    method = Method("class-similarity", {"learner": Role(exchanges=(ClassSimilarity(weight=3.0),))})
    print("method                  accuracy %   ± over seeds   bytes uploaded per round")
    for compared in ("independent", "self-distillation", method, "representation-sharing"):
        result = simulate(
            method=compared, learners=5, train=200, epochs=3, rounds=30, seeds=2, eval_every=30, workers=0
        )
        summary = result.summary()
        accuracy, upload = summary["accuracy"], result.message_bytes["up"]
        print(f"{summary['method']:24} {accuracy['mean']:9.1f} {accuracy['std_seeds']:14.1f} {upload:26,}")

    widths = (16, 32, 64)
    models = [partial(build_model, "mlp", (1, 8, 8), 10, width) for width in widths]
    result = simulate(method=method, model=models, learners=3, train=120, epochs=3, rounds=30, eval_every=30, workers=0)
    each = ", ".join(f"{a:.1f} % with {w}" for a, w in zip(result.accuracy[0], widths, strict=True))
    print(f"different feature widths: {each}")


if __name__ == "__main__":
    main()
