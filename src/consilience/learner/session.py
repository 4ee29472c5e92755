"""One learner's part of a round, in order, for the loop engine and for a member over a network.

Round start, local steps, one pass for representations, contribute, encode with residuals, receive, evaluate. Batches
and random numbers depend on the federation's seed, the learner's number and the round alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from consilience.exchanges.base import Contribution, Received
from consilience.learner.batches import LearnerKey, LocalWork, plan_batches
from consilience.learner.device import drawn_on, seeded
from consilience.learner.draws import draw_uniform
from consilience.learner.learner import Batch, Learner, PrivateStep, batch_draws, upload_noise_size
from consilience.learner.local_training import reset_optimizer, train, zero_gradient
from consilience.learner.modules import Representations
from consilience.learner.noise_source import SAMPLING, SIMULATED, STEP_NOISE, UPLOAD_NOISE, UPLOAD_SAMPLING, NoiseSource
from consilience.learner.passes import choose, needs_representations, represent, score_sums
from consilience.learner.private_training import draw_batch
from consilience.learner.private_uploads import ENTERING, NOISE
from consilience.learner.state import LearnerState
from consilience.privacy.plan import StepPlan
from consilience.randomness import AFTER_TRAINING, BEFORE_TRAINING, seed_of
from consilience.task import AnswerKind

Lap = Callable[[str], None]
"""Called with the name of a phase when it ends."""


@dataclass(frozen=True)
class LocalSamples:
    """A learner's samples: their places in a training set that may hold other learners' too."""

    inputs: Tensor  # the training set's, on the learner's device
    targets: Tensor
    index: np.ndarray  # (samples,) the learner's own
    shareable: np.ndarray | None  # (samples,) which of them may enter uploads; None if all may
    even: bool  # whether all learners of the federation have equally many samples
    draw_share: np.ndarray | None = None  # (samples,) how often private learners draw each; None if all alike

    def __len__(self) -> int:
        return len(self.index)


class LearnerSession:
    """One learner at work. Making a session binds the learner's modules to its state."""

    def __init__(
        self,
        learner: Learner,
        state: LearnerState,
        key: LearnerKey,
        samples: LocalSamples,
        work: LocalWork,
        noise: NoiseSource = SIMULATED,
    ) -> None:
        self.learner, self.key, self.samples, self.work, self.noise = learner, key, samples, work, noise
        self._mean_gradient: Tensor | None = None  # of the round's batches
        learner.bind(state)

    @property
    def state(self) -> LearnerState:
        """The learner's state."""
        return self.learner.state

    def train(self, round_: int, received: Mapping[str, Received]) -> Tensor:
        """Start the round and take its local steps: means over the batches of what `Learner.losses` returns."""
        learner = self.learner
        if self.work.reset_optimizer:
            reset_optimizer(learner)
        starting = {e.name for e in learner.exchanges if e.has_round_start}
        if starting:
            draws = self._sample_draws(starting, round_, BEFORE_TRAINING)
            learner.start_round(self._represent(), learner.count(len(self.samples)), draws, received)
        # Numbers that the model draws itself, as dropout does, depend on the learner and the round alone.
        with seeded(self.samples.inputs.device, seed_of("model", self.key.seed, round_, self.key.number)):
            losses, self._mean_gradient = train(learner, self._planned_batches(round_), len(self.samples), received)
        return losses

    def upload(
        self, round_: int, received: Mapping[str, Received], lap: Lap = lambda phase: None
    ) -> dict[str, Contribution]:
        """What the learner uploads to every exchange in `received`, as the relay decodes it."""
        learner = self.learner
        draws = self._sample_draws(received.keys(), round_, AFTER_TRAINING)
        if learner.spec.privacy is not None:
            purpose = f"{UPLOAD_NOISE} {' '.join(received)}"  # roles of one learner upload to other exchanges
            normal = self.noise.normal(purpose, self.key, round_, AFTER_TRAINING, upload_noise_size(learner, received))
            draws[NOISE] = drawn_on(self.samples.inputs.device, normal)
            draws |= self._entering(round_, " ".join(received))
        seen = self._represent() if needs_representations(learner, received) else learner.no_samples()
        lap("represent")
        gradient = zero_gradient(learner) if self._mean_gradient is None else self._mean_gradient
        return learner.contribute(seen, learner.count(len(self.samples)), draws, received, gradient)

    def receive(self, received: Mapping[str, Received]) -> None:
        """Let new answers change the model."""
        self.learner.receive(received)

    def evaluate(self, inputs: Tensor, targets: Tensor, answer: AnswerKind = "common") -> Tensor:
        """How many test samples of each class an answer predicts correctly, (classes,)."""
        return score_sums(self.learner, inputs, targets, answer)

    def choose(self, inputs: Tensor, targets: Tensor) -> None:
        """Let the objective choose by samples that the learner held out, such as how much an own model counts."""
        for name, value in choose(self.learner, inputs, targets).items():
            self.state.objective_state[name].copy_(value)

    def has_finite_parameters(self) -> bool:
        """Whether no parameter is NaN or infinite; a sum is not finite if a value is not."""
        return bool(torch.isfinite(self.learner.state.parameters.sum()))

    # -- what the steps need -------------------------------------------------------------------------------------------

    def _planned_batches(self, round_: int) -> Iterator[Batch]:
        privacy = self.learner.spec.privacy
        if privacy is None or not privacy.steps:
            return self._batches(round_)
        return self._private_batches(round_, privacy.steps[len(self.samples)])

    def _batches(self, round_: int) -> Iterator[Batch]:
        samples, device = self.samples, self.samples.inputs.device
        planned = plan_batches(self.work, self.key, round_, len(samples), even=samples.even)
        drawing, places = batch_draws(self.learner), [torch.from_numpy(samples.index[each]) for each in planned]
        inputs = self._inputs([each.to(device) for each in places])
        for step, positions in enumerate(planned):
            chosen = places[step].to(device)
            draw = partial(draw_uniform, key=self.key, round_=round_, step=step)
            draws = {owner: drawn_on(device, draw(owner, (n, len(positions)))) for owner, n in drawing.items()}
            at = torch.from_numpy(positions).to(device)
            yield Batch(next(inputs), samples.targets[chosen], draws, at, (step + 1) / len(planned))

    def _inputs(self, batches: Sequence[Tensor]) -> Iterator[Tensor]:
        """The inputs of batches, by the places of their samples; streamed ones are read ahead."""
        found = (self.samples.inputs[places] for places in batches)
        reader = self.learner.spec.reader
        return found if reader is None else reader.batches(list(found))

    def _private_batches(self, round_: int, plan: StepPlan) -> Iterator[Batch]:
        """Batches of samples that are drawn by chance, as many as `_batches` has."""
        samples, device, size = self.samples, self.samples.inputs.device, len(self.samples)
        steps, rate = self.work.epochs * -(-size // self.work.batch_size), plan.rate * self._draw_share
        noise, expected = (
            torch.tensor(x, dtype=self.learner.dtype, device=device) for x in (plan.noise, plan.expected)
        )
        for step in range(steps):
            chance = self.noise.uniform(SAMPLING, self.key, round_, step, size)
            positions, drawn = draw_batch(chance, rate, plan.capacity)
            normal = self.noise.normal(STEP_NOISE, self.key, round_, step, self.learner.binding.parameters.size)
            at, chosen = positions.to(device), torch.from_numpy(samples.index)[positions].to(device)
            draw = partial(draw_uniform, key=self.key, round_=round_, step=step)
            wanted = batch_draws(self.learner).items()
            draws = {owner: drawn_on(device, draw(owner, (n, plan.capacity))) for owner, n in wanted}
            private = PrivateStep(drawn.to(device), drawn_on(device, normal), noise, expected)
            (inputs,) = self._inputs([chosen])
            yield Batch(inputs, samples.targets[chosen], draws, at, (step + 1) / steps, private)

    @property
    def _draw_share(self) -> Tensor:
        """How often each sample is drawn, as a share of the rate, (samples,) or (1,), float64 on the CPU."""
        share = self.samples.draw_share
        return torch.ones(1, dtype=torch.float64) if share is None else torch.from_numpy(share)

    def _entering(self, round_: int, names: str) -> dict[str, Tensor]:
        """Which samples enter an upload to these exchanges, where some have smaller privacy budgets than others."""
        if self.samples.draw_share is None:
            return {}
        chance = self.noise.uniform(f"{UPLOAD_SAMPLING} {names}", self.key, round_, AFTER_TRAINING, len(self.samples))
        return {ENTERING: (chance < self._draw_share).to(self.samples.inputs.device, self.learner.dtype)}

    def _sample_draws(self, names: Collection[str], round_: int, step: int) -> dict[str, Tensor]:
        """Random numbers for all samples, for those of the exchanges named that want them."""
        draw, size = partial(draw_uniform, key=self.key, round_=round_, step=step), len(self.samples)
        wanted = [e for e in self.learner.exchanges if e.name in names and e.sample_draws]
        device = self.samples.inputs.device
        return {e.name: drawn_on(device, draw(e.name, (e.sample_draws, size))) for e in wanted}

    def _represent(self) -> Representations:
        """One pass over the learner's samples."""
        samples = self.samples
        index = torch.from_numpy(samples.index).to(samples.inputs.device)
        valid = samples.shareable
        valid_rows = None if valid is None else torch.from_numpy(valid).to(index.device, self.learner.dtype)
        return represent(self.learner, samples.inputs[index], samples.targets[index], valid_rows)


def is_finite(contribution: Contribution) -> bool:
    """Whether no value of a contribution is NaN or infinite; a sum is not finite if a value is not."""
    return all(math.isfinite(value.sum()) for value in (*contribution.tensors.values(), contribution.weight))
