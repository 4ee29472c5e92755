"""Random augmented views of images: crop, mirror, color.

The views of SimCLR (Chen et al., 2020) for small images: a crop resized to the whole, a mirror, jittered colors, gray.
There is no blur, as its authors leave it out for CIFAR-10. Random numbers are passed in, one column per sample, and
nothing branches on values: views are the same under `torch.func.vmap`, and in a CUDA graph.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from consilience.errors import ConfigurationError
from consilience.task import Task
from consilience.validation import check_number

BRIGHTNESS, CONTRAST, SATURATION = range(3)
"""The tones that `adjust_tone` changes."""
JITTER_ORDERS = 24
"""The number of orders in which three tones and the hue can be changed."""


@dataclass(frozen=True)
class Views:
    """How views are drawn; the settings are those of torchvision's transforms.

    A crop is drawn as torchvision draws it, but in real numbers and at once: where the drawn width or height is more
    than the image has (with these settings one time in six), it becomes the image's, while torchvision draws again.
    """

    scale: tuple[float, float] = (0.2, 1.0)
    """Share of the image's area that a crop has."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Of its width to its height."""
    jitter: tuple[float, float, float, float] = (0.8, 0.8, 0.8, 0.2)
    """How far brightness, contrast, saturation (as factors around 1) and hue (in turns) may move."""
    jitter_chance: float = 0.8
    gray_chance: float = 0.2
    flip_chance: float = 0.5

    def __post_init__(self) -> None:
        _range("scale", self.scale, 1.0, "(0.2, 1.0)")
        _range("ratio", self.ratio, math.inf, "(0.75, 1.33)")
        _several("jitter", self.jitter, 4, "for brightness, contrast, saturation and hue, such as (0.8, 0.8, 0.8, 0.2)")
        for what, value in zip(("brightness", "contrast", "saturation", "hue"), self.jitter, strict=True):
            check_number(f"jitter of {what}", value)
        _at_most("jitter of hue", self.jitter[3], 0.5, "half a turn, which reaches every hue")
        for what in ("jitter_chance", "gray_chance", "flip_chance"):
            check_number(what, getattr(self, what))
            _at_most(what, getattr(self, what), 1.0, "always")

    @property
    def draws(self) -> int:
        """How many uniform numbers one view of one sample needs."""
        return 12

    def __call__(self, pixels: Tensor, draws: Tensor) -> Tensor:
        """A view of each image; pixels (rows, channels, height, width) in [0, 1], draws (self.draws, rows) in [0, 1).

        An image of one channel has no saturation and no hue. Images of other than one or three channels are only
        cropped and mirrored.
        """
        if pixels.ndim != 4:
            raise ConfigurationError(
                f"inputs have the shape {tuple(pixels.shape)}; views are for images, (rows, channels, height, width). "
                "Use an objective without views for a table or for text"
            )
        place, change, (flip, jitter, order, fade) = draws[:4], draws[4:8], draws[8:].unbind()
        left, top, width, height = self._box(place, *pixels.shape[-2:])
        view = crop_and_resize(pixels, left, top, width, height, flip < self.flip_chance)
        if pixels.shape[-3] not in (1, 3):
            return view
        factors = torch.stack(
            [_between(max(0.0, 1 - j), 1 + j, d) for j, d in zip(self.jitter[:3], change[:3].unbind(), strict=True)]
        ).to(pixels.dtype)  # (tones, rows)
        turns = _between(-self.jitter[3], self.jitter[3], change[3]).to(pixels.dtype)
        which = (order * JITTER_ORDERS).long().clamp(max=JITTER_ORDERS - 1)
        view = torch.where(_per_image(jitter < self.jitter_chance), jitter_colors(view, factors, turns, which), view)
        return torch.where(_per_image(fade < self.gray_chance), to_gray(view), view)

    def of(self, task: Task, inputs: Tensor, draws: Tensor) -> Tensor:
        """A view of each input of a task: inputs are scaled back to pixels, augmented, and scaled again."""
        mean, std = task.scaling
        return (self((inputs * std + mean).clamp(0, 1), draws) - mean) / std

    def _box(self, place: Tensor, height: int, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Left, top, width and height of crops, each (rows,), in pixels."""
        area = height * width * _between(*self.scale, place[0])
        ratio = _between(math.log(self.ratio[0]), math.log(self.ratio[1]), place[1]).exp()
        wide, high = (area * ratio).sqrt().clamp(1, width), (area / ratio).sqrt().clamp(1, height)
        return place[2] * (width - wide), place[3] * (height - high), wide, high


def crop_and_resize(
    pixels: Tensor, left: Tensor, top: Tensor, width: Tensor, height: Tensor, mirrored: Tensor
) -> Tensor:
    """A box of each image in the size of the whole, bilinear; mirrored from left to right where asked.

    The box is cut out before it is resized: pixels beyond the centers of its outermost pixels are not used.
    """
    across = _centers(left, width, pixels.shape[-1])  # (rows, width)
    across = torch.where(mirrored[:, None], across.flip(-1), across)
    down = _centers(top, height, pixels.shape[-2])  # (rows, height)
    size = (-1, *pixels.shape[-2:])
    grid = torch.stack((across[:, None, :].expand(size), down[:, :, None].expand(size)), -1)  # (rows, height, width, 2)
    seen = F.grid_sample(pixels, grid.to(pixels.dtype), padding_mode="border", align_corners=False)
    return seen.clamp(0, 1)  # bilinear weights may add up to slightly more than 1


def jitter_colors(pixels: Tensor, factors: Tensor, turns: Tensor, order: Tensor) -> Tensor:
    """Change tones and hue, in the order (rows,) of each image; factors (tones, rows), turns (rows,).

    Order is 4 x the order of the tones + how many of them come before the hue. The hue, which takes longest, is
    rotated once for all orders: tones are changed before and after it, with factor 1 where they do not apply.
    """
    before, tones = order % 4, order // 4
    first = tones // 2
    second = (first + 1 + tones % 2) % 3
    kinds = torch.stack((first, second, 3 - first - second))  # (tones, rows)
    factors = factors.gather(0, kinds)
    if pixels.shape[-3] == 1:
        return _adjust_tones(pixels, kinds, factors)
    late = torch.arange(3, device=order.device)[:, None] >= before
    pixels = rotate_hue(_adjust_tones(pixels, kinds, factors.masked_fill(late, 1)), turns)
    return _adjust_tones(pixels, kinds, factors.masked_fill(~late, 1))


def _adjust_tones(pixels: Tensor, kinds: Tensor, factors: Tensor) -> Tensor:
    for kind, factor in zip(kinds.unbind(), factors.unbind(), strict=True):
        pixels = adjust_tone(pixels, kind, factor)
    return pixels


def adjust_tone(pixels: Tensor, kind: Tensor, factor: Tensor) -> Tensor:
    """Brightness, contrast or saturation, as `kind` (rows,) says, times a factor (rows,).

    Each moves the image away from black, from its mean gray, or from its own gray; with a factor below 1, toward it.
    """
    kind, light = _per_image(kind), _luminance(pixels)
    mean = light.mean((-2, -1), keepdim=True)
    far = torch.where(kind == SATURATION, light, mean.masked_fill(kind == BRIGHTNESS, 0))
    return torch.lerp(far, pixels, _per_image(factor)).clamp(0, 1)


def rotate_hue(pixels: Tensor, turns: Tensor) -> Tensor:
    """Rotate hues by a number of turns (rows,) of the color wheel; the largest and smallest channel stay."""
    red, green, blue = pixels.unbind(-3)
    most = pixels.amax(-3)  # (rows, height, width)
    spread = most - pixels.amin(-3)
    by = spread.masked_fill(spread == 0, 1)
    hue = torch.where(most == green, 2 + (blue - red) / by, 4 + (red - green) / by)
    hue = torch.where(most == red, (green - blue) / by, hue)  # in sixths of a turn
    hue = (hue + 6 * turns[:, None, None]) % 6
    shares = torch.stack(((hue - 3).abs() - 1, 2 - (hue - 2).abs(), 2 - (hue - 4).abs()), -3).clamp(0, 1)
    return most.unsqueeze(-3) - spread.unsqueeze(-3) * (1 - shares)


def to_gray(pixels: Tensor) -> Tensor:
    """The luminance in every channel."""
    return _luminance(pixels).expand_as(pixels)


def _luminance(pixels: Tensor) -> Tensor:
    """How bright each pixel is to the eye (ITU-R BT.601), (rows, 1, height, width)."""
    if pixels.shape[-3] == 1:
        return pixels
    red, green, blue = pixels.unbind(-3)
    return (0.299 * red + 0.587 * green + 0.114 * blue).unsqueeze(-3)


def _centers(start: Tensor, extent: Tensor, size: int) -> Tensor:
    """The centers of `size` pixels that fill a box, (rows, size), from -1 to 1 over the whole image."""
    pixel = (torch.arange(size, dtype=start.dtype, device=start.device) + 0.5) / size
    inside = (pixel * extent[:, None]).clamp(min=0.5)
    inside = torch.minimum(inside, extent[:, None] - 0.5)
    return (start[:, None] + inside) * (2 / size) - 1


def _per_image(values: Tensor) -> Tensor:
    return values[:, None, None, None]  # (rows, 1, 1, 1)


def _between(low: float, high: float, draw: Tensor) -> Tensor:
    return low + (high - low) * draw


def _several(what: str, values: tuple[float, ...], length: int, meaning: str) -> None:
    if not isinstance(values, tuple) or len(values) != length:
        raise ConfigurationError(f"{what} is {values!r}; it must be a tuple of {length} numbers {meaning}")


def _at_most(what: str, value: float, most: float, meaning: str) -> None:
    if value > most:
        raise ConfigurationError(f"{what} is {value!r}; it must be {most:g} or less, {most:g} being {meaning}")


def _range(what: str, values: tuple[float, ...], most: float, example: str) -> None:
    _several(what, values, 2, f"from and to, such as {example}")
    for value in values:
        check_number(what, value, low=1e-6)
        _at_most(what, value, most, "the whole")
    if values[0] > values[1]:
        raise ConfigurationError(f"{what} is {values!r}; the smaller number must come first, such as {example}")


VIEWS = Views()
"""The published settings for small images."""
