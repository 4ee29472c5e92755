"""Memory budget: how many learners fit at once, computed from bytes counted by hand."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from consilience.config.config import make_config
from consilience.data import Dataset, load
from consilience.learner.learner import Learner
from consilience.methods import build_method
from consilience.simulation.engines.shared_data import data_arrays
from consilience.simulation.engines.stack import memory_budget as room_module
from consilience.simulation.engines.stack.memory_budget import MemoryBudget, equal_share, free_bytes
from consilience.simulation.setup.setup import build_setup

PLENTY = 2**40
PARAMETERS = 6570  # of the mlp on digits
USED = 0.85


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load("digits", train=60, test=40)


@pytest.fixture
def free_memory(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The free bytes that the device reports; tests set the first entry."""
    left = [PLENTY]
    monkeypatch.setattr(room_module, "free_bytes", lambda device: left[0])
    return left


def memory_budget_of(
    data: Dataset, device: str = "cpu", method: str = "independent", processes: int = 1, **settings: Any
) -> MemoryBudget:
    """The memory budget of new learners; the device does not have to exist."""
    config = make_config({"learners": 10, "batch_size": 4, **settings})
    plans = build_setup(config, build_method(method), data, config.model_name.split(",")).cohorts.plans
    learners = [Learner(plan.spec) for plan in plans]
    there = [replace(p, spec=replace(p.spec, device=device)) for p in plans]
    return MemoryBudget(learners, there, data_arrays(data, None), processes)


def free_bytes_for(room: MemoryBudget, budget: float) -> int:
    """The free bytes that leave `budget` bytes for learners."""
    return int((budget + room.data) / USED) + 1


# --- memory of a learner and of the data


def test_memory_needs_are_counted_in_bytes(data: Dataset, free_memory: list[int]) -> None:
    room = memory_budget_of(data)
    (need,) = room.needs
    assert room.data == (60 + 40) * (64 * 4 + 8)  # float32 images, int64 labels
    assert need.state == 3 * PARAMETERS * 4 + 8  # parameters, two moments of Adam, and the number of steps
    assert room.state == 10 * need.state
    assert need.step >= 5 * PARAMETERS * 4 + 4 * (64 + 64 + 32) * 4  # optimizer vectors; activations of a batch
    assert need.passed == 0  # nothing is exchanged


def test_memory_needs_grow_with_batch_precision_and_exchanges(data: Dataset, free_memory: list[int]) -> None:
    (small,), (large,) = memory_budget_of(data).needs, memory_budget_of(data, batch_size=40).needs
    assert large.batch == 6  # all that a learner has
    assert large.step - small.step >= 2 * (64 + 64 + 32) * 4  # images, hidden values and features of 2 samples
    assert large.state == small.state
    (double,) = memory_budget_of(data, precision="float64").needs
    assert double.state == 3 * PARAMETERS * 8 + 8 and double.step > 1.9 * small.step
    (shared,) = memory_budget_of(data, method="fedproto").needs
    assert shared.passed == 6 * 2 * (32 + 64) * 4  # of each of six samples: features and image, twice
    (voted,) = memory_budget_of(data, method="fedavg-1bit").needs
    assert voted.state == 4 * PARAMETERS * 4 + 8  # and the rounding residual


# --- how many learners fit


def test_all_learners_are_stacked_if_memory_suffices(data: Dataset, free_memory: list[int]) -> None:
    room = memory_budget_of(data, "cuda")
    assert room.rows == [10] and room.home == torch.device("cuda")


@pytest.mark.parametrize(
    "fitting, rows",
    [(10.5, 10), (9.5, 5), (6.5, 5), (5.5, 5), (4.5, 4), (3.5, 3), (2.5, 2), (1.5, 1), (0.5, 1), (-3.0, 1)],
)
def test_groups_are_few_and_of_similar_size(fitting: float, rows: int, data: Dataset, free_memory: list[int]) -> None:
    (need,) = memory_budget_of(data).needs
    assert need.fit(fitting * (need.state + need.step + need.passed), 10) == rows


def test_stack_size_keeps_tensors_below_2_to_the_31_values(data: Dataset, free_memory: list[int]) -> None:
    (need,) = memory_budget_of(data).needs
    need.largest = 2**29
    assert need.fit(PLENTY, 10) == 3  # 2**31 - 1 values are the most; groups of 3, 3, 3 and 1


