"""Two-stage learning: a private part that reveals little of its inputs, below a common one (Ma et al. 2020).

    alpha_1 log DCOR(x, z) + alpha_2 CE(local head(z), y) + lam CE(server(z), y)

x are the inputs, z the output of the cut layer, DCOR their distance correlation. z never leaves the device. Not in the
paper: calibrated adds the log of the device's class shares to the logits of both heads, as `two_answers` does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from consilience.config.schedules import constant_number
from consilience.errors import ConfigurationError
from consilience.exchanges.base import CUT, View
from consilience.functional.distance_correlation import log_distance_correlation
from consilience.objectives.cross_entropy import CrossEntropy
from consilience.objectives.two_answers import LOG_SHARES, log_shares
from consilience.task import Task


@dataclass(frozen=True)
class TwoStage(CrossEntropy):
    """Learn from labels at two heads, and keep the dependence of the cut layer's output on the inputs small.

    alpha_1: weight of the dependence of z on the inputs, alpha_2: of the device's own small head, lam: of the server.
    calibrated: whether the logits leave out the device's own class shares; its answer for data like its own adds them.
    """

    name: ClassVar[str] = "two_stage"
    has_device_head: ClassVar[bool] = True
    small_batch_hint: ClassVar[str] = "set alpha_1 to 0"
    layers = (CUT,)
    alpha_1: float = 0.1
    alpha_2: float = 1.0
    lam: float = 1.0
    calibrated: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.calibrated, bool):
            raise ConfigurationError(f"calibrated is {self.calibrated!r}; it must be true or false")
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
        total = self.lam * F.cross_entropy(self._with_shares(view, view.logits), view.targets)
        if self.alpha_2:
            device = self._with_shares(view, self.device_logits(view))
            total = total + self.alpha_2 * F.cross_entropy(device, view.targets)
        if self.alpha_1:
            total = total + self.alpha_1 * log_distance_correlation(inputs_for_distances(view.task, view.inputs), z)
        return total

    @property
    def has_own_answer(self) -> bool:
        """With the class shares, if the logits leave them out."""
        return self.calibrated

    def init_state(self, task: Task, class_counts: Tensor) -> Mapping[str, Tensor]:
        """The log of the device's own class shares, where it calibrates."""
        return {LOG_SHARES: log_shares(class_counts)} if self.calibrated else {}

    def own_logits(self, view: View) -> Tensor:
        """The server's logits with the device's class shares, (rows, classes)."""
        return self._with_shares(view, view.logits)

    def batch_accuracy(self, view: View) -> Tensor:
        """The share of a mini-batch that the own answer predicts."""
        return (self.own_logits(view).argmax(1) == view.targets).to(view.logits.dtype).mean()

    def _with_shares(self, view: View, logits: Tensor) -> Tensor:
        return logits + view.objective_state[LOG_SHARES] if self.calibrated else logits

    def device_logits(self, view: View) -> Tensor:
        """The logits of the device's own head, (rows, classes)."""
        logits: Tensor = view.modules["head"](view.outputs[CUT].to(view.logits.dtype).flatten(1))
        return logits


def inputs_for_distances(task: Task, inputs: Tensor) -> Tensor:
    """Inputs to measure distances between: codes of characters become one-hot, since their values mean nothing."""
    return F.one_hot(inputs.long(), task.symbols).to(inputs.dtype) if task.symbols else inputs  # (rows, ..., symbols)
