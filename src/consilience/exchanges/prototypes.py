"""Prototypes: the mean feature of each class, shared as one global mean (Berdoz 2022, equation 6, L_KD)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from torch import Tensor

from consilience.exchanges.base import View
from consilience.exchanges.class_means import ClassMeans
from consilience.task import Task


@dataclass(frozen=True)
class Prototypes(ClassMeans):
    """Pull features toward the mean that all learners' samples of the class have."""

    name: str = field(default="prototypes", kw_only=True)
    feature_tensors: ClassVar[tuple[str, ...]] = ("mean",)
    averaged: ClassVar[str] = "feature"
    means_of: ClassVar[Literal["features", "logits"] | None] = "features"

    def of(self, view: View) -> Tensor:
        """The features."""
        return view.features

    def width(self, task: Task) -> int:
        """The number of features."""
        return task.width

    def bound(self, task: Task) -> float:
        """The bound of the model's features."""
        return task.bound
