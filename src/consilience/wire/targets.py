"""What a federation predicts, as its charter writes it: the kind of task, and how numbers are standardized."""

from __future__ import annotations

import math
from typing import Self

from pydantic import Field, model_validator

from consilience.task import Target, TaskKind
from consilience.wire.section import CharterSection


class TargetSettings(CharterSection):
    """The same for all members, as measured by whoever creates the federation; without it, one class per sample."""

    kind: TaskKind
    edges: tuple[float, ...] = Field(default=(), description="standardized numbers between the bins of a regression")
    mean: float = Field(default=0.0, description="of a regression: subtracted from targets")
    std: float = Field(default=1.0, gt=0, description="of a regression: by which targets are then divided")

    @model_validator(mode="after")
    def _check(self) -> Self:
        numbers = (*self.edges, self.mean, self.std)
        if not all(map(math.isfinite, numbers)) or list(self.edges) != sorted(set(self.edges)):
            raise ValueError(
                f"edges, mean and std are finite, and edges ascend; got {self.edges}, {self.mean}, {self.std}"
            )
        if self.kind != "regression" and numbers != (0.0, 1.0):
            raise ValueError(f"edges, mean and std are for regression, and kind is {self.kind!r}; leave them out")
        return self

    def to_target(self) -> Target:
        """What learners know of it."""
        return Target(self.kind, self.edges, self.mean, self.std)
