"""What learners do to the samples they were dealt: their inputs look different, or their labels mean different things.

A shift is stated at its full strength. It grows evenly over the learners: the first leaves its samples as they are, the
last does what is stated. Classes that are confused with each other come in pairs, (0, 1), (2, 3) and so on; the last of
an odd number of classes is never confused.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from consilience.config.parsing import Form, Number, read
from consilience.errors import ConfigurationError

Inputs = NDArray[np.float32]
Labels = NDArray[np.int64]


class FeatureShift(ABC):
    """A change of the inputs: p(x) differs between learners."""

    form: ClassVar[Form]

    @property
    @abstractmethod
    def idle(self) -> bool:
        """Whether nothing changes even at full strength."""

    @abstractmethod
    def inputs(self, inputs: Inputs, strength: float, generator: np.random.Generator) -> Inputs:
        """One learner's inputs, (n, *shape), as it sees them; strength goes from 0 to 1."""


class ConceptShift(ABC):
    """A change of the labels: p(y|x) differs between learners."""

    form: ClassVar[Form]
    before_partition: ClassVar[bool] = False
    """Whether it concerns all samples at once, before they are dealt."""

    @property
    def idle(self) -> bool:
        """Whether nothing changes even at full strength."""
        return False

    @abstractmethod
    def labels(self, labels: Labels, classes: int, strength: float, generator: np.random.Generator) -> Labels:
        """One learner's labels, (n,), as it gives them; strength goes from 0 to 1."""


Shift = FeatureShift | ConceptShift


def _range(name: str, low: float, high: float) -> Form:
    return Form((Number(name, lambda value: low <= value <= high, f"a number from {low:g} to {high:g}"),))


# --- features


@dataclass(frozen=True)
class Rotate(FeatureShift):
    """Images turned to the left, up to so many degrees."""

    form: ClassVar[Form] = _range("DEGREES", -360, 360)
    degrees: float

    @property
    def idle(self) -> bool:
        """Whether nothing is turned."""
        return self.degrees == 0

    def inputs(self, inputs: Inputs, strength: float, generator: np.random.Generator) -> Inputs:
        """Images, (n, channels, height, width), turned."""
        if inputs.ndim != 4:
            raise ConfigurationError(
                f"shift 'rotate({self.degrees:g})' turns images of the shape (channels, height, width), and this data "
                f"has inputs of the shape {inputs.shape[1:]}; take contrast or noise instead"
            )
        return rotate_images(inputs, strength * self.degrees)


@dataclass(frozen=True)
class Contrast(FeatureShift):
    """Values further from the sample's own mean, or nearer to it, up to this factor."""

    # Far more than an eye could make out; without a bound, float32 would overflow.
    form: ClassVar[Form] = Form((Number("FACTOR", lambda f: 0 < f <= 1000, "a number above 0, at most 1000"),))
    factor: float

    @property
    def idle(self) -> bool:
        """Whether every value stays where it is."""
        return self.factor == 1

    def inputs(self, inputs: Inputs, strength: float, generator: np.random.Generator) -> Inputs:
        """Inputs, (n, *shape), stretched around their means."""
        factor = 1 + strength * (self.factor - 1)
        if factor == 1:  # taking the mean away and adding it again would round
            return inputs
        mean: Inputs = inputs.mean(axis=tuple(range(1, inputs.ndim)), keepdims=True)  # (n, 1, ...)
        return mean + np.float32(factor) * (inputs - mean)


@dataclass(frozen=True)
class Noise(FeatureShift):
    """Gaussian noise on every value, up to this standard deviation, that of the scaled data being 1."""

    form: ClassVar[Form] = _range("SD", 0, 1000)
    sd: float

    @property
    def idle(self) -> bool:
        """Whether there is no noise."""
        return self.sd == 0

    def inputs(self, inputs: Inputs, strength: float, generator: np.random.Generator) -> Inputs:
        """Inputs, (n, *shape), with noise."""
        drawn = generator.standard_normal(inputs.shape, dtype=np.float32)  # (n, *shape)
        return inputs + np.float32(strength * self.sd) * drawn


def rotate_images(images: Inputs, degrees: float) -> Inputs:
    """Images, (n, channels, height, width), turned to the left around their middle.

    Values between pixels are interpolated along both axes; beyond the border its pixels go on.
    """
    if degrees % 360 == 0:
        return images
    height, width = images.shape[2:]
    # Rounded, so that a quarter turn hits pixels exactly; the cosine of 90 degrees is 6e-17 otherwise.
    cos, sin = np.round([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))], 15)
    down, right = np.meshgrid(np.arange(height) - (height - 1) / 2, np.arange(width) - (width - 1) / 2, indexing="ij")
    rows = np.clip(right * sin + down * cos + (height - 1) / 2, 0, height - 1)  # (height, width) where a pixel is from
    columns = np.clip(right * cos - down * sin + (width - 1) / 2, 0, width - 1)  # (height, width)
    result = np.zeros_like(images)
    for row, by_row in _neighbors(rows, height):
        for column, by_column in _neighbors(columns, width):
            result += images[:, :, row, column] * (by_row * by_column).astype(np.float32)
    return result


