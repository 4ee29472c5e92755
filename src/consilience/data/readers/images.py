"""Decoding image files into one array, of one mode and size."""

from __future__ import annotations

import io
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


class ImageHeader(NamedTuple):
    """Mode and size of an image file, read before its pixels are decoded."""

    mode: str  # gray or color
    size: tuple[int, int]  # width, height


class StoredImage(NamedTuple):
    """An image in memory, as a data set's file holds it."""

    name: str
    content: bytes

    def __str__(self) -> str:
        return self.name


def decode_all(
    paths: Sequence[ImageFile], size: int | None, mode: str | None, done: Callable[[], None], side: int | None = None
) -> NDArray[np.uint8]:
    """The pixels of all files, (n, channels, height, width), resized and converted where asked.

    side: the width and height that every image must have as it is stored.
    """
    headers = [_read_header(path) for path in paths]
    if side is not None:
        _check_side(paths, headers, side)
    chosen = mode or _agreed_mode(paths, headers)
    width, height = (size, size) if size is not None else _agreed_size(paths, headers)
    shape = (len(paths), MODES[chosen], height, width)
    if math.prod(shape) > LARGEST:
        raise DataError(
            f"{paths[0]} and the others: {len(paths)} images make an array of the shape "
            f"{shape}, above the {LARGEST} bytes that are read; pass a smaller image_size"
        )
    pixels = np.empty(shape, dtype=np.uint8)
    for place, path in zip(pixels, paths, strict=True):
        place[...] = _decode(path, chosen, (width, height))
        done()
    return pixels


ImageFile = Path | StoredImage


def _read_header(path: ImageFile) -> ImageHeader:
    with _opened(path) as image:
        return ImageHeader("gray" if image.mode in GRAY else "color", image.size)


def _agreed_mode(paths: Sequence[ImageFile], headers: Sequence[ImageHeader]) -> str:
    for path, header in zip(paths, headers, strict=True):
        if header.mode != headers[0].mode:
            raise DataError(
                f"{paths[0]} is {headers[0].mode}, but {path} is {header.mode}; "
                f'set image_mode to "gray" or "color" (--image-mode) to convert all to one mode'
            )
    return headers[0].mode


def _agreed_size(paths: Sequence[ImageFile], headers: Sequence[ImageHeader]) -> tuple[int, int]:
    for path, header in zip(paths, headers, strict=True):
        if header.size != headers[0].size:
            (w, h), (width, height) = headers[0].size, header.size
            raise DataError(
                f"{paths[0]} has {w} x {h} pixels, but {path} has {width} x {height}; "
                f"set image_size (--image-size N) to resize all to N x N"
            )
    return headers[0].size


def _check_side(paths: Sequence[ImageFile], headers: Sequence[ImageHeader], side: int) -> None:
    for path, header in zip(paths, headers, strict=True):
        if header.size != (side, side):
            width, height = header.size
            raise DataError(
                f"{path}: an image of {side} x {side} pixels expected, it has {width} x {height}; fetch it again"
            )


def _decode(path: ImageFile, mode: str, size: tuple[int, int]) -> NDArray[np.uint8]:
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
    """The image with one byte per value, gray or RGB; transparency is dropped."""
    from PIL import Image as pillow

    if image.mode == "F":
        raise DataError("pixels are floats of unknown range; save the arrays as .npz instead")
    if image.mode in DEEP:
        deep = np.asarray(image)
        if deep.min() < 0 or deep.max() > 65_535:
            raise DataError(
                f"gray values must lie in 0..65535, got {deep.min()}..{deep.max()}; save them as .npz instead"
            )
        image = pillow.fromarray((deep // 256).astype(np.uint8))  # Pillow itself clips values above 255
    if "transparency" in image.info and image.mode == "P":
        image = image.convert("RGBA")
    return image.convert("L" if mode == "gray" else "RGB")


@contextmanager
def _opened(path: ImageFile) -> Iterator[Image]:
    """The image in a file; any failure to read it is a DataError that names the file."""
    from PIL import Image as pillow

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about metadata do not matter
            warnings.filterwarnings("error", message="(?i).*truncated")
            warnings.simplefilter("error", pillow.DecompressionBombWarning)
            with pillow.open(path if isinstance(path, Path) else io.BytesIO(path.content)) as image:
                yield image
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    except Exception as error:  # decoders of many formats raise many types of errors
        said = first_sentence(error).replace(f" {str(path)!r}", "") or type(error).__name__
        raise DataError(f"{path}: cannot be read as an image ({said}); repair or remove it") from error
