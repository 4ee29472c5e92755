"""An attacker that has a learner's model and test samples, and rebuilds images the learner trained on.

It trains a decoder of its own for each layer: from outputs of the layer on its test samples back to the images.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from statistics import fmean as mean

import numpy as np
import torch
from torch import Tensor

from consilience.evaluation.inversion import Decoder, Inversion, invert_means, rebuild, train_decoder
from consilience.evaluation.likeness import psnr, ssim
from consilience.leakage.means import Group, mean_features
from consilience.leakage.pictures import COLUMNS, columns_of, grid
from consilience.leakage.subject import FEATURES, Subject, evenly
from consilience.randomness import key, seed_of

VICTIMS = 256
"""Training samples of a learner that are rebuilt, at most."""
_STEPS, _SMALLEST, _LARGEST = 32, 16, 128  # of an epoch, and samples of a batch: few samples are not few steps
_TINY = 256  # pixels of an image for which more than one thread only wait for each other


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
        found = [self._one(group) for group in groups]
        return Likeness(**{each.name: mean(getattr(one, each.name) for one in found) for each in fields(Likeness)})

    def _one(self, group: Group) -> Likeness:
        members = self.images[group.places]  # (samples, channels, height, width)
        rebuilt = invert_means(self.decoders[FEATURES], mean_features(self.subject.own, [group]), members[None])
        guess = self.guesses.get(group.label, self.decoders[FEATURES].guess).expand_as(members)
        return Likeness(
            rebuilt.ssim_nearest,
            rebuilt.ssim_mean,
            float(ssim(guess, members).max()),
            rebuilt.psnr_nearest,
            rebuilt.psnr_mean,
            float(psnr(guess, members).max()),
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
    with _threads(1 if images[0, 0].numel() <= _TINY else torch.get_num_threads()):
        decoders = {
            module: train_decoder(
                seen.tests.outputs[module][seen.auxiliary],
                images,
                epochs=epochs,
                batch_size=min(max(len(images) // _STEPS, _SMALLEST), _LARGEST),
                seed=seed_of("leakage decoder", seed, seen.who, key(module)),
            )
            for module in dict.fromkeys([*modules, FEATURES])
        }
    guesses = {label: images[targets == label].mean(0) for label in np.unique(targets).tolist()}
    return Attack(seen, seen.own.images, decoders, guesses)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """For a while, so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _firsts(groups: Sequence[Group]) -> dict[int, Group]:
    """The first group of each class."""
    found: dict[int, Group] = {}
    for group in groups:
        found.setdefault(group.label, group)
    return found
