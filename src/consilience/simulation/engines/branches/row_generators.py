"""Random numbers that a model draws itself, such as dropout's: a generator for each row, as the loop has them.

A learner's numbers in a round depend on the federation's seed, the round and its own number alone, whoever else is
there. While a row works, torch's default generators are its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from consilience.randomness import seed_of
from consilience.simulation.engines.stack.cuda_graphs import renewed


class RowGenerators:
    """For each row, a generator on the CPU, and one on the GPU if that is the device.

    On a GPU the default generator is pointed at a row's own, which a CUDA graph must know before it records.
    """

    def __init__(self, device: torch.device, rows: int) -> None:
        self._index = device.index or 0
        self._cpu = [torch.Generator() for _ in range(rows)]
        own = torch.device("cuda", self._index)
        self._gpu = [torch.Generator(own) for _ in range(rows)] if device.type == "cuda" else []
        self._drawn_on_cpu = self._drawn_on_gpu = False  # work runs at least once before it is recorded

    def seed(self, seeds: Sequence[int], learners: Sequence[int], round_: int) -> None:
        """Begin a round; the federation's seed and the learner's number of each row."""
        for i, (seed, number) in enumerate(zip(seeds, learners, strict=True)):
            own = seed_of("model", seed, round_, number)
            for generator in (self._cpu[i], *self._gpu[i : i + 1]):
                generator.manual_seed(own)

    @contextmanager
    def of(self, row: int) -> Iterator[None]:
        """While this lasts, torch's own random numbers are this row's."""
        with self._on_cpu(row), self._on_gpu(row):
            yield

    def register(self, graph: torch.cuda.CUDAGraph) -> None:
        """Let a graph know the generators of models that draw, so that each replay continues their numbers."""
        if self._drawn_on_cpu:
            raise RuntimeError("the model draws random numbers on the CPU, and a recording would repeat the same ones")
        for generator in self._gpu if self._drawn_on_gpu else ():
            graph.register_generator_state(generator)

    def renew(self) -> None:
        """Give up the generators that a graph knows whose recording failed; the numbers go on."""
        self._gpu = [renewed(generator) for generator in self._gpu]

    @contextmanager
    def _on_cpu(self, row: int) -> Iterator[None]:
        """A generator on the CPU cannot be pointed at another one: its state is exchanged."""
        default, own = torch.default_generator, self._cpu[row]
        before, start = default.get_state(), own.get_state()
        default.set_state(start)
        try:
            yield
        finally:
            after = default.get_state()
            default.set_state(before)
            own.set_state(after)
            self._drawn_on_cpu |= bool(self._gpu) and not torch.equal(start, after)

    @contextmanager
    def _on_gpu(self, row: int) -> Iterator[None]:
        """As torch's own `graphsafe_run_with_rng_state` does it; also while a graph is recorded."""
        recording = bool(self._gpu) and torch.cuda.is_current_stream_capturing()
        if not self._gpu or (recording and not self._drawn_on_gpu):
            yield
            return
        default, own = torch.cuda.default_generators[self._index], self._gpu[row]
        before = default.graphsafe_get_state()
        default.graphsafe_set_state(own)
        try:
            yield
        finally:
            default.graphsafe_set_state(before)
            if not recording:
                self._drawn_on_gpu |= own.get_offset() > 0