def _neighbors(places: NDArray[np.float64], size: int) -> Iterator[tuple[NDArray[np.intp], NDArray[np.float64]]]:
    """The pixels on both sides of each place along an axis, and how much each counts."""
    below = np.floor(places).astype(np.intp)
    yield below, 1 - (places - below)
    yield np.minimum(below + 1, size - 1), places - below


# --- concepts


@dataclass(frozen=True)
class Share(ConceptShift):
    """A change of the labels that concerns up to a share of the samples."""

    form: ClassVar[Form] = _range("P", 0, 1)
    share: float

    @property
    def idle(self) -> bool:
        """Whether no sample is concerned."""
        return self.share == 0

    def some(self, members: Labels, of: int, strength: float, generator: np.random.Generator) -> Labels:
        """As many of these samples as the share of `of` samples comes to, drawn at random."""
        drawn: Labels = generator.permutation(members)[: round(strength * self.share * of)]
        return drawn


@dataclass(frozen=True)
class LabelNoise(Share):
    """Some samples' labels are shuffled among themselves: a learner's class counts stay."""

    def labels(self, labels: Labels, classes: int, strength: float, generator: np.random.Generator) -> Labels:
        """Labels, (n,), some of them shuffled."""
        changed = labels.copy()
        noisy = self.some(np.arange(len(labels)), len(labels), strength, generator)
        changed[noisy] = generator.permutation(labels[noisy])
        return changed


@dataclass(frozen=True)
class Swap(Share):
    """As many samples of one class of a pair are called the other as the other way round: class counts stay."""

    def labels(self, labels: Labels, classes: int, strength: float, generator: np.random.Generator) -> Labels:
        """Labels, (n,), some of them exchanged within their pair."""
        changed = labels.copy()
        for first, second in class_pairs(labels, classes):
            fewer = min(len(first), len(second))
            changed[self.some(first, fewer, strength, generator)] += 1
            changed[self.some(second, fewer, strength, generator)] -= 1
        return changed


@dataclass(frozen=True)
class Relabel(Share):
    """Some samples of the first class of a pair are called the second: class counts change."""

    def labels(self, labels: Labels, classes: int, strength: float, generator: np.random.Generator) -> Labels:
        """Labels, (n,), some of them moved to the second class of their pair."""
        changed = labels.copy()
        for first, _ in class_pairs(labels, classes):
            changed[self.some(first, len(first), strength, generator)] += 1
        return changed


@dataclass(frozen=True)
class Prefer(ConceptShift):
    """Samples of a pair are named by a coin, whatever they are; every learner's coin is loaded in its own way.

    The chance of the second name goes from 1 - P at the first learner, who tosses too, to P at the last.
    """

    form: ClassVar[Form] = Form((Number("P", lambda p: 0.5 < p <= 1, "a number above 0.5, at most 1"),))
    chance: float

    def labels(self, labels: Labels, classes: int, strength: float, generator: np.random.Generator) -> Labels:
        """Labels, (n,), tossed within their pair."""
        second = 1 - self.chance + strength * (2 * self.chance - 1)
        tossed = labels // 2 * 2 + (generator.random(len(labels)) < second)  # (n,)
        return np.where(labels < classes // 2 * 2, tossed, labels)


@dataclass(frozen=True)
class Ambiguous(ConceptShift):
    """The labels of each pair are shuffled among all its samples: nobody can tell the two classes apart."""

    form: ClassVar[Form] = Form()
    before_partition: ClassVar[bool] = True

    def labels(self, labels: Labels, classes: int, strength: float, generator: np.random.Generator) -> Labels:
        """Everybody's labels, (n,), shuffled within their pairs."""
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
"""Every shift by the word it is written with."""

FORMS = {word: shift.form for word, shift in SHIFTS.items()}


def shifts_of(text: str) -> dict[str, Shift]:
    """The shifts that `text` names, such as "rotate(60)+swap(0.5)", by their words and in their order."""
    found: dict[str, Shift] = {}
    # A plus inside brackets or after an exponent's e belongs to a number.
    for each in [] if text.strip() == "none" else re.split(r"(?<![0-9.][eE])\+(?![^(]*\))", text):
        if each.strip() == "none":
            raise ConfigurationError(f"shift {text!r}: 'none' stands alone; leave it out, or the others")
        word, numbers = read("shift", each, FORMS)
        if word in found:
            raise ConfigurationError(f"shift {text!r}: {word} is given twice; give it once, as strong as it should be")
        found[word] = SHIFTS[word](*numbers)
    return found
