"""Observations whose mean by class stands for the global class means, which nobody computes then.

Berdoz 2022, section 3, "Relaxation to peer-to-peer".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from consilience.config.schedules import Rate, as_number, constant_number, number_or_schedule
from consilience.errors import ConfigurationError
from consilience.exchanges.base import Received, State, Update, View
from consilience.exchanges.dimensions import only_shared, shared_width
from consilience.exchanges.observations import Observations
from consilience.functional.group_means import distance_to_expected
from consilience.kinds import group_count, kind_of
from consilience.task import Task


@dataclass(frozen=True)
class SeenObservations(Observations):
    """Contrast with observations, and pull features toward the running mean of all observations seen of the class.

    contrast, kd: the weights of the two losses; `weight` multiplies both. memory: how much the observations seen before
    a round still count in it, from 0 to 1; 1 is the mean of all that were ever seen, though models have changed since.
    """

    name: str = field(default="observations", kw_only=True)
    varies: ClassVar[tuple[str, ...]] = ("weight", "temperature", "contrast", "kd")
    contrast: Rate = 1.0
    kd: Rate = 10.0
    memory: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        number_or_schedule("contrast", self.contrast)
        number_or_schedule("kd", self.kd)
        constant_number("memory", self.memory)
        if self.memory > 1:
            raise ConfigurationError(f"memory is {self.memory}; it must be a number from 0 to 1")
        if self.subspace != "first":
            raise ConfigurationError(
                f"subspace is {self.subspace!r}, and the mean of the observations seen is over those of many rounds, "
                f"which have other dimensions; use subspace='first', or means='global'"
            )

    def init_state(self, view: View) -> State:
        """The mean of the observations seen of each class, and how many they are."""
        groups = group_count(view.task)
        means = view.features.new_zeros(groups, shared_width(view.task.width, self.dimensions))
        return {"mean": means, "seen": means.new_zeros(groups)}

    def penalty(self, state: State, view: View, received: Received) -> Tensor:
        """Both losses, weighted."""
        expected, known = kind_of(view.task).expected(view.task, view.targets, state["mean"], state["seen"])
        values = only_shared(view.features, self.dimensions)
        pull = distance_to_expected(values, expected, known.to(values.dtype))
        return as_number(self.contrast) * super().penalty(state, view, received) + as_number(self.kd) * pull

    def metrics(
        self, task: Task, penalty: np.ndarray, received: np.ndarray, samples: np.ndarray
    ) -> dict[str, np.ndarray]:
        """None: the penalty is a sum of two losses, and says nothing about mutual information."""
        return {}

    def receive(self, state: State, view: View, received: Received) -> Update:
        """Add the observations that have come to the mean."""
        entries = received.tensors["mean"].to(state["mean"].dtype)  # (down, classes, width)
        present = (received.count > 0).to(entries.dtype)  # (down, classes)
        before, new = self.memory * state["seen"], present.sum(0)
        seen = before + new
        total = before[:, None] * state["mean"] + (entries * present[..., None]).sum(0)
        mean = torch.where(new[:, None] > 0, total / seen.clamp(min=1e-12)[:, None], state["mean"])
        return Update(state={"mean": mean, "seen": seen})
