"""The interface of an objective: a learner's own loss for a mini-batch, as a pure function for one learner."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn

from consilience.exchanges.base import View
from consilience.task import Task, TaskKind


class Objective:
    """The learner's own loss; exchanges add their penalties to it. Subclasses are frozen dataclasses."""

    name: ClassVar[str] = "objective"
    """Name of its loss term."""
    labeled: ClassVar[bool] = True
    """Whether it trains the model's classifier: where it does not, representations are evaluated by probes."""
    kinds: ClassVar[tuple[TaskKind, ...]] = ("single-label",)
    """The kinds of tasks that it serves; for others `for_kind` may return another objective."""
    compares_samples: ClassVar[bool] = False
    """Whether it compares the samples of a batch: then a batch has at least two, and none twice."""
    has_device_head: ClassVar[bool] = False
    """Whether a split model's private part has a classification head of its own: see `device_logits`."""
    has_private_modules: ClassVar[bool] = False
    """Whether its modules stay with the learner, whatever part of the model exchanges share."""
    rescaled_modules: ClassVar[tuple[str, ...]] = ()
    """Those of its modules whose steps are `step_factor` times the model's, with an adaptive optimizer."""
    small_batch_hint: ClassVar[str] = "use another objective"
    """What an error advises where batches have one sample and it compares samples."""
    layers: tuple[str, ...] = ()
    """Modules of the model whose outputs the view carries."""

    @property
    def batch_draws(self) -> int:
        """How many uniform numbers `prepare` needs for each row of a mini-batch."""
        return 0

    @property
    def has_own_answer(self) -> bool:
        """Whether a learner answers for data like its own otherwise than for everybody's: see `own_logits`."""
        return False

    @property
    def trains_own_model(self) -> bool:
        """Whether a second model, which never leaves the learner, is trained beside the first: `View.own_model`."""
        return False

    @property
    def chooses(self) -> bool:
        """Whether it chooses something by samples that the learner holds out: see `choose`."""
        return False

    def for_held_out(self, held_out: bool) -> Objective:
        """The objective for a learner that holds out samples, by which it can choose, or for one that does not."""
        return self

    def for_kind(self, kind: TaskKind) -> Objective:
        """The objective for a kind of task: the plain loss of the kind where this one is a loss of classes."""
        return self

    def step_factor(self, task: Task) -> float:
        """How many times as long as the model's the steps of `rescaled_modules` are."""
        return 1.0

    def modules(self, task: Task) -> dict[str, nn.Module]:
        """Extra modules that the local optimizer trains beside the model, such as a projection head."""
        return {}

    def init_state(self, task: Task, class_counts: Tensor) -> Mapping[str, Tensor]:
        """What it remembers of the learner's own data, by name: views have it as `objective_state`.

        class_counts: how many samples of each class the learner trains on, (classes,). It never leaves the learner.
        """
        return {}

    def prepare(self, task: Task, inputs: Tensor, draws: Tensor) -> Tensor:
        """The inputs of the model for a mini-batch: the inputs themselves, (rows, ...), or augmented views of them.

        Several views of each are one after the other, (views x rows, ...), and each counts as a sample of its class.
        """
        return inputs

    def loss(self, view: View) -> Tensor:
        """The loss of a mini-batch."""
        raise NotImplementedError

    def own_logits(self, view: View) -> Tensor:
        """The learner's own answer, (rows, classes): for data like its own."""
        return view.logits

    def choose(self, view: View) -> Mapping[str, Tensor]:
        """What it remembers otherwise from now on, chosen by samples the learner held out; `valid` is 0 for padding."""
        return {}

    def device_logits(self, view: View) -> Tensor:
        """The logits of the private part's own head, (rows, classes)."""
        raise NotImplementedError

    def batch_accuracy(self, view: View) -> Tensor:
        """The share of a mini-batch that the model predicts correctly, 0 to 1; NaN where there is none."""
        return view.features.new_full((), math.nan)
