"""Shifts of the learners' samples: inputs that look different, or labels that mean different things.

A shift is stated at its full strength. It grows evenly over the learners: the first has unchanged samples, the last the
shift as stated. Labels change within pairs of classes, (0, 1), (2, 3) and so on; the last of an odd number of classes
stays as it is.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from consilience.config.parsing import Form, Number, parse_setting
from consilience.errors import ConfigurationError

Inputs = NDArray[np.float32]
Labels = NDArray[np.int64]


class FeatureShift(ABC):
    """A change of the inputs: p(x) differs between learners."""

    form: ClassVar[Form]

    @property
    @abstractmethod
    def is_identity(self) -> bool:
        """Whether nothing changes even at full strength."""

    @abstractmethod
    def inputs(self, inputs: Inputs, strength: float, generator: np.random.Generator) -> Inputs:
        """One learner's inputs, (n, *shape), after the shift; strength goes from 0 to 1."""


class ConceptShift(ABC):
    """A change of the labels: p(y|x) differs between learners."""

    form: ClassVar[Form]
    before_partition: ClassVar[bool] = False
    """Whether it changes the labels of all samples together, before the partition."""

    @property
    def is_identity(self) -> bool:
        """Whether nothing changes even at full strength."""
        return False

    @abstractmethod
    def labels(self, labels: Labels, classes: int, strength: float, generator: np.random.Generator) -> Labels:
        """One learner's labels, (n,), after the shift; strength goes from 0 to 1."""


Shift = FeatureShift | ConceptShift


def _range(name: str, low: float, high: float) -> Form:
    return Form((Number(name, lambda value: low <= value <= high, f"a number from {low:g} to {high:g}"),))


# --- features


@dataclass(frozen=True)
class Rotate(FeatureShift):
    """Images rotated counterclockwise by up to `degrees`."""

    form: ClassVar[Form] = _range("DEGREES", -360, 360)
    degrees: float

    @property
    def is_identity(self) -> bool:
        """Whether nothing is rotated."""
        return self.degrees == 0

    def inputs(self, inputs: Inputs, strength: float, generator: np.random.Generator) -> Inputs:
        """Images, (n, channels, height, width), rotated."""
        if inputs.ndim != 4:
            raise ConfigurationError(
                f"shift 'rotate({self.degrees:g})' rotates images of the shape (channels, height, width), and this "
                f"data has inputs of the shape {inputs.shape[1:]}; use contrast or noise instead"
            )
        return rotate_images(inputs, strength * self.degrees)


@dataclass(frozen=True)
class Contrast(FeatureShift):
    """Values scaled around the sample's own mean by up to this factor."""

    # Without a bound, float32 would overflow.
    form: ClassVar[Form] = Form((Number("FACTOR", lambda f: 0 < f <= 1000, "a number above 0, at most 1000"),))
    factor: float

    @property
    def is_identity(self) -> bool:
        """Whether no value changes."""
        return self.factor == 1

    def inputs(self, inputs: Inputs, strength: float, generator: np.random.Generator) -> Inputs:
        """Inputs, (n, *shape), scaled around their means."""
        factor = 1 + strength * (self.factor - 1)
        if factor == 1:  # subtracting and adding the mean would round
            return inputs
        mean: Inputs = inputs.mean(axis=tuple(range(1, inputs.ndim)), keepdims=True)  # (n, 1, ...)
        return mean + np.float32(factor) * (inputs - mean)


@dataclass(frozen=True)
class Noise(FeatureShift):
    """Gaussian noise on every value with up to this standard deviation, where that of the scaled data is 1."""

    form: ClassVar[Form] = _range("SD", 0, 1000)
    sd: float

    @property
    def is_identity(self) -> bool:
        """Whether there is no noise."""
        return self.sd == 0

    def inputs(self, inputs: Inputs, strength: float, generator: np.random.Generator) -> Inputs:
        """Inputs, (n, *shape), with noise."""
        drawn = generator.standard_normal(inputs.shape, dtype=np.float32)  # (n, *shape)
        return inputs + np.float32(strength * self.sd) * drawn


def rotate_images(images: Inputs, degrees: float) -> Inputs:
    """Images, (n, channels, height, width), rotated counterclockwise around their center.

    Values between pixels are interpolated along both axes; beyond the border, its pixels are repeated.
    """
    if degrees % 360 == 0:
        return images
    height, width = images.shape[2:]
    # Rounded, so that a quarter turn hits pixels exactly; the cosine of 90 degrees is 6e-17 otherwise.
    cos, sin = np.round([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))], 15)
    down, right = np.meshgrid(np.arange(height) - (height - 1) / 2, np.arange(width) - (width - 1) / 2, indexing="ij")
    rows = np.clip(right * sin + down * cos + (height - 1) / 2, 0, height - 1)  # (height, width) source of each pixel
    columns = np.clip(right * cos - down * sin + (width - 1) / 2, 0, width - 1)  # (height, width)
    result = np.zeros_like(images)
    for row, by_row in _neighbors(rows, height):
        for column, by_column in _neighbors(columns, width):
            result += images[:, :, row, column] * (by_row * by_column).astype(np.float32)
    return result


