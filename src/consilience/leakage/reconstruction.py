"""An attacker that has a learner's model and test samples, and rebuilds images the learner trained on.

It trains a decoder of its own for each layer: from outputs of the layer on its test samples back to the images.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from consilience.evaluation.image_similarity import psnr, ssim
from consilience.evaluation.reconstruction import Decoder, Inversion, invert_means, rebuild, train_decoder
from consilience.leakage.class_means import Group, mean_features
from consilience.leakage.image_grids import COLUMNS, columns_of, grid
from consilience.leakage.subject import FEATURES, Subject, evenly
from consilience.randomness import purpose_key, seed_of

VICTIMS = 256
"""Training samples of a learner that are rebuilt, at most."""
_STEPS, _SMALLEST, _LARGEST = 32, 16, 128  # of an epoch, and samples of a batch: few samples are not few steps
_TOGETHER = 1024  # images that are compared at once
_TINY = 256  # pixels of an image


@dataclass(frozen=True)
class Likeness:
    """How like images rebuilt from means are to the nearest sample in them, and to the samples' mean image.

    guess: how like the attacker's mean image of the class is to the nearest sample.
    """

    ssim_nearest: float
    ssim_mean: float
    guess_ssim: float
    psnr_nearest: float
    psnr_mean: float
    guess_psnr: float


@dataclass(frozen=True, eq=False)
class Attack:
    """Decoders by module for one learner, and the mean image of each class among the attacker's samples."""

    subject: Subject
    images: Tensor  # (n, channels, height, width) of the learner's own
    decoders: Mapping[str, Decoder]
    guesses: Mapping[int, Tensor]  # (channels, height, width) each

    @property
    def victims(self) -> np.ndarray:
        """Places of the samples that are rebuilt, among the learner's own."""
        return evenly(len(self.subject.own), VICTIMS)

    def layer(self, module: str) -> Inversion:
        """The learner's own images, rebuilt from outputs of a layer."""
        places = self.victims
        return rebuild(self.decoders[module], self.subject.own.outputs[module][places], self.images[places])

    def means(self, groups: Sequence[Group]) -> Likeness:
        """How like are images rebuilt from the mean features of groups, as means over the groups."""
        found = [(len(some), self._alike(some)) for some in _of_one_size(groups)]
        return Likeness(
            **{
                each.name: sum(count * getattr(one, each.name) for count, one in found) / len(groups)
                for each in fields(Likeness)
            }
        )

    def _alike(self, groups: Sequence[Group]) -> Likeness:
        """The same for groups of equally many samples."""
        members = torch.stack([self.images[group.places] for group in groups])  # (groups, samples, channels, ...)
        decoder = self.decoders[FEATURES]
        rebuilt = invert_means(decoder, mean_features(self.subject.own, groups), members)
        guesses = torch.stack([self.guesses.get(group.label, decoder.guess) for group in groups])
        guess, each = guesses[:, None].expand_as(members).flatten(0, 1), members.flatten(0, 1)
        guessed = [like(guess, each).view(members.shape[:2]).amax(1).mean().item() for like in (ssim, psnr)]
        return Likeness(
            rebuilt.ssim_nearest, rebuilt.ssim_mean, guessed[0], rebuilt.psnr_nearest, rebuilt.psnr_mean, guessed[1]
        )

    def layers_grid(self, modules: Mapping[str, str]) -> bytes:
        """Some of the learner's own images, and below them what is rebuilt from each layer's outputs."""
        own = self.subject.own
        places = self.victims[columns_of(own.targets[self.victims])]
        rows = {layer: self.decoders[module](own.outputs[module][places]) for layer, module in modules.items()}
        return grid({"original": self.images[places], **rows})

    def means_grid(self, groups: Mapping[int | None, Sequence[Group]]) -> bytes | None:
        """A column for each class: a sample, what is rebuilt from means of more and more, and the mean of all."""
        firsts = {n_avg: _firsts(some) for n_avg, some in groups.items() if some}
        labels = sorted(firsts.get(None, {}))[:COLUMNS]
        if not labels:
            return None
        rows = {"a sample": self._row(labels, {label: self.images[g.places[0]] for label, g in firsts[None].items()})}
        for n_avg, first in firsts.items():
            rebuilt = self.decoders[FEATURES](mean_features(self.subject.own, list(first.values())))
            rows["all" if n_avg is None else f"of {n_avg}"] = self._row(labels, dict(zip(first, rebuilt, strict=True)))
        means = {label: self.images[g.places].mean(0) for label, g in firsts[None].items()}
        return grid(rows | {"mean image": self._row(labels, means)})

    def _row(self, labels: Sequence[int], images: Mapping[int, Tensor]) -> Tensor:
        """An image for each class, (classes, channels, height, width), or a blank."""
        blank = torch.full_like(self.images[0], torch.nan)
        return torch.stack([images.get(label, blank) for label in labels])


def attack(seen: Subject, modules: Sequence[str], epochs: int, seed: int) -> Attack:
    """Decoders trained on the attacker's samples for these modules, and for the features."""
    assert seen.own.images is not None and seen.tests.images is not None
    images, targets = seen.tests.images[seen.auxiliary], seen.tests.targets[seen.auxiliary]
    decoders = {
        module: train_decoder(
            seen.tests.outputs[module][seen.auxiliary],
            images,
            epochs=epochs,
            batch_size=min(max(len(images) // _STEPS, _SMALLEST), _LARGEST),
            seed=seed_of("leakage decoder", seed, seen.who, purpose_key(module)),
        )
        for module in dict.fromkeys([*modules, FEATURES])
    }
    guesses = {label: images[targets == label].mean(0) for label in np.unique(targets).tolist()}
    return Attack(seen, seen.own.images, decoders, guesses)


@contextmanager
def threads_for(images: Tensor | None) -> Iterator[None]:
    """For a while one thread where images are tiny: more only wait for each other, the more so on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if images is None or images[0, 0].numel() > _TINY else 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _of_one_size(groups: Sequence[Group]) -> Iterator[list[Group]]:
    """Groups of equally many samples together, as far as not too many images are looked at at once."""
    by_size: dict[int, list[Group]] = {}
    for group in groups:
        by_size.setdefault(len(group.places), []).append(group)
    for size, some in by_size.items():
        at_once = max(1, _TOGETHER // size)
        for first in range(0, len(some), at_once):
            yield some[first : first + at_once]


def _firsts(groups: Sequence[Group]) -> dict[int, Group]:
    """The first group of each class."""
    found: dict[int, Group] = {}
    for group in groups:
        found.setdefault(group.label, group)
    return found
