"""Augmentation for training with labels: a random crop, a random mirror, or a transform of the user's own.

Random numbers of crops and mirrors are passed in, one column per sample, and nothing branches on values: they are the
same under `torch.func.vmap` and in a CUDA graph. A transform of one's own draws from torch's generator.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from consilience.config.augment import Transform, parse_augment
from consilience.errors import ConfigurationError, UnknownName
from consilience.task import Task
from consilience.user_code import defined_names, load_module, naming_failures, split_file_name

_USAGE = "write path/to/file.py:NAME, where NAME is a function of one sample, such as a transform of torchvision"


class Augmentation(Protocol):
    """A random change of the samples of a mini-batch."""

    @property
    def draws(self) -> int:
        """How many uniform numbers it needs for each sample."""
        ...

    @property
    def stackable(self) -> bool:
        """Whether it can be done for many learners at once."""
        ...

    def __call__(self, task: Task, inputs: Tensor, draws: Tensor) -> Tensor:
        """The changed inputs, (rows, ...), with draws (self.draws, rows) in [0, 1)."""
        ...


@dataclass(frozen=True)
class CropAndFlip:
    """A crop of the image padded with black on all sides, then a mirror from left to right one time in two.

    crop: the padding in pixels; 0: an eighth of the image's smaller side, at least 1; None: no crop.
    """

    crop: int | None = None
    flip: bool = False
    draws = 3
    stackable = True

    def __call__(self, task: Task, inputs: Tensor, draws: Tensor) -> Tensor:
        """The changed images, (rows, channels, height, width)."""
        if inputs.ndim != 4:
            raise ConfigurationError(
                f"augment crops and flips images, and inputs have the shape {tuple(inputs.shape[1:])}; leave it out, "
                f"or name a transform of your own: FILE.py:NAME"
            )
        rows, _, height, width = inputs.shape
        down = torch.arange(height, device=inputs.device).expand(rows, height)  # the row that each pixel comes from
        across = torch.arange(width, device=inputs.device).expand(rows, width)
        if self.flip:
            across = torch.where((draws[2] < 0.5)[:, None], across.flip(-1), across)
        if self.crop is not None:
            by = self.crop or max(1, min(height, width) // 8)
            down, across = down + _offset(draws[0], by), across + _offset(draws[1], by)
        black = (0.0 - task.scaling[0]) / task.scaling[1]
        return _pixels_at(_pixels_at(inputs, down, -2, black), across, -1, black)


def _offset(draw: Tensor, by: int) -> Tensor:
    """Whole numbers from -by to by, (rows, 1)."""
    return ((draw * (2 * by + 1)).long() - by)[:, None]


def _pixels_at(images: Tensor, place: Tensor, dim: int, outside: float) -> Tensor:
    """The rows (dim -2) or columns (dim -1) of images at these places, (rows, size); others are filled."""
    size = images.shape[dim]
    inside = (place >= 0) & (place < size)
    view = (slice(None), None, slice(None), None) if dim == -2 else (slice(None), None, None, slice(None))
    index = place.clamp(0, size - 1)[view].expand(images.shape)
    return torch.where(inside[view], images.gather(dim, index), outside)


@dataclass(frozen=True)
class OwnTransform:
    """A user's own function of one sample, called for each; it sees images as pixels, before they were scaled."""

    source: str | Transform
    """FILE.py:NAME, or the function itself."""
    draws = 0
    stackable = False

    def __reduce__(self) -> tuple[Any, ...]:
        return OwnTransform, (self.source,)  # another process loads a named function by its name

    @cached_property
    def function(self) -> Transform:
        """The function; a named one is loaded in each process that uses it."""
        if not isinstance(self.source, str):
            return self.source
        file, thing = split_file_name(self.source)
        module = load_module(file, _USAGE)
        if thing not in vars(module):
            raise UnknownName("transform", thing, defined_names(module), of=str(file), also=_USAGE)
        found: Transform = vars(module)[thing]
        if not callable(found):
            kind = type(found).__name__
            raise ConfigurationError(f"{file}: {thing} is of type {kind} and cannot be called; {_USAGE}")
        return found

    def __call__(self, task: Task, inputs: Tensor, draws: Tensor) -> Tensor:
        """The changed samples, (rows, ...)."""
        mean, std = task.scaling
        (file, thing), function = self._place(), self.function
        with naming_failures(file, f"{thing} failed"):
            changed = [function(sample) for sample in inputs * std + mean]
        shape = tuple(inputs.shape[1:])
        for each in changed:
            if not isinstance(each, Tensor) or each.shape != shape:
                given = f"a tensor of shape {tuple(each.shape)}" if isinstance(each, Tensor) else type(each).__name__
                raise ConfigurationError(
                    f"{file}: {thing} returned {given} for a sample of the shape {shape}; it must return a tensor of "
                    f"the same shape"
                )
        return (torch.stack(changed).to(inputs) - mean) / std

    def _place(self) -> tuple[Path, str]:
        """The file and the name of the function, for errors; the setting stands for the file where there is none."""
        if isinstance(self.source, str):
            return split_file_name(self.source)
        return Path("augment"), getattr(self.source, "__name__", type(self.source).__name__)


def build_augmentation(given: str | Transform) -> Augmentation | None:
    """The augmentation that the setting `augment` asks for; None where it asks for none."""
    setting = parse_augment(given)
    if setting.own:
        return OwnTransform(setting.own)
    return CropAndFlip(setting.crop, setting.flip) if setting else None
