"""SimCLR: two views of a sample should be more similar than views of different samples (Chen et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from consilience.config.schedules import constant_number
from consilience.exchanges.base import View
from consilience.functional.augmentation import VIEWS, Views
from consilience.functional.contrastive import info_nce, nt_xent
from consilience.objectives.base import Objective
from consilience.task import Task
from consilience.validation import check_integer


@dataclass(frozen=True)
class SimCLR(Objective):
    """Contrast of two views of every sample, through a projection head that only training uses; labels are not used.

    both: contrast in both directions, as SimCLR does; else one view with the other view's batch, as FLESD does.
    """

    name: ClassVar[str] = "simclr"
    labeled: ClassVar[bool] = False
    compares_samples: ClassVar[bool] = True
    temperature: float = 0.4
    both: bool = False
    projection: int = 128
    views: Views = VIEWS

    def __post_init__(self) -> None:
        constant_number("temperature", self.temperature, low=1e-3)
        check_integer("projection", self.projection)

    @property
    def batch_draws(self) -> int:
        """For two views."""
        return 2 * self.views.draws

    def modules(self, task: Task) -> dict[str, nn.Module]:
        """The projection head."""
        hidden = nn.Linear(task.width, task.width)
        return {"head": nn.Sequential(hidden, nn.ReLU(), nn.Linear(task.width, self.projection))}

    def prepare(self, task: Task, inputs: Tensor, draws: Tensor) -> Tensor:
        """Two views of every sample, (2 x rows, ...)."""
        return torch.cat([self.views.of(task, inputs, part) for part in draws.chunk(2)])

    def loss(self, view: View) -> Tensor:
        """The loss of a mini-batch."""
        first, second = view.modules["head"](view.features).chunk(2)
        return (nt_xent if self.both else info_nce)(first, second, self.temperature)


@dataclass(frozen=True)
class Augmented(Objective):
    """No loss of its own: the model sees an augmented view of every sample, and only exchanges add penalties."""

    name: ClassVar[str] = "augmented"
    labeled: ClassVar[bool] = False
    views: Views = VIEWS

    @property
    def batch_draws(self) -> int:
        """For one view."""
        return self.views.draws

    def prepare(self, task: Task, inputs: Tensor, draws: Tensor) -> Tensor:
        """A view of every sample, (rows, ...)."""
        return self.views.of(task, inputs, draws)

    def loss(self, view: View) -> Tensor:
        """Zero, whatever the model does."""
        return (0 * view.features).sum()
