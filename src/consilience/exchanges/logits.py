"""Logits: the mean output of each class, shared as one global mean (federated distillation, Jeong et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, get_args

from torch import Tensor

from consilience import schema
from consilience.checks import number, one_of, whole
from consilience.encodings import FLOAT32, Encoding
from consilience.exchanges.base import Contribution, Exchange, Received, Scope, State, View
from consilience.exchanges.classwise import class_means, pull
from consilience.task import Task

_BOUND = 1e4  # no logit of a sane model comes near it, and a sum in float64 forgets nothing beside it


@dataclass(frozen=True)
class Logits(Exchange):
    """Pull logits towards the mean that all learners' samples of the class have."""

    name: str = field(default="logits", kw_only=True)
    eager: ClassVar[bool] = True
    weight: float = 10.0
    min_count: int = 2
    encoding: Encoding = FLOAT32
    scope: Scope = "everybody"

    def __post_init__(self) -> None:
        number("kd", self.weight)
        whole("min_count", self.min_count)
        one_of("scope", self.scope, get_args(Scope))

    def channel(self, task: Task) -> schema.Mean:
        """A standing mean of (classes, classes), weighted by class counts."""
        means = schema.Tensor((task.classes, task.classes), self.encoding, self.encoding, -_BOUND, _BOUND)
        return schema.Mean(self.name, {"mean": means}, rows=(task.classes,), scope=self.scope)

    def leaves(self) -> str:
        """In a few words: what leaves the learner."""
        return "the mean logits and the sample count of each class"

    def penalty(self, state: State, view: View, received: Received) -> Tensor:
        """Mean squared distance to the global mean logits of the sample's class."""
        return pull(view.logits, view.targets, received.tensors["mean"], received.count)

    def contribute(self, state: State, view: View, received: Received) -> Contribution:
        """The learner's own class means, weighted by how many samples stand behind each."""
        means, count = class_means(view.logits, view.targets, view.task.classes, view.valid, self.min_count)
        return Contribution({"mean": means}, count)
