"""Two-stage learning: a private part that reveals little of its inputs, below a common one (Ma et al. 2020).

    alpha_1 log DCOR(x, z) + alpha_2 CE(local head(z), y) + lam CE(server(z), y)

x are the inputs, z the output of the cut layer, DCOR their distance correlation. z never leaves the device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from consilience.config.schedules import constant_number
from consilience.errors import ConfigurationError
from consilience.exchanges.base import CUT, View
from consilience.functional.distance_correlation import log_distance_correlation
from consilience.objectives.cross_entropy import CrossEntropy
from consilience.task import Task


@dataclass(frozen=True)
class TwoStage(CrossEntropy):
    """Learn from labels at two heads, and keep the dependence of the cut layer's output on the inputs small.

    alpha_1: weight of the dependence of z on the inputs, alpha_2: of the device's own small head, lam: of the server.
    """

    name: ClassVar[str] = "two_stage"
    has_device_head: ClassVar[bool] = True
    small_batch_hint: ClassVar[str] = "set alpha_1 to 0"
    layers = (CUT,)
    alpha_1: float = 0.1
    alpha_2: float = 1.0
    lam: float = 1.0

    def __post_init__(self) -> None:
        for weight in ("alpha_1", "alpha_2", "lam"):
            constant_number(weight, getattr(self, weight))
        if not self.alpha_2 and not self.lam:
            raise ConfigurationError("alpha_2 and lam are both 0, so nothing is learned; set one of them above 0")

    @property
    def compares_samples(self) -> bool:  # type: ignore[override]  # depends on a weight
        """Distances need two samples."""
        return self.alpha_1 > 0

    def modules(self, task: Task) -> dict[str, nn.Module]:
        """The device's own small head."""
        return {"head": nn.Linear(math.prod(task.cut), task.classes)} if task.cut is not None else {}

    def loss(self, view: View) -> Tensor:
        """The loss of a mini-batch."""
        z = view.outputs[CUT].to(view.logits.dtype)  # (rows, ...)
        total = self.lam * super().loss(view)
        if self.alpha_2:
            total = total + self.alpha_2 * F.cross_entropy(self.device_logits(view), view.targets)
        if self.alpha_1:
            total = total + self.alpha_1 * log_distance_correlation(inputs_for_distances(view.task, view.inputs), z)
        return total

    def device_logits(self, view: View) -> Tensor:
        """The logits of the device's own head, (rows, classes)."""
        logits: Tensor = view.modules["head"](view.outputs[CUT].to(view.logits.dtype).flatten(1))
        return logits


def inputs_for_distances(task: Task, inputs: Tensor) -> Tensor:
    """Inputs to measure distances between: codes of characters become one-hot, since their values mean nothing."""
    return F.one_hot(inputs.long(), task.symbols).to(inputs.dtype) if task.symbols else inputs  # (rows, ..., symbols)
