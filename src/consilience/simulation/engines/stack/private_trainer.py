"""Learners of a cohort stacked, whose steps are private: each sample's own gradient, for all learners at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from consilience.learner.learner import Batch, PrivateStep, batch_draws
from consilience.learner.noise_source import STEP_NOISE
from consilience.learner.private_training import private_losses
from consilience.learner.state import LearnerState, Tensors
from consilience.simulation.engines.stack.stacked_answers import one_received, vmap_answers
from consilience.simulation.engines.stack.stacked_trainer import StackedTrainer


class PrivateTrainer(StackedTrainer):
    """A stacked trainer whose steps are those of `consilience.learner.private_training`."""

    @torch.no_grad()
    def _step(self, width: int) -> None:
        """One private step of every learner that has one left; batches have room for all that can be drawn."""
        learner, state, samples = self.learner, self.state, self.samples
        assert samples.private is not None
        learner.modules.set_training(True)
        positions, drawn, chosen, active = samples.private_batch()
        self._move_before_batch(active)
        room, drawing = samples.private.capacity, batch_draws(learner).items()
        draws = {owner: samples.draw(owner, count, room, samples.step) for owner, count in drawing}
        normal = samples.normal(STEP_NOISE, learner.binding.parameters.size, samples.step)
        private = drawn, normal, samples.private.noise, samples.private.expected
        batch = self.data.inputs[chosen], self.data.targets[chosen], draws, positions
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
        step = Batch(*batch, private=PrivateStep(*private))
        with learner.bound(row, *tensors):
            return private_losses(learner, tensors, step, size, one_received(held))
