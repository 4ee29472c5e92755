"""Inversion: how well an attacker with samples of its own rebuilds others' images from codes of them.

Codes are what a model makes of images and somebody gets to see: the output of a layer, features, mean features. The
attacker runs the model on its own images, trains a decoder from codes back to images, and decodes what it saw.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from consilience.errors import ConfigurationError
from consilience.evaluation.decoder import Decoder, as_images, same_samples, train_decoder
from consilience.evaluation.image_similarity import psnr, ssim

__all__ = ["Decoder", "Inversion", "MeanInversion", "invert", "invert_means", "rebuild", "train_decoder"]


@dataclass(frozen=True, eq=False)
class Inversion:
    """Images rebuilt from codes, and how like the true ones they are, as means over the images.

    images (n, channels, height, width) in [0, 1], or values (n, k). psnr is in decibels, of values by the range that
    the attacker's have; ssim of values is NaN. The baseline answers with the mean of the attacker's images, whatever
    the code: what is no better gives nothing away.
    """

    images: Tensor
    psnr: float
    ssim: float
    baseline_psnr: float
    baseline_ssim: float


@dataclass(frozen=True, eq=False)
class MeanInversion:
    """Images rebuilt from means of codes, (groups, channels, height, width), and how like they are, over the groups.

    nearest: to the sample in the mean that is most like it, the worst that happens to anybody.
    mean: to the mean image of the samples.
    """

    images: Tensor
    ssim_nearest: float
    ssim_mean: float
    psnr_nearest: float
    psnr_mean: float


def invert(
    codes: Tensor,
    images: Tensor,
    seen: Tensor,
    truth: Tensor,
    *,
    epochs: int = 30,
    batch_size: int = 128,
    lr: float = 1e-3,
    seed: int = 0,
) -> Inversion:
    """A whole attack: a decoder of the attacker's own codes and images rebuilds the truth from what is seen of it."""
    return rebuild(train_decoder(codes, images, epochs=epochs, batch_size=batch_size, lr=lr, seed=seed), seen, truth)


def rebuild(decoder: Decoder, seen: Tensor, truth: Tensor) -> Inversion:
    """The images (n, ...) that a decoder makes of the codes seen (n, ...), and how like the truth they are."""
    same_samples(seen, truth)
    images = decoder(seen)
    truth = as_images(truth).to(images)
    guess = decoder.guess.expand(len(truth), *decoder.guess.shape)
    return Inversion(
        images,
        _psnr(images, truth, decoder).mean().item(),
        _ssim(images, truth).mean().item(),
        _psnr(guess, truth, decoder).mean().item(),
        _ssim(guess, truth).mean().item(),
    )


def invert_means(decoder: Decoder, means: Tensor, members: Tensor) -> MeanInversion:
    """What a decoder makes of means (groups, width) of codes, each of the members (groups, n, ...) of its group."""
    if members.ndim < 3 or not members.numel():
        raise ConfigurationError(
            f"members of groups have the shape {tuple(members.shape)}; "
            f"give (groups, n, channels, height, width), 1 or more of each group"
        )
    same_samples(means, members)
    images = decoder(means)
    each = as_images(members.flatten(0, 1)).to(images)  # (groups * n, ...)
    middle = each.view(members.shape).mean(1)  # (groups, ...)
    repeated = images.repeat_interleave(members.shape[1], 0)  # (groups * n, ...)
    return MeanInversion(
        images,
        _ssim(repeated, each).view(members.shape[:2]).amax(1).mean().item(),
        _ssim(images, middle).mean().item(),
        _psnr(repeated, each, decoder).view(members.shape[:2]).amax(1).mean().item(),
        _psnr(images, middle, decoder).mean().item(),
    )


def _psnr(images: Tensor, truth: Tensor, decoder: Decoder) -> Tensor:
    return psnr(images, truth, decoder.peak)


def _ssim(images: Tensor, truth: Tensor) -> Tensor:
    """Of images; values have no structure to see."""
    return ssim(images, truth) if images.ndim == 4 else images.new_full((len(images),), math.nan)
