"""Two answers of one learner: one for everybody's data, one for data like its own.

Trained on its own class shares, a classifier learns these shares with everything else, and with skewed labels it is
wrong for everybody else. The calibrated loss adds the log of the learner's class shares to the logits (balanced
softmax, Ren et al. 2020), so that the logits say what the sample says, whatever the learner has most of. That is the
common answer. The own answer adds the class shares again, and a private head's correction (after FedRoD, Chen and Chao
2022). Neither the shares nor the head leave the learner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from consilience.exchanges.base import View
from consilience.functional.own_answer import own_logits
from consilience.objectives.cross_entropy import CrossEntropy
from consilience.task import Task

OWN_HEAD, LOG_SHARES = "own_head", "log_shares"
"""Names of its module, and of what it remembers."""
SMOOTHING = 0.05
"""Samples added to each class before shares are taken: a class that the learner has not stays possible."""


@dataclass(frozen=True)
class TwoAnswers(CrossEntropy):
    """Cross-entropy whose logits leave out the learner's own class shares, and an answer for data like its own.

    calibrated: add the log of the class shares to the logits in training. own_head: train a private linear layer on the
    features, whose output is added to the own answer; it does not change the features.
    """

    has_private_modules: ClassVar[bool] = True
    private_step: ClassVar[float] = 10.0  # a linear layer on given features can learn faster than the features
    calibrated: bool = True
    own_head: bool = False

    @property
    def has_own_answer(self) -> bool:
        """With either of them."""
        return self.calibrated or self.own_head

    def modules(self, task: Task) -> dict[str, nn.Module]:
        """The private head; it starts at zero, where both answers differ by the class shares alone."""
        if not self.own_head:
            return {}
        head = nn.Linear(task.width, task.classes)
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        return {OWN_HEAD: head}

    def init_state(self, task: Task, class_counts: Tensor) -> Mapping[str, Tensor]:
        """The log of the learner's own class shares."""
        if not self.calibrated:
            return {}
        smoothed = class_counts + SMOOTHING
        return {LOG_SHARES: (smoothed / smoothed.sum()).log()}

    def loss(self, view: View) -> Tensor:
        """The loss of a mini-batch: of both answers, where the own one has something to learn."""
        common = F.cross_entropy(own_logits(view.logits, view.features, self._log_shares(view), None), view.targets)
        return common + F.cross_entropy(self.own_logits(view), view.targets) if self.own_head else common

    def batch_accuracy(self, view: View) -> Tensor:
        """The share of a mini-batch, data like the learner's own, that the own answer predicts correctly."""
        return (self.own_logits(view).argmax(1) == view.targets).to(view.logits.dtype).mean()

    def own_logits(self, view: View) -> Tensor:
        """The common answer, the learner's class shares, and the private head's correction, (rows, classes)."""
        head = view.modules[OWN_HEAD] if self.own_head else None
        return own_logits(view.logits.detach(), view.features.detach(), self._log_shares(view), head)

    def _log_shares(self, view: View) -> Tensor | None:
        return view.objective_state[LOG_SHARES] if self.calibrated else None