def test_groups_are_no_larger_than_keeps_a_device_busy(
    data: Dataset, free_memory: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    (need,) = memory_budget_of(data).needs
    monkeypatch.setattr(room_module, "_GROUP_BYTES", 4.5 * (need.state + need.step + need.passed))
    assert memory_budget_of(data).rows == [4]  # groups of 4, 4 and 2


@pytest.mark.parametrize("method", ["independent", "consilience"])
def test_stack_size_follows_from_free_memory(method: str, data: Dataset, free_memory: list[int]) -> None:
    room = memory_budget_of(data, method=method)
    (need,) = room.needs
    each = need.state + need.step + need.passed
    assert room.state > 4.5 * each / 2, "so that it does not stay beside the work below"
    free_memory[0] = free_bytes_for(room, room.state + 10.5 * each)
    assert memory_budget_of(data, method=method).rows == [10]
    free_memory[0] = free_bytes_for(room, 4.5 * each)  # the state is in main memory
    assert memory_budget_of(data, method=method).rows == [4]
    free_memory[0] = 1
    assert memory_budget_of(data, method=method).rows == [1]


def test_state_too_large_for_the_device_stays_in_main_memory(data: Dataset, free_memory: list[int]) -> None:
    room = memory_budget_of(data, "cuda")
    (need,) = room.needs
    each = need.state + need.step
    free_memory[0] = free_bytes_for(room, 2.1 * room.state)
    roomy = memory_budget_of(data, "cuda")
    assert roomy.home == torch.device("cuda") and roomy.rows == [need.fit(1.1 * room.state, 10)]
    free_memory[0] = free_bytes_for(room, 1.9 * room.state)
    tight = memory_budget_of(data, "cuda")
    assert tight.home == torch.device("cpu") and tight.rows == [need.fit(1.9 * room.state, 10)]
    assert tight.rows[0] * each <= 1.9 * room.state
    assert "stay in main memory" in tight.describe() and "main memory" not in roomy.describe()


def test_each_architecture_has_its_own_stack_size(data: Dataset, free_memory: list[int]) -> None:
    room = memory_budget_of(data, learners=4, model="mlp,lenet5,mlp,mlp")
    assert room.rows == [3, 1]
    room.shrink(0, 2)
    assert room.rows == [2, 1]


def test_shrinking_after_out_of_memory_is_logged(
    data: Dataset, free_memory: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    warned: list[str] = []
    monkeypatch.setattr(room_module.log, "warning", lambda text, *given: warned.append(text % given))
    memory_budget_of(data).shrink(0, 3)
    assert warned == ["out of memory on cpu: continuing with 3 learners at a time"]


def test_forward_pass_batch_shrinks_with_the_number_of_learners(data: Dataset, free_memory: list[int]) -> None:
    """More learners mean fewer samples of each: within the free memory, and at least one."""
    free_memory[0] = 2**32
    room = memory_budget_of(data)
    sample = room.needs[0].sample
    assert sample >= (64 + 64 + 32) * 4  # activations of one sample
    for rows in (1, 10, 1000):
        assert 1 < rows * room.pass_rows(0, rows) * sample < 0.6 * 2**32
    assert room.pass_rows(0, 10) == pytest.approx(room.pass_rows(0, 1) / 10, rel=1e-2)
    assert room.pass_rows(0, 10**9) == 1


# --- descriptions


def test_description_is_one_line(data: Dataset, free_memory: list[int]) -> None:
    free_memory[0] = 3 * 2**30
    told = memory_budget_of(data).describe()
    assert "\n" not in told and "main memory" not in told
    for part in ("cpu", "3 GiB free", "25.8 KiB of data", "10 learners of mlp at once (77 KiB"):
        assert part in told
    room = memory_budget_of(data, learners=4, model="mlp,lenet5,mlp,mlp")
    room.shrink(0, 2)
    assert "3 learners of mlp in 2 groups of 2 (" in room.describe()
    assert "1 learners of lenet5 at once (" in room.describe()


@pytest.mark.parametrize("left", [1, 999, 1000, 1023, 1024, 1023 * 2**10, 1010 * 2**20, 140 * 2**30, 2**40])
def test_described_sizes_match_the_bytes(left: int, data: Dataset, free_memory: list[int]) -> None:
    free_memory[0] = left
    told = re.search(r" ([\d.]+) ([KMGT]i)?B free", memory_budget_of(data).describe())
    assert told, memory_budget_of(data).describe()
    assert float(told[1]) * 1024 ** (" KMGT".index(told[2][0]) if told[2] else 0) == pytest.approx(left, rel=0.01)


# --- free memory


def test_free_main_memory_is_read_from_meminfo(monkeypatch: pytest.MonkeyPatch) -> None:
    told = "MemTotal:       16000000 kB\nMemFree:          100 kB\nMemAvailable:    8000000 kB\nBuffers: 1 kB\n"
    monkeypatch.setattr(Path, "read_text", lambda self, encoding: told)
    assert free_bytes(torch.device("cpu")) == 8_000_000 * 1024


def test_free_main_memory_has_a_default_without_meminfo(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(self: Path, encoding: str) -> str:
        raise FileNotFoundError(self)

    monkeypatch.setattr(Path, "read_text", missing)
    assert free_bytes(torch.device("cpu")) == 2**33


# --- several processes on one device


@pytest.mark.parametrize(("free", "processes", "share"), [(100, 1, 100), (100, 3, 33), (2, 3, 0)])
def test_the_shares_of_processes_fit_together(free: int, processes: int, share: int) -> None:
    assert equal_share(free, processes) == share and processes * share <= free


def test_processes_on_one_gpu_plan_as_if_each_had_a_smaller_one(data: Dataset, free_memory: list[int]) -> None:
    need = memory_budget_of(data).needs[0]
    free_memory[0] = 30 * (need.state + need.step + need.passed)
    whole = memory_budget_of(data, "cuda")
    two = memory_budget_of(data, "cuda", processes=2)
    free_memory[0] //= 2
    half = memory_budget_of(data, "cuda")
    assert (two.rows, two.passing, two.free, two.home) == (half.rows, half.passing, half.free, half.home)
    assert two.passing == whole.passing / 2 and whole.free == 2 * two.free
    assert " free for each of 2 processes; " in two.describe() and "processes" not in half.describe()


def test_half_of_what_ten_learners_need_is_enough_for_five(data: Dataset, free_memory: list[int]) -> None:
    room = memory_budget_of(data)
    each = room.needs[0].state + room.needs[0].step + room.needs[0].passed
    free_memory[0] = 2 * free_bytes_for(room, room.state + 5.5 * each)
    assert memory_budget_of(data).rows == [10] and memory_budget_of(data, processes=2).rows == [5]
