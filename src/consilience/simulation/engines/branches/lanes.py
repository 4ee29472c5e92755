"""Streams side by side: work of one learner after the other on each, in an eager run and in a CUDA graph alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any, TypeVar

import torch
from torch import Tensor

Done = TypeVar("Done")


class Lanes:
    """Some side streams of a device; none on a CPU, where work is done one after the other."""

    def __init__(self, device: torch.device, count: int) -> None:
        self.streams = _lane_streams(device)[:count] if device.type == "cuda" else ()

    def run(self, work: Sequence[Callable[[], Done]]) -> list[Done]:
        """Do independent work, each on one of the streams, which fork from the current stream and join it.

        Under capture, what is forked becomes the branches of the graph. Memory that a stream allocates is used again by
        that stream alone, and its next work waits for whatever the current stream has read of it.
        """
        if not self.streams:
            return [each() for each in work]
        here, used = torch.cuda.current_stream(), self.streams[: len(work)]
        for lane in used:
            lane.wait_stream(here)
        try:
            done = []
            for i, each in enumerate(work):
                with torch.cuda.stream(used[i % len(used)]):
                    done.append(each())
        finally:  # a capture cannot end while a stream has not joined
            for lane in used:
                here.wait_stream(lane)
        return done

    def for_all(self, work: Callable[..., Any], in_dims: Any = 0, *, single: bool = False) -> Callable[..., Any]:
        """Work written for one learner, done for each row by itself: takes and returns what `torch.func.vmap` does."""

        def all_rows(*parts: Any) -> Any:
            dims = in_dims if isinstance(in_dims, tuple) else (in_dims,) * len(parts)
            each = [partial(work, *_row(parts, dims, i)) for i in range(_rows(parts, dims))]
            return _stacked(self.run(each))

        return all_rows


LANES = 10
"""Streams side by side: more were not faster with forty learners (docs/architecture.md)."""


@cache
def _lane_streams(device: torch.device) -> tuple[torch.cuda.Stream, ...]:
    """The side streams of a device, which all trainers share: libraries keep memory for each stream they have seen."""
    return tuple(torch.cuda.Stream(device) for _ in range(LANES))  # type: ignore[no-untyped-call]


def _row(nested: Any, dims: Any, number: int) -> Any:
    """One row of nested tensors; dims: along which axis the rows are, None where a tensor is one for all."""
    if dims is None:
        return nested
    if isinstance(nested, dict):
        return {
            key: _row(value, dims[key] if isinstance(dims, dict) else dims, number) for key, value in nested.items()
        }
    if isinstance(nested, tuple):
        several = dims if isinstance(dims, tuple) else (dims,) * len(nested)
        return tuple(_row(value, dim, number) for value, dim in zip(nested, several, strict=True))
    # The only row is a view whose gradient is a view, too; that of a selected row is a copy among zeros.
    return nested.squeeze(dims) if nested.shape[dims] == 1 else nested.select(dims, number)


def _rows(nested: Any, dims: Any) -> int:
    """How many rows nested tensors have."""
    return max(_sizes(nested, dims))


def _sizes(nested: Any, dims: Any) -> Iterable[int]:
    if dims is None:
        return
    if isinstance(nested, dict):
        for key, value in nested.items():
            yield from _sizes(value, dims[key] if isinstance(dims, dict) else dims)
    elif isinstance(nested, tuple):
        several = dims if isinstance(dims, tuple) else (dims,) * len(nested)
        for value, dim in zip(nested, several, strict=True):
            yield from _sizes(value, dim)
    else:
        yield nested.shape[dims]


def _stacked(results: Sequence[Any]) -> Any:
    """Nested tensors of all rows, one axis more than those of each."""
    first = results[0]
    if isinstance(first, dict):
        return {key: _stacked([each[key] for each in results]) for key in first}
    if isinstance(first, tuple):
        return tuple(_stacked(values) for values in zip(*results, strict=True))
    found: Tensor = first[None] if len(results) == 1 else torch.stack(list(results))
    return found
