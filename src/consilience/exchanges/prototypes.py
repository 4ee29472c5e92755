"""Prototypes: the mean feature of each class, shared as one global mean (Berdoz 2022, equation 6, L_KD)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from torch import Tensor

from consilience.exchanges.base import View
from consilience.exchanges.class_means import ClassMeans
from consilience.exchanges.dimensions import check_dimensions, only_shared, shared_width
from consilience.task import Task


@dataclass(frozen=True)
class Prototypes(ClassMeans):
    """Pull features toward the mean that all learners' samples of the class have.

    dimensions: the share of the feature dimensions that is averaged and pulled.
    """

    name: str = field(default="prototypes", kw_only=True)
    feature_tensors: ClassVar[tuple[str, ...]] = ("mean",)
    averaged: ClassVar[str] = "feature"
    means_of: ClassVar[Literal["features", "logits"] | None] = "features"
    dimensions: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_dimensions(self.dimensions)

    def of(self, view: View) -> Tensor:
        """The features, or some of their dimensions."""
        return only_shared(view.features, self.dimensions)

    def width(self, task: Task) -> int:
        """The number of features that are shared."""
        return shared_width(task.width, self.dimensions)

    def bound(self, task: Task) -> float:
        """The bound of the model's features."""
        return task.bound
