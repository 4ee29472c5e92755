"""Image files of one kind and size, decoded into one array."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from consilience.data.readers.npz import LARGEST
from consilience.errors import DataError, first_sentence

if TYPE_CHECKING:
    from PIL.Image import Image

MODES = {"color": 3, "gray": 1}
"""How an image may be read, and how many channels it then has."""

DEEP = ("I", "I;16", "I;16B", "I;16L", "I;16N")
"""Pillow's names for gray of 16 bits."""

GRAY = ("1", "L", "LA", "La", *DEEP)


class Inspect(NamedTuple):
    """What an image file says of itself before it is decoded."""

    mode: str  # gray or color
    size: tuple[int, int]  # width, height


def decode_all(
    paths: Sequence[Path], size: int | None, mode: str | None, done: Callable[[], None]
) -> NDArray[np.uint8]:
    """The pixels of all files, (n, channels, height, width), brought to one size and mode where asked."""
    looks = [_look(path) for path in paths]
    chosen = mode or _agreed_mode(paths, looks)
    width, height = (size, size) if size is not None else _agreed_size(paths, looks)
    shape = (len(paths), MODES[chosen], height, width)
    if math.prod(shape) > LARGEST:
        raise DataError(
            f"{paths[0].parent} and the others: {len(paths)} images make an array of the shape {shape}, above the "
            f"{LARGEST} bytes that are read; pass a smaller image_size"
        )
    pixels = np.empty(shape, dtype=np.uint8)
    for place, path in zip(pixels, paths, strict=True):
        place[...] = _decode(path, chosen, (width, height))
        done()
    return pixels


def _look(path: Path) -> Inspect:
    with _opened(path) as image:
        return Inspect("gray" if image.mode in GRAY else "color", image.size)


def _agreed_mode(paths: Sequence[Path], looks: Sequence[Inspect]) -> str:
    for path, look in zip(paths, looks, strict=True):
        if look.mode != looks[0].mode:
            raise DataError(
                f"{paths[0]} is {looks[0].mode}, but {path} is {look.mode}; "
                f'set image_mode to "gray" or "color" (--image-mode) to bring all to one'
            )
    return looks[0].mode


def _agreed_size(paths: Sequence[Path], looks: Sequence[Inspect]) -> tuple[int, int]:
    for path, look in zip(paths, looks, strict=True):
        if look.size != looks[0].size:
            (w, h), (width, height) = looks[0].size, look.size
            raise DataError(
                f"{paths[0]} has {w} x {h} pixels, but {path} has {width} x {height}; "
                f"set image_size (--image-size N) to bring all to N x N"
            )
    return looks[0].size


def _decode(path: Path, mode: str, size: tuple[int, int]) -> NDArray[np.uint8]:
    """One image, (channels, height, width)."""
    with _opened(path) as image:
        image.load()
        converted = _eight_bits(image, mode)
        if converted.size != size:
            from PIL.Image import Resampling

            # Unlike some libraries' bilinear filter, Pillow's uses every pixel when it shrinks an image.
            converted = converted.resize(size, Resampling.BILINEAR)
        pixels = np.asarray(converted, dtype=np.uint8)  # (height, width) or (height, width, 3)
    return pixels[np.newaxis] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)


def _eight_bits(image: Image, mode: str) -> Image:
    """The image with one byte a value, gray or in red, green and blue; transparency is left out."""
    from PIL import Image as pillow

    if image.mode == "F":
        raise DataError("pixels are fractions, whose range nobody knows; save the arrays as .npz instead")
    if image.mode in DEEP:
        deep = np.asarray(image)
        if deep.min() < 0 or deep.max() > 65_535:
            raise DataError(
                f"gray values must lie in 0..65535, got {deep.min()}..{deep.max()}; save them as .npz instead"
            )
        image = pillow.fromarray((deep // 256).astype(np.uint8))  # Pillow itself would make 255 of all above 255
    if "transparency" in image.info and image.mode == "P":
        image = image.convert("RGBA")
    return image.convert("L" if mode == "gray" else "RGB")


@contextmanager
def _opened(path: Path) -> Iterator[Image]:
    """The image in a file; whatever is wrong with it is a DataError that names the file."""
    from PIL import Image as pillow

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd remarks about dates and cameras harm nobody
            warnings.filterwarnings("error", message="(?i).*truncated")
            warnings.simplefilter("error", pillow.DecompressionBombWarning)
            with pillow.open(path) as image:
                yield image
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    except Exception as error:  # decoders of a dozen formats fail in as many ways
        said = first_sentence(error).replace(f" {str(path)!r}", "") or type(error).__name__
        raise DataError(f"{path}: cannot be read as an image ({said}); mend it or take it away") from error
