"""Work that is the same every time, recorded once on a GPU and replayed: that costs what launching one kernel does."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from functools import cache

import torch

from consilience.errors import first_sentence

log = logging.getLogger("consilience")
_WARM = 2  # times that work is done as it is before it is recorded: libraries choose their kernels then


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """One beside the usual stream, for everybody: libraries keep some memory for each stream they have seen."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class Graphs:
    """Recorded work by key. The work must read from and write into tensors that stay where they are."""

    def __init__(self, device: torch.device) -> None:
        self.on = device.type == "cuda"
        self._unfit: set[Hashable] = set()
        self._times: dict[Hashable, int] = {}
        self._recorded: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle() if self.on else None
        self._beside = _stream(device) if self.on else None

    def run(self, key: Hashable, work: Callable[[], None]) -> None:
        """Do the work: by itself at first, and where there is no GPU; then by replaying it."""
        if not self.on:
            work()
        elif self._times.setdefault(key, 0) < _WARM or key in self._unfit:
            self._times[key] += 1
            self._aside(work)
        else:
            if key not in self._recorded:
                self._record(key, work)
            if key in self._unfit:
                self._aside(work)
            else:
                self._recorded[key].replay()

    def _aside(self, work: Callable[[], None]) -> None:
        """On a stream beside the usual one, as recording will be."""
        here = torch.cuda.current_stream()
        assert self._beside is not None
        self._beside.wait_stream(here)
        with torch.cuda.stream(self._beside):
            work()
        here.wait_stream(self._beside)

    def _record(self, key: Hashable, work: Callable[[], None]) -> None:
        """Capture the work as a CUDA graph.

        What cannot be captured (a model that copies from main memory) is done as it is from now on, with a warning.
        """
        graph, failed = torch.cuda.CUDAGraph(), None
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                try:
                    work()
                except torch.OutOfMemoryError as error:  # told when the recording has ended in order
                    failed = error
        except RuntimeError as error:
            if not self._unfit:
                log.warning(
                    "a step cannot be recorded and is launched anew each time, slower: %s", first_sentence(error)
                )
            self._unfit.add(key)
            return
        if failed is not None:
            raise failed
        self._recorded[key] = graph
