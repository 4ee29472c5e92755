"""Similarities of samples: by hand, against the equations as plain loops, and stacked as one by one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad, vmap
from torch.utils._python_dispatch import TorchDispatchMode

from consilience.functional.similarity import (
    ensemble_similarities,
    kl_divergence,
    sharpened_similarities,
    similarity_thresholds,
    symmetric_matrix,
    target_distributions,
    unit_rows,
    upper_triangle,
)

SETTINGS = settings(max_examples=40, deadline=None)
DOUBLE = torch.float64
E = math.exp

# Three public images and two teachers. Similarities of the first: 0-1 0.6, 0-2 0, 1-2 0.8; of the second: 0, -1, 0.
ENTRIES = torch.tensor([[[1, 0], [0.6, 0.8], [0, 1]], [[1, 0], [0, 1], [-1, 0]]], dtype=DOUBLE)
ALL = torch.arange(3)
# At temperature 0.5, (similarity - 1) / 0.5 of the pairs 0-1, 0-2, 1-2: -0.8, -2, -0.4 and -2, -4, -2.
FIRST = [E(-0.8), E(-2), E(-0.4)]
SECOND = [E(-2), E(-4), E(-2)]
MEAN = [(a + b) / 2 for a, b in zip(FIRST, SECOND, strict=True)]


def tensor(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=DOUBLE)


def rows(*shape: int, seed: int = 0, dtype: torch.dtype = DOUBLE) -> Tensor:
    """Random rows of length 1."""
    return unit_rows(torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)).to(dtype)


def close(left: Tensor, right: Tensor, within: float = 1e-14) -> None:
    torch.testing.assert_close(left, right, rtol=0, atol=within)


# --- rows of length 1


def test_unit_rows_keep_a_row_of_zeros() -> None:
    close(unit_rows(tensor([3, 4], [0, 0], [0, -2])), tensor([0.6, 0.8], [0, 0], [0, -1]))


def test_gradient_of_a_unit_row() -> None:
    # d(x / |x|) is the part orthogonal to x, over |x|; for a row of zeros the gradient passes unchanged.
    slope = grad(lambda x: unit_rows(x).sum(0)[0])(tensor([3, 4], [0, 0]))
    close(slope, tensor([16 / 125, -12 / 125], [1, 0]))
    assert torch.autograd.gradcheck(unit_rows, (3 * rows(3, 4)).requires_grad_())
    assert grad(lambda x: unit_rows(x).sum())(torch.full((1, 3), 1e-30)).isfinite().all()  # its square is 0 in float32


# --- thresholds


@pytest.mark.parametrize(
    ("keep", "by_hand"),
    [
        (0.2, [1, 1, 1]),  # the nearest of three: itself
        (1 / 3, [1, 1, 1]),  # 3 x 1/3 is one, not two
        (0.5, [0.6, 0.8, 0.8]),  # two
        (2 / 3, [0.6, 0.8, 0.8]),
        (0.7, [0, 0.6, 0]),  # three
        (1, [-2, -2, -2]),
    ],
)
def test_thresholds_by_hand(keep: float, by_hand: list[float]) -> None:
    close(similarity_thresholds(ENTRIES[0], keep), tensor(*by_hand))


def test_share_that_is_an_integer_is_not_rounded_up() -> None:
    assert 0.07 * 100 > 7  # in floats
    many = rows(100, 4)
    assert torch.equal(similarity_thresholds(many, 0.07), (many @ many.T).sort(1).values[:, -7])


@given(st.integers(1, 30), st.floats(0.001, 1), st.integers(1, 40), st.integers(0, 2**31))
@SETTINGS
def test_thresholds_equal_those_of_the_sorted_matrix_for_any_block(
    samples: int, keep: float, block: int, seed: int
) -> None:
    many = rows(samples, 3, seed=seed)
    floors = similarity_thresholds(many, keep, block)
    close(floors, similarity_thresholds(many, keep, samples))
    if keep < 1:
        ordered = np.sort(many.numpy() @ many.numpy().T, axis=1)
        kept = max(1, math.ceil(keep * samples - 1e-6))
        np.testing.assert_allclose(floors.numpy(), ordered[:, samples - kept], rtol=0, atol=1e-14)
        inside = (many @ many.T >= floors[:, None] - 1e-12).sum(1)
        assert (inside >= kept).all()


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the number of bytes of the largest tensor created."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for each in made if isinstance(made, (tuple, list)) else [made]:
            if isinstance(each, Tensor):
                self.bytes = max(self.bytes, each.numel() * each.element_size())
        return made


@pytest.mark.parametrize("keep", [0.001, 0.1, 0.5, 0.9, 1.0])
def test_thresholds_never_create_the_full_matrix(keep: float) -> None:
    samples = 20_000
    with Largest() as largest:  # type: ignore[no-untyped-call]
        floors = similarity_thresholds(
            torch.empty(samples, 8, device="meta"), keep, block=256
        )  # shapes alone, no values
    assert floors.shape == (samples,)
    assert 4 * samples <= largest.bytes <= 4 * 256 * samples
    with Largest() as whole:  # type: ignore[no-untyped-call]
        similarity_thresholds(torch.empty(samples, 8, device="meta"), 0.1, block=samples)
    assert whole.bytes == 4 * samples**2  # the recorder notices a full matrix


# --- the ensemble


def test_ensemble_of_two_teachers_by_hand() -> None:
    both = ensemble_similarities(ENTRIES, tensor(1, 1), ALL, ALL, 0.5)
    close(both, symmetric_matrix(tensor(*MEAN), 3))
    assert both[0, 1].item() == pytest.approx((0.4493289641 + 0.1353352832) / 2, abs=1e-10)
    one = ensemble_similarities(ENTRIES, tensor(0, 1), ALL, ALL, 0.5)
    close(one, symmetric_matrix(tensor(*SECOND), 3))
    assert torch.equal(ensemble_similarities(ENTRIES, tensor(0, 0), ALL, ALL, 0.5), torch.zeros(3, 3, dtype=DOUBLE))


def test_pair_is_kept_if_near_for_either_sample() -> None:
    # Two of three are kept. First teacher, floors 0.6, 0.8, 0.8: 0-1 is near for 0, 1-2 for both, 0-2 for neither.
    # Second, floors 0, 0, 0: 0-2, at -1, is near for neither.
    floors = torch.stack([similarity_thresholds(each, 0.5) for each in ENTRIES])
    kept = ensemble_similarities(ENTRIES, tensor(1, 1), ALL, ALL, 0.5, floors)
    close(kept, symmetric_matrix(tensor(MEAN[0], 0, MEAN[2]), 3))
    close(sharpened_similarities(ENTRIES[0], 0.5, floors[0]), tensor(FIRST[0], 0, FIRST[2]))
    # Each sample keeps only itself: only the diagonal remains.
    alone = torch.stack([similarity_thresholds(each, 0.2) for each in ENTRIES])
    assert torch.equal(ensemble_similarities(ENTRIES, tensor(1, 1), ALL, ALL, 0.5, alone), torch.eye(3, dtype=DOUBLE))
    everything = torch.stack([similarity_thresholds(each, 1) for each in ENTRIES])
    close(
        ensemble_similarities(ENTRIES, tensor(1, 1), ALL, ALL, 0.5, everything),
        ensemble_similarities(ENTRIES, tensor(1, 1), ALL, ALL, 0.5),
    )


@pytest.mark.parametrize("seed", range(5))
def test_rounding_does_not_drop_a_nearest_neighbor(seed: int) -> None:
    # In float32 a product of two rows differs in its last bits from block to block.
    many = rows(300, 64, seed=seed, dtype=torch.float32)
    floors = similarity_thresholds(many, 0.05, block=7)  # 15 of 300
    for query in (0, 150, 299):
        least = torch.full_like(floors, 2.0)
        least[query] = floors[query]  # so that only the query's own floor counts
        block = ensemble_similarities(
            many[None], torch.ones(1), torch.tensor([query]), torch.arange(300), 0.1, least[None]
        )
        assert (block > 0).sum() == 15


def by_the_equations(
    entries: np.ndarray, present: list[int], tau: float, floors: np.ndarray | None = None
) -> list[list[float]]:
    """Equations 4 to 6 as they are printed, one pair after the other, over exp(1 / tau)."""
    samples = entries.shape[1]
    whole = [[0.0] * samples for _ in range(samples)]
    for k, here in enumerate(present):
        for i in range(samples if here else 0):
            for j in range(samples):
                similar = float(sum(a * b for a, b in zip(entries[k, i], entries[k, j], strict=True)))
                if floors is None or similar >= floors[k, i] - 1e-9 or similar >= floors[k, j] - 1e-9:
                    whole[i][j] += math.exp(similar / tau) / sum(present) / math.exp(1 / tau)
    return whole


CASES = given(
    st.lists(st.integers(0, 1), min_size=1, max_size=4),
    st.integers(2, 8),
    st.floats(0.05, 2),
    st.sampled_from([0.2, 0.4, 0.7, 1.0]),
    st.integers(0, 2**31),
)


@CASES
@SETTINGS
def test_ensemble_equals_the_equations(present: list[int], samples: int, tau: float, keep: float, seed: int) -> None:
    entries = rows(len(present), samples, 3, seed=seed)
    floors = torch.stack([similarity_thresholds(each, keep) for each in entries])
    here, every = tensor(*present), torch.arange(samples)
    for least in (None, floors):
        whole = ensemble_similarities(entries, here, every, every, tau, least)
        printed = by_the_equations(entries.numpy(), present, tau, None if least is None else least.numpy())
        np.testing.assert_allclose(whole.numpy(), printed, rtol=1e-9, atol=1e-14)
        # A block is the same entries of the whole, in the order asked for, repeated where asked twice.
        queries, anchors = torch.tensor([samples - 1, 0]), torch.tensor([1, 0, 1])
        block = ensemble_similarities(entries, here, queries, anchors, tau, least)
        close(block, whole[queries][:, anchors])
        # Columns of zeros change nothing: learners with narrower features pad with them.
        padded = torch.nn.functional.pad(entries, (0, 5))
        close(ensemble_similarities(padded, here, every, every, tau, least), whole)
    triangles = [sharpened_similarities(each, tau, floor) for each, floor in zip(entries, floors, strict=True)]
    mean = sum(p * t for p, t in zip(present, triangles, strict=True)) / max(sum(present), 1)
    assert isinstance(mean, Tensor)
    close(upper_triangle(ensemble_similarities(entries, here, every, every, tau, floors)), mean)


def test_quantized_entries_give_nearly_the_same_ensemble() -> None:
    entries = rows(2, 40, 16)
    rounded = (entries * 127).round() / 127
    exact, near = (
        ensemble_similarities(e, tensor(1, 1), torch.arange(40), torch.arange(40), 0.1) for e in (entries, rounded)
    )
    assert near.isfinite().all() and near.max() > 1  # a quantized row may be slightly longer than 1
    assert (near - exact).abs().max() < 0.2


# --- triangle and square


def test_triangle_is_stored_row_by_row() -> None:
    matrix = tensor([1, 2, 3, 4], [2, 1, 5, 6], [3, 5, 1, 7], [4, 6, 7, 1])
    assert upper_triangle(matrix).tolist() == [2, 3, 4, 5, 6, 7]
    assert torch.equal(symmetric_matrix(tensor(2, 3, 4, 5, 6, 7), 4), matrix)
    assert symmetric_matrix(tensor(9), 2, diagonal=-3).tolist() == [[-3, 9], [9, -3]]
    assert upper_triangle(tensor([1])).shape == (0,) and symmetric_matrix(torch.empty(0), 1).tolist() == [[1]]


@given(st.integers(1, 12), st.integers(0, 2**31))
@SETTINGS
def test_triangle_and_matrix_round_trip(size: int, seed: int) -> None:
    values = torch.rand(size * (size - 1) // 2, generator=torch.Generator().manual_seed(seed))
    whole = symmetric_matrix(values, size, 0.25)
    assert (
        torch.equal(upper_triangle(whole), values) and torch.equal(whole, whole.T) and (whole.diagonal() == 0.25).all()
    )


# --- the student


def test_target_is_a_distribution_or_zero() -> None:
    assert torch.equal(target_distributions(tensor([1, 3], [0, 0], [0, 5])), tensor([0.25, 0.75], [0, 0], [0, 1]))


def test_target_equals_equation_8_without_the_common_factor() -> None:
    # exp(M / tau) without anything subtracted, averaged over both teachers, divided by the row's sum.
    printed = [[E(2) + E(2), E(1.2) + E(0), E(0) + E(-2)]]
    by_hand = tensor(*printed) / sum(printed[0])
    close(target_distributions(ensemble_similarities(ENTRIES, tensor(1, 1), ALL[:1], ALL, 0.5)), by_hand)


def test_kl_divergence_by_hand() -> None:
    # Student's similarities to two anchors: 1 and 0, at temperature 1 q = (e, 1) / (e + 1).
    # p = (1/4, 3/4): 1/4 log(1/4) + 3/4 log(3/4) - 1/4 (1 - log(e + 1)) + 3/4 log(e + 1).  p = (0, 1): log(e + 1).
    features, anchors = tensor([1, 0], [1, 0], [0, 1]), tensor([1, 0], [0, 1])
    normal = math.log(math.e + 1)
    mixed = 0.25 * math.log(0.25) + 0.75 * math.log(0.75) - 0.25 + normal
    value = kl_divergence(tensor([0.25, 0.75], [0, 1], [0, 0]), features, anchors, 1.0)
    assert value.item() == pytest.approx((mixed + normal + 0) / 3, abs=1e-15)  # the third has no target and counts as 0


def test_row_without_target_has_zero_gradient() -> None:
    wanted, features, anchors = tensor([0.5, 0.5], [0, 0]), rows(2, 3), rows(2, 3, seed=1)
    slope = grad(kl_divergence, argnums=1)(wanted, features, anchors, 0.1)
    assert (slope[1] == 0).all() and (slope[0] != 0).any() and slope.isfinite().all()


@given(st.integers(1, 5), st.integers(1, 7), st.floats(0.05, 2), st.integers(0, 2**31))
@SETTINGS
def test_kl_divergence_equals_the_equations(queries: int, many: int, tau: float, seed: int) -> None:
    features, anchors = rows(queries, 4, seed=seed), rows(many, 4, seed=seed + 1)
    wanted = torch.rand(queries, many, generator=torch.Generator().manual_seed(seed + 2), dtype=DOUBLE)
    wanted = target_distributions(wanted * (wanted > 0.3))  # some are 0, occasionally a whole row
    printed = 0.0
    for p, f in zip(wanted.tolist(), features.numpy(), strict=True):
        power = [math.exp(float(f @ a) / tau) for a in anchors.numpy()]
        printed += sum(x * math.log(x / (y / sum(power))) for x, y in zip(p, power, strict=True) if x > 0)
    value = kl_divergence(wanted, features, anchors, tau)
    assert value.item() == pytest.approx(printed / queries, rel=1e-9, abs=1e-12)
    assert value > -1e-12
    padded = [torch.nn.functional.pad(each, (0, 3)) for each in (features, anchors)]
    close(kl_divergence(wanted, padded[0], padded[1], tau), value, 1e-12)


def test_student_with_its_teacher_s_similarities_has_zero_divergence() -> None:
    teacher = rows(1, 9, 4)
    wanted = target_distributions(ensemble_similarities(teacher, tensor(1), torch.arange(9), torch.arange(9), 0.1))
    turned = teacher[0] @ torch.linalg.qr(rows(4, 4, seed=1))[0]  # rotated, with the same similarities
    assert kl_divergence(wanted, turned, turned, 0.1).item() == pytest.approx(0, abs=1e-12)
    slope = grad(kl_divergence, argnums=1)(wanted, turned, turned, 0.1)
    assert slope.abs().max() < 1e-10
    assert kl_divergence(wanted, turned, turned, 0.2) > 0.01


def test_gradient_of_kl_divergence() -> None:
    wanted = target_distributions(tensor([1, 0, 2, 1], [0, 0, 0, 0], [0, 3, 0, 0]))
    features, anchors = rows(3, 5).requires_grad_(), rows(4, 5, seed=1)
    assert torch.autograd.gradcheck(lambda f: kl_divergence(wanted, f, anchors, 0.3), features)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_small_temperatures_give_finite_values(dtype: torch.dtype) -> None:
    entries, every = rows(2, 12, 4, dtype=dtype), torch.arange(12)
    wanted = target_distributions(
        ensemble_similarities(entries, torch.ones(2), every, every[:3], 1e-3)
    )  # nearly all underflow
    assert wanted.isfinite().all() and wanted.dtype == dtype
    value = kl_divergence(wanted, entries[0], entries[0, :3], 1e-3)
    assert value.isfinite() and value.dtype == dtype
    assert grad(kl_divergence, argnums=1)(wanted, entries[0], entries[0, :3], 1e-3).isfinite().all()


# --- in a stack


def one_learner(entries: Tensor, present: Tensor, queries: Tensor, anchors: Tensor, tau: Tensor) -> tuple[Tensor, ...]:
    """All functions of this file, in sequence."""
    floors = torch.stack([similarity_thresholds(each, 0.4, 3) for each in entries])
    wanted = target_distributions(ensemble_similarities(entries, present, queries, anchors, tau, floors))
    student = unit_rows(entries.sum(0))
    flat = sharpened_similarities(entries[0], tau, floors[0])
    slope = grad(lambda rows: kl_divergence(wanted, unit_rows(rows), student[anchors], tau))(student[queries])
    return (
        floors,
        wanted,
        kl_divergence(wanted, student[queries], student[anchors], tau),
        symmetric_matrix(flat, 7),
        slope,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_stack_equals_loop(dtype: torch.dtype) -> None:
    entries = rows(3, 2, 7, 4, dtype=dtype)
    present = torch.tensor([[1, 1], [0, 1], [0, 0]])
    queries, anchors = torch.tensor([[0, 1], [5, 6], [3, 3]]), torch.tensor([[2, 3, 0], [1, 5, 6], [0, 1, 2]])
    learners = (entries, present, queries, anchors, torch.tensor([0.1, 0.5, 1.0], dtype=dtype))
    loop = [one_learner(*each) for each in zip(*learners, strict=True)]
    stack: Callable[..., tuple[Tensor, ...]] = vmap(one_learner)
    for place, stacked in enumerate(stack(*learners)):
        torch.testing.assert_close(stacked, torch.stack([each[place] for each in loop]))
        assert stacked.dtype == dtype and stacked.isfinite().all()
    assert (loop[2][1] == 0).all() and (loop[0][1] > 0).any()
