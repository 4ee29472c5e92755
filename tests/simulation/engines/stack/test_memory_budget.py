"""How many learners fit at once, reckoned from bytes that can be counted by hand."""

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
from consilience.simulation.engines.stack.memory_budget import MemoryBudget, free_bytes
from consilience.simulation.setup.setup import build_setup

PLENTY = 2**40
PARAMETERS = 6570  # of the mlp on the digits
USED = 0.85


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load("digits", train=60, test=40)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the device has left: whatever stands here."""
    left = [PLENTY]
    monkeypatch.setattr(room_module, "free_bytes", lambda device: left[0])
    return left


def room_of(data: Dataset, device: str = "cpu", method: str = "independent", **settings: Any) -> MemoryBudget:
    """Room for learners that are made here; their device is only named."""
    config = make_config({"learners": 10, "batch_size": 4, **settings})
    plans = build_setup(config, build_method(method), data, config.model_name.split(",")).cohorts.plans
    learners = [Learner(plan.spec) for plan in plans]
    return MemoryBudget(
        learners, [replace(p, spec=replace(p.spec, device=device)) for p in plans], data_arrays(data, None)
    )


def bytes_for(room: MemoryBudget, budget: float) -> int:
    """What must be free so that this much is left for learners."""
    return int((budget + room.data) / USED) + 1


# --- what a learner and the data take


def test_needs_are_counted_in_bytes(data: Dataset, free: list[int]) -> None:
    room = room_of(data)
    (need,) = room.needs
    assert room.data == (60 + 40) * (64 * 4 + 8)  # float32 images, int64 labels
    assert need.state == 3 * PARAMETERS * 4 + 8  # parameters, two moments of Adam, and the number of steps
    assert room.state == 10 * need.state
    assert need.step >= 5 * PARAMETERS * 4 + 4 * (64 + 64 + 32) * 4  # vectors of an optimizer; a batch's activations
    assert need.passed == 0  # nothing is exchanged


def test_needs_grow_with_batch_precision_and_what_is_exchanged(data: Dataset, free: list[int]) -> None:
    (small,), (large,) = room_of(data).needs, room_of(data, batch_size=40).needs
    assert large.step - small.step >= 36 * (64 + 64 + 32) * 4  # images, hidden values and features of 36 samples
    assert large.state == small.state
    (double,) = room_of(data, precision="float64").needs
    assert double.state == 3 * PARAMETERS * 8 + 8 and double.step > 1.9 * small.step
    (shared,) = room_of(data, method="fedproto").needs
    assert shared.passed == 6 * 2 * (32 + 64) * 4  # of each of six samples: features and image, twice
    (voted,) = room_of(data, method="fedavg-1bit").needs
    assert voted.state == 4 * PARAMETERS * 4 + 8  # and what was rounded away


# --- what fits


def test_all_at_once_where_there_is_plenty(data: Dataset, free: list[int]) -> None:
    room = room_of(data, "cuda")
    assert room.rows == [10] and room.home == torch.device("cuda")


@pytest.mark.parametrize(
    "fitting, rows",
    [(10.5, 10), (9.5, 5), (6.5, 5), (5.5, 5), (4.5, 4), (3.5, 3), (2.5, 2), (1.5, 1), (0.5, 1), (-3.0, 1)],
)
def test_groups_are_as_few_as_can_be_and_of_nearly_one_size(
    fitting: float, rows: int, data: Dataset, free: list[int]
) -> None:
    (need,) = room_of(data).needs
    assert need.fit(fitting * (need.state + need.step + need.passed), 10) == rows


def test_no_tensor_grows_beyond_what_libraries_can_count(data: Dataset, free: list[int]) -> None:
    (need,) = room_of(data).needs
    need.largest = 2**29
    assert need.fit(PLENTY, 10) == 3  # 2**31 - 1 values are the most; groups of 3, 3, 3 and 1


@pytest.mark.parametrize("method", ["independent", "consilience"])
def test_rows_follow_from_what_is_free(method: str, data: Dataset, free: list[int]) -> None:
    room = room_of(data, method=method)
    (need,) = room.needs
    each = need.state + need.step + need.passed
    assert room.state > 4.5 * each / 2, "so that it does not stay beside the work below"
    free[0] = bytes_for(room, room.state + 10.5 * each)
    assert room_of(data, method=method).rows == [10]
    free[0] = bytes_for(room, 4.5 * each)  # and the state is elsewhere
    assert room_of(data, method=method).rows == [4]
    free[0] = 1
    assert room_of(data, method=method).rows == [1]


def test_state_too_large_for_the_device_stays_in_main_memory(data: Dataset, free: list[int]) -> None:
    room = room_of(data, "cuda")
    (need,) = room.needs
    each = need.state + need.step
    free[0] = bytes_for(room, 2.1 * room.state)
    roomy = room_of(data, "cuda")
    assert roomy.home == torch.device("cuda") and roomy.rows == [need.fit(1.1 * room.state, 10)]
    free[0] = bytes_for(room, 1.9 * room.state)
    tight = room_of(data, "cuda")
    assert tight.home == torch.device("cpu") and tight.rows == [need.fit(1.9 * room.state, 10)]
    assert tight.rows[0] * each <= 1.9 * room.state
    assert "stay in main memory" in tight.describe() and "main memory" not in roomy.describe()


def test_every_architecture_has_its_own_rows(data: Dataset, free: list[int]) -> None:
    room = room_of(data, learners=4, model="mlp,lenet5,mlp,mlp")
    assert room.rows == [3, 1]
    room.shrink(0, 2)
    assert room.rows == [2, 1]


def test_out_of_memory_is_told(data: Dataset, free: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    warned: list[str] = []
    monkeypatch.setattr(room_module.log, "warning", lambda text, *given: warned.append(text % given))
    room_of(data).shrink(0, 3)
    assert warned == ["out of memory on cpu: continuing with 3 learners at a time"]


def test_samples_seen_at_once(data: Dataset, free: list[int]) -> None:
    """The more learners, the fewer of each; all of them well within what is free, and at least one."""
    free[0] = 2**32
    room = room_of(data)
    sample = room.needs[0].sample
    assert sample >= (64 + 64 + 32) * 4  # what the forward pass keeps of one
    for rows in (1, 10, 1000):
        assert 1 < rows * room.pass_rows(0, rows) * sample < 0.6 * 2**32
    assert room.pass_rows(0, 10) == pytest.approx(room.pass_rows(0, 1) / 10, rel=1e-2)
    assert room.pass_rows(0, 10**9) == 1


# --- in words


def test_what_fits_is_told_in_a_line(data: Dataset, free: list[int]) -> None:
    free[0] = 3 * 2**30
    told = room_of(data).describe()
    assert "\n" not in told and "main memory" not in told
    for part in ("cpu", "3 GiB free", "25.8 KiB of data", "10 learners of mlp at once (77 KiB"):
        assert part in told
    room = room_of(data, learners=4, model="mlp,lenet5,mlp,mlp")
    room.shrink(0, 2)
    assert "3 learners of mlp in 2 groups of 2 (" in room.describe()
    assert "1 learners of lenet5 at once (" in room.describe()


@pytest.mark.parametrize("left", [1, 999, 1000, 1023, 1024, 1023 * 2**10, 1010 * 2**20, 140 * 2**30, 2**40])
def test_sizes_are_plain_numbers(left: int, data: Dataset, free: list[int]) -> None:
    free[0] = left
    told = re.search(r" ([\d.]+) ([KMGT]i)?B free", room_of(data).describe())
    assert told, room_of(data).describe()
    assert float(told[1]) * 1024 ** (" KMGT".index(told[2][0]) if told[2] else 0) == pytest.approx(left, rel=0.01)


# --- what is free


def test_main_memory_is_what_the_system_says(monkeypatch: pytest.MonkeyPatch) -> None:
    told = "MemTotal:       16000000 kB\nMemFree:          100 kB\nMemAvailable:    8000000 kB\nBuffers: 1 kB\n"
    monkeypatch.setattr(Path, "read_text", lambda self, encoding: told)
    assert free_bytes(torch.device("cpu")) == 8_000_000 * 1024


def test_main_memory_is_guessed_where_the_system_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(self: Path, encoding: str) -> str:
        raise FileNotFoundError(self)

    monkeypatch.setattr(Path, "read_text", missing)
    assert free_bytes(torch.device("cpu")) == 2**33
