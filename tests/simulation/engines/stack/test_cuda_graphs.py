"""What happens where work cannot be recorded, with a pretended GPU: the real one is asked in test_branches_on_cuda."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from consilience.simulation.engines.branches.row_generators import RowGenerators
from consilience.simulation.engines.stack.cuda_graphs import Graphs

CPU = torch.device("cpu")


class Generator:
    """A generator of a GPU, as torch has had them: while a graph is recorded it draws for that alone."""

    def __init__(self, device: Any = CPU) -> None:
        self.device, self.state = device, {"seed": 0, "offset": 0, "recording": 0}

    def manual_seed(self, seed: int) -> None:
        self.state |= {"seed": seed, "offset": 0}

    def get_offset(self) -> int:
        return self.state["offset"]

    def get_state(self) -> dict[str, int]:
        return {"seed": self.state["seed"], "offset": self.state["offset"]}

    def set_state(self, state: dict[str, int]) -> None:
        self.state |= state

    def graphsafe_get_state(self) -> Generator:
        found = Generator()
        found.state = self.state
        return found

    def graphsafe_set_state(self, other: Generator) -> None:
        self.state = other.state

    def draw(self, recording: bool) -> None:
        if self.state["recording"] != recording:
            raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")
        self.state["offset"] += 4 * (not recording)


class Gpu:
    """What of torch.cuda is used to record, as torch 2.11 has it: a recording that fails leaves its pool unusable."""

    def __init__(self) -> None:
        self.default, self.recording = Generator(), False
        self.pools, self.held = 0, dict[int, int]()  # pools there have been; by whom each is held: graphs, recordings
        self.filling = set[int]()
        self.streams: list[Any] = []

    def new_pool(self) -> int:
        self.pools += 1
        return self.pools

    def end_pool(self, device: int, pool: int) -> None:
        if pool not in self.filling:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.filling.remove(pool)

    def release_pool(self, device: int, pool: int) -> None:
        self.held[pool] -= 1

    @contextmanager
    def graph(self, graph: Any, pool: int, stream: Any) -> Iterator[None]:
        if pool in self.filling:
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        self.streams.append(stream)
        self.filling.add(pool)
        self.held[pool] = self.held.get(pool, 0) + 1
        known = [self.default, *graph.known]
        self.recording = True
        for generator in known:
            generator.state["recording"] = 1
        try:
            yield
        except RuntimeError as error:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture") from error
        finally:
            self.recording = False
        self.filling.remove(pool)
        graph.release = lambda: self.release_pool(0, pool)
        for generator in known:
            generator.state["recording"] = 0


class Graph:
    def __init__(self) -> None:
        self.known: list[Any] = []
        self.release: Callable[[], None] = lambda: None  # its memory, where it was recorded in order

    def __del__(self) -> None:
        self.release()

    def register_generator_state(self, generator: Any) -> None:
        self.known.append(generator)

    def replay(self) -> None:
        """Nothing is done here."""


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    found = Gpu()
    stream = SimpleNamespace(wait_stream=lambda other: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    monkeypatch.setattr(torch.cuda, "graph", found.graph)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "default_generators", (found.default,))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: found.recording)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", found.new_pool)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", found.end_pool)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", found.release_pool)
    monkeypatch.setattr(torch, "Generator", Generator)
    return found


def recording(*hooks: Any) -> Graphs:
    made: Any = Graphs(CPU, *hooks)
    made.enabled, made._pool = True, torch.cuda.graph_pool_handle()
    made._side_stream = SimpleNamespace(wait_stream=lambda other: None)
    found: Graphs = made
    return found


def test_the_log_names_what_could_not_be_recorded_and_where(gpu: Gpu, caplog: pytest.LogCaptureFixture) -> None:
    """At the end of a recording that failed, torch says only that it did."""

    def read_a_value() -> None:
        if gpu.recording:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nand more")

    graphs = recording()
    for _ in range(4):
        graphs.run("step", read_a_value)
    assert len(caplog.messages) == 1
    assert "slower: CUDA error: operation not permitted when stream is capturing (test_cuda_" in caplog.text


def test_random_numbers_go_on_where_recording_fails(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout before what cannot be recorded: torch would refuse to draw again from generators of that recording."""
    with monkeypatch.context() as real:
        real.setattr(torch, "Generator", type(torch.default_generator))
        rows: Any = RowGenerators(CPU, 1)
    rows._gpu = [Generator()]
    rows.seed([0], [0], 1)
    seed, default = rows._gpu[0].state["seed"], gpu.default

    def step(fails: bool) -> None:
        with rows.of(0):
            default.draw(gpu.recording)
            if fails and gpu.recording:
                raise RuntimeError("not permitted")

    graphs = recording(rows.register, rows.renew)
    for _ in range(3):
        graphs.run("other step", lambda: step(False))
    assert list(graphs._recorded) == ["other step"]
    for _ in range(4):
        graphs.run("step", lambda: step(True))
    # Two steps before the first recording, and four that could not be recorded; here replays draw nothing.
    assert rows._gpu[0].state == {"seed": seed, "offset": 4 * 6, "recording": 0}
    assert default.state == {"seed": 0, "offset": 0, "recording": 0}
    assert not graphs._recorded, "what was recorded would go on with the generators of before"


def test_other_work_is_recorded_where_some_cannot_be(gpu: Gpu) -> None:
    """torch would refuse to record in the pool of a recording that failed, and never free the memory of that pool."""

    def fails() -> None:
        if gpu.recording:
            raise RuntimeError("not permitted")

    graphs = recording()
    for _ in range(3):
        graphs.run("other step", lambda: None)
    for _ in range(4):
        graphs.run("step", fails)
    assert gpu.filling == set() and gpu.held == {1: 0}
    graphs.run("other step", lambda: None)
    assert list(graphs._recorded) == ["other step"] and graphs._not_recordable == {"step"}
    assert gpu.held == {1: 0, 2: 1}


def test_what_fails_before_a_recording_begins_leaves_no_pool_behind(gpu: Gpu) -> None:
    def refuse(graph: Any) -> None:
        raise RuntimeError("the model draws random numbers on the CPU")

    graphs = recording(refuse)
    for _ in range(3):
        graphs.run("step", lambda: None)
    assert graphs._not_recordable == {"step"} and gpu.filling == set() and gpu.held == {}


def test_work_is_recorded_on_the_stream_of_its_own_device(gpu: Gpu) -> None:
    """torch's own choice is a stream of whichever device recorded first: on another one nothing would be recorded."""
    one, other = recording(), recording()
    for graphs in (one, other):
        for _ in range(3):
            graphs.run("step", lambda: None)
    assert gpu.streams == [one._side_stream, other._side_stream] and gpu.streams[0] is not gpu.streams[1]
