"""An attacker that has a learner's model and test samples, and reconstructs the learner's training images.

For each layer it trains a decoder from the layer's outputs for its test samples to the images.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from consilience.evaluation.image_similarity import psnr, ssim
from consilience.evaluation.reconstruction import (
    Decoder,
    DecoderSettings,
    Reconstruction,
    reconstruct,
    reconstruct_means,
    train_decoder,
)
from consilience.leakage.class_means import SampleGroup, mean_features
from consilience.leakage.examined_learner import FEATURES, ExaminedLearner, evenly_spaced
from consilience.leakage.image_grids import COLUMNS, image_grid, select_columns
from consilience.randomness import purpose_key, seed_of

MAX_RECONSTRUCTED = 256
"""Training samples of a learner that are reconstructed, at most."""
_STEPS, _MIN_BATCH, _MAX_BATCH = (
    32,
    16,
    128,
)  # steps per epoch, and limits of the batch size: few samples need many steps
_CHUNK = 1024  # images that are compared at once
_SMALL_IMAGE = 256  # pixels, at most, for which one thread is fastest


@dataclass(frozen=True)
class MeansSimilarity:
    """Similarity of images reconstructed from means to the nearest sample in the mean, and to the mean image.

    baseline: the attacker's mean image of the class, compared with the nearest sample.
    """

    ssim_nearest: float
    ssim_mean: float
    baseline_ssim: float
    psnr_nearest: float
    psnr_mean: float
    baseline_psnr: float


@dataclass(frozen=True, eq=False)
class Attacker:
    """Decoders by module for one learner, and the mean image of each class among the attacker's samples."""

    learner: ExaminedLearner
    images: Tensor  # (n, channels, height, width) of the learner's own samples
    decoders: Mapping[str, Decoder]
    class_images: Mapping[int, Tensor]  # the mean image of each class, (channels, height, width)

    @property
    def reconstructed(self) -> np.ndarray:
        """Indices of the samples to reconstruct, among the learner's own."""
        return evenly_spaced(len(self.learner.own), MAX_RECONSTRUCTED)

    def reconstruct_layer(self, module: str) -> Reconstruction:
        """The learner's own images, reconstructed from the outputs of a layer."""
        indices = self.reconstructed
        return reconstruct(self.decoders[module], self.learner.own.outputs[module][indices], self.images[indices])

    def reconstruct_means(self, groups: Sequence[SampleGroup]) -> MeansSimilarity:
        """Similarity of the images reconstructed from mean features of groups, the mean over the groups."""
        found = [(len(some), self._similarity(some)) for some in _chunks_of_one_size(groups)]
        return MeansSimilarity(
            **{
                each.name: sum(count * getattr(one, each.name) for count, one in found) / len(groups)
                for each in fields(MeansSimilarity)
            }
        )

    def _similarity(self, groups: Sequence[SampleGroup]) -> MeansSimilarity:
        """The same for groups with equal numbers of samples."""
        members = torch.stack([self.images[group.indices] for group in groups])  # (groups, samples, channels, ...)
        decoder = self.decoders[FEATURES]
        found = reconstruct_means(decoder, mean_features(self.learner.own, groups), members)
        known = torch.stack([self.class_images.get(group.label, decoder.mean_image) for group in groups])
        baseline, each = known[:, None].expand_as(members).flatten(0, 1), members.flatten(0, 1)
        of_baseline = [metric(baseline, each).view(members.shape[:2]).amax(1).mean().item() for metric in (ssim, psnr)]
        return MeansSimilarity(
            found.ssim_nearest,
            found.ssim_mean,
            of_baseline[0],
            found.psnr_nearest,
            found.psnr_mean,
            of_baseline[1],
        )

    def layers_grid(self, modules: Mapping[str, str]) -> bytes:
        """Some of the learner's own images, and below them their reconstructions from each layer's outputs."""
        own = self.learner.own
        indices = self.reconstructed[select_columns(own.targets[self.reconstructed])]
        rows = {layer: self.decoders[module](own.outputs[module][indices]) for layer, module in modules.items()}
        return image_grid({"original": self.images[indices], **rows})

    def means_grid(self, groups: Mapping[int | None, Sequence[SampleGroup]]) -> bytes | None:
        """A column per class: a sample, the reconstructions from means of more and more samples, and the mean image."""
        firsts = {size: _firsts(some) for size, some in groups.items() if some}
        labels = sorted(firsts.get(None, {}))[:COLUMNS]
        if not labels:
            return None
        rows = {"a sample": self._row(labels, {label: self.images[g.indices[0]] for label, g in firsts[None].items()})}
        for size, first in firsts.items():
            images = self.decoders[FEATURES](mean_features(self.learner.own, list(first.values())))
            rows["all" if size is None else f"of {size}"] = self._row(labels, dict(zip(first, images, strict=True)))
        means = {label: self.images[g.indices].mean(0) for label, g in firsts[None].items()}
        return image_grid(rows | {"mean image": self._row(labels, means)})

    def _row(self, labels: Sequence[int], images: Mapping[int, Tensor]) -> Tensor:
        """An image per class, (classes, channels, height, width), or a blank one."""
        blank = torch.full_like(self.images[0], torch.nan)
        return torch.stack([images.get(label, blank) for label in labels])


def train_attacker(learner: ExaminedLearner, modules: Sequence[str], epochs: int, seed: int) -> Attacker:
    """Train a decoder on the attacker's samples for each of the modules, and for the features."""
    assert learner.own.images is not None and learner.tests.images is not None
    images, targets = learner.tests.images[learner.auxiliary], learner.tests.targets[learner.auxiliary]
    decoders = {
        module: train_decoder(
            learner.tests.outputs[module][learner.auxiliary],
            images,
            DecoderSettings(
                epochs=epochs,
                batch_size=min(max(len(images) // _STEPS, _MIN_BATCH), _MAX_BATCH),
                seed=seed_of("leakage decoder", seed, learner.who, purpose_key(module)),
            ),
        )
        for module in dict.fromkeys([*modules, FEATURES])
    }
    class_images = {label: images[targets == label].mean(0) for label in np.unique(targets).tolist()}
    return Attacker(learner, learner.own.images, decoders, class_images)


@contextmanager
def limit_threads(images: Tensor | None) -> Iterator[None]:
    """Use one thread for small images: more threads mostly wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if images is None or images[0, 0].numel() > _SMALL_IMAGE else 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _chunks_of_one_size(groups: Sequence[SampleGroup]) -> Iterator[list[SampleGroup]]:
    """Groups with equal numbers of samples, in chunks with a limited number of images."""
    by_size: dict[int, list[SampleGroup]] = {}
    for group in groups:
        by_size.setdefault(len(group.indices), []).append(group)
    for size, some in by_size.items():
        at_once = max(1, _CHUNK // size)
        for first in range(0, len(some), at_once):
            yield some[first : first + at_once]


def _firsts(groups: Sequence[SampleGroup]) -> dict[int, SampleGroup]:
    """The first group of each class."""
    found: dict[int, SampleGroup] = {}
    for group in groups:
        found.setdefault(group.label, group)
    return found
