"""Two answers of one learner: one for everybody's data, one for data like its own.

Trained on its own class shares, a classifier learns these shares with everything else, and with skewed labels it is
wrong for everybody else. The calibrated loss adds the log of the learner's class shares to the logits (balanced
softmax, Ren et al. 2020), so that the logits say what the sample says, whatever the learner has most of. That is the
common answer. The own answer adds the class shares again, and a private head's correction (after FedRoD, Chen and Chao
2022). A learner that holds out samples chooses by them how much the common answer, with and without the head's
correction, and a model of its own count. Shares, head and own model never leave the learner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, cast

from torch import Tensor, nn
from torch.nn import functional as F

from consilience.exchanges.base import View
from consilience.functional.own_answer import choose_weights, mean_answer, own_logits, possible_answers
from consilience.objectives.base import Objective
from consilience.objectives.cross_entropy import CrossEntropy
from consilience.task import Task, TaskKind

OWN_HEAD, LOG_SHARES, WEIGHTS = "own_head", "log_shares", "answer_weights"
"""Names of its module, and of what it remembers."""
SMOOTHING = 0.05
"""Samples added to each class before shares are taken: a class that the learner has not stays possible."""
HEAD_DECAY = 0.01
"""Times the square of the head's weights, added to the loss: where data do not differ, a head has nothing to learn."""
HEAD_STEP = 320.0
"""Divided by the width of the features: how many times as long as the model's the head's steps are. So a step changes
its logits equally far whatever the width."""


@dataclass(frozen=True)
class TwoAnswers(CrossEntropy):
    """Cross-entropy whose logits leave out the learner's own class shares, and an answer for data like its own.

    calibrated: add the log of the class shares to the logits in training. own_head: train a private linear layer on the
    features, whose output is added to the own answer; it does not change the features. own_model: also train a second
    model by cross-entropy. chooses: the own answer is the mean of the common answer without and with the head's
    correction and of the own model's, as far as there are any, with weights that held-out samples choose.
    """

    has_private_modules: ClassVar[bool] = True
    rescaled_modules: ClassVar[tuple[str, ...]] = (OWN_HEAD,)
    calibrated: bool = True
    own_head: bool = False
    own_model: bool = False
    chooses: bool = False

    @property
    def has_own_answer(self) -> bool:
        """With any of them."""
        return self.calibrated or self.own_head or self.own_model

    @property
    def trains_own_model(self) -> bool:
        """Whether a second model is trained."""
        return self.own_model

    def for_held_out(self, held_out: bool) -> TwoAnswers:
        """With held-out samples the learner chooses by them; without, it has one model."""
        several = self.own_head or self.own_model
        return replace(self, own_model=self.own_model and held_out, chooses=several and held_out)

    def for_kind(self, kind: TaskKind) -> Objective:
        """The plain loss where a sample has no class: then there are no class shares to leave out of the logits."""
        return self if kind in self.kinds else CrossEntropy().for_kind(kind)

    def step_factor(self, task: Task) -> float:
        """A linear layer on given features can learn faster than the features."""
        return HEAD_STEP / task.width

    def modules(self, task: Task) -> dict[str, nn.Module]:
        """The private head; it starts at zero, where both answers differ by the class shares alone."""
        if not self.own_head:
            return {}
        head = nn.Linear(task.width, task.classes)
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        return {OWN_HEAD: head}

    def init_state(self, task: Task, class_counts: Tensor) -> Mapping[str, Tensor]:
        """The log of the learner's own class shares, and the weights of the answers that it chooses from."""
        shares = {LOG_SHARES: log_shares(class_counts)} if self.calibrated else {}
        answers = 1 + self.own_head + self.own_model
        return shares | ({WEIGHTS: class_counts.new_full((answers,), 1 / answers)} if self.chooses else {})

    def loss(self, view: View) -> Tensor:
        """The loss of a mini-batch: of the common answer, and of what else is trained for the own one."""
        common = own_logits(view.logits, view.features, self._log_shares(view), None)
        loss = F.cross_entropy(common, view.targets)
        if self.own_head:
            head = cast(nn.Linear, view.modules[OWN_HEAD])
            decay = head.weight.square().sum() + head.bias.square().sum()
            loss = loss + F.cross_entropy(self._corrected(view), view.targets) + HEAD_DECAY * decay
        if self.own_model and view.own_model is not None:
            loss = loss + F.cross_entropy(view.own_model(view.inputs)[1], view.targets)
        return loss

    def batch_accuracy(self, view: View) -> Tensor:
        """The share of a mini-batch that the common model, corrected for data like the learner's own, predicts."""
        return (self._corrected(view).argmax(1) == view.targets).to(view.logits.dtype).mean()

    def own_logits(self, view: View) -> Tensor:
        """The corrected answer of the common model, (rows, classes), or the mean of all answers."""
        if not self.chooses:
            return self._corrected(view)
        return mean_answer(self._answers(view), view.objective_state[WEIGHTS])

    def choose(self, view: View) -> Mapping[str, Tensor]:
        """Choose how much each answer counts, by samples that the learner held out."""
        if not self.chooses:
            return {}
        return {WEIGHTS: choose_weights(self._answers(view), view.targets, view.valid)}

    def _answers(self, view: View) -> Tensor:
        """The answers to choose from, (answers, rows, classes)."""
        own = view.own_model(view.inputs)[1] if self.own_model and view.own_model is not None else None
        return possible_answers(view.logits, view.features, self._log_shares(view), self._head(view), own)

    def _corrected(self, view: View) -> Tensor:
        """The common answer, the learner's class shares, and the private head's correction, (rows, classes)."""
        return own_logits(view.logits.detach(), view.features.detach(), self._log_shares(view), self._head(view))

    def _head(self, view: View) -> Callable[[Tensor], Tensor] | None:
        return view.modules[OWN_HEAD] if self.own_head else None

    def _log_shares(self, view: View) -> Tensor | None:
        return view.objective_state[LOG_SHARES] if self.calibrated else None


def log_shares(class_counts: Tensor) -> Tensor:
    """The log of a learner's class shares, (classes,), a little more than it has of each class."""
    smoothed = class_counts + SMOOTHING
    return (smoothed / smoothed.sum()).log()
