"""CUDA graphs: work that is the same every time is recorded once and replayed, at the cost of launching one kernel."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Hashable
from functools import cache
from pathlib import Path

import torch

from consilience.errors import first_sentence

log = logging.getLogger("consilience")
_WARM_UP_RUNS = 2  # before work is recorded: libraries choose their kernels in these runs


@cache
def _side_stream_of(device: torch.device) -> torch.cuda.Stream:
    """The one side stream of a device, which all graphs share: libraries keep memory for each stream they have seen."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class Graphs:
    """Recorded work by key. The work must read from and write into tensors with fixed addresses.

    prepare: called with each new graph before work is recorded in it; raises a RuntimeError where it cannot be.
    abandon: called after a recording that failed, which leaves the generators it knew unusable.
    """

    def __init__(
        self,
        device: torch.device,
        prepare: Callable[[torch.cuda.CUDAGraph], None] = lambda graph: None,
        abandon: Callable[[], None] = lambda: None,
    ) -> None:
        self._device, self._prepare, self._abandon = device, prepare, abandon
        self.enabled = device.type == "cuda"
        self._not_recordable: set[Hashable] = set()
        self._runs: dict[Hashable, int] = {}
        self._recorded: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle() if self.enabled else None
        self._side_stream = _side_stream_of(device) if self.enabled else None

    def run(self, key: Hashable, work: Callable[[], None]) -> None:
        """Do the work: directly at first, and where there is no GPU; later by replaying its recording."""
        if not self.enabled:
            work()
        elif self._runs.setdefault(key, 0) < _WARM_UP_RUNS or key in self._not_recordable:
            self._runs[key] += 1
            self._run_on_side_stream(work)
        else:
            if key not in self._recorded:
                self._record(key, work)
            if key in self._not_recordable:
                self._run_on_side_stream(work)
            else:
                self._recorded[key].replay()

    def _run_on_side_stream(self, work: Callable[[], None]) -> None:
        """Do the work on the side stream, as recording does."""
        here = torch.cuda.current_stream()
        assert self._side_stream is not None
        self._side_stream.wait_stream(here)
        with torch.cuda.stream(self._side_stream):
            work()
        here.wait_stream(self._side_stream)

    def _record(self, key: Hashable, work: Callable[[], None]) -> None:
        """Capture the work as a CUDA graph.

        Work that cannot be captured (a model that copies from main memory) is done directly from then on, and logged.
        """
        graph, failed = torch.cuda.CUDAGraph(), None
        here = torch.cuda.current_stream()
        try:
            self._prepare(graph)
            # Where recording fails, torch.cuda.graph leaves the stream it records on behind as the current one. By
            # itself it would record on a stream of the device that recorded first in this process.
            with torch.cuda.stream(here), torch.cuda.graph(graph, pool=self._pool, stream=self._side_stream):
                try:
                    work()
                except torch.OutOfMemoryError as error:  # raised below, when the recording has ended in order
                    failed = error
        except RuntimeError as error:
            if not self._not_recordable:
                log.warning(
                    "a step cannot be recorded as a CUDA graph and is launched anew each time, which is slower: %s",
                    _reason(error),
                )
            self._not_recordable.add(key)
            self._recorded.clear()  # what was recorded goes on with the generators that are given up
            self._leave_pool()
            self._abandon()
            default = torch.cuda.default_generators[self._device.index or 0]
            default.graphsafe_set_state(renewed(default))
            return
        if failed is not None:
            raise failed
        self._recorded[key] = graph

    def _leave_pool(self) -> None:
        """Go on with another pool of memory: of the one in which recording failed, torch may think that it still does.

        It would then refuse all further recordings in it, and keep its memory.
        """
        device, pool = self._device.index or 0, self._pool
        assert pool is not None
        try:
            torch._C._cuda_endAllocateToPool(device, pool)
        except RuntimeError:  # the recording had ended in order, or had not begun
            pass
        else:
            torch._C._cuda_releasePool(device, pool)
        self._pool = torch.cuda.graph_pool_handle()


def renewed(generator: torch.Generator) -> torch.Generator:
    """A generator that goes on with another's numbers.

    To torch, the other still is in the recording that failed: it would refuse to draw outside of one.
    """
    found = torch.Generator(generator.device)
    found.set_state(generator.get_state())
    return found


def _reason(error: Exception) -> str:
    """What went wrong first, and where: of a recording that fails, torch says at its end only that it failed."""
    while isinstance(error.__context__, Exception):
        error = error.__context__
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{first_sentence(error)}{where}"
