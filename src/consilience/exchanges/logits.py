"""Logits: the mean output of each class, shared as one global mean (federated distillation, Jeong et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from torch import Tensor

from consilience.exchanges.base import View
from consilience.exchanges.class_means import ClassMeans
from consilience.functional.group_channels import LARGEST_LOGIT
from consilience.task import Task


@dataclass(frozen=True)
class Logits(ClassMeans):
    """Pull logits toward the mean that all learners' samples of the class have."""

    name: str = field(default="logits", kw_only=True)
    mismatch_hint: ClassVar[str] = "Logits need the same classes, encoding and weighting at all learners"
    averaged: ClassVar[str] = "logits"
    means_of: ClassVar[Literal["features", "logits"] | None] = "logits"

    def of(self, view: View) -> Tensor:
        """The logits."""
        return view.logits

    def width(self, task: Task) -> int:
        """The number of classes."""
        return task.classes

    def bound(self, task: Task) -> float:
        """The same for every model."""
        return LARGEST_LOGIT
