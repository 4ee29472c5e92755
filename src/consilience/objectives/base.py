"""What an objective is: a scalar for a mini-batch, as a pure function for one learner."""

from __future__ import annotations

from typing import ClassVar, Protocol

from torch import Tensor

from consilience.exchanges.base import View


class Objective(Protocol):
    """The learner's own loss; exchanges add their penalties to it."""

    name: ClassVar[str]

    def loss(self, view: View) -> Tensor:
        """The loss of a mini-batch."""
        ...