def _neighbors(places: NDArray[np.float64], size: int) -> Iterator[tuple[NDArray[np.intp], NDArray[np.float64]]]:
    """The pixels on both sides of each position along an axis, and the weight of each."""
    below = np.floor(places).astype(np.intp)
    yield below, 1 - (places - below)
    yield np.minimum(below + 1, size - 1), places - below


# --- concepts


@dataclass(frozen=True)
class PartialLabelShift(ConceptShift):
    """A change of the labels of up to a share of the samples."""

    form: ClassVar[Form] = _range("P", 0, 1)
    share: float

    @property
    def is_identity(self) -> bool:
        """Whether no sample changes."""
        return self.share == 0

    def draw(self, members: Labels, of: int, strength: float, generator: np.random.Generator) -> Labels:
        """Random ones of these samples, as many as the share of `of` samples."""
        drawn: Labels = generator.permutation(members)[: round(strength * self.share * of)]
        return drawn


@dataclass(frozen=True)
class LabelNoise(PartialLabelShift):
    """The labels of some samples are shuffled among them: a learner's class counts stay."""

    def labels(self, labels: Labels, classes: int, strength: float, generator: np.random.Generator) -> Labels:
        """Labels, (n,), some of them shuffled."""
        changed = labels.copy()
        noisy = self.draw(np.arange(len(labels)), len(labels), strength, generator)
        changed[noisy] = generator.permutation(labels[noisy])
        return changed


@dataclass(frozen=True)
class Swap(PartialLabelShift):
    """Equally many samples of both classes of a pair get the other label: class counts stay."""

    def labels(self, labels: Labels, classes: int, strength: float, generator: np.random.Generator) -> Labels:
        """Labels, (n,), some of them exchanged within their pair."""
        changed = labels.copy()
        for first, second in class_pairs(labels, classes):
            fewer = min(len(first), len(second))
            changed[self.draw(first, fewer, strength, generator)] += 1
            changed[self.draw(second, fewer, strength, generator)] -= 1
        return changed


@dataclass(frozen=True)
class Relabel(PartialLabelShift):
    """Some samples of the first class of a pair get the second label: class counts change."""

    def labels(self, labels: Labels, classes: int, strength: float, generator: np.random.Generator) -> Labels:
        """Labels, (n,), some of them moved to the second class of their pair."""
        changed = labels.copy()
        for first, _ in class_pairs(labels, classes):
            changed[self.draw(first, len(first), strength, generator)] += 1
        return changed


@dataclass(frozen=True)
class Prefer(ConceptShift):
    """Labels within a pair of classes are random, with a probability that differs between learners.

    The probability of the second label goes from 1 - P at the first learner to P at the last.
    """

    form: ClassVar[Form] = Form((Number("P", lambda p: 0.5 < p <= 1, "a number above 0.5, at most 1"),))
    chance: float

    def labels(self, labels: Labels, classes: int, strength: float, generator: np.random.Generator) -> Labels:
        """Labels, (n,), drawn at random within their pair."""
        second = 1 - self.chance + strength * (2 * self.chance - 1)
        drawn = labels // 2 * 2 + (generator.random(len(labels)) < second)  # (n,)
        return np.where(labels < classes // 2 * 2, drawn, labels)


@dataclass(frozen=True)
class Ambiguous(ConceptShift):
    """The labels of each pair are shuffled among all its samples: the two classes cannot be distinguished."""

    form: ClassVar[Form] = Form()
    before_partition: ClassVar[bool] = True

    def labels(self, labels: Labels, classes: int, strength: float, generator: np.random.Generator) -> Labels:
        """All learners' labels, (n,), shuffled within their pairs."""
        changed = labels.copy()
        for pair in class_pairs(labels, classes):
            both = np.concatenate(pair)
            changed[both] = generator.permutation(labels[both])
        return changed


def class_pairs(labels: Labels, classes: int) -> Iterator[tuple[Labels, Labels]]:
    """The samples of the first and of the second class of each pair."""
    for first in range(0, classes - 1, 2):
        yield np.flatnonzero(labels == first), np.flatnonzero(labels == first + 1)


# --- by name

SHIFTS: dict[str, type[Shift]] = {
    "rotate": Rotate,
    "contrast": Contrast,
    "noise": Noise,
    "label-noise": LabelNoise,
    "swap": Swap,
    "relabel": Relabel,
    "prefer": Prefer,
    "ambiguous": Ambiguous,
}
"""Every shift by name."""

FORMS = {word: shift.form for word, shift in SHIFTS.items()}


def parse_shifts(text: str) -> dict[str, Shift]:
    """The shifts that `text` names, such as "rotate(60)+swap(0.5)", by name, in their order."""
    found: dict[str, Shift] = {}
    # A plus inside brackets or after an exponent's e belongs to a number.
    for each in [] if text.strip() == "none" else re.split(r"(?<![0-9.][eE])\+(?![^(]*\))", text):
        if each.strip() == "none":
            raise ConfigurationError(f"shift {text!r}: 'none' cannot be combined; remove it, or the other shifts")
        word, numbers = parse_setting("shift", each, FORMS)
        if word in found:
            raise ConfigurationError(f"shift {text!r}: {word} is given twice; give it once, as strong as it should be")
        found[word] = SHIFTS[word](*numbers)
    return found
