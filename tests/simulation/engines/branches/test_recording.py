"""How branches are recorded, with streams and generators that only note what is done to them: no GPU is needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch

from consilience.config.config import make_config
from consilience.data import load
from consilience.methods import build_method
from consilience.simulation.engines.branches.engine import BranchEngine
from consilience.simulation.engines.branches.lanes import Lanes
from consilience.simulation.engines.branches.row_generators import RowGenerators
from consilience.simulation.engines.stack.engine import StackEngine
from consilience.simulation.engines.step_times import step_seconds
from consilience.simulation.setup.setup import build_setup

CPU = torch.device("cpu")


class Stream:
    def __init__(self, name: str, noted: list[str]) -> None:
        self.name, self.noted = name, noted

    def wait_stream(self, other: Stream) -> None:
        self.noted.append(f"{self.name} waits for {other.name}")


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done, in order; the current stream is called here."""
    done: list[str] = []
    current = [Stream("here", done)]

    @contextmanager
    def stream(chosen: Stream) -> Iterator[None]:
        current.append(chosen)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "current_stream", lambda: current[-1])
    monkeypatch.setattr(torch.cuda, "stream", stream)
    return done


def lanes(noted: list[str], count: int) -> Lanes:
    made: Any = Lanes(CPU, 0)
    made.streams = tuple(Stream(f"lane {i}", noted) for i in range(count))
    found: Lanes = made
    return found


def test_lanes_fork_from_the_current_stream_and_join_it(noted: list[str]) -> None:
    def work(number: int) -> int:
        stream: Any = torch.cuda.current_stream()
        noted.append(f"{number} on {stream.name}")
        return number

    assert lanes(noted, 2).run([partial(work, i) for i in range(3)]) == [0, 1, 2]
    assert noted == [
        "lane 0 waits for here",
        "lane 1 waits for here",
        "0 on lane 0",
        "1 on lane 1",
        "2 on lane 0",
        "here waits for lane 0",
        "here waits for lane 1",
    ]


def test_lanes_without_work_are_not_forked(noted: list[str]) -> None:
    lanes(noted, 8).run([lambda: None])
    assert noted == ["lane 0 waits for here", "here waits for lane 0"]


def test_lanes_join_where_work_fails_too(noted: list[str]) -> None:
    def fail() -> None:
        raise torch.OutOfMemoryError("pretended")

    with pytest.raises(torch.OutOfMemoryError):
        lanes(noted, 2).run([fail, fail])
    assert noted[-2:] == ["here waits for lane 0", "here waits for lane 1"]


class Generator:
    """A generator of a GPU, as far as it is used; its state is an object that others may point to."""

    def __init__(self) -> None:
        self.state = {"seed": 0, "offset": 0}

    def manual_seed(self, seed: int) -> None:
        self.state |= {"seed": seed, "offset": 0}

    def get_offset(self) -> int:
        return self.state["offset"]

    def graphsafe_get_state(self) -> Generator:
        found = Generator()
        found.state = self.state
        return found

    def graphsafe_set_state(self, other: Generator) -> None:
        self.state = other.state


class Graph:
    def __init__(self) -> None:
        self.registered: list[Generator] = []

    def register_generator_state(self, generator: Generator) -> None:
        self.registered.append(generator)


@pytest.fixture
def default(monkeypatch: pytest.MonkeyPatch) -> Generator:
    """The default generator of a pretended GPU."""
    found = Generator()
    monkeypatch.setattr(torch.cuda, "default_generators", (found,))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return found


def on_gpu(rows: int) -> Any:
    made: Any = RowGenerators(CPU, rows)
    made._gpu = [Generator() for _ in range(rows)]
    made.seed([0] * rows, list(range(rows)), 1)
    return made


def test_models_that_draw_on_the_gpu_continue_their_own_numbers(
    default: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, own = on_gpu(2), default.state
    for row in (0, 1, 0):
        with rows.of(row):
            default.state["offset"] += 4  # as dropout does
    assert default.state is own and own["offset"] == 0
    assert [each.get_offset() for each in rows._gpu] == [8, 4]
    assert rows._gpu[0].state["seed"] != rows._gpu[1].state["seed"]
    rows.seed([0, 0], [0, 1], 2)  # offsets begin at 0: that the models draw is remembered
    graph = Graph()
    rows.register(graph)
    assert graph.registered == rows._gpu
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with rows.of(1):
        assert default.state is rows._gpu[1].state
    assert default.state is own


def test_models_that_draw_nothing_cost_their_graphs_nothing(
    default: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, own, graph = on_gpu(1), default.state, Graph()
    with rows.of(0):
        assert default.state is not own
    rows.register(graph)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with rows.of(0):
        assert default.state is own
    assert graph.registered == []


@pytest.mark.usefixtures("default")
def test_models_that_draw_on_the_cpu_are_not_recorded() -> None:
    rows = on_gpu(1)
    with rows.of(0):
        torch.rand(1)
    with pytest.raises(RuntimeError, match="draws random numbers on the CPU"):
        rows.register(Graph())


def test_names_used_of_torch_exist() -> None:
    """What only a GPU runs: of torch's interface, not of a description of it."""
    assert callable(torch.Generator.graphsafe_set_state) and callable(torch.Generator.graphsafe_get_state)
    assert callable(torch.Generator.get_offset) and callable(torch.Generator.manual_seed)


# --- timing, which a CPU can do as well


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("kind", [StackEngine, BranchEngine])
def test_steps_are_timed_and_nothing_is_left_behind(kind: type[StackEngine]) -> None:
    config = make_config({"learners": 3, "model": "mlp", "batch_size": 4, "partition": "dirichlet(0.5)"})
    data = load("digits", train=60, test=10)
    setup = build_setup(config, build_method("consilience"), data, ["mlp"])
    plans = list(setup.cohorts.plans)
    assert 0 < step_seconds(lambda: kind(plans, data), setup) < 1


def test_an_engine_that_fails_takes_for_ever() -> None:
    def fail() -> StackEngine:
        raise torch.OutOfMemoryError("pretended")

    assert step_seconds(fail, None) == float("inf")  # type: ignore[arg-type]
