"""An exchange of one's own, in one file: learners agree on how alike classes look, and share nothing else.

What leaves a learner is a table of classes x classes, the mean cosine between the features of two samples, by their
classes: "a 3 is like an 8". No feature leaves, and the table is as large for any model, so learners need not even have
features of one width. Training then pulls the cosine of every pair in a mini-batch toward what the federation has
for their two classes. It is measured against representation sharing, good or bad.

    python examples/new_exchange.py
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from consilience import Exchange, Method, Role, simulate
from consilience.exchanges import Contribution, Received, State, View
from consilience.functional.class_means import class_means
from consilience.models import build
from consilience.task import Task
from consilience.wire import schema


@dataclass(frozen=True)
class Likeness(Exchange):
    """Pull the cosines between samples toward those that everybody's samples of the two classes have."""

    name: str = "likeness"
    weight: float = 1.0

    def describe_upload(self) -> str:
        """In a few words: what leaves the learner."""
        return "how alike two classes look, one number a pair"

    def channel(self, task: Task) -> schema.Mean:
        """A mean over learners of (classes, classes), each entry over those who have both classes."""
        shape = (task.classes, task.classes)
        return schema.Mean(self.name, {"cosine": schema.Tensor(shape, low=-1.001, high=1.001)}, rows=shape)

    def contribute(self, state: State, view: View, received: Received) -> Contribution:
        """The mean cosine over all pairs of samples is the product of the classes' mean directions."""
        direction = F.normalize(view.features, dim=1)  # (rows, width)
        means, count = class_means(direction, view.targets, view.task.classes, view.valid, least=2)  # (classes, width)
        present = (count > 0).to(means.dtype)  # (classes,)
        return Contribution({"cosine": means @ means.T}, present[:, None] * present)  # both (classes, classes)

    def penalty(self, state: State, view: View, received: Received) -> Tensor:
        """Mean squared distance of each pair's cosine from the federation's, over pairs somebody knows of."""
        direction = F.normalize(view.features, dim=1)  # (rows, width)
        mine = direction @ direction.T  # (rows, rows)
        pairs = view.targets[:, None], view.targets[None, :]
        wanted = received.tensors["cosine"][pairs]  # (rows, rows)
        # A sample is like itself whatever it is; and before the first answer nobody knows of anything.
        known = (received.count[pairs] > 0).to(mine.dtype) * (1 - torch.eye(len(mine), device=mine.device))
        return ((mine - wanted).square() * known).sum() / known.sum().clamp(min=1)


def main() -> None:
    """The new method beside learning alone and representation sharing; then among models of several widths."""
    mine = Method("likeness", {"learner": Role(exchanges=(Likeness(weight=3.0),))})
    print("method                  accuracy %   ± of seeds   bytes up a round")
    for method in ("independent", "self-distillation", mine, "representation-sharing"):
        result = simulate(method=method, learners=5, train=200, epochs=3, rounds=30, seeds=2, eval_every=30, workers=0)
        found = result.summary()
        reached = found["accuracy"]
        print(
            f"{found['method']:24} {reached['mean']:9.1f} {reached['std_seeds']:12.1f} {result.message_bytes['up']:18,}"
        )

    widths = (16, 32, 64)
    models = [partial(build, "mlp", (1, 8, 8), 10, width) for width in widths]
    result = simulate(method=mine, model=models, learners=3, train=120, epochs=3, rounds=30, eval_every=30, workers=0)
    told = ", ".join(f"{a:.1f} % with {w}" for a, w in zip(result.accuracy[0], widths, strict=True))
    print(f"features of three widths: {told}")


if __name__ == "__main__":
    main()
