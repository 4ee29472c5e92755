"""Similarity of images: peak signal-to-noise ratio and structural similarity."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from consilience.errors import ConfigurationError
from consilience.validation import check_number

MAX_PSNR = 100.0
"""Decibels of identical images, and the upper limit: noise below a hundred-thousandth of the peak counts as none."""
_WINDOW, _SIGMA, _K1, _K2 = 11, 1.5, 0.01, 0.03  # as published


def psnr(a: Tensor, b: Tensor, peak: float = 1.0) -> Tensor:
    """Peak signal to noise ratio of a (n, ...) and b (n, ...) in decibels, (n,); identical images have 100.

    >>> psnr(torch.zeros(2, 1, 4, 4), torch.tensor([0.0, 0.1])[:, None, None, None].expand(2, 1, 4, 4)).tolist()
    [100.0, 20.0]
    """
    a, b, dtype = _pair(a, b, peak)
    if a.ndim < 2:
        raise ConfigurationError(
            f"images are of the shape {tuple(a.shape)}; give (n, ...), as (1, ...) for a single image"
        )
    noise = ((a - b) / peak).flatten(1).square().mean(1)
    return (-10 * noise.clamp(min=10 ** (-MAX_PSNR / 10)).log10()).to(dtype)


def ssim(a: Tensor, b: Tensor, peak: float = 1.0) -> Tensor:
    """Structural similarity of images a and b (n, channels, height, width) in [0, peak], (n,); 1 for identical images.

    As in Wang et al. (2004): means, variances and covariance in a Gaussian window of 11 x 11 with deviation 1.5, at
    every position inside the image; the mean over positions and channels. For images smaller than the window, the
    largest odd window that fits is used.
    """
    a, b, dtype = _pair(a, b, peak)
    if a.ndim != 4 or not min(a.shape[1:]):
        raise ConfigurationError(
            f"images are of the shape {tuple(a.shape)}; structural similarity needs images, "
            f"(n, channels, height, width). Use psnr for other values"
        )
    size = min(_WINDOW, *a.shape[-2:])
    window = _gaussian(size - 1 + size % 2, a)
    mean_a, mean_b = _windowed(a, window), _windowed(b, window)  # (n, channels, rows, columns)
    own = _windowed(a * a, window) - mean_a**2 + (_windowed(b * b, window) - mean_b**2)
    shared = _windowed(a * b, window) - mean_a * mean_b
    c1, c2 = (_K1 * peak) ** 2, (_K2 * peak) ** 2
    light = (2 * mean_a * mean_b + c1) / (mean_a**2 + mean_b**2 + c1)
    return (light * (2 * shared + c2) / (own + c2)).mean((1, 2, 3)).to(dtype)


def _gaussian(size: int, like: Tensor) -> Tensor:
    """Gaussian weights that sum to 1, (size,)."""
    places = torch.arange(size, dtype=like.dtype, device=like.device) - size // 2
    weights = (-0.5 * (places / _SIGMA) ** 2).exp()
    return weights / weights.sum()


def _windowed(images: Tensor, window: Tensor) -> Tensor:
    """Weighted means over the window, at every position where it fits."""
    n, channels, height, width = images.shape
    down = F.conv2d(images.reshape(n * channels, 1, height, width), window[None, None, :, None])
    both = F.conv2d(down, window[None, None, None, :])
    return both.view(n, channels, *both.shape[-2:])


def _pair(a: Tensor, b: Tensor, peak: float) -> tuple[Tensor, Tensor, torch.dtype]:
    """Both images in float64, since variances are small differences, and the dtype of the result."""
    check_number("peak", peak)
    if not peak:
        raise ConfigurationError("peak is 0; it must be above 0, the largest value a pixel can have")
    if a.shape != b.shape:
        raise ConfigurationError(
            f"images of the shapes {tuple(a.shape)} and {tuple(b.shape)} do not match; give equal shapes"
        )
    dtype = torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float32)
    return a.double(), b.double(), dtype
