"""Image similarity: PSNR and SSIM by hand and against kornia, and small, identical and invalid images."""

from __future__ import annotations

import math

import kornia.metrics
import pytest
import torch
from torch import Tensor

from consilience.errors import ConfigurationError
from consilience.evaluation.image_similarity import psnr, ssim

pytestmark = pytest.mark.usefixtures("one_thread")


def pairs(*shape: int, noise: float = 0.2, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Images in [0, 1], and the same images with noise."""
    generator = torch.Generator().manual_seed(seed)
    a = torch.rand(shape, generator=generator)
    return a, (a + noise * torch.randn(shape, generator=generator)).clamp(0, 1)


# --- psnr


def test_psnr_by_hand() -> None:
    a = torch.zeros(3, 1, 2, 2)
    b = torch.stack([torch.full((1, 2, 2), 0.1), torch.full((1, 2, 2), 1.0), torch.tensor([[[0.2, 0], [0, 0]]])])
    # Squared noise is 0.01, 1 and 0.04 / 4 = 0.01.
    assert psnr(a, b).tolist() == pytest.approx([20, 0, 20], abs=1e-5)
    assert psnr(a, b, peak=10.0).tolist() == pytest.approx([40, 20, 40], abs=1e-5)


def test_psnr_per_image_equals_kornia() -> None:
    a, b = pairs(5, 3, 9, 7)
    wanted = [kornia.metrics.psnr(x, y, 1.0).item() for x, y in zip(a, b, strict=True)]
    assert psnr(a, b).tolist() == pytest.approx(wanted, abs=1e-4)


def test_psnr_of_identical_images_is_capped_at_100() -> None:
    a, _ = pairs(2, 1, 8, 8)
    assert psnr(a, a).tolist() == psnr(a * 255, a * 255, 255.0).tolist() == [100.0, 100.0]
    assert psnr(a.double(), a.double() + 1e-5).tolist() == pytest.approx([100.0, 100.0])
    assert psnr(a.double(), a.double() + 1e-7).tolist() == [100.0, 100.0]


def test_psnr_accepts_vectors() -> None:
    assert psnr(torch.zeros(2, 5), torch.ones(2, 5), peak=10.0).tolist() == pytest.approx([20, 20])


# --- ssim


def test_ssim_of_constant_images_by_hand() -> None:
    # No variance: only the luminance differs, (2 * 0.5 * 0.25 + 1e-4) / (0.25 + 0.0625 + 1e-4).
    a, b = torch.full((1, 1, 11, 11), 0.5), torch.full((1, 1, 11, 11), 0.25)
    assert ssim(a, b).item() == pytest.approx(0.2501 / 0.3126, abs=1e-6)


def test_ssim_of_three_pixels_by_hand() -> None:
    # A window of 3 x 3 whose rows are the same: weights w = exp(-1 / 4.5) / (1 + 2 exp(-1 / 4.5)), v = 1 - 2w, w.
    # a is 1 in the middle column: mean v, variance v - v^2. 1 - a has the mean 2w, and a covariance of minus that.
    side = math.exp(-1 / 4.5)
    v = 1 / (1 + 2 * side)
    mean, spread = (v, 1 - v), v - v**2
    light = (2 * mean[0] * mean[1] + 1e-4) / (mean[0] ** 2 + mean[1] ** 2 + 1e-4)
    a = torch.tensor([[[[0.0, 1.0, 0.0]] * 3]])
    assert ssim(a, 1 - a).item() == pytest.approx(light * (-2 * spread + 9e-4) / (2 * spread + 9e-4), abs=1e-6)


@pytest.mark.parametrize("shape", ((4, 1, 28, 28), (3, 3, 32, 32), (2, 1, 11, 15)))
@pytest.mark.parametrize("noise", (0.02, 0.2, 2.0))
def test_ssim_equals_kornia(shape: tuple[int, ...], noise: float) -> None:
    a, b = pairs(*shape, noise=noise)
    # The same window, Gaussian and constants; eps is kornia's own addition to the denominator.
    wanted = kornia.metrics.ssim(a.double(), b.double(), 11, padding="valid", eps=0.0).mean((1, 2, 3))
    assert ssim(a, b).tolist() == pytest.approx(wanted.tolist(), abs=1e-6)
    assert ssim(255 * a, 255 * b, peak=255.0).tolist() == pytest.approx(wanted.tolist(), abs=1e-5)


@pytest.mark.parametrize(("size", "window"), (((8, 8), 7), ((9, 40), 9), ((5, 6), 5), ((2, 2), 1)))
def test_ssim_of_small_images_uses_the_largest_odd_window_that_fits(size: tuple[int, int], window: int) -> None:
    a, b = pairs(3, 2, *size)
    wanted = kornia.metrics.ssim(a.double(), b.double(), window, padding="valid", eps=0.0).mean((1, 2, 3))
    assert ssim(a, b).tolist() == pytest.approx(wanted.tolist(), abs=1e-6)


def test_ssim_of_identical_images_is_1_and_falls_with_noise() -> None:
    a, little = pairs(4, 1, 28, 28, noise=0.05)
    _, much = pairs(4, 1, 28, 28, noise=0.5)
    assert ssim(a, a).tolist() == [1.0] * 4
    assert ssim(torch.zeros(1, 1, 12, 12), torch.zeros(1, 1, 12, 12)).item() == 1
    assert bool((ssim(a, little) > 0.9).all()) and bool((ssim(a, much) < 0.6).all())
    assert torch.equal(ssim(a, much), ssim(much, a))


# --- errors


def test_invalid_images_are_refused() -> None:
    a = torch.zeros(2, 1, 8, 8)
    with pytest.raises(ConfigurationError, match=r"the shapes \(2, 1, 8, 8\) and \(1, 1, 8, 8\) do not match"):
        psnr(a, a[:1])
    with pytest.raises(ConfigurationError, match=r"of the shape \(2, 64\); structural similarity needs images"):
        ssim(a.flatten(1), a.flatten(1))
    with pytest.raises(ConfigurationError, match=r"of the shape \(2,\); give \(n, \.\.\.\)"):
        psnr(torch.zeros(2), torch.zeros(2))
    for wrong in (0.0, -1.0, math.nan):
        with pytest.raises(ConfigurationError, match="peak is"):
            ssim(a, a, peak=wrong)
