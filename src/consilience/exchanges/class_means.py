"""What prototypes and logits have in common: class means, averaged over learners, that training is pulled toward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from torch import Tensor

from consilience.config.schedules import Rate, number_or_schedule
from consilience.exchanges.averaging import AveragingExchange
from consilience.exchanges.base import Contribution, Received, Scope, State, View
from consilience.functional.class_means import (
    Weighting,
    class_means,
    distance_to_means,
    membership,
    relative_distance_to_means,
    upload_weight,
)
from consilience.task import Task
from consilience.validation import check_choice, check_integer
from consilience.wire import schema
from consilience.wire.encodings import FLOAT32, Encoding
from consilience.wire.robustness import PLAIN, Robustness

Scale = Literal["absolute", "relative"]
"""How distances count: as they are, or relative to how far the means of different classes are apart."""
_ONE_EACH = Robustness(weight_cap=1)  # a learner that claims more counts as one


@dataclass(frozen=True)
class ClassMeans(AveragingExchange):
    """Pull features or logits of every sample toward their mean over all learners' samples of the class.

    The squared distance is a mean over batch and dimensions: summed over dimensions the same weight would collapse
    training. scale: with "relative", distances count relative to the spread of the means, so that one weight serves any
    model, at any time of training. weighting: with "equal", each learner that has a class counts once, and its sample
    counts are not uploaded.
    """

    uploads_before_training: ClassVar[bool] = True
    allows_partners: ClassVar[bool] = True
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
        """A standing mean of (classes, width), weighted by class counts, or with equal weights of at most 1."""
        shape, bound = (task.classes, self.width(task)), self.bound(task)
        means = schema.Tensor(shape, self.encoding, self.encoding, -bound, bound)
        robustness = PLAIN if self.weighting == "samples" else _ONE_EACH
        return schema.Mean(self.name, {"mean": means}, (task.classes,), self.scope, robustness=robustness)

    def describe_upload(self) -> str:
        """What leaves the learner, in a few words."""
        count = " and the sample count" if self.weighting == "samples" else ""
        single = f"; of a class with one sample, the {self.averaged} of that sample" if self.min_count == 1 else ""
        return f"the mean {self.averaged}{count} of each class{single}"

    def penalty(self, state: State, view: View, received: Received) -> Tensor:
        """Mean squared distance to the global mean of the sample's class."""
        distance = distance_to_means if self.scale == "absolute" else relative_distance_to_means
        return distance(self.of(view), view.targets, received.tensors["mean"], received.count)

    def contribute(self, state: State, view: View, received: Received) -> Contribution:
        """The learner's own class means, weighted by the number of samples of each, or equally."""
        means, count = class_means(self.of(view), view.targets, view.task.classes, view.valid, self.min_count)
        return Contribution({"mean": means}, upload_weight(count, self.weighting))

    def class_samples(self, view: View) -> tuple[Tensor, Tensor]:
        """What is averaged, over all samples of a class."""
        return self.of(view), membership(view.targets, view.task.classes, view.valid)[None]
