"""What prototypes and logits have in common: class means, averaged over learners, that training is pulled toward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from torch import Tensor

from consilience.config.schedules import Rate, number_or_schedule
from consilience.exchanges.averaging import AveragingExchange
from consilience.exchanges.base import Contribution, Received, Scope, State, View
from consilience.functional.group_channels import means_channel
from consilience.functional.group_means import (
    Weighting,
    distance_to_expected,
    group_means,
    relative_distance_to_expected,
    upload_weight,
)
from consilience.kinds import ALL_KINDS, group_count, kind_of
from consilience.task import Task, TaskKind
from consilience.validation import check_choice, check_integer
from consilience.wire import schema
from consilience.wire.encodings import FLOAT32, Encoding

Scale = Literal["absolute", "relative"]
"""How distances count: as they are, or relative to how far the means of different classes are apart."""


@dataclass(frozen=True)
class ClassMeans(AveragingExchange):
    """Pull features or logits of every sample toward their mean over all learners' samples of the class.

    In multi-label classification a sample is pulled toward the mean of its labels' means, in a regression toward that
    of its bin.

    The squared distance is a mean over batch and dimensions: summed over dimensions the same weight would collapse
    training. scale: with "relative", distances count relative to the spread of the means, so that one weight serves any
    model, at any time of training. weighting: with "equal", each learner that has a class counts once, and its sample
    counts are not uploaded.
    """

    uploads_before_training: ClassVar[bool] = True
    allows_partners: ClassVar[bool] = True
    kinds: ClassVar[tuple[TaskKind, ...]] = ALL_KINDS
    averaged: ClassVar[str]
    """What is averaged, in a word."""
    weight: Rate = 10.0
    min_count: int = 2
    encoding: Encoding = FLOAT32
    scope: Scope = "everybody"
    scale: Scale = "absolute"
    weighting: Weighting = "samples"

    def __post_init__(self) -> None:
        number_or_schedule("kd", self.weight)
        check_integer("min_count", self.min_count)
        check_choice("scope", self.scope, get_args(Scope))
        check_choice("scale", self.scale, get_args(Scale))
        check_choice("weighting", self.weighting, get_args(Weighting))

    def of(self, view: View) -> Tensor:
        """What is averaged over the samples of a class, (rows, width)."""
        raise NotImplementedError

    def width(self, task: Task) -> int:
        """The width of what is averaged."""
        raise NotImplementedError

    def bound(self, task: Task) -> float:
        """The largest absolute value of what is averaged."""
        raise NotImplementedError

    def channel(self, task: Task) -> schema.Mean:
        """A standing mean of (groups, width), weighted by group counts, or with equal weights of at most 1."""
        shape = (group_count(task), self.width(task))
        return means_channel(self.name, shape, self.bound(task), self.encoding, self.weighting, self.scope)

    def describe_upload(self) -> str:
        """What leaves the learner, in a few words."""
        count = " and the sample count" if self.weighting == "samples" else ""
        single = f"; of a class with one sample, the {self.averaged} of that sample" if self.min_count == 1 else ""
        return f"the mean {self.averaged}{count} of each class{single}"

    def penalty(self, state: State, view: View, received: Received) -> Tensor:
        """Mean squared distance to the global mean of the sample's class, label or bin."""
        means, count = received.tensors["mean"], received.count
        expected, known = kind_of(view.task).expected(view.task, view.targets, means, count)
        values = self.of(view)
        if self.scale == "absolute":
            return distance_to_expected(values, expected, known.to(values.dtype))
        return relative_distance_to_expected(values, expected, known.to(values.dtype), means, count)

    def contribute(self, state: State, view: View, received: Received) -> Contribution:
        """The learner's own class means, weighted by the number of samples of each, or equally."""
        means, count = group_means(self.of(view), _members(view), self.min_count)
        return Contribution({"mean": means}, upload_weight(count, self.weighting))

    def class_samples(self, view: View) -> tuple[Tensor, Tensor]:
        """What is averaged, over all samples of a class."""
        return self.of(view), _members(view)[None]


def _members(view: View) -> Tensor:
    """Which rows are samples of which group, (rows, groups)."""
    return kind_of(view.task).membership(view.task, view.targets, view.valid)
