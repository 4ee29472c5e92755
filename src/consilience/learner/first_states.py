"""First states of many learners of one kind, stacked: the bits of `first_state`, without building a model for each."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from consilience.exchanges.base import Exchange, View
from consilience.learner.initial_state import (
    common_seed,
    learner_seed,
    objective_state,
    settings_before_training,
    state_of_exchange,
)
from consilience.learner.learner import Learner
from consilience.learner.recorded_draw import NotRepeatable, RecordedDraw, record_draw
from consilience.learner.state import LearnerState, Tensors
from consilience.objectives import Objective

_WORTH = 4  # different seeds, from which on a recording is worth its time
_MOST_THREADS = 8
_BLOCK_BYTES = 2**24  # of parameters, drawn before they go to the device
_OF_WEIGHTS = {"parameters", "buffers", "classify", "modules", "own_model"}  # what a view shows of them


@dataclass(frozen=True)
class Starts:
    """With what some learners of one federation start.

    numbers: (rows,) the learners'. common: see `common_values`. class_counts: (rows, classes) how many samples of each
    class they train on. settings: their own values, by owner and field, (rows,) each.
    """

    federation_seed: int
    numbers: Sequence[int]
    common: Mapping[str, Mapping[str, Tensor]]
    class_counts: np.ndarray
    settings: Mapping[str, Mapping[str, np.ndarray]]


class FirstStates:
    """Makes first states of learners of one kind, for one federation after the other."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self._recorded: RecordedDraw | None = None
        self._tried = False
        self._remembers = type(learner.role.objective).init_state is not Objective.init_state

    @property
    def block(self) -> int:
        """How many learners to ask for at a time."""
        size = self.learner.binding.parameters.size * self.learner.dtype.itemsize
        return max(1, _BLOCK_BYTES // max(size, 1))

    def states(self, starts: Starts) -> LearnerState:
        """The states, stacked, not to be changed in place; without optimizer and residuals, which are zeros."""
        learner, rows = self.learner, len(starts.numbers)
        alike = learner.role.start == "common" or self._all_replaced(starts.common)
        state = self._weights(starts, alike)
        if alike and rows > 1:
            state = state.map(lambda one: one.expand(rows, *one.shape[1:]))
        state.settings = self._settings(starts)
        own = [e for e in learner.role.exchanges if type(e).init_state is not Exchange.init_state]
        found = {e.name: self._states_of(e, state, alike) for e in own}
        state.exchange_state = {name: tensors for name, tensors in found.items() if tensors}
        if self._remembers:
            keys = [counts.tobytes() for counts in starts.class_counts]
            state.objective_state = _once(keys, lambda row: objective_state(learner, starts.class_counts[row]))
        return state

    # -- weights -------------------------------------------------------------------------------------------------------

    def _weights(self, starts: Starts, alike: bool) -> LearnerState:
        """The state with initial weights, and nothing else; one row where all learners have the same."""
        if self._all_replaced(starts.common):  # what would be drawn is thrown away
            state = self._empty(1)
        elif alike:
            state = self._drawn([common_seed(starts.federation_seed)])
        else:
            state = self._drawn([learner_seed(starts.federation_seed, int(n)) for n in starts.numbers])
        state = state.to(self.learner.device)
        parameters, buffers = self.learner.binding.tensors(state)
        for exchange in (e for e in self.learner.role.exchanges if e.start == "common"):
            for name, value in starts.common.get(exchange.name, {}).items():
                (parameters if name in parameters else buffers)[name].copy_(value)
        return state

    def _all_replaced(self, common: Mapping[str, Mapping[str, Tensor]]) -> bool:
        """Whether common values take the place of all weights and buffers."""
        binding = self.learner.binding
        start_alike = [e.name for e in self.learner.role.exchanges if e.start == "common"]
        replaced = {name for owner in start_alike for name in common.get(owner, {})}
        return not binding.other_buffers and replaced >= {*binding.parameters.shapes, *binding.buffers.shapes}

    def _empty(self, rows: int) -> LearnerState:
        """Memory for weights, on the CPU."""
        binding, dtype = self.learner.binding, self.learner.dtype
        others = binding.other_buffers.items()
        return LearnerState(
            torch.empty((rows, binding.parameters.size), dtype=dtype),
            torch.empty((rows, binding.buffers.size), dtype=dtype),
            torch.zeros(rows, dtype=torch.int64),
            {kind: torch.empty((rows, layout.size), dtype=getattr(torch, kind)) for kind, layout in others},
        )

    def _drawn(self, seeds: Sequence[int]) -> LearnerState:
        """Weights that builds with these seeds have, on the CPU."""
        recorded, state = self._recording(seeds), self._empty(len(seeds))
        places = self.learner.binding.model_tensors(state)
        if recorded is not None:
            _draw_in_threads(recorded, seeds, places)
            return state
        for row, seed in enumerate(seeds):
            for name, tensor in self._build(seed).items():
                places[name][row].copy_(tensor)
        return state

    def _build(self, seed: int) -> Tensors:
        parameters, buffers = self.learner.modules.draw(seed)
        return {name: tensor.detach() for name, tensor in {**parameters, **buffers}.items()}

    def _recording(self, seeds: Sequence[int]) -> RecordedDraw | None:
        """The recorded build, None where there is none: it must give the bits of two builds, and is then trusted."""
        if self._tried or len(seeds) < _WORTH:
            return self._recorded
        self._tried, modules = True, self.learner.modules
        if modules.frozen_sha256:
            return None  # a build may read its frozen part from a file
        real = {seed: {k: t.clone() for k, t in self._build(seed).items()} for seed in (seeds[0], seeds[-1])}
        try:
            recorded = record_draw(modules.build_tensors, seeds[1])
            memory = recorded.memory()
            if all(_same(memory.draw(seed), tensors) for seed, tensors in real.items()):
                self._recorded = recorded
        except (NotRepeatable, RuntimeError):  # some operations cannot be recorded
            return None
        return self._recorded

    # -- what is beside them -------------------------------------------------------------------------------------------

    def _settings(self, starts: Starts) -> dict[str, Tensors]:
        """Their own settings; what is too large becomes infinite."""
        rows = len(starts.numbers)
        found = {
            owner: {name: value.repeat(rows) for name, value in values.items()}
            for owner, values in settings_before_training(self.learner).items()
        }
        for owner, named in starts.settings.items():
            for name, own in named.items():
                found[owner][name].copy_(torch.from_numpy(own))
        return found

    def _states_of(self, exchange: Exchange, state: LearnerState, alike: bool) -> Tensors:
        """An exchange's own state, stacked: made once where learners, as it sees them, are alike."""
        seen: set[str] = set()

        def of_row(row: int) -> Tensors:
            self.learner.bind(state.row(row))
            own = next(e for e in self.learner.exchanges if e.name == exchange.name)
            return state_of_exchange(own, _watched(self.learner.model_view(own), seen))

        first, rows = of_row(0), len(state)
        if exchange.name not in self.learner.spec.varied and (alike or not seen & _OF_WEIGHTS):
            return {name: value.expand(rows, *value.shape) for name, value in first.items()}
        return _stacked([first, *map(of_row, range(1, rows))])


class _WatchedView(View):
    """A view that notes which of its fields are read."""

    def __getattribute__(self, name: str) -> Any:
        read: set[str] = object.__getattribute__(self, "__dict__")["read"]
        read.add(name)
        return object.__getattribute__(self, name)


def _watched(view: View, read: set[str]) -> View:
    watched = object.__new__(_WatchedView)
    object.__getattribute__(watched, "__dict__").update(vars(view), read=read)
    return watched


def _draw_in_threads(recorded: RecordedDraw, seeds: Sequence[int], into: Mapping[str, Tensor]) -> None:
    """Draw with each seed, into one row of the tensors; drawing takes most of the time, and leaves Python's lock."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads, names = min(_MOST_THREADS, cores, len(seeds)), list(into)

    def draw(first: int) -> None:
        memory = recorded.memory()
        for row in range(first, len(seeds), threads):
            drawn = memory.draw(seeds[row])
            torch._foreach_copy_([into[name][row] for name in names], [drawn[name] for name in names])

    if threads == 1:
        return draw(0)
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(draw, range(threads)))
    return None


def _stacked(each: Sequence[Tensors]) -> Tensors:
    return {name: torch.stack([tensors[name] for tensors in each]) for name in each[0]}


def _same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether tensors by name have the same types and bits."""
    return all(one[k].dtype == t.dtype and torch.equal(one[k], t) for k, t in other.items())


def _once(keys: Sequence[bytes], make: Callable[[int], Tensors]) -> Tensors:
    """What is made for each row, stacked: made once for rows with the same key."""
    made: dict[bytes, Tensors] = {}
    for row, key in enumerate(keys):
        if key not in made:
            made[key] = make(row)
    place = {key: i for i, key in enumerate(made)}
    index = torch.tensor([place[key] for key in keys])
    return {name: t.index_select(0, index.to(t.device)) for name, t in _stacked(list(made.values())).items()}
