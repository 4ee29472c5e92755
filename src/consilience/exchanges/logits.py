"""Logits: the mean output of each class, shared as one global mean (federated distillation, Jeong et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from consilience.exchanges.base import View
from consilience.exchanges.class_means import ClassMeans
from consilience.task import Task

_BOUND = 1e4  # no logit of a sane model comes near it, and a sum in float64 forgets nothing beside it


@dataclass(frozen=True)
class Logits(ClassMeans):
    """Pull logits toward the mean that all learners' samples of the class have."""

    name: str = field(default="logits", kw_only=True)

    def describe_upload(self) -> str:
        """In a few words: what leaves the learner."""
        return "the mean logits and the sample count of each class"

    def of(self, view: View) -> Tensor:
        """The logits."""
        return view.logits

    def width(self, task: Task) -> int:
        """One for each class."""
        return task.classes

    def bound(self, task: Task) -> float:
        """The same for every model."""
        return _BOUND
