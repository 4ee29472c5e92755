"""Learners of a cohort stacked, and trained as one.

Their state is copied into tensors with fixed addresses, so that a step can be recorded once and replayed; the
learner's own code runs under `vmap`, and one optimizer updates all rows. The copies go back when the work is done:
until then the cohort is unchanged, and work that runs out of memory can be done again in smaller parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from consilience.learner.learner import Batch, Learner, batch_draws, upload_noise_size
from consilience.learner.local_training import (
    last_batch_only,
    optimized_gradient,
    values_before_batch,
    with_rescaled_steps,
)
from consilience.learner.modules import Representations
from consilience.learner.noise_source import UPLOAD_NOISE, UPLOAD_SAMPLING, stacked_uniform
from consilience.learner.passes import needs_representations, represent
from consilience.learner.private_uploads import ENTERING, NOISE
from consilience.learner.spec import OPTIMIZER
from consilience.learner.state import LearnerState, Tensors
from consilience.randomness import AFTER_TRAINING, BEFORE_TRAINING
from consilience.simulation.engines.cohort import Cohort
from consilience.simulation.engines.shared_data import SharedData
from consilience.simulation.engines.stack.batched_layers import Layers
from consilience.simulation.engines.stack.cuda_graphs import Graphs
from consilience.simulation.engines.stack.row_copies import RowCopies
from consilience.simulation.engines.stack.stacked_answers import StackedAnswers, one_received, vmap_answers
from consilience.simulation.engines.stack.stacked_samples import StackedSamples

Uploads = dict[str, tuple[dict[str, Tensor], Tensor]]
"""What learners upload, by exchange: tensors (rows, ...), and weights."""
AnswerKinds = tuple[tuple[str, bool], ...]
"""By exchange, whether all rows hold the same answer: recorded work holds for one such combination."""


class StackedTrainer:
    """Some rows of a cohort, all with batches of one width at every step.

    pass_size: how many learners, and how many samples of each, one forward pass takes when nothing is trained.
    """

    def __init__(
        self, learner: Learner, cohort: Cohort, data: SharedData, rows: int, even: bool, pass_size: tuple[int, int]
    ) -> None:
        self.learner, self.data, self.pass_size = learner, data, pass_size
        device = data.inputs.device
        self.copies = RowCopies(cohort.state, rows, device)
        self.state = self.copies.state
        self.samples = StackedSamples(cohort.plan, rows, even, device)
        self.losses = torch.zeros((rows, len(learner.loss_terms) + 1), dtype=torch.float64, device=device)
        self.gradient = None if learner.optimized is None else torch.zeros_like(self.state.parameters)
        self.last_batch_only = last_batch_only(learner)
        self.answers: dict[AnswerKinds, dict[str, StackedAnswers]] = {}
        self.answer_kinds: AnswerKinds = ()
        self.uploads: Uploads = {}
        self.results: dict[tuple[str, ...], Tensor] = {}
        self.seen: Representations = {}
        self.graphs = Graphs(device)

    # -- rows in and out -----------------------------------------------------------------------------------------------

    def enter(self, cohort: Cohort, rows: np.ndarray, round_: int, answers: Mapping[str, StackedAnswers]) -> None:
        """Copy these rows of the cohort, and the answers they hold."""
        if not np.array_equal(rows, self.copies.rows):
            self.samples.assign(cohort.plan.members, rows)
            self.copies.choose(rows)
        self.copies.copy_in(cohort.state)
        self.samples.round.fill_(round_)
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

        self._each(one)(self.seen, self._sample_draws(names, BEFORE_TRAINING))

    def _plan(self) -> None:
        """Plan the round's batches."""
        self.samples.plan_round()
        self.losses.zero_()
        if self.gradient is not None:
            self.gradient.zero_()

    def _step(self, width: int) -> None:
        """One step of every learner that has one left."""
        learner, state, binding, samples = self.learner, self.state, self.learner.binding, self.samples
        learner.modules.set_training(True)
        positions, chosen, active = samples.batch(width)
        self._move_before_batch(active)
        inputs, targets = self.data.inputs[chosen], self.data.targets[chosen]
        drawing = batch_draws(learner).items()
        draws = {owner: samples.draw(owner, count, width, samples.step) for owner, count in drawing}
        views, buffers = binding.tensors(state)
        leaves = {name: view.detach().requires_grad_() for name, view in views.items()}
        buffers = {name: view.clone() for name, view in buffers.items()}  # changed in place, each in one piece
        follows = any(e.has_batch_hook for e in learner.exchanges)
        before = _cloned(state.exchange_state) if follows and active is not None else {}
        loss, terms = self._each(self._losses)(leaves, buffers, inputs, targets, draws, positions)
        found = torch.autograd.grad(loss.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True)
        with torch.no_grad():
            self._optimizer_step(binding.parameters.flat(dict(zip(leaves, found, strict=True))), active)
            floating, others = binding.flat_buffers(buffers)
            _copy_where(active, [(state.buffers, floating)] if floating is not None else [])
            _copy_where(active, [(state.other_buffers[kind], flat) for kind, flat in others.items()])
            if active is not None:
                _copy_where(~active, _pairs(state.exchange_state, before))
            self.losses += terms if active is None else torch.where(active[:, None], terms, torch.zeros_like(terms))
        samples.step += 1

    @torch.no_grad()
    def _move_before_batch(self, active: Tensor | None) -> None:
        """Move the parts that exchanges move before every batch."""
        if not self.learner.moved_before_batches:
            return
        progress = ((self.samples.step + 1) / self.samples.steps.double()).to(self.learner.dtype)  # (rows,)

        def one(state: dict[str, Any], own: Tensors, held: Any, progress: Tensor) -> Tensors:
            row = LearnerState.from_dict(state)
            with self.learner.bound(row, *self.learner.binding.tensors(row)):
                return values_before_batch(self.learner, one_received(held), progress)

        mine = self.learner.binding.tensors(self.state)[0]
        _copy_where(active, [(mine[name], value) for name, value in self._each(one)(progress).items()])

    def _losses(
        self, state: dict[str, Any], own: Tensors, held: Any, parameters: Tensors, buffers: Tensors, *batch: Any
    ) -> tuple[Tensor, Tensor]:
        """For one learner, of a batch's inputs, targets, draws and positions."""
        with self.learner.bound(LearnerState.from_dict(state), parameters, buffers):
            return self.learner.losses(Batch(*batch), own["samples"], one_received(held))

    def _optimizer_step(self, gradient: Tensor, active: Tensor | None) -> None:
        """One optimizer for all rows, each with its own count of steps and, where it varies, its own settings."""
        learner, state = self.learner, self.state
        step = state.step + (1 if active is None else active.to(torch.int64))
        own = {name: value[:, None] for name, value in state.settings.get(OPTIMIZER, {}).items()}
        optimizer = learner.with_settings(learner.spec.optimizer, OPTIMIZER, {OPTIMIZER: own})
        local = optimized_gradient(learner, gradient)
        moved, slots = optimizer.update(state.parameters, local, dict(state.optimizer), step[:, None])
        moved = with_rescaled_steps(learner, state.parameters, moved)
        if self.gradient is not None and learner.optimized is not None:
            if self.last_batch_only is not None:
                gone = self.last_batch_only if active is None else self.last_batch_only & active[:, None]
                self.gradient.masked_fill_(gone, 0)
            self.gradient += gradient if active is None else gradient * active[:, None]
            moved = torch.where(learner.optimized, moved, state.parameters)
        kept = [(state.optimizer[slot], value) for slot, value in slots.items()]
        _copy_where(active, [(state.parameters, moved), (state.step, step), *kept])

    def _average(self) -> None:
        """Losses, and gradients of parts that exchanges own, as means over a learner's batches."""
        steps = self.samples.steps[:, None]
        self.losses /= steps
        if self.gradient is not None:
            self.gradient /= steps if self.last_batch_only is None else torch.where(self.last_batch_only, 1, steps)

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
            with Layers():
                seen = vmap(one)(states, self.data.inputs[where], self.data.targets[where], valid[some])
            if not self.seen:
                self.seen = _empty_for(seen, len(positions))
            _copy(self.seen, seen, some)

    def contribute(self, names: tuple[str, ...], online: np.ndarray) -> Uploads:
        """What every learner uploads to these exchanges; the residuals of those who are not online stay."""
        before = _cloned(self.state.residuals) if not online.all() else {}
        self.graphs.run(("contribute", names, self.answer_kinds), partial(self._contribute, names))
        if before:
            offline = torch.from_numpy(~online).to(self.losses.device)
            _copy_where(offline, _pairs(self.state.residuals, before))
        return {name: self.uploads[name] for name in names}

    @torch.no_grad()
    def _contribute(self, names: tuple[str, ...]) -> None:
        self.learner.modules.set_training(False)
        draws = self._sample_draws(names, AFTER_TRAINING)
        seen = self.seen if needs_representations(self.learner, names) else {}
        uploads = self._each(partial(self._contribute_one, names))(seen, draws)
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

    # -- under vmap ----------------------------------------------------------------------------------------------------

    def _each(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """Work written for one learner, done for all rows.

        It gets the learner's state, its own values (how many samples it has, the mean gradient where that is kept), the
        answers it holds, and its part of each further argument.
        """
        answers, dims = vmap_answers(self.answers[self.answer_kinds])
        own = {"samples": self.samples.keys.size.to(self.learner.dtype)}
        if self.gradient is not None:
            own["gradient"] = self.gradient

        def all_rows(*parts: Any) -> Any:
            with Layers():
                return vmap(work, in_dims=(0, 0, dims, *(0 for _ in parts)))(self.state.as_dict(), own, answers, *parts)

        return all_rows

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


def _copy_where(rows: Tensor | None, pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Copy the second tensor of each pair into the first, in these rows only; in all where rows is None."""
    for old, new in pairs:
        chosen = None if rows is None else rows.reshape(-1, *(1,) * (old.ndim - 1))
        old.copy_(new if chosen is None else torch.where(chosen, new, old))


def _cloned(tensors: Mapping[str, Tensors]) -> dict[str, Tensors]:
    return {owner: {k: t.clone() for k, t in named.items()} for owner, named in tensors.items()}


def _pairs(old: Mapping[str, Tensors], new: Mapping[str, Tensors]) -> list[tuple[Tensor, Tensor]]:
    return [(old[owner][k], tensor) for owner, named in new.items() for k, tensor in named.items()]


def _empty_for(seen: Representations, rows: int) -> Representations:
    """Memory for the representations of this many learners."""
    return {
        k: _empty_for(v, rows) if isinstance(v, dict) else v.new_empty((rows, *v.shape[1:])) for k, v in seen.items()
    }


def _copy(into: Representations, seen: Representations, rows: slice = slice(None)) -> None:
    for key, value in seen.items():
        _copy(into[key], value, rows) if isinstance(value, dict) else into[key][rows].copy_(value)
