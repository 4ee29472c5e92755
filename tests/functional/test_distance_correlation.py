"""Distance correlation: by hand, against dcor, its gradients, and undefined cases."""

from __future__ import annotations

import math
from collections.abc import Callable

import dcor
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad, vmap

from consilience.errors import ConfigurationError
from consilience.functional.distance_correlation import (
    corrected_distance_correlation,
    distance_correlation,
    log_distance_correlation,
)

Measure = Callable[[Tensor, Tensor], Tensor]

MEASURES: tuple[Measure, ...] = (distance_correlation, log_distance_correlation, corrected_distance_correlation)

pytestmark = pytest.mark.usefixtures("one_thread")


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def value_and_gradients(measure: Measure, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The value and its gradients with respect to both inputs."""
    x, z = x.clone().requires_grad_(), z.clone().requires_grad_()
    value = measure(x, z)
    by_x, by_z = torch.autograd.grad(value, (x, z))
    return value.detach(), by_x, by_z


# --- values


def test_three_rows_by_hand() -> None:
    # Distances of 0, 1, 2 and of 0, 1, 0, less the means of row and column, plus the mean of all, in ninths:
    #   -10  2   8         -2  4 -2
    #     2 -4   2   and    4 -8  4
    #     8  2 -10         -2  4 -2
    # Their products add up to 72, their squares to 360 and 144: 72 / sqrt(360 * 144) = 1 / sqrt(10).
    x, z = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.0, 1.0, 0.0])
    assert distance_correlation(x, z).item() == pytest.approx(10**-0.25, abs=1e-7)
    assert log_distance_correlation(x, z).item() == pytest.approx(-math.log(10) / 4, abs=1e-6)


def test_four_rows_without_bias_by_hand() -> None:
    # Of 0, 1, 2, 3 the rows of distances add up to 6, 4, 4, 6, together 20; an element off the diagonal loses half of
    # its row's and column's sums and gains 20 / 6: 1 - 5 + 10/3 = -2/3, 2 - 5 + 10/3 = 1/3, 3 - 6 + 10/3 = 1/3 and
    # (second, third) 1 - 4 + 10/3 = 1/3. Of 0, 0, 1, 1: rows of 2, together 8: -2 + 8/6 = -2/3 within, 1/3 across.
    #   pairs   12   13   14   23   24   34
    #   x     -2/3  1/3  1/3  1/3  1/3 -2/3
    #   z     -2/3  1/3  1/3  1/3  1/3 -2/3
    x, z = torch.tensor([0.0, 1.0, 2.0, 3.0]), torch.tensor([0.0, 0.0, 1.0, 1.0])
    assert corrected_distance_correlation(x, z).item() == pytest.approx(1.0, abs=1e-6)
    # Of 0, 1, 0, 1 the pairs 13 and 24 are within: (2 * -2/9 + 2 * -2/9 + 2 * 1/9) / (12/9) = -1/2.
    assert corrected_distance_correlation(x, z[[0, 2, 1, 3]]).item() == pytest.approx(-0.5, abs=1e-6)


@given(
    rows=st.integers(2, 12),
    widths=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    mix=st.floats(0, 1),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=150, deadline=None)
def test_values_equal_dcor(rows: int, widths: tuple[int, int], mix: float, seed: int) -> None:
    x, z = normal(rows, widths[0], seed=seed), normal(rows, widths[1], seed=seed + 1)
    z = (1 - mix) * z + mix * x[:, :1] ** 2
    a, b = x.numpy(), z.numpy()
    wanted = dcor.distance_correlation(a, b, method="naive")
    assert distance_correlation(x, z).item() == pytest.approx(wanted, abs=1e-9)
    assert log_distance_correlation(x, z).item() == pytest.approx(math.log(wanted), abs=1e-9)
    if rows > 3:
        wanted = dcor.u_distance_correlation_sqr(a, b, method="naive")
        assert corrected_distance_correlation(x, z).item() == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_images_and_feature_maps_are_flattened_to_rows(seed: int) -> None:
    x, z = normal(20, 3, 8, 8, seed=seed), normal(20, 4, 3, 3, seed=seed + 9)
    wanted = dcor.distance_correlation(x.flatten(1).numpy(), z.flatten(1).numpy())
    assert distance_correlation(x, z).item() == pytest.approx(wanted, abs=1e-10)


def test_value_is_invariant_to_rotation_scale_and_translation() -> None:
    x, z = normal(15, 4), normal(15, 3, seed=1)
    turn, _ = torch.linalg.qr(normal(4, 4, seed=2))
    for measure in MEASURES:
        value = measure(x, z).item()
        assert measure(1e3 * x @ turn - 5, 1e-3 * z + 2).item() == pytest.approx(value, abs=1e-9)
        assert measure(z, x).item() == pytest.approx(value, abs=1e-12)


def test_scaled_copy_gives_1_and_never_more() -> None:
    for seed in range(50):
        x = normal(7, 3, seed=seed, dtype=torch.float32)
        value = distance_correlation(x, x * 3).item()
        assert 1 - 1e-6 < value <= 1
        assert 1 - 1e-5 < corrected_distance_correlation(x, x * 3).item() <= 1
        assert -1e-6 < log_distance_correlation(x, x * 3).item() <= 0


def test_few_wide_rows_are_biased_unless_corrected() -> None:
    plain, corrected = [], []
    for seed in range(100):
        x, z = normal(32, 784, seed=seed), normal(32, 128, seed=seed + 1000)
        plain.append(distance_correlation(x, z))
        corrected.append(corrected_distance_correlation(x, z))
    assert torch.stack(plain).mean().item() == pytest.approx(0.982, abs=2e-3)
    # One has a deviation of 0.05, so the mean of a hundred has one of 0.005.
    assert torch.stack(corrected).mean().abs().item() < 0.02


def test_float32_is_near_float64() -> None:
    x, z = normal(64, 784), normal(64, 32, seed=1)
    z = z + x[:, :32]
    for measure in MEASURES:
        assert measure(x.float(), z.float()).item() == pytest.approx(measure(x, z).item(), abs=2e-6)
    for mine, wanted in zip(
        value_and_gradients(distance_correlation, x.float(), z.float()),
        value_and_gradients(distance_correlation, x, z),
        strict=True,
    ):
        assert (mine - wanted).abs().max() < 1e-5 * wanted.abs().max()


def test_nearly_equal_rows_keep_their_distance() -> None:
    # By products of rows, float32 would see distances of 1e-3 between rows of length 1e2 as rounding.
    near = torch.arange(8.0)[:, None] * 2**-10
    x = torch.cat((near, torch.full((8, 100), 10.0)), 1)
    assert distance_correlation(x, near).item() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("scale", (1e-25, 1e-12, 1e12, 9.9e37))
def test_very_small_and_very_large_inputs(scale: float) -> None:
    x, z = normal(9, 5, dtype=torch.float32), normal(9, 2, seed=1, dtype=torch.float32)
    for measure in MEASURES:
        value, by_x, by_z = value_and_gradients(measure, x * scale, z)
        assert value.item() == pytest.approx(measure(x, z).item(), abs=1e-5)
        assert by_x.isfinite().all() and by_z.isfinite().all()


def test_half_precision_is_computed_in_float32() -> None:
    x, z = normal(9, 5).bfloat16(), normal(9, 2, seed=1).bfloat16()
    value, by_x, _ = value_and_gradients(distance_correlation, x, z)
    assert (value.dtype, by_x.dtype) == (torch.float32, torch.bfloat16)
    assert value.item() == distance_correlation(x.float(), z.float()).item()
    symbols = torch.randint(0, 80, (9, 4), generator=torch.Generator().manual_seed(0))
    assert distance_correlation(symbols, z).item() == distance_correlation(symbols.float(), z.float()).item()


# --- gradients


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("twins", (False, True))
def test_gradients_equal_finite_differences(measure: Measure, twins: bool) -> None:
    x, z = normal(6, 3), normal(6, 2, seed=1)
    if twins:  # two rows are equal in x and move together; z moves freely and has no equal rows
        join = torch.tensor([0, 0, 1, 2, 3, 4])
        assert torch.autograd.gradcheck(lambda x, z: measure(x[join], z), (x[:5].requires_grad_(), z.requires_grad_()))
    else:
        given = x.requires_grad_(), z.requires_grad_()
        assert torch.autograd.gradcheck(measure, given) and torch.autograd.gradgradcheck(measure, given)


def test_rows_equal_in_both_inputs_have_equal_finite_gradients() -> None:
    x, z = normal(6, 3), normal(6, 2, seed=1)
    x[1], z[1] = x[0], z[0]
    for measure in MEASURES:
        _, by_x, by_z = value_and_gradients(measure, x, z)
        assert by_x.isfinite().all() and by_z.isfinite().all()
        assert torch.allclose(by_x[0], by_x[1]) and torch.allclose(by_z[0], by_z[1])
        assert by_x.abs().max() > 1e-4


def test_gradient_descent_on_the_logarithm_removes_dependence() -> None:
    x = normal(40, 2)
    z = x + 0.1 * normal(40, 2, seed=1)  # the gradient is 0 at the maximum
    before = distance_correlation(x, z).item()
    for _ in range(200):
        z = z - value_and_gradients(log_distance_correlation, x, z)[2]
    assert before > 0.99 and distance_correlation(x, z).item() < 0.45  # independent ones have 0.38


def test_gradients_of_nearly_equal_rows_equal_finite_differences() -> None:
    x, z = normal(32, 50), normal(32, 4, seed=1)
    x[1] = x[0] + 1e-2 * normal(50, seed=2)
    x += 100
    _, mine, _ = value_and_gradients(log_distance_correlation, x.float(), z.float())
    _, wanted, _ = value_and_gradients(log_distance_correlation, x.float().double(), z.float().double())
    assert (mine - wanted).abs().max() < 1e-4 * wanted.abs().max()


def test_bfloat16_autocast_changes_nothing() -> None:
    x, z = normal(9, 5, dtype=torch.float32), normal(9, 2, seed=1, dtype=torch.float32)
    wanted = grad(log_distance_correlation)(x, z)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(grad(log_distance_correlation)(x, z), wanted)


# --- undefined cases


def degenerate() -> dict[str, tuple[Tensor, Tensor]]:
    some = normal(6, 3, dtype=torch.float32)
    return {
        "z is constant": (some, torch.full((6, 2), 0.7)),
        "z is zero": (some, torch.zeros(6, 2)),
        "x is constant": (torch.full((6, 2), 1e8 / 3), some),
        "both are constant": (torch.ones(6, 2), torch.zeros(6, 1)),
        "one row": (some[:1], some[:1]),
        "no rows": (some[:0], some[:0]),
        "no values": (some, some[:, :0]),
    }


@pytest.mark.parametrize("case", degenerate())
def test_undefined_cases_give_the_minimum_and_zero_gradient(case: str) -> None:
    x, z = degenerate()[case]
    for measure in MEASURES:
        value, by_x, by_z = value_and_gradients(measure, x, z)
        wanted = math.log(torch.finfo(torch.float32).eps) / 2 if measure is log_distance_correlation else 0.0
        assert value.item() == pytest.approx(wanted, rel=1e-6)
        assert by_x.count_nonzero() == by_z.count_nonzero() == 0


def test_bias_correction_of_fewer_than_four_rows_gives_0() -> None:
    for rows in (1, 2, 3):
        value, by_x, _ = value_and_gradients(corrected_distance_correlation, normal(rows, 2), normal(rows, 2, seed=1))
        assert value.item() == 0 and by_x.count_nonzero() == 0


def test_rounding_of_equidistant_rows_gives_no_correlation() -> None:
    alike, other = torch.eye(10) * 0.7, normal(10, 3, dtype=torch.float32)
    assert corrected_distance_correlation(alike, other).item() == 0
    assert corrected_distance_correlation(alike, alike * 0.3).item() == 0


def test_two_distinct_rows_give_1() -> None:
    value, by_x, by_z = value_and_gradients(distance_correlation, normal(2, 3), normal(2, 5, seed=1))
    assert value.item() == pytest.approx(1)
    assert by_x.abs().max() < 1e-12 and by_z.abs().max() < 1e-12


def test_nan_input_gives_nan() -> None:
    x = normal(6, 3)
    x[2, 1] = math.nan
    for measure in MEASURES:
        assert measure(x, normal(6, 2)).isnan()


@pytest.mark.parametrize("shapes", (((6, 3), (5, 3)), ((), (1, 2))))
def test_inputs_without_matching_rows_are_refused(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    for measure in MEASURES:
        with pytest.raises(ConfigurationError, match=r"the same samples, \(rows, \.\.\.\) each, got \("):
            measure(torch.zeros(shapes[0]), torch.zeros(shapes[1]))


# --- stacked learners


@pytest.mark.parametrize("measure", MEASURES)
def test_stack_equals_loop(measure: Measure) -> None:
    x, z = normal(4, 7, 1, 5, 5), normal(4, 7, 6, seed=1)
    x[1, 2], z[1, 2] = x[1, 3], z[1, 3]  # equal rows
    z[2] = 0.5  # a learner whose z is constant beside others
    both = grad(measure, argnums=(0, 1))
    assert torch.allclose(vmap(measure)(x, z), torch.stack([measure(a, b) for a, b in zip(x, z, strict=True)]))
    stacked = vmap(both)(x, z)
    for i in range(4):
        for mine, wanted in zip(stacked, both(x[i], z[i]), strict=True):
            assert torch.allclose(mine[i], wanted, atol=1e-12)
