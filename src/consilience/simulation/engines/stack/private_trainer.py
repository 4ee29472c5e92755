"""Learners of a cohort stacked, whose steps are private: each sample's own gradient, for all learners at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from consilience.learner.learner import Batch, PrivateStep
from consilience.learner.noise_source import SAMPLING, STEP_NOISE, stacked_uniform
from consilience.learner.private_training import draw_batch, private_losses
from consilience.learner.state import LearnerState, Tensors
from consilience.privacy.plan import StepPlan
from consilience.simulation.engines.cohort import Cohort
from consilience.simulation.engines.shared_data import SharedData
from consilience.simulation.engines.stack.rows import Rows
from consilience.simulation.engines.stack.stacked_answers import StackedAnswers, one_received
from consilience.simulation.engines.stack.stacked_samples import StackedSamples
from consilience.simulation.engines.stack.stacked_step import StackedBatch, StackedStep, add_losses
from consilience.simulation.engines.stack.stacked_trainer import StackedTrainer


class PrivateStackedStep(StackedStep):
    """A private step: see `consilience.learner.private_training`."""

    @torch.no_grad()
    def take(self, rows: Rows, batch: StackedBatch, data: SharedData) -> None:
        """Move the parameters of these rows by their noised gradients."""
        learner = rows.learner

        def losses(state: dict[str, Any], own: Tensors, held: Any, batch: Any, private: Any) -> tuple[Tensor, Tensor]:
            row = LearnerState.from_dict(state)
            tensors: tuple[Tensors, Tensors] = learner.binding.tensors(row)
            inputs, targets, draws, positions = batch
            step = Batch(inputs, targets, draws, positions, private=PrivateStep(*private))
            with learner.bound(row, *tensors):
                return private_losses(learner, tensors, step, own["samples"], one_received(held))

        given = data.inputs[batch.chosen], data.targets[batch.chosen], batch.draws, batch.positions
        gradient, terms = rows.each(losses, single=True)(given, batch.private)
        self.move(rows, gradient, batch.active)
        add_losses(rows, terms, batch.active)


class PrivateTrainer(StackedTrainer):
    """A stacked trainer whose steps are private."""

    plans: StackedStepPlans

    def enter(self, cohort: Cohort, rows: np.ndarray, round_: int, answers: Mapping[str, StackedAnswers]) -> None:
        """Copy these rows of the cohort, the answers they hold, and how they take steps."""
        privacy = self.learner.spec.privacy
        assert privacy is not None
        if not hasattr(self, "plans"):
            self.plans = StackedStepPlans(privacy.steps, len(rows), self.losses.device)
        if not np.array_equal(rows, self.copies.rows):
            self.plans.assign(cohort.plan.members.sizes[rows])
        super().enter(cohort, rows, round_, answers)

    @torch.no_grad()
    def _batch(self, width: int) -> StackedBatch:
        """This step's mini-batches, with room for all samples that can be drawn."""
        samples, plans = self.samples, self.plans
        positions, drawn = plans.draw(samples)
        active = samples.active.index_select(0, samples.step)[0] if samples.ragged else None
        chosen = samples.index[samples.start[:, None] + positions]
        normal = samples.normal(STEP_NOISE, self.learner.binding.parameters.size, samples.step)
        draws = self._batch_draws(plans.capacity)
        return StackedBatch(positions, chosen, active, draws, (drawn, normal, plans.noise, plans.expected))


class StackedStepPlans:
    """How the learners of a stack take private steps: rates, noise multipliers and expected batch sizes, (rows,)."""

    def __init__(self, plans: Mapping[int, StepPlan], rows: int, device: torch.device) -> None:
        self.plans = plans
        self.capacity = max(each.capacity for each in plans.values())
        self._table = torch.zeros((3, rows), dtype=torch.float64, device=device)
        self.rate, self.noise, self.expected = self._table

    def assign(self, sizes: np.ndarray) -> None:
        """Follow rows with so many samples."""
        chosen = [self.plans[int(size)] for size in sizes]
        columns = [[each.rate for each in chosen], [each.noise for each in chosen], [each.expected for each in chosen]]
        self._table.copy_(torch.tensor(columns, dtype=torch.float64))

    def draw(self, samples: StackedSamples) -> tuple[Tensor, Tensor]:
        """This step's batch: positions among each row's samples, and which of them are drawn, (rows, capacity)."""
        chance = stacked_uniform(SAMPLING, samples.keys, samples.round, samples.step, samples.longest)
        beyond = torch.arange(samples.longest, device=chance.device) >= samples.keys.size[:, None]
        share = samples.draw_share()
        rate = self.rate[:, None] if share is None else self.rate[:, None] * share
        positions, drawn = draw_batch(chance.masked_fill(beyond, 2.0), rate, self.capacity)
        return torch.minimum(positions, samples.keys.size[:, None] - 1), drawn  # a place that is empty has any position
