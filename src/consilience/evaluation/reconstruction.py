"""Reconstruction attacks: how well an attacker with samples of its own reconstructs others' images from their codes.

Codes are what the attacker observes of images: the output of a layer, features, or mean features. The attacker runs the
model on its own images, trains a decoder from codes to images, and decodes the observed codes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from consilience.errors import ConfigurationError
from consilience.evaluation.decoder import Decoder, DecoderSettings, as_images, same_samples, train_decoder
from consilience.evaluation.image_similarity import psnr, ssim

__all__ = [
    "Decoder",
    "DecoderSettings",
    "MeanReconstruction",
    "Reconstruction",
    "attack",
    "reconstruct",
    "reconstruct_means",
    "train_decoder",
]


_DEFAULTS = DecoderSettings()


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """Images reconstructed from codes, and their mean similarity to the true images.

    images (n, channels, height, width) in [0, 1], or values (n, k). psnr is in decibels, for values relative to the
    range of the attacker's values; ssim of values is NaN. The baseline is the mean of the attacker's images for every
    code: a reconstruction that is no better leaks nothing.
    """

    images: Tensor
    psnr: float
    ssim: float
    baseline_psnr: float
    baseline_ssim: float


@dataclass(frozen=True, eq=False)
class MeanReconstruction:
    """Images reconstructed from means of codes, (groups, channels, height, width), and their mean similarity.

    nearest: to the most similar sample in the mean, which is the worst case of a sample.
    mean: to the mean image of the samples.
    """

    images: Tensor
    ssim_nearest: float
    ssim_mean: float
    psnr_nearest: float
    psnr_mean: float


def attack(
    codes: Tensor, images: Tensor, observed: Tensor, truth: Tensor, settings: DecoderSettings = _DEFAULTS
) -> Reconstruction:
    """Train a decoder on the attacker's own codes and images, and reconstruct the true images from observed codes."""
    return reconstruct(train_decoder(codes, images, settings), observed, truth)


def reconstruct(decoder: Decoder, observed: Tensor, truth: Tensor) -> Reconstruction:
    """The images (n, ...) that a decoder reconstructs from observed codes (n, ...), compared with the true images."""
    same_samples(observed, truth)
    images = decoder(observed)
    truth = as_images(truth).to(images)
    baseline = decoder.mean_image.expand(len(truth), *decoder.mean_image.shape)
    return Reconstruction(
        images,
        _psnr(images, truth, decoder).mean().item(),
        _ssim(images, truth).mean().item(),
        _psnr(baseline, truth, decoder).mean().item(),
        _ssim(baseline, truth).mean().item(),
    )


def reconstruct_means(decoder: Decoder, means: Tensor, members: Tensor) -> MeanReconstruction:
    """The images that a decoder reconstructs from means of codes (groups, width), compared with the means' members.

    members: the images of each group, (groups, n, ...).
    """
    if members.ndim < 3 or not members.numel():
        raise ConfigurationError(
            f"members of groups have the shape {tuple(members.shape)}; "
            f"give (groups, n, channels, height, width), 1 or more of each group"
        )
    same_samples(means, members)
    images = decoder(means)
    each = as_images(members.flatten(0, 1)).to(images)  # (groups * n, ...)
    mean_images = each.view(members.shape).mean(1)  # (groups, ...)
    repeated = images.repeat_interleave(members.shape[1], 0)  # (groups * n, ...)
    return MeanReconstruction(
        images,
        _ssim(repeated, each).view(members.shape[:2]).amax(1).mean().item(),
        _ssim(images, mean_images).mean().item(),
        _psnr(repeated, each, decoder).view(members.shape[:2]).amax(1).mean().item(),
        _psnr(images, mean_images, decoder).mean().item(),
    )


def _psnr(images: Tensor, truth: Tensor, decoder: Decoder) -> Tensor:
    return psnr(images, truth, decoder.peak)


def _ssim(images: Tensor, truth: Tensor) -> Tensor:
    """SSIM of images; NaN for values."""
    return ssim(images, truth) if images.ndim == 4 else images.new_full((len(images),), math.nan)
