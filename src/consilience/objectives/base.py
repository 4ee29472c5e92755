"""What an objective is: a learner's own loss for a mini-batch, as a pure function for one learner."""

from __future__ import annotations

import math
from typing import ClassVar

from torch import Tensor, nn

from consilience.exchanges.base import View
from consilience.task import Task


class Objective:
    """The learner's own loss; exchanges add their penalties to it. Subclasses are frozen dataclasses."""

    name: ClassVar[str] = "objective"
    """Of its loss term."""
    labeled: ClassVar[bool] = True
    """Whether it teaches the model's classifier: where not, representations are tested and not what it tells."""
    apart: ClassVar[bool] = False
    """Whether the samples of a batch are told apart: then none is in a batch twice, and one alone is not enough."""
    headed: ClassVar[bool] = False
    """Whether it has a head of its own that tells classes, beside the model's classifier: see `head`."""
    way_out: ClassVar[str] = "take another objective"
    """What to do where batches of one sample are wanted and it needs more."""
    layers: tuple[str, ...] = ()
    """Modules of the model whose outputs the view should carry."""

    @property
    def batch_draws(self) -> int:
        """Uniform numbers it wants for each row of a batch."""
        return 0

    def modules(self, task: Task) -> dict[str, nn.Module]:
        """Extra modules that the local optimizer trains beside the model, such as a projection head."""
        return {}

    def prepare(self, task: Task, inputs: Tensor, draws: Tensor) -> Tensor:
        """What the model is shown of a batch: the inputs themselves, (rows, ...), or views drawn of them.

        Several views of each are one after the other, (views x rows, ...), and each counts as a sample of its class.
        """
        return inputs

    def loss(self, view: View) -> Tensor:
        """The loss of a mini-batch."""
        raise NotImplementedError

    def head(self, view: View) -> Tensor:
        """What its own head tells of samples, (rows, classes)."""
        raise NotImplementedError

    def right(self, view: View) -> Tensor:
        """The share of a mini-batch that the model tells right, 0 to 1; no number where there is nothing to tell."""
        return view.features.new_full((), math.nan)
