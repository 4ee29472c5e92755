"""Cross-entropy: ordinary supervised classification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from consilience.exchanges.base import View
from consilience.objectives.base import Objective


@dataclass(frozen=True)
class CrossEntropy(Objective):
    """Mean negative log-likelihood of the correct class."""

    name: ClassVar[str] = "cross_entropy"

    def loss(self, view: View) -> Tensor:
        """The loss of a mini-batch."""
        return F.cross_entropy(view.logits, view.targets)

    def batch_accuracy(self, view: View) -> Tensor:
        """The share of a mini-batch whose largest logit is that of its class."""
        return (view.logits.argmax(1) == view.targets).to(view.logits.dtype).mean()
