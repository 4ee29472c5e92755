"""Reconstruction attacks on codes and on their means, for images of all shapes."""

from __future__ import annotations

import dataclasses
import math
from functools import cache

import pytest
import torch
from torch import Tensor

from consilience.data import load
from consilience.errors import ConfigurationError, TrainingError
from consilience.evaluation.image_similarity import psnr, ssim
from consilience.evaluation.reconstruction import (
    Decoder,
    DecoderSettings,
    attack,
    reconstruct,
    reconstruct_means,
    train_decoder,
)

pytestmark = pytest.mark.usefixtures("one_thread")

Digits = tuple[Tensor, Tensor, Tensor]

TESTS = 100


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def picture(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


@cache
def pictures() -> Digits:
    """The attacker's digits in [0, 1], their classes, and the victims' digits."""
    data = load("digits")
    mine, theirs = (torch.from_numpy(data.scaling.undo(x)) for x in (data.inputs, data.test_inputs[:TESTS]))
    return mine, torch.from_numpy(data.targets), theirs


@cache
def trained() -> Decoder:
    mine, _, _ = pictures()
    return train_decoder(mine, mine)


@pytest.fixture
def digits() -> Digits:
    return pictures()


@pytest.fixture
def decoder(one_thread: None) -> Decoder:
    """A decoder of codes that are the pixels, trained once."""
    return trained()


# --- quality of reconstructions


def test_pixels_are_reconstructed_from_pixel_codes(digits: Digits, decoder: Decoder) -> None:
    _, _, truth = digits
    found = reconstruct(decoder, truth, truth)
    assert found.images.shape == truth.shape
    assert found.ssim > 0.8 > 0.45 > found.baseline_ssim
    assert found.psnr > 17 > 13 > found.baseline_psnr
    assert found.ssim == pytest.approx(ssim(found.images, truth).mean().item())
    assert found.psnr == pytest.approx(psnr(found.images, truth).mean().item())


def test_random_codes_reconstruct_nothing(digits: Digits) -> None:
    mine, _, truth = digits
    found = attack(noise(len(mine), 64), mine, noise(TESTS, 64, seed=1), truth)
    assert found.psnr <= found.baseline_psnr and found.ssim <= found.baseline_ssim
    guess = mine.mean(0).expand_as(truth)
    assert found.baseline_psnr == pytest.approx(psnr(guess, truth).mean().item())
    assert found.baseline_ssim == pytest.approx(ssim(guess, truth).mean().item())


def test_constant_codes_reconstruct_the_mean_image(digits: Digits) -> None:
    mine, _, truth = digits
    found = attack(torch.full((len(mine), 3), 0.1), mine, torch.full((TESTS, 3), 5.0), truth)
    assert bool((found.images == found.images[0]).all())
    assert found.psnr == pytest.approx(found.baseline_psnr, abs=0.3)


def test_shorter_codes_reconstruct_less(digits: Digits, decoder: Decoder) -> None:
    mine, _, truth = digits
    turn = noise(64, 4)
    few = attack(mine.flatten(1) @ turn, mine, truth.flatten(1) @ turn, truth)
    assert few.baseline_ssim < few.ssim < reconstruct(decoder, truth, truth).ssim - 0.1


# --- codes and images of all shapes


@pytest.mark.parametrize("shape", ((1, 28, 28), (3, 32, 32), (1, 8, 8), (2, 9, 13), (1, 11, 10), (1, 1, 1)))
def test_images_of_any_size_are_reconstructed(shape: tuple[int, ...]) -> None:
    images = picture(12, *shape)
    found = attack(
        noise(12, 4, 3, 3), images, noise(5, 4, 3, 3, seed=1), picture(5, *shape, seed=1), DecoderSettings(epochs=1)
    )
    assert found.images.shape == (5, *shape) and found.images.dtype == torch.float32
    assert found.images.min() >= 0 and found.images.max() <= 1
    assert all(math.isfinite(getattr(found, name)) for name in ("psnr", "ssim", "baseline_psnr", "baseline_ssim"))


def test_decoder_can_overfit_every_pixel() -> None:
    images = picture(2, 1, 9, 13).round() * 0.8 + 0.1
    found = attack(torch.eye(2), images, torch.eye(2), images, DecoderSettings(epochs=400, lr=1e-2))
    assert found.ssim > 0.95  # also at the edges that are cropped


def test_vectors_are_reconstructed_without_ssim(digits: Digits) -> None:
    mine, truth = digits[0].flatten(1) * 40 - 10, digits[2].flatten(1) * 40 - 10  # in [-10, 30]
    found = attack(mine, mine, truth, truth, DecoderSettings(epochs=10))
    assert found.images.shape == truth.shape
    assert math.isnan(found.ssim) and math.isnan(found.baseline_ssim)
    assert found.psnr > found.baseline_psnr + 5
    assert found.baseline_psnr == pytest.approx(psnr(mine.mean(0).expand_as(truth), truth, peak=40.0).mean().item())


def test_reconstruction_is_invariant_to_the_scale_of_codes(digits: Digits) -> None:
    mine, _, truth = digits
    one, other = (
        attack(
            scale * mine[:200].double() + shift,
            mine[:200],
            scale * truth.double() + shift,
            truth,
            DecoderSettings(epochs=2),
        )
        for scale, shift in ((1.0, 0.0), (1e-6, 1e3))
    )
    assert torch.allclose(one.images, other.images, atol=1e-3)


def test_outlier_codes_are_clipped(decoder: Decoder) -> None:
    assert decoder(torch.full((1, 64), 1e30)).isfinite().all()


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float64, torch.int64))
def test_codes_of_any_dtype_are_accepted(dtype: torch.dtype) -> None:
    found = attack(
        (9 * picture(10, 5)).to(dtype), picture(10, 1, 8, 8), torch.ones(2, 5, dtype=dtype), picture(2, 1, 8, 8)
    )
    assert found.images.dtype == torch.float32


