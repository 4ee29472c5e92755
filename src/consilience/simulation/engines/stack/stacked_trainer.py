"""Learners of a cohort drawn up side by side, to be trained as one.

Their state is copied into tensors that stay where they are, so that a step can be recorded once and replayed; the
learner's own code runs under `vmap`, and one optimizer moves all rows. What was copied goes back when the work is done:
until then the cohort is as it was, and work that did not fit the memory can be done again in smaller parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from consilience.learner.body import OPTIMIZER
from consilience.learner.learner import Batch, Learner, Row, Seen
from consilience.randomness import uniform
from consilience.simulation.engines.cohort import Cohort, CohortPlan
from consilience.simulation.engines.shared_data import Data
from consilience.simulation.engines.stack.answer_cache import Stacked, received_of, side_by_side
from consilience.simulation.engines.stack.batched_layers import Layers
from consilience.simulation.engines.stack.cuda_graphs import Graphs
from consilience.simulation.round.plan import AFTER, BEFORE, stacked_batches, widths

Put = dict[str, tuple[dict[str, Tensor], Tensor]]
"""What learners put up, by exchange: tensors (rows, ...), and weights."""


class StackedTrainer:
    """So many rows of a cohort, all with batches of one width at every step."""

    def __init__(
        self, learner: Learner, cohort: Cohort, data: Data, rows: int, even: bool, seen: tuple[int, int]
    ) -> None:
        self.learner, self.plan, self.data, self.even, self.pass_of = learner, cohort.plan, data, even, seen
        self.device = device = data.inputs.device
        self.state = {k: t.new_empty((rows, *t.shape[1:]), device=device) for k, t in cohort.state.items()}
        members = cohort.plan.members
        self.index = torch.from_numpy(members.index).to(device)
        marks = None if members.shared is None else torch.from_numpy(members.shared).to(device, learner.dtype)
        self.shared = marks  # 1 where a sample may enter what is put up
        self.seats = torch.zeros((5, rows), dtype=torch.int64, device=device)
        self.seed, self.who, self.start, self.size, self.steps = self.seats
        self.rows, self.home = np.zeros(0, dtype=np.int64), cohort.state["step"].device
        self.longest, work = int(cohort.plan.members.sizes.max()), cohort.plan.work
        self.most = len(widths(self.longest, work.batch_size, work.epochs, even=even, least=work.least))
        self.round, self.at = (torch.zeros(1, dtype=torch.int64, device=device) for _ in range(2))
        self.positions = torch.zeros((self.most, rows, work.batch_size), dtype=torch.int64, device=device)
        self.active = torch.zeros((self.most, rows), dtype=torch.bool, device=device)
        self.losses = torch.zeros((rows, learner.told), dtype=torch.float64, device=device)
        self.summed = None if learner.all_trained else torch.zeros_like(self.state["parameters"])
        self.held: dict[tuple[tuple[str, bool], ...], dict[str, Stacked]] = {}
        self.put: Put = {}
        self.told: dict[tuple[str, ...], Tensor] = {}
        self.seen: Seen = {}
        self.paced = any(e.has_batch_hook for e in learner.exchanges)
        self.graphs = Graphs(device)

    # -- coming and going ----------------------------------------------------------------------------------------------

    def enter(self, cohort: Cohort, rows: np.ndarray, round_: int, held: Mapping[str, Stacked]) -> None:
        """These rows of the cohort take their places, with the answers they hold."""
        if not np.array_equal(rows, self.rows):
            self._seat(cohort.plan, rows)
        lying = [cohort.state[key] for key in self.state]
        home = lying if self.everybody else [tensor.index_select(0, self.places) for tensor in lying]
        torch._foreach_copy_(list(self.state.values()), home)
        self.round.fill_(round_)
        self.kind = tuple((name, answers.shared) for name, answers in held.items())
        if self.kind not in self.held:
            self.held[self.kind] = {name: answers.clone() for name, answers in held.items()}
        for name, answers in held.items():
            self.held[self.kind][name].copy_(answers)

    def _seat(self, plan: CohortPlan, rows: np.ndarray) -> None:
        """Who sits where, what batches that makes, and whether some have fewer: known here, so nothing asks the GPU."""
        members, work = plan.members, plan.work
        sizes, batch = members.sizes[rows], work.batch_size
        who = members.seed[rows], members.learner[rows], members.start[rows], sizes, -(-sizes // batch)
        self.seats.copy_(torch.from_numpy(np.stack(who)))
        self.widths = widths(int(sizes.max()), batch, work.epochs, even=self.even, least=work.least)
        self.ragged = bool((sizes.max() - 1) // batch != (sizes.min() - 1) // batch)
        self.rows, self.places = rows, torch.from_numpy(rows).to(self.home)
        self.everybody = np.array_equal(rows, np.arange(len(members)))

    def leave(self, cohort: Cohort, count: int) -> None:
        """Back into the cohort, but for who only filled up the places after the first `count`."""
        if self.everybody:
            torch._foreach_copy_([cohort.state[key] for key in self.state], list(self.state.values()))
            return
        moved = {key: tensor[:count].to(self.home) for key, tensor in self.state.items()}  # all, or nothing is changed
        for key, tensor in moved.items():
            cohort.state[key].index_copy_(0, self.places[:count], tensor)

    # -- training ------------------------------------------------------------------------------------------------------

    def train(self) -> None:
        """A round's local steps."""
        if self.plan.work.reset:
            for key in ("step", *(f"optimizer.{s}" for s in self.learner.optimizer.slots)):
                self.state[key].zero_()
        if self.learner.has_round_start:
            self.graphs.run("represent", self._represent)
            self.graphs.run(("open", self.kind), self._open)
        self.graphs.run("deal", self._deal)
        for width in self.widths:
            self.graphs.run(("step", width, self.ragged, self.kind), partial(self._step, width))
        self.graphs.run("average", self._average)

    def _average(self) -> None:
        """Losses, and gradients of parts that exchanges own, as means over a learner's batches."""
        taken = (self.steps * self.plan.work.epochs)[:, None]
        self.losses /= taken
        if self.summed is not None:
            self.summed /= taken

    def _deal(self) -> None:
        """Plan the round's batches."""
        work = self.plan.work
        steps = self.steps * work.epochs
        positions = stacked_batches(
            self.seed,
            self.round,
            self.who,
            self.size,
            self.steps,
            self.longest,
            self.most,
            work.batch_size,
            work.epochs,
        )
        self.positions.copy_(positions)
        self.active.copy_(torch.arange(self.most, device=self.device)[:, None] < steps)
        self.at.zero_()
        self.losses.zero_()
        if self.summed is not None:
            self.summed.zero_()

    def _step(self, width: int) -> None:
        """One step of every learner that has one left."""
        learner, state = self.learner, self.state
        learner.mode(training=True)
        positions = self.positions.index_select(0, self.at)[0, :, :width]  # (rows, width)
        chosen = self.index[self.start[:, None] + positions]
        active = self.active.index_select(0, self.at)[0] if self.ragged else None  # (rows,)
        inputs, targets = self.data.inputs[chosen], self.data.targets[chosen]
        draws = {o.name: self._draws(o.name, o.batch_draws, width, self.at) for o in learner.owners if o.batch_draws}
        views, buffers = learner.tensors(state)
        leaves = {name: view.detach().requires_grad_(name not in learner.frozen) for name, view in views.items()}
        buffers = {name: view.clone() for name, view in buffers.items()}  # changed in place, each in one piece
        before = self._states() if self.paced and active is not None else {}
        loss, terms = self._each(self._losses)(leaves, buffers, inputs, targets, draws, positions)
        moving = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
        found = torch.autograd.grad(loss.sum(), list(moving.values()), allow_unused=True, materialize_grads=True)
        with torch.no_grad():
            gradients = {name: torch.zeros_like(leaf) for name, leaf in leaves.items() if name not in moving}
            gradients |= dict(zip(moving, found, strict=True))
            self._move(learner.parameters.flat(gradients), active)
            self._keep(learner.laid(buffers), active)
            if active is not None:
                self._keep(before, ~active)
            self.losses += terms if active is None else torch.where(active[:, None], terms, torch.zeros_like(terms))
        self.at += 1

    def _losses(self, row: Row, held: Any, parameters: Row, buffers: Row, *batch: Any) -> tuple[Tensor, Tensor]:
        """For one learner, of a batch's inputs, targets, draws and positions."""
        with self.learner.dressed(row, parameters, buffers):
            received = {name: received_of(parts) for name, parts in held.items()}
            return self.learner.losses(Batch(*batch), row["samples"], received)

    def _states(self) -> Row:
        """A copy of the exchanges' own states."""
        return {k: t.clone() for k, t in self.state.items() if k.startswith("state.")}

    @torch.no_grad()
    def _open(self) -> None:
        """Exchanges' own states begin, after a look at all samples."""
        self.learner.mode(training=False)
        wanted = {e.name: e.sample_draws for e in self.learner.exchanges if e.has_round_start and e.sample_draws}
        before = torch.full_like(self.at, BEFORE)
        draws = {name: self._draws(name, k, self.longest, before) for name, k in wanted.items()}

        def one(row: Row, held: Any, seen: Seen, draws: Row) -> Tensor:
            received = {name: received_of(parts) for name, parts in held.items()}
            with self.learner.dressed(row, *self.learner.tensors(row)):
                self.learner.on_round_start(seen, row["samples"], draws, received)
            return row["samples"]  # something must come back

        self._each(one)(self.seen, draws)

    def _move(self, gradient: Tensor, active: Tensor | None) -> None:
        """One optimizer for all rows, each with its own count of steps and, where it varies, its own settings."""
        learner, state = self.learner, self.state
        one = 1 if active is None else active.to(torch.int64)
        step = state["step"] + one
        slots = {s: state[f"optimizer.{s}"] for s in learner.optimizer.slots}
        optimizer = learner.varied(learner.spec.optimizer, OPTIMIZER, {k: t[:, None] for k, t in self._settings()})
        moved, kept = optimizer.update(state["parameters"], gradient, slots, step[:, None])
        if self.summed is not None:
            self.summed += gradient if active is None else gradient * active[:, None]
            moved = torch.where(learner.trained, moved, state["parameters"])
        self._keep({"parameters": moved, "step": step} | {f"optimizer.{s}": v for s, v in kept.items()}, active)

    def _settings(self) -> Iterator[tuple[str, Tensor]]:
        return ((k, t) for k, t in self.state.items() if k.startswith("setting."))

    def _keep(self, new: Mapping[str, Tensor], active: Tensor | None) -> None:
        """Take new values, but not for learners with nothing left to do."""
        for key, value in new.items():
            old = self.state[key]
            stays = None if active is None else active.reshape(-1, *(1,) * (old.ndim - 1))
            old.copy_(value if stays is None else torch.where(stays, value, old))

    # -- after training ------------------------------------------------------------------------------------------------

    def represent(self, names: tuple[str, ...]) -> None:
        """One pass over everybody's samples, where any of these exchanges looks at them."""
        if self.learner.needs_representations(names):
            self.graphs.run("represent", self._represent)

    @torch.no_grad()
    def _represent(self) -> None:
        column = torch.arange(self.longest, device=self.device)
        places = self.start[:, None] + torch.minimum(column, self.size[:, None] - 1)  # (rows, longest)
        positions, valid = self.index[places], (column < self.size[:, None]).to(self.learner.dtype)
        if self.shared is not None:
            valid = valid * self.shared[places]
        together, samples = self.pass_of

        def one(row: Row, inputs: Tensor, targets: Tensor, valid: Tensor) -> Seen:
            with self.learner.dressed(row, *self.learner.tensors(row)):
                return self.learner.represent(inputs, targets, valid, rows=samples)

        for i in range(0, len(positions), together):
            some = slice(i, i + together)
            rows, where = {k: t[some] for k, t in self.state.items()}, positions[some]
            with Layers():
                seen = vmap(one)(rows, self.data.inputs[where], self.data.targets[where], valid[some])
            if not self.seen:
                self.seen = _room_for(seen, len(positions))
            _copy(self.seen, seen, some)

    def contribute(self, names: tuple[str, ...], up: np.ndarray) -> Put:
        """What every learner puts up for these exchanges; only those that are up do, and remember what was rounded."""
        errors = {k: t.clone() for k, t in self.state.items() if k.startswith("error.")} if not up.all() else {}
        self.graphs.run(("contribute", names, self.kind), partial(self._contribute, names))
        if errors:
            self._keep(errors, torch.from_numpy(~up).to(self.device))
        return {name: self.put[name] for name in names}

    @torch.no_grad()
    def _contribute(self, names: tuple[str, ...]) -> None:
        self.learner.mode(training=False)
        wanted = {e.name: e.sample_draws for e in self.learner.exchanges if e.name in names and e.sample_draws}
        last = torch.full_like(self.at, AFTER)
        draws = {name: self._draws(name, k, self.longest, last) for name, k in wanted.items()}
        looking = self.learner.needs_representations(names)
        put = self._each(partial(self._put_up, names))(self.seen if looking else {}, draws)
        for name, (tensors, weight) in put.items():
            if name not in self.put:
                self.put[name] = ({k: t.clone() for k, t in tensors.items()}, weight.clone())
            _copy(self.put[name][0], tensors)
            self.put[name][1].copy_(weight)

    def _put_up(self, names: tuple[str, ...], row: Row, held: Any, seen: Seen, draws: Row) -> Put:
        """For one learner."""
        received = {name: received_of(held[name]) for name in names}
        with self.learner.dressed(row, *self.learner.tensors(row)):
            seen = seen or self.learner.nothing()
            put = self.learner.contribute(seen, row["samples"], draws, received, row.get("summed"))
        return {name: (dict(p.tensors), p.weight) for name, p in put.items()}

    def tell(self, names: tuple[str, ...]) -> Tensor:
        """Each loss term, and whether the parameters and each exchange's contribution are finite, (rows, ...)."""
        if names not in self.told:
            self.told[names] = self.losses.new_zeros((len(self.losses), self.losses.shape[1] + 1 + len(names)))
        self.graphs.run(("tell", names), partial(self._tell, names))
        return self.told[names]

    def _tell(self, names: tuple[str, ...]) -> None:
        sums = [self.state["parameters"].sum(1)]  # a sum is not finite if a value is not
        for tensors, weight in (self.put[name] for name in names):
            sums.append(torch.stack([t.reshape(len(t), -1).sum(1) for t in (*tensors.values(), weight)]).sum(0))
        finite = torch.stack(sums, dim=1).isfinite()
        self.told[names].copy_(torch.cat([self.losses, finite], dim=1))

    # -- under vmap ----------------------------------------------------------------------------------------------------

    def _each(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """The work of one learner, done for all rows: it is handed the row, the answers it holds, and its share."""
        answers, dims = side_by_side(self.held[self.kind])
        rows = self.state | {"samples": self.size.to(self.learner.dtype)}
        if self.summed is not None:
            rows = rows | {"summed": self.summed}

        def all_rows(*shares: Any) -> Any:
            with Layers():
                return vmap(work, in_dims=(0, dims, *(0 for _ in shares)))(rows, answers, *shares)

        return all_rows

    def _draws(self, owner: str, wanted: int, columns: int, step: Tensor) -> Tensor:
        """(rows, wanted, columns) uniform numbers, the same as the loop's."""
        across = torch.arange(wanted, device=self.device)[:, None], torch.arange(columns, device=self.device)
        seed, who = self.seed[:, None, None], self.who[:, None, None]
        drawn: Tensor = uniform(f"draws {owner}", seed, self.round, who, step, *across)
        return drawn


def _room_for(seen: Seen, rows: int) -> Seen:
    """As what some learners saw, for so many."""
    return {
        k: _room_for(v, rows) if isinstance(v, dict) else v.new_empty((rows, *v.shape[1:])) for k, v in seen.items()
    }


def _copy(into: Seen, seen: Seen, rows: slice = slice(None)) -> None:
    for key, value in seen.items():
        _copy(into[key], value, rows) if isinstance(value, dict) else into[key][rows].copy_(value)
