"""A step of every row by itself: each learner's own forward pass, backward pass and optimizer, on one of the lanes."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from consilience.learner.learner import Learner
from consilience.simulation.engines.branches.fused_adam import has_fused_adam, take_fused_step
from consilience.simulation.engines.branches.lanes import Lanes
from consilience.simulation.engines.branches.row_generators import RowGenerators
from consilience.simulation.engines.cohort import Members
from consilience.simulation.engines.shared_data import SharedData
from consilience.simulation.engines.stack.private_trainer import PrivateStackedStep
from consilience.simulation.engines.stack.rows import Rows
from consilience.simulation.engines.stack.stacked_step import StackedBatch, StackedStep


class LearnerStep(StackedStep):
    """The step of a stack of one learner."""

    def __init__(self, learner: Learner) -> None:
        super().__init__(learner)
        self.for_all = Lanes(torch.device("cpu"), 0).for_all  # on whichever stream is current
        self.fused = has_fused_adam(learner)

    def leaf(self, view: Tensor) -> Tensor:
        """A parameter, (1, ...); on a GPU, kernels of convolutions with channels innermost, as tensor cores want it."""
        if view.is_cuda and view.ndim == 5:
            return view.detach()[0].contiguous(memory_format=torch.channels_last)[None].requires_grad_()
        return super().leaf(view)

    def move(self, rows: Rows, gradient: Tensor, active: Tensor | None) -> None:
        """One fused kernel where it does all that the optimizer does."""
        if self.fused:
            take_fused_step(self.learner, rows.state, gradient, active)
        else:
            super().move(rows, gradient, active)


class PrivateLearnerStep(LearnerStep, PrivateStackedStep):
    """The private step of a stack of one learner."""


class BranchStep(StackedStep):
    """The steps of all rows, each by itself, on as many lanes as there are.

    A lane takes one learner's whole step after the other's, so only as many activations exist as there are lanes.
    """

    def __init__(self, learner: Learner, rows: int, lanes: int, private: bool) -> None:
        super().__init__(learner)
        _keep_recurrent_weights_in_place(learner)
        self.one = (PrivateLearnerStep if private else LearnerStep)(learner)
        device = learner.binding.gradient.device  # with its number, where the learner's may be any "cuda"
        self.lanes = Lanes(device, lanes)
        self.generators = RowGenerators(device, rows)
        self.for_all = self.lanes.for_all

    def enter(self, members: Members, rows: np.ndarray, round_: int) -> None:
        """What the models draw themselves depends on these rows and this round."""
        self.generators.seed(members.seed[rows].tolist(), members.learner[rows].tolist(), round_)

    def before_recording(self, graph: torch.cuda.CUDAGraph) -> None:
        """Let the graph know the rows' generators."""
        self.generators.register(graph)

    def after_failed_recording(self) -> None:
        """Go on with generators that no graph knows."""
        self.generators.renew()

    def take(self, rows: Rows, batch: StackedBatch, data: SharedData) -> None:
        """One row after the other on each lane."""
        self.lanes.run([partial(self._take_one, i, rows, batch, data) for i in range(len(rows.losses))])

    def _take_one(self, row: int, rows: Rows, batch: StackedBatch, data: SharedData) -> None:
        some = slice(row, row + 1)
        with self.generators.of(row):
            self.one.take(rows.part(some, self.one.for_all), batch.part(some), data)


def _keep_recurrent_weights_in_place(learner: Learner) -> None:
    """Let recurrent layers not move their weights into memory of their own, as they do on a GPU whenever these change.

    What they would move are views, through which gradients come back. cuDNN compacts a copy at every call instead.
    """
    for root in learner.modules.roots():
        for layer in root.modules():
            if isinstance(layer, nn.RNNBase):
                layer.flatten_parameters = lambda: None  # type: ignore[method-assign]
