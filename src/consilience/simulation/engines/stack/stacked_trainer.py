"""Learners of a cohort stacked, and trained as one.

Their state is copied into tensors with fixed addresses, so that a step can be recorded once and replayed; the
learner's own code runs under `vmap`, and one optimizer updates all rows. The copies go back when the work is done:
until then the cohort is unchanged, and work that runs out of memory can be done again in smaller parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from consilience.learner.learner import batch_draws, upload_noise_size
from consilience.learner.modules import Representations
from consilience.learner.noise_source import UPLOAD_NOISE, UPLOAD_SAMPLING, stacked_uniform
from consilience.learner.passes import needs_representations, represent
from consilience.learner.private_uploads import ENTERING, NOISE
from consilience.learner.state import LearnerState, Tensors
from consilience.randomness import AFTER_TRAINING, BEFORE_TRAINING
from consilience.simulation.engines.cohort import Cohort
from consilience.simulation.engines.job_parts import Uploads
from consilience.simulation.engines.shared_data import SharedData
from consilience.simulation.engines.stack.cuda_graphs import Graphs
from consilience.simulation.engines.stack.row_copies import RowCopies
from consilience.simulation.engines.stack.rows import Rows
from consilience.simulation.engines.stack.stacked_answers import StackedAnswers, one_received
from consilience.simulation.engines.stack.stacked_samples import StackedSamples
from consilience.simulation.engines.stack.stacked_step import (
    GRADIENT,
    StackedBatch,
    StackedStep,
    cloned,
    copy_where,
    move_before_batch,
    pairs,
)

AnswerKinds = tuple[tuple[str, bool], ...]
"""By exchange, whether all rows hold the same answer: recorded work holds for one such combination."""


class StackedTrainer:
    """Some rows of a cohort, all with batches of one width at every step.

    step: how their steps, and all other work written for one learner, are done. pass_size: how many learners, and how
    many samples of each, one forward pass takes when nothing is trained.
    """

    def __init__(
        self, step: StackedStep, cohort: Cohort, data: SharedData, rows: int, even: bool, pass_size: tuple[int, int]
    ) -> None:
        self.learner, self.step, self.data, self.pass_size = step.learner, step, data, pass_size
        learner = step.learner
        device = data.inputs.device
        self.copies = RowCopies(cohort.state, rows, device)
        self.state = self.copies.state
        self.samples = StackedSamples(cohort.plan, rows, even, device)
        self.losses = torch.zeros((rows, len(learner.loss_terms) + 1), dtype=torch.float64, device=device)
        self.gradient = None if learner.optimized is None else torch.zeros_like(self.state.parameters)
        self.answers: dict[AnswerKinds, dict[str, StackedAnswers]] = {}
        self.answer_kinds: AnswerKinds = ()
        self.uploads: Uploads = {}
        self.results: dict[tuple[str, ...], Tensor] = {}
        self.seen: Representations = {}
        self.graphs = Graphs(device, step.before_recording, step.after_failed_recording)

    # -- rows in and out -----------------------------------------------------------------------------------------------

    def enter(self, cohort: Cohort, rows: np.ndarray, round_: int, answers: Mapping[str, StackedAnswers]) -> None:
        """Copy these rows of the cohort, and the answers they hold."""
        if not np.array_equal(rows, self.copies.rows):
            self.samples.assign(cohort.plan.members, rows)
            self.copies.choose(rows)
        self.copies.copy_in(cohort.state)
        self.samples.round.fill_(round_)
        self.step.enter(cohort.plan.members, rows, round_)
        self.answer_kinds = tuple((name, each.shared) for name, each in answers.items())
        if self.answer_kinds not in self.answers:
            self.answers[self.answer_kinds] = {name: each.clone() for name, each in answers.items()}
        for name, each in answers.items():
            self.answers[self.answer_kinds][name].copy_(each)

    def leave(self, cohort: Cohort, count: int) -> None:
        """Copy the first `count` rows back into the cohort; the others are padding."""
        self.copies.copy_out(cohort.state, count)

    # -- training ------------------------------------------------------------------------------------------------------

    def train(self) -> None:
        """Start the round and take its local steps."""
        if self.samples.work.reset_optimizer:
            for tensor in (self.state.step, *self.state.optimizer.values()):
                tensor.zero_()
        if any(e.has_round_start for e in self.learner.exchanges):
            self.graphs.run("represent", self._represent)
            self.graphs.run(("start round", self.answer_kinds), self._start_round)
        self.graphs.run("plan", self._plan)
        for width in self.samples.widths:
            self.graphs.run(("step", width, self.samples.ragged, self.answer_kinds), partial(self._step, width))
        self.graphs.run("average", self._average)

    @torch.no_grad()
    def _start_round(self) -> None:
        """Let exchanges prepare their states, with all samples."""
        self.learner.modules.set_training(False)
        names = [e.name for e in self.learner.exchanges if e.has_round_start]

        def one(state: dict[str, Any], own: Tensors, held: Any, seen: Representations, draws: Tensors) -> Tensor:
            row = LearnerState.from_dict(state)
            with self.learner.bound(row, *self.learner.binding.tensors(row)):
                self.learner.start_round(seen, own["samples"], draws, one_received(held))
            return own["samples"]  # vmap needs a result

        self._rows().each(one)(self.seen, self._sample_draws(names, BEFORE_TRAINING))

    def _plan(self) -> None:
        """Plan the round's batches."""
        self.samples.plan_round()
        self.losses.zero_()
        if self.gradient is not None:
            self.gradient.zero_()

    def _step(self, width: int) -> None:
        """One step of every learner that has one left."""
        self.learner.modules.set_training(True)
        rows, batch, steps = self._rows(), self._batch(width), self.samples.steps
        move_before_batch(rows, batch.active, ((self.samples.step + 1) / steps.double()).to(self.learner.dtype))
        self.step.take(rows, batch, self.data)
        self.samples.step += 1

    def _batch(self, width: int) -> StackedBatch:
        """This step's mini-batches."""
        positions, chosen, active = self.samples.batch(width)
        return StackedBatch(positions, chosen, active, self._batch_draws(width))

    def _batch_draws(self, width: int) -> Tensors:
        """Random numbers for mini-batches of this width."""
        wanted = batch_draws(self.learner).items()
        return {owner: self.samples.draw(owner, count, width, self.samples.step) for owner, count in wanted}

    def _average(self) -> None:
        """Losses, and gradients of parts that exchanges own, as means over a learner's batches."""
        steps = self.samples.steps[:, None]
        self.losses /= steps
        if self.gradient is not None:
            last_only = self.step.last_only
            self.gradient /= steps if last_only is None else torch.where(last_only, 1, steps)

    # -- after training ------------------------------------------------------------------------------------------------

    def represent(self, names: tuple[str, ...]) -> None:
        """One pass over every learner's samples, where any of these exchanges looks at them."""
        if needs_representations(self.learner, names):
            self.graphs.run("represent", self._represent)

    @torch.no_grad()
    def _represent(self) -> None:
        positions, valid = self.samples.all_samples(self.learner.dtype)
        together, samples = self.pass_size

        def one(state: dict[str, Any], inputs: Tensor, targets: Tensor, valid: Tensor) -> Representations:
            row = LearnerState.from_dict(state)
            with self.learner.bound(row, *self.learner.binding.tensors(row)):
                return represent(self.learner, inputs, targets, valid, rows=samples)

        for i in range(0, len(positions), together):
            some = slice(i, i + together)
            states, where = self.state.rows(some).as_dict(), positions[some]
            seen = self.step.for_all(one)(states, self.data.inputs[where], self.data.targets[where], valid[some])
            if not self.seen:
                self.seen = _empty_for(seen, len(positions))
            _copy(self.seen, seen, some)

    def contribute(self, names: tuple[str, ...], online: np.ndarray) -> Uploads:
        """What every learner uploads to these exchanges; the residuals of those who are not online stay."""
        before = cloned(self.state.residuals) if not online.all() else {}
        self.graphs.run(("contribute", names, self.answer_kinds), partial(self._contribute, names))
        if before:
            offline = torch.from_numpy(~online).to(self.losses.device)
            copy_where(offline, pairs(self.state.residuals, before))
        return {name: self.uploads[name] for name in names}

    @torch.no_grad()
    def _contribute(self, names: tuple[str, ...]) -> None:
        self.learner.modules.set_training(False)
        draws = self._sample_draws(names, AFTER_TRAINING)
        seen = self.seen if needs_representations(self.learner, names) else {}
        uploads = self._rows().each(partial(self._contribute_one, names))(seen, draws)
        for name, (tensors, weight) in uploads.items():
            if name not in self.uploads:
                self.uploads[name] = ({k: t.clone() for k, t in tensors.items()}, weight.clone())
            _copy(self.uploads[name][0], tensors)
            self.uploads[name][1].copy_(weight)

    def _contribute_one(
        self,
        names: tuple[str, ...],
        state: dict[str, Any],
        own: Tensors,
        held: Any,
        seen: Representations,
        draws: Tensors,
    ) -> Uploads:
        """For one learner."""
        learner, row = self.learner, LearnerState.from_dict(state)
        received = one_received({name: held[name] for name in names})
        with learner.bound(row, *learner.binding.tensors(row)):
            seen = seen or learner.no_samples()
            uploads = learner.contribute(seen, own["samples"], draws, received, own.get("gradient"))
        return {name: (dict(upload.tensors), upload.weight) for name, upload in uploads.items()}

    def summarize(self, names: tuple[str, ...]) -> Tensor:
        """Each loss term, and whether the parameters and each exchange's upload are finite, (rows, ...)."""
        if names not in self.results:
            self.results[names] = self.losses.new_zeros((len(self.losses), self.losses.shape[1] + 1 + len(names)))
        self.graphs.run(("summarize", names), partial(self._summarize, names))
        return self.results[names]

    def _summarize(self, names: tuple[str, ...]) -> None:
        sums = [self.state.parameters.sum(1)]  # a sum is not finite if a value is not
        for tensors, weight in (self.uploads[name] for name in names):
            sums.append(torch.stack([t.reshape(len(t), -1).sum(1) for t in (*tensors.values(), weight)]).sum(0))
        finite = torch.stack(sums, dim=1).isfinite()
        self.results[names].copy_(torch.cat([self.losses, finite], dim=1))

    # -- work for one learner, done for all ---------------------------------------------------------------------------

    def _rows(self) -> Rows:
        """All rows."""
        own = {"samples": self.samples.keys.size.to(self.learner.dtype)}
        if self.gradient is not None:
            own[GRADIENT] = self.gradient
        return Rows(self.learner, self.state, own, self.answers[self.answer_kinds], self.losses, self.step.for_all)

    def _sample_draws(self, names: Iterable[str], step: int) -> Tensors:
        """Random numbers for all samples, for those of the exchanges named that want them."""
        names = tuple(names)
        wanted = {e.name: e.sample_draws for e in self.learner.exchanges if e.name in names and e.sample_draws}
        when, longest = torch.full_like(self.samples.step, step), self.samples.longest
        found = {name: self.samples.draw(name, draws, longest, when) for name, draws in wanted.items()}
        if self.learner.spec.privacy is not None and step == AFTER_TRAINING:
            purpose = f"{UPLOAD_NOISE} {' '.join(names)}"
            found[NOISE] = self.samples.normal(purpose, upload_noise_size(self.learner, names), when)
            if (share := self.samples.draw_share()) is not None:
                purpose = f"{UPLOAD_SAMPLING} {' '.join(names)}"
                chance = stacked_uniform(purpose, self.samples.keys, self.samples.round, when, longest)
                found[ENTERING] = (chance < share).to(self.learner.dtype)
        return found


def _empty_for(seen: Representations, rows: int) -> Representations:
    """Memory for the representations of this many learners."""
    return {
        k: _empty_for(v, rows) if isinstance(v, dict) else v.new_empty((rows, *v.shape[1:])) for k, v in seen.items()
    }


def _copy(into: Representations, seen: Representations, rows: slice = slice(None)) -> None:
    for key, value in seen.items():
        _copy(into[key], value, rows) if isinstance(value, dict) else into[key][rows].copy_(value)
