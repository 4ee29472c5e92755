"""Work of one learner after the other takes and returns what `torch.func.vmap` does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from consilience.simulation.engines.branches.lanes import LANES, Lanes

CPU = Lanes(torch.device("cpu"), LANES)


def nested(state: dict[str, Any], held: Any, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    tensors, count = held
    return state["own"]["a"] * count + tensors["t"], {"x": x.sum() + state["b"]}


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("shared", [True, False])
def test_rows_one_after_the_other_give_what_vmap_gives(rows: int, shared: bool) -> None:
    state = {"own": {"a": torch.randn(rows, 2)}, "b": torch.arange(rows)}
    lead = () if shared else (rows,)
    axis = None if shared else 0
    held = ({"t": torch.randn(*lead, 2)}, torch.ones(lead))
    dims = (0, ({"t": axis}, axis), 1)
    x = torch.randn(4, rows)
    found, expected = (each(nested, dims)(state, held, x) for each in (CPU.for_all, vmap))
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1]["x"], expected[1]["x"])


def test_without_axes_the_first_is_that_of_the_rows() -> None:
    x, y = torch.randn(3, 2), torch.randn(3)
    assert torch.equal(CPU.for_all(torch.mul)(x, y), x * y[:, None])


@pytest.mark.parametrize("rows", [1, 3])
def test_work_may_change_its_rows_in_place(rows: int) -> None:
    state = torch.zeros(rows, 2)

    def fill(row: Tensor, value: Tensor) -> Tensor:
        row.fill_(float(value))
        return value

    CPU.for_all(fill)(state, torch.arange(rows))
    assert state[:, 0].tolist() == list(range(rows))


def test_gradient_of_a_single_row_needs_no_copy() -> None:
    """That of a selected row would: zeros for all rows, and a copy into them."""
    leaf = torch.randn(1, 5, requires_grad=True)
    seen: list[str] = []

    def work(row: Tensor) -> Tensor:
        assert row.grad_fn is not None
        seen.append(row.grad_fn.name())
        return row.sum()

    CPU.for_all(work)(leaf)
    assert len(seen) == 1 and seen[0].startswith("Squeeze")


def test_work_is_done_in_its_order_on_a_cpu() -> None:
    numbers = iter(range(7))
    assert Lanes(torch.device("cpu"), 4).run([lambda: next(numbers)] * 7) == list(range(7))
