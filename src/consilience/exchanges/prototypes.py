"""Prototypes: the mean feature of each class, shared as one global mean (Berdoz 2022, equation 6, L_KD)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from torch import Tensor

from consilience.exchanges.base import Received, State, View
from consilience.exchanges.class_means import ClassMeans
from consilience.exchanges.dimensions import (
    SHARED,
    Subspace,
    check_dimensions,
    mean_over_shared,
    only_shared,
    shared_width,
)
from consilience.task import Task


@dataclass(frozen=True)
class Prototypes(ClassMeans):
    """Pull features toward the mean that all learners' samples of the class have.

    dimensions: the share of the feature dimensions that is averaged and pulled. subspace: which these are.
    """

    name: str = field(default="prototypes", kw_only=True)
    feature_tensors: ClassVar[tuple[str, ...]] = ("mean",)
    averaged: ClassVar[str] = "feature"
    means_of: ClassVar[Literal["features", "logits"] | None] = "features"
    dimensions: float = 1.0
    subspace: Subspace = "first"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_dimensions(self.dimensions, self.subspace, self.encoding)

    def of(self, view: View) -> Tensor:
        """The features, or some of their dimensions."""
        return only_shared(view.features, self.dimensions, self.subspace)

    def width(self, task: Task) -> int:
        """The number of features that are uploaded; all of which only those of the round travel, if they change."""
        return shared_width(task.width, self.dimensions, self.subspace)

    def bound(self, task: Task) -> float:
        """The bound of the model's features."""
        return task.bound

    def penalty(self, state: State, view: View, received: Received) -> Tensor:
        """Mean squared distance to the global mean of the sample's class, over the dimensions that are shared."""
        if self.subspace == "first":
            return super().penalty(state, view, received)
        factor = mean_over_shared(received.tensors[SHARED].to(view.features.dtype))  # (width,)
        means = received.tensors["mean"] * factor
        return super().penalty(
            state, replace(view, features=view.features * factor), replace(received, tensors={"mean": means})
        )
