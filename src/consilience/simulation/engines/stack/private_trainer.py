"""Learners of a cohort stacked, whose steps are private: each sample's own gradient, for all learners at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from consilience.learner.learner import Batch, PrivateStep, batch_draws
from consilience.learner.noise_source import SAMPLING, STEP_NOISE, stacked_uniform
from consilience.learner.private_training import draw_batch, private_losses
from consilience.learner.state import LearnerState, Tensors
from consilience.privacy.plan import StepPlan
from consilience.simulation.engines.cohort import Cohort
from consilience.simulation.engines.stack.stacked_answers import StackedAnswers, one_received, vmap_answers
from consilience.simulation.engines.stack.stacked_samples import StackedSamples
from consilience.simulation.engines.stack.stacked_trainer import StackedTrainer


class PrivateTrainer(StackedTrainer):
    """A stacked trainer whose steps are those of `consilience.learner.private_training`."""

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
    def _step(self, width: int) -> None:
        """One private step of every learner that has one left; batches have room for all that can be drawn."""
        learner, state, samples, plans = self.learner, self.state, self.samples, self.plans
        learner.modules.set_training(True)
        positions, drawn = plans.draw(samples)
        active = samples.active.index_select(0, samples.step)[0] if samples.ragged else None
        self._move_before_batch(active)
        chosen = samples.index[samples.start[:, None] + positions]
        drawing = batch_draws(learner).items()
        draws = {owner: samples.draw(owner, count, plans.capacity, samples.step) for owner, count in drawing}
        normal = samples.normal(STEP_NOISE, learner.binding.parameters.size, samples.step)
        batch = self.data.inputs[chosen], self.data.targets[chosen], draws, positions
        private = drawn, normal, plans.noise, plans.expected
        answers, dims = vmap_answers(self.answers[self.answer_kinds])
        # Layers() is for one batch of each learner: here every sample is one, and vmap takes both dimensions itself.
        each = vmap(self._private_losses, in_dims=(0, 0, dims, 0, 0), randomness="different")
        gradient, terms = each(state.as_dict(), samples.keys.size.to(learner.dtype), answers, batch, private)
        self._optimizer_step(gradient, active)
        self.losses += terms if active is None else torch.where(active[:, None], terms, torch.zeros_like(terms))
        samples.step += 1

    def _private_losses(
        self, state: dict[str, Any], size: Tensor, held: Any, batch: tuple[Any, ...], private: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor]:
        """For one learner."""
        learner, row = self.learner, LearnerState.from_dict(state)
        tensors: tuple[Tensors, Tensors] = learner.binding.tensors(row)
        inputs, targets, draws, positions = batch
        step = Batch(inputs, targets, draws, positions, private=PrivateStep(*private))
        with learner.bound(row, *tensors):
            return private_losses(learner, tensors, step, size, one_received(held))


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
