"""Contrastive losses: by hand, against pytorch-metric-learning, and the same stacked as one by one."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pytorch_metric_learning.losses import NTXentLoss
from torch import Tensor
from torch.func import grad, vmap

from consilience.functional.contrastive import info_nce, nt_xent

Loss = Callable[[Tensor, Tensor, float | Tensor], Tensor]
BOTH = pytest.mark.parametrize("loss", [info_nce, nt_xent])
SETTINGS = settings(max_examples=40, deadline=None)
DOUBLE = torch.float64


def tensor(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=DOUBLE)


def views(batch: int, width: int, seed: int, dtype: torch.dtype = DOUBLE) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(2, batch, width, generator=generator, dtype=DOUBLE).to(dtype))


def one_direction(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """The reference loss with rows of the first view as anchors and the second as positives and negatives."""
    labels = torch.arange(len(first))
    loss: Tensor = NTXentLoss(temperature)(first, labels, ref_emb=second, ref_labels=labels.clone())
    return loss


def both_directions(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    labels = torch.arange(len(first)).repeat(2)
    loss: Tensor = NTXentLoss(temperature)(torch.cat([first, second]), labels)
    return loss


# --- by hand


def test_one_direction_by_hand() -> None:
    # Similarities (rows: first view) are [[1, 0], [0.6, 0.8]]; lengths 2 and 5 must not matter. At temperature 0.5:
    # row 0: log(e^2 + e^0) - 2 = log(1 + e^-2);   row 1: log(e^1.2 + e^1.6) - 1.6 = log(1 + e^-0.4).
    first, second = tensor([2.0, 0.0], [3.0, 4.0]), tensor([1.0, 0.0], [0.0, 1.0])
    by_hand = (math.log(1 + math.exp(-2)) + math.log(1 + math.exp(-0.4))) / 2
    assert info_nce(first, second, 0.5).item() == pytest.approx(by_hand, abs=1e-15)
    # The other way round the columns are the rows: [1, 0.6] and [0, 0.8].
    turned = (math.log(1 + math.exp(-0.8)) + math.log(1 + math.exp(-1.6))) / 2
    assert info_nce(second, first, 0.5).item() == pytest.approx(turned, abs=1e-15)
    assert abs(by_hand - turned) > 0.01


def test_both_directions_by_hand() -> None:
    # Rows a0 = b0 = (1, 0), a1 = (0.6, 0.8), b1 = (0, 1); similarities over 0.5, each row without itself:
    # a0: b0 2, a1 1.2, b1 0      b0: a0 2, a1 1.2, b1 0
    # a1: b1 1.6, a0 1.2, b0 1.2  b1: a1 1.6, a0 0, b0 0
    first, second = tensor([2.0, 0.0], [3.0, 4.0]), tensor([1.0, 0.0], [0.0, 1.0])
    e = math.exp
    losses = [
        math.log(e(2) + e(1.2) + 1) - 2,
        math.log(e(2) + e(1.2) + 1) - 2,
        math.log(e(1.6) + 2 * e(1.2)) - 1.6,
        math.log(e(1.6) + 2) - 1.6,
    ]
    assert nt_xent(first, second, 0.5).item() == pytest.approx(sum(losses) / 4, abs=1e-15)
    assert nt_xent(second, first, 0.5).item() == pytest.approx(sum(losses) / 4, abs=1e-15)


@BOTH
@pytest.mark.parametrize("width", [1, 3])
def test_batch_of_one_has_zero_loss(loss: Loss, width: int) -> None:
    first, second = views(1, width, 0)
    assert loss(first, second, 0.1).item() == 0
    assert torch.equal(grad(loss)(first, second, 0.1), torch.zeros_like(first))


def test_identical_views_give_the_loss_of_random_guessing() -> None:
    same = torch.ones(5, 3, dtype=DOUBLE)
    assert info_nce(same, same, 0.1).item() == pytest.approx(math.log(5))
    assert nt_xent(same, same, 0.1).item() == pytest.approx(math.log(9))


# --- rows of zeros, and small temperatures


def test_row_of_zeros_has_zero_similarity() -> None:
    # Similarities [[0, 0], [0, 1]] at temperature 1: log 2, and log(1 + e^-1).
    first, second = tensor([0.0, 0.0], [0.0, 1.0]), tensor([1.0, 0.0], [0.0, 7.0])
    by_hand = (math.log(2) + math.log(1 + math.exp(-1))) / 2
    assert info_nce(first, second, 1.0).item() == pytest.approx(by_hand, abs=1e-15)


@BOTH
@pytest.mark.parametrize(("dtype", "value"), [(torch.float32, 0.0), (torch.float32, 1e-30), (torch.float64, 0.0)])
def test_gradient_of_a_row_of_zeros_is_of_moderate_size(loss: Loss, dtype: torch.dtype, value: float) -> None:
    first, second = views(4, 3, 1, dtype)
    first[2] = value
    slope = grad(loss, argnums=(0, 1))(first, second, 0.1)
    assert all(part.isfinite().all() and part.abs().max() < 100 for part in slope)
    nothing = torch.zeros(4, 3, dtype=dtype)
    assert all(part.isfinite().all() for part in grad(loss, argnums=(0, 1))(nothing, nothing, 0.1))


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tiny_temperatures_do_not_overflow(loss: Loss, dtype: torch.dtype) -> None:
    first, second = views(6, 4, 2, dtype)
    value = loss(first, second, 1e-6)
    assert value.isfinite() and value.dtype == dtype and value > 1e4  # random views: some negative is nearer
    assert grad(loss)(first, second, 1e-6).isfinite().all()
    apart = torch.eye(4, dtype=dtype)
    assert loss(apart, apart, 1e-6) == 0  # each is by far nearest to its positive
    assert loss(apart[:1], -apart[:1], 1e-6) == 0  # opposite to its positive, without negatives


# --- against the library


@given(st.integers(2, 9), st.integers(1, 7), st.floats(0.05, 2), st.integers(0, 2**31))
@SETTINGS
@pytest.mark.parametrize(("loss", "oracle"), [(info_nce, one_direction), (nt_xent, both_directions)])
def test_values_and_gradients_equal_pytorch_metric_learning(
    loss: Loss, oracle: Loss, batch: int, width: int, temperature: float, seed: int
) -> None:
    ours, theirs = views(batch, width, seed), views(batch, width, seed)
    assume(all(side.norm(dim=1).min() > 1e-3 for side in ours))  # there the values are only rounding errors
    for side in (*ours, *theirs):
        side.requires_grad_()
    mine, other = loss(*ours, temperature), oracle(*theirs, temperature)
    torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-12)
    mine.backward()  # type: ignore[no-untyped-call]
    other.backward()  # type: ignore[no-untyped-call]
    for left, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(left.grad, right.grad, rtol=1e-7, atol=1e-9)


@BOTH
def test_float32_equals_rounded_float64(loss: Loss) -> None:
    single = loss(*views(8, 16, 3, torch.float32), 0.4)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), loss(*views(8, 16, 3), 0.4), rtol=1e-5, atol=1e-6)


# --- in a stack


@BOTH
def test_stack_equals_loop(loss: Loss) -> None:
    first, second = (torch.stack(side) for side in zip(*(views(5, 3, seed) for seed in range(4)), strict=True))
    first[1, 2] = 0
    temperatures = torch.tensor([0.1, 0.4, 1.0, 2.0], dtype=DOUBLE)
    torch.testing.assert_close(
        vmap(loss)(first, second, temperatures),
        torch.stack([loss(*each) for each in zip(first, second, temperatures, strict=True)]),
    )
    torch.testing.assert_close(
        vmap(grad(loss))(first, second, temperatures),
        torch.stack([grad(loss)(*each) for each in zip(first, second, temperatures, strict=True)]),
    )
