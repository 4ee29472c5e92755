"""Augmented views of images: operations against kornia or plain torch; under vmap, range and probabilities."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import kornia
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from consilience.errors import ConfigurationError
from consilience.functional.augmentation import (
    BRIGHTNESS,
    CONTRAST,
    JITTER_ORDERS,
    SATURATION,
    Views,
    adjust_tone,
    crop_and_resize,
    jitter_colors,
    rotate_hue,
    to_gray,
)

STILL = Views(scale=(1.0, 1.0), ratio=(1.0, 1.0), jitter_chance=0.0, gray_chance=0.0, flip_chance=0.0)
FEW = settings(max_examples=30, deadline=None)


def images(rows: int, channels: int = 3, height: int = 8, width: int = 8, seed: int = 0) -> Tensor:
    return torch.rand((rows, channels, height, width), generator=torch.Generator().manual_seed(seed)).double()


def drawn(rows: int, seed: int = 1) -> Tensor:
    return torch.rand((Views().draws, rows), generator=torch.Generator().manual_seed(seed)).double()


def close(one: Tensor, other: Tensor, within: float = 1e-9) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=within)


def fraction_of_images(views: Tensor, holds: Callable[[Tensor], Tensor]) -> float:
    """The fraction of images for which every pixel meets the condition."""
    return holds(views).flatten(1).all(1).double().mean().item()


def kornia_adjustment(pixels: Tensor, kind: int, factor: Tensor) -> Tensor:
    """The reference for one color adjustment."""
    enhance = {
        BRIGHTNESS: kornia.enhance.adjust_brightness_accumulative,
        CONTRAST: kornia.enhance.adjust_contrast_with_mean_subtraction,
        SATURATION: kornia.enhance.adjust_saturation_with_gray_subtraction,
    }
    result: Tensor = enhance[kind](pixels, factor)
    return result


# --- crops


def cut(
    pixels: Tensor,
    left: Sequence[float],
    top: Sequence[float],
    width: Sequence[float],
    height: Sequence[float],
    mirrored: Sequence[bool],
) -> Tensor:
    box = torch.tensor([left, top, width, height], dtype=torch.float64)
    return crop_and_resize(pixels, box[0], box[1], box[2], box[3], torch.tensor(mirrored))


@FEW
@given(st.data())
def test_crop_at_integer_pixels_equals_interpolated_slice(data: st.DataObject) -> None:
    height, width = data.draw(st.integers(2, 9)), data.draw(st.integers(2, 9))
    wide, high = data.draw(st.integers(1, width)), data.draw(st.integers(1, height))
    left, top = data.draw(st.integers(0, width - wide)), data.draw(st.integers(0, height - high))
    mirrored = data.draw(st.booleans())
    pixels = images(2, 3, height, width)
    part = pixels[:, :, top : top + high, left : left + wide]
    expected = F.interpolate(part, (height, width), mode="bilinear", align_corners=False)
    got = cut(pixels, (left, left), (top, top), (wide, wide), (high, high), mirrored=(mirrored, mirrored))
    close(got, expected.flip(-1) if mirrored else expected)


def test_crop_at_fractional_pixels_is_exact_on_a_linear_gradient() -> None:
    slope = torch.arange(8.0).double().expand(1, 1, 8, 8) / 8
    box = (1.25,), (2.5,), (4.0,), (3.0,)
    across = torch.tensor([1.25, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.25]) / 8  # clamped to 1.25 and 4.25
    close(cut(slope, *box, mirrored=(False,)), across.double().expand(1, 1, 8, 8))
    down = (2.5 + (((torch.arange(8) + 0.5) * 3 / 8) - 0.5).clamp(0, 2)).double()[:, None] / 8
    close(cut(slope.mT, *box, mirrored=(False,)), down.expand(1, 1, 8, 8))


def test_every_row_has_its_own_box_and_flip() -> None:
    pixels = images(2)
    got = cut(pixels, (0, 3), (0, 1), (8, 4), (8, 5), mirrored=(True, False))
    close(got[:1], pixels[:1].flip(-1))
    close(got[1:], F.interpolate(pixels[1:, :, 1:6, 3:7], (8, 8), mode="bilinear"))


def test_boxes_have_the_given_area_and_ratio_and_are_inside() -> None:
    left, top, wide, high = Views()._box(drawn(20_000)[:4], 32, 48)
    for start, extent, size in ((left, wide, 48), (top, high, 32)):
        assert start.min() >= 0 and (start + extent).max() <= size + 1e-9
        close((start / (size - extent).clamp(min=1e-9))[extent < size].mean(), torch.tensor(0.5).double(), 0.02)
    free = (wide < 48) & (high < 32)
    area, ratio = (wide * high / (32 * 48))[free], (wide / high)[free]
    assert 0.2 <= area.min() < 0.21 and 0.75 <= ratio.min() < 0.76 and 1.32 < ratio.max() <= 4 / 3
    inner = Views(scale=(0.2, 0.5))._box(drawn(20_000)[:4], 32, 32)  # these never reach the edge
    close((inner[2] * inner[3]).mean() / 32**2, torch.tensor(0.35).double(), 0.005)
    close((inner[2] / inner[3]).log().mean(), torch.tensor(0.0).double(), 0.005)


def test_box_larger_than_the_image_is_clamped() -> None:
    place = torch.tensor([[0.999999], [0.999999], [0.5], [0.5]]).double()  # all of the area, 4 / 3 as wide as high
    left, top, wide, high = Views()._box(place, 30, 30)
    assert (left.item(), wide.item()) == (0, 30)
    assert high.item() == pytest.approx(30 * math.sqrt(3 / 4), abs=1e-3)
    assert top.item() == pytest.approx((30 - high.item()) / 2)


# --- colors


@FEW
@given(st.integers(BRIGHTNESS, SATURATION), st.floats(0, 2), st.integers(0, 99), st.sampled_from([1, 3]))
def test_color_adjustment_equals_kornia(kind: int, factor: float, seed: int, channels: int) -> None:
    pixels, factors = images(3, channels, seed=seed), torch.tensor([factor, 0.5, 1.7]).double()
    close(adjust_tone(pixels, torch.full((3,), kind), factors), kornia_adjustment(pixels, kind, factors))


def test_every_row_has_its_own_color_adjustment() -> None:
    pixels, factors = images(3), torch.tensor([0.3, 1.6, 1.9]).double()
    got = adjust_tone(pixels, torch.tensor([SATURATION, BRIGHTNESS, CONTRAST]), factors)
    for row, kind in enumerate((SATURATION, BRIGHTNESS, CONTRAST)):
        close(got[row : row + 1], kornia_adjustment(pixels[row : row + 1], kind, factors[row : row + 1]))


@FEW
@given(st.floats(-0.5, 0.5), st.integers(0, 99))
def test_hue_shift_equals_kornia(turns: float, seed: int) -> None:
    pixels, by = images(2, seed=seed), torch.tensor([turns, -turns]).double()
    close(rotate_hue(pixels, by), kornia.enhance.adjust_hue(pixels, 2 * math.pi * by), 1e-6)


def test_hue_shift_by_a_third_turns_red_to_green_and_keeps_gray() -> None:
    colors = torch.tensor([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0.3, 0.3, 0.3], [0, 0, 0], [1, 1, 0]]).double()
    got = rotate_hue(colors[:, :, None, None], torch.full((6,), 1 / 3, dtype=torch.float64))[:, :, 0, 0]
    close(got, torch.tensor([[0, 1, 0], [0, 0, 1], [1, 0, 0], [0.3, 0.3, 0.3], [0, 0, 0], [0, 1, 1]]).double())


def test_grayscale_equals_kornia_in_all_channels() -> None:
    pixels = images(3)
    close(to_gray(pixels), kornia.color.rgb_to_grayscale(pixels).expand(3, 3, 8, 8))
    assert torch.equal(to_gray(images(3, 1)), images(3, 1))


def test_all_orders_of_four_adjustments_occur_once() -> None:
    one, factors, turns = images(1), torch.tensor([1.5, 0.4, 1.8]).double(), torch.tensor([0.17]).double()
    got = jitter_colors(
        one.expand(JITTER_ORDERS, 3, 8, 8),
        factors[:, None].expand(3, JITTER_ORDERS),
        turns.expand(JITTER_ORDERS),
        torch.arange(JITTER_ORDERS),
    )
    wanted = []
    for order in itertools.permutations(range(4)):
        view = one
        for change in order:
            view = (
                rotate_hue(view, turns)
                if change == 3
                else kornia_adjustment(view, change, factors[change : change + 1])
            )
        wanted.append(view[0])
    apart = (got[:, None] - torch.stack(wanted)[None]).abs().amax((2, 3, 4)) < 1e-9  # (orders, permutations)
    assert apart.sum(0).tolist() == apart.sum(1).tolist() == [1] * JITTER_ORDERS


def test_single_channel_uses_brightness_and_contrast_in_both_orders() -> None:
    one, factors = images(1, 1), torch.tensor([[1.5], [0.4], [1.8]]).double()
    got = jitter_colors(
        one.expand(JITTER_ORDERS, 1, 8, 8),
        factors.expand(3, JITTER_ORDERS),
        torch.full((JITTER_ORDERS,), 0.2),
        torch.arange(JITTER_ORDERS),
    )
    first = kornia_adjustment(kornia_adjustment(one, BRIGHTNESS, factors[0]), CONTRAST, factors[1])
    other = kornia_adjustment(kornia_adjustment(one, CONTRAST, factors[1]), BRIGHTNESS, factors[0])
    same = torch.stack([(got - view).abs().amax((1, 2, 3)) < 1e-9 for view in (first, other)])
    assert same.sum(1).tolist() == [12, 12]


# --- the whole


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_views_keep_shape_dtype_and_range_and_are_deterministic(channels: int, dtype: torch.dtype) -> None:
    pixels, draws = images(64, channels, 12, 10).round(decimals=1).to(dtype), drawn(64)
    view = Views()(pixels, draws)
    assert view.shape == pixels.shape and view.dtype == dtype
    assert view.min() >= 0 and view.max() <= 1
    assert (view != pixels).flatten(1).any(1).all()
    assert torch.equal(view, Views()(pixels, draws))


def test_views_without_changes_return_the_input() -> None:
    for draws in (torch.zeros(12, 5), torch.full((12, 5), 1 - 2**-24), drawn(5)):
        close(STILL(images(5), draws.double()), images(5), 1e-14)
    late = torch.full((12, 5), 1 - 2**-24).double()  # the largest crop and no random change, in the default views
    close(Views(ratio=(1.0, 1.0))(images(5), late), images(5), 1e-6)


def test_draws_just_below_one_are_valid_in_every_dtype() -> None:
    edge = torch.full((12, 2), 1 - 2**-53, dtype=torch.float64)
    for dtype in (torch.float32, torch.float64):
        assert Views(jitter_chance=1.0)(images(2).to(dtype), edge).isfinite().all()


def test_flip_jitter_and_gray_probabilities_hold() -> None:
    pixels, draws = images(4000, 3, 4, 4), drawn(4000)
    assert fraction_of_images(
        Views(jitter_chance=0.0)(pixels, draws), lambda v: v.amax(1) == v.amin(1)
    ) == pytest.approx(0.2, abs=0.02)
    mirrored = Views(scale=(1, 1), ratio=(1, 1), jitter_chance=0, gray_chance=0, flip_chance=0.3)(pixels, draws)
    assert fraction_of_images(mirrored, lambda v: (v - pixels.flip(-1)).abs().amax(1) < 1e-9) == pytest.approx(
        0.3, abs=0.02
    )
    untouched = Views(scale=(1, 1), ratio=(1, 1), jitter_chance=0.6, gray_chance=0, flip_chance=0)(pixels, draws)
    assert fraction_of_images(untouched, lambda v: (v - pixels).abs().amax(1) < 1e-9) == pytest.approx(0.4, abs=0.02)
    never, always = Views(gray_chance=0.0, jitter_chance=0.0), Views(gray_chance=1.0)
    assert fraction_of_images(never(pixels, draws), lambda v: v.amax(1) == v.amin(1)) == 0
    assert fraction_of_images(always(pixels, draws), lambda v: v.amax(1) == v.amin(1)) == 1


def test_brightness_spans_its_range() -> None:
    views = Views((1, 1), (1, 1), jitter=(0.5, 0, 0, 0), jitter_chance=1, gray_chance=0, flip_chance=0)
    factor = views(torch.full((4000, 3, 2, 2), 0.5).double(), drawn(4000))[:, 0, 0, 0] / 0.5
    assert 0.5 <= factor.min() < 0.51 and 1.49 < factor.max() <= 1.5
    assert factor.mean().item() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_stacked_learners_get_the_same_views_as_single_ones(channels: int) -> None:
    pixels = torch.stack([images(6, channels, 9, 7, seed=learner) for learner in range(4)])
    draws = torch.stack([drawn(6, seed=learner) for learner in range(4)])
    beside = torch.func.vmap(Views())(pixels, draws)
    close(beside, torch.stack([Views()(p, d) for p, d in zip(pixels, draws, strict=True)]), 1e-12)


def steps(function: Callable[..., Tensor], *inputs: Tensor) -> str:
    """The operations that torch runs, one per line."""
    return str(make_fx(function)(*inputs).graph)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_views_use_only_operations_that_cuda_graphs_can_record(channels: int) -> None:
    # values read back, sizes that depend on them, constants copied to the device
    unwanted = r"_local_scalar_dense|nonzero|masked_select|index\.Tensor|lift_fresh|scalar_tensor"
    pixels, draws = images(4, channels), drawn(4)
    assert "grid_sampler" in steps(Views(), pixels, draws)
    assert re.findall(unwanted, steps(Views(), pixels, draws)) == []
    assert re.findall(unwanted, steps(lambda p: p[p > 0.5] * torch.tensor([2.0]), pixels)) != []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda_graph_equals_cpu() -> None:
    pixels, draws = images(24).view(4, 6, 3, 8, 8), torch.stack([drawn(6, seed=learner) for learner in range(4)])
    held, numbers, views = pixels.cuda(), draws.cuda(), torch.func.vmap(Views())
    views(held, numbers)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = views(held, numbers)
    numbers.copy_(draws.flip(0))
    graph.replay()
    close(result.cpu(), views(pixels, draws.flip(0)))


# --- refusals


def test_table_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"shape \(5, 4\); views are for images"):
        Views()(torch.rand(5, 4), drawn(5))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"scale": (0.0, 1.0)}, "scale is 0.0; it must be a finite number"),
        ({"scale": (0.5, 1.5)}, "scale is 1.5; it must be 1 or less"),
        ({"scale": (0.9, 0.2)}, "the smaller number must come first"),
        ({"scale": 0.2}, "scale is 0.2; it must be a tuple of 2 numbers"),
        ({"ratio": (-1.0, 1.0)}, "ratio is -1.0"),
        ({"ratio": (1.0, math.inf)}, "ratio is inf; it must be a finite number"),
        ({"jitter": (0.8, 0.8, 0.8)}, "jitter is .*tuple of 4 numbers for brightness"),
        ({"jitter": (0.8, -0.1, 0.8, 0.2)}, "jitter of contrast is -0.1"),
        ({"jitter": (0.8, 0.8, 0.8, 0.6)}, "jitter of hue is 0.6; it must be 0.5 or less"),
        ({"gray_chance": 1.2}, "gray_chance is 1.2; it must be 1 or less"),
        ({"flip_chance": -0.5}, "flip_chance is -0.5"),
        ({"jitter_chance": math.nan}, "jitter_chance is nan"),
    ],
)
def test_invalid_settings_are_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Views(**wrong)
