"""Clipping and noise: hand-computed values, sensitivities measured over many data sets, noise with its deviation."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from consilience.functional.class_means import membership
from consilience.functional.noise import (
    COUNT_SCALE,
    class_sums_sensitivity,
    clip_rows,
    private_class_means,
    private_gradient,
)
from consilience.functional.upload_noise import clip_together, private_upload
from consilience.randomness import normal


def normals(*shape: int, seed: int = 1000) -> Tensor:
    """Standard normal numbers of this shape."""
    return torch.from_numpy(normal("test", seed, torch.arange(math.prod(shape)).numpy())).reshape(shape)


# --- clipping


def test_clipping_by_hand() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0], [math.nan, 1.0], [math.inf, 0.0]], dtype=torch.float64)
    expected = torch.tensor([[0.6, 0.8], [0.3, 0.4], [0, 0], [0, 0], [0, 0]], dtype=torch.float64)
    torch.testing.assert_close(clip_rows(rows, 1.0), expected, atol=1e-6, rtol=1e-6)


def test_one_factor_clips_all_tensors() -> None:
    clipped = clip_together({"a": torch.tensor([3.0]), "b": torch.tensor([[4.0]])}, 1.0)
    torch.testing.assert_close(clipped["a"], torch.tensor([0.6]), atol=1e-5, rtol=0)
    torch.testing.assert_close(clipped["b"], torch.tensor([[0.8]]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e18])
def test_no_clipped_vector_is_longer(scale: float) -> None:
    rows = (scale * normals(2000, 7)).float()
    assert float(clip_rows(rows, 0.1).double().norm(dim=1).max()) <= 0.1


# --- uploads


def test_uploads_differ_by_at_most_twice_the_clip() -> None:
    found = [private_upload({"a": u[:3], "b": u[3:]}, 0.5, 0.0, torch.zeros(5)) for u in 10 * normals(200, 5)]
    vectors = torch.stack([torch.cat([each["a"], each["b"]]) for each in found])
    assert float(torch.cdist(vectors, vectors).max()) <= 1.0
    assert float(torch.cdist(vectors, vectors).max()) > 0.9


def test_the_noise_of_an_upload_has_its_deviation() -> None:
    clip, multiplier = 0.5, 3.0
    noisy = private_upload({"a": torch.zeros(100_000, dtype=torch.float64)}, clip, multiplier, normals(100_000))["a"]
    assert float(noisy.std()) == pytest.approx(2 * clip * multiplier, rel=0.01)
    assert float(noisy.mean()) == pytest.approx(0.0, abs=0.05)
    kurtosis = float(noisy.pow(4).mean() / noisy.var() ** 2)
    assert kurtosis == pytest.approx(3.0, abs=0.1)


def test_tensors_of_an_upload_have_different_noise() -> None:
    noisy = private_upload({"a": torch.zeros(4), "b": torch.zeros(4)}, 1.0, 1.0, normals(8))
    assert not torch.equal(noisy["a"], noisy["b"])
    together = torch.cat([noisy["a"], noisy["b"]]).double()
    torch.testing.assert_close(together, 2 * normals(8), atol=1e-5, rtol=1e-5)


# --- class means


def test_class_means_without_noise_by_hand() -> None:
    values = torch.tensor([[2.0, 0.0], [0.0, 0.5], [0.0, 0.7]], dtype=torch.float64)
    member = membership(torch.tensor([0, 1, 1]), 3, torch.ones(3, dtype=torch.float64))[None]
    means, counts = private_class_means(values, member, 1.0, 0.0, torch.zeros(9), min_count=2)
    expected = torch.tensor([[[0, 0], [0, 0.6], [0, 0]]], dtype=torch.float64)  # one sample is too few
    torch.testing.assert_close(means, expected)
    assert counts.tolist() == [[0, 2, 0]]


@pytest.mark.parametrize("left_out", range(6))
def test_a_sample_changes_sums_and_counts_by_the_sensitivity_at_most(left_out: int) -> None:
    values, clip = 5 * normals(6, 4), 0.7
    targets = torch.tensor([0, 0, 1, 1, 2, 2])

    def released(valid: Tensor) -> Tensor:
        member = membership(targets, 3, valid)
        sums = member.T @ clip_rows(values, clip)
        return torch.cat([sums.flatten(), COUNT_SCALE * clip * member.sum(0)])

    everybody = torch.ones(6, dtype=torch.float64)
    without = everybody.clone()
    without[left_out] = 0
    change = float((released(everybody) - released(without)).norm())
    bound = class_sums_sensitivity(clip, 1, 1.0)
    assert bound * 0.999 < change <= bound  # the bound is reached: values are longer than the clip


def test_a_class_too_small_for_its_noise_is_not_shared() -> None:
    values = torch.ones(500, 4, dtype=torch.float64)
    targets = torch.cat([torch.zeros(480), torch.ones(20)]).long()
    member = membership(targets, 3, torch.ones(500, dtype=torch.float64))[None]
    deviation = 10.0  # of sums; of counts 10 / (0.5 x 1) = 20, so that 60 are needed
    means, counts = private_class_means(values, member, 1.0, deviation, normals(15), min_count=2)
    assert counts[0, 0] > 400 and counts[0, 1] == 0 and counts[0, 2] == 0
    assert not means[0, 1:].any() and float(means[0, 0].norm()) <= 1.0
    assert counts[0, 0] == counts[0, 0].round()


# --- gradients


def test_a_gradient_by_hand() -> None:
    gradients = torch.tensor([[3.0, 4.0], [0.0, 0.5], [9.0, 9.0]], dtype=torch.float64)
    drawn, noise = torch.tensor([1.0, 1.0, 0.0]), torch.tensor([1.0, -1.0])
    found = private_gradient(gradients, drawn, 1.0, torch.tensor(2.0), noise, torch.tensor(4.0))
    torch.testing.assert_close(
        found, torch.tensor([(0.6 + 2) / 4, (1.3 - 2) / 4], dtype=torch.float64), atol=1e-6, rtol=0
    )


def test_a_sample_changes_the_summed_gradient_by_the_clip_at_most() -> None:
    gradients, drawn, clip = 20 * normals(8, 30), torch.ones(8, dtype=torch.float64), 0.3
    one, quiet = torch.tensor(1.0), torch.zeros(30)
    whole = private_gradient(gradients, drawn, clip, torch.tensor(0.0), quiet, one)
    for i in range(8):
        without = drawn.clone()
        without[i] = 0
        change = float((whole - private_gradient(gradients, without, clip, torch.tensor(0.0), quiet, one)).norm())
        assert 0.99 * clip < change <= clip


def test_a_gradient_that_is_not_finite_counts_as_zero() -> None:
    gradients = torch.tensor([[math.nan, 1.0], [math.inf, 0.0], [0.1, 0.2]])
    found = private_gradient(gradients, torch.ones(3), 1.0, torch.tensor(0.0), torch.zeros(2), torch.tensor(1.0))
    torch.testing.assert_close(found, torch.tensor([0.1, 0.2]))


# --- many learners at once


def test_mechanisms_under_vmap() -> None:
    uploads, noise = normals(5, 6), normals(5, 6, seed=1001)
    together = vmap(lambda u, n: private_upload({"a": u}, 1.0, 2.0, n)["a"])(uploads, noise)
    alone = [private_upload({"a": u}, 1.0, 2.0, n)["a"] for u, n in zip(uploads, noise, strict=True)]
    torch.testing.assert_close(together, torch.stack(alone), atol=1e-12, rtol=0)
    gradients, drawn = normals(5, 3, 6), torch.ones(5, 3)
    expected = [
        private_gradient(g, d, 0.5, torch.tensor(1.0), n, torch.tensor(3.0))
        for g, d, n in zip(gradients, drawn, noise, strict=True)
    ]
    found = vmap(lambda g, d, n: private_gradient(g, d, 0.5, torch.tensor(1.0), n, torch.tensor(3.0)))
    torch.testing.assert_close(found(gradients, drawn, noise), torch.stack(expected), atol=1e-12, rtol=0)
