"""The interface of an objective: a learner's own loss for a mini-batch, as a pure function for one learner."""

from __future__ import annotations

import math
from typing import ClassVar

from torch import Tensor, nn

from consilience.exchanges.base import View
from consilience.task import Task


class Objective:
    """The learner's own loss; exchanges add their penalties to it. Subclasses are frozen dataclasses."""

    name: ClassVar[str] = "objective"
    """Name of its loss term."""
    labeled: ClassVar[bool] = True
    """Whether it trains the model's classifier: where it does not, representations are evaluated by probes."""
    compares_samples: ClassVar[bool] = False
    """Whether it compares the samples of a batch: then a batch has at least two, and none twice."""
    has_own_head: ClassVar[bool] = False
    """Whether it has a classification head of its own beside the model's classifier: see `head_logits`."""
    small_batch_hint: ClassVar[str] = "use another objective"
    """What an error advises where batches have one sample and it compares samples."""
    layers: tuple[str, ...] = ()
    """Modules of the model whose outputs the view carries."""

    @property
    def batch_draws(self) -> int:
        """How many uniform numbers `prepare` needs for each row of a mini-batch."""
        return 0

    def modules(self, task: Task) -> dict[str, nn.Module]:
        """Extra modules that the local optimizer trains beside the model, such as a projection head."""
        return {}

    def prepare(self, task: Task, inputs: Tensor, draws: Tensor) -> Tensor:
        """The inputs of the model for a mini-batch: the inputs themselves, (rows, ...), or augmented views of them.

        Several views of each are one after the other, (views x rows, ...), and each counts as a sample of its class.
        """
        return inputs

    def loss(self, view: View) -> Tensor:
        """The loss of a mini-batch."""
        raise NotImplementedError

    def head_logits(self, view: View) -> Tensor:
        """The logits of its own head, (rows, classes)."""
        raise NotImplementedError

    def batch_accuracy(self, view: View) -> Tensor:
        """The share of a mini-batch that the model predicts correctly, 0 to 1; NaN where it is not trained to."""
        return view.features.new_full((), math.nan)