# --- means


def test_mean_of_one_sample_reconstructs_that_sample(digits: Digits, decoder: Decoder) -> None:
    truth = digits[2]
    one, found = reconstruct(decoder, truth, truth), reconstruct_means(decoder, truth.flatten(1), truth[:, None])
    assert torch.equal(found.images, one.images)
    assert found.ssim_nearest == found.ssim_mean == pytest.approx(one.ssim)
    assert found.psnr_nearest == found.psnr_mean == pytest.approx(one.psnr)


def test_mean_of_many_samples_reconstructs_their_mean_image(digits: Digits, decoder: Decoder) -> None:
    mine, targets, _ = digits
    members = torch.stack([mine[targets == label][:20] for label in range(10)])  # (groups, n, 1, 8, 8)
    found = reconstruct_means(decoder, members.flatten(2).mean(1), members)
    assert found.images.shape == (10, 1, 8, 8)
    assert found.ssim_mean > found.ssim_nearest + 0.05 and found.psnr_mean > found.psnr_nearest + 3
    by_hand = [max(ssim(image.expand_as(m), m).tolist()) for image, m in zip(found.images, members, strict=True)]
    assert found.ssim_nearest == pytest.approx(sum(by_hand) / 10, abs=1e-6)
    by_hand = [max(psnr(image.expand_as(m), m).tolist()) for image, m in zip(found.images, members, strict=True)]
    assert found.psnr_nearest == pytest.approx(sum(by_hand) / 10, abs=1e-5)
    assert found.psnr_mean == pytest.approx(psnr(found.images, members.mean(1)).mean().item(), abs=1e-5)


# --- determinism


def test_attack_is_deterministic_and_keeps_the_global_random_state() -> None:
    given = noise(50, 6), picture(50, 1, 8, 8), noise(4, 6, seed=1), picture(4, 1, 8, 8, seed=1)
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    one = attack(*given, DecoderSettings(epochs=3, batch_size=16))
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(4)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        again = attack(*given, DecoderSettings(epochs=3, batch_size=16))
    assert torch.equal(one.images, again.images)
    assert dataclasses.astuple(one)[1:] == dataclasses.astuple(again)[1:]
    assert not torch.equal(one.images, attack(*given, DecoderSettings(epochs=3, batch_size=16, seed=1)).images)


def test_decoder_training_does_not_change_its_inputs() -> None:
    codes, images = noise(10, 6).requires_grad_(), picture(10, 1, 8, 8)
    kept = codes.detach().clone(), images.clone()
    decoder = train_decoder(codes, images, DecoderSettings(epochs=1))
    assert torch.equal(codes, kept[0]) and torch.equal(images, kept[1]) and codes.grad is None
    assert not decoder(codes).requires_grad


# --- errors


def test_invalid_inputs_of_an_attack_are_refused(decoder: Decoder) -> None:
    codes, images = noise(4, 64), picture(4, 1, 8, 8)
    with pytest.raises(ConfigurationError, match="4 codes are not of 3 images"):
        train_decoder(codes, images[:3])
    with pytest.raises(ConfigurationError, match=r"pixels of images are from 0\.\d+ to 2\d\d\.\d+; scale them"):
        train_decoder(codes, images * 255)
    with pytest.raises(ConfigurationError, match=r"images have the shape \(4, 8, 8\); give 1 or more"):
        train_decoder(codes, images[:, 0])
    with pytest.raises(ConfigurationError, match=r"codes have the shape \(0, 64\)"):
        train_decoder(codes[:0], images[:0])
    with pytest.raises(ConfigurationError, match="codes have 63 values each, and the decoder was trained on 64"):
        reconstruct(decoder, codes[:, 1:], images)
    with pytest.raises(ConfigurationError, match=r"members of groups have the shape \(4, 64\)"):
        reconstruct_means(decoder, codes, codes)
    with pytest.raises(ConfigurationError, match="epochs is 0"):
        train_decoder(codes, images, DecoderSettings(epochs=0))
    with pytest.raises(TrainingError, match="1 of 4 codes are NaN or infinite"):
        train_decoder(torch.cat((codes[:3], codes[3:] * math.inf)), images)
    with pytest.raises(TrainingError, match="weights of the decoder are NaN or infinite after 3 epochs"):
        train_decoder(codes, images.flatten(1), DecoderSettings(epochs=3, lr=1e30))
