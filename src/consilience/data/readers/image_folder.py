"""Image folders: a folder for each class, alone or once under `train` and once under `test`.

    birds/robin/1.png            birds/train/robin/1.png
    birds/wren/1.png             birds/test/robin/9.png     (`val` or `valid` where there is no `test`)

Classes are numbered in the order of their names. Training and test samples are ordered so that classes alternate, so
any first N are balanced. With owners, each has its own folder of class folders: `birds/ann/robin/1.png`. A text file
`never-share.txt` beside the folders names samples that must never be shared: one relative path, folder or pattern
(`robin/private-*`) per line, `#` for comments.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from consilience.data.arrays import held_out_samples
from consilience.data.cache import cache_key, load_cached, save_cached
from consilience.data.download import ProgressLine
from consilience.data.owners import number_owners
from consilience.data.raw_dataset import RawDataset, balanced_order
from consilience.data.readers.digits import SEED
from consilience.data.readers.images import MODES, decode_all
from consilience.errors import DataError

__all__ = ["MODES", "NEVER_SHARE_FILE", "SUFFIXES", "read_folder"]

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
NEVER_SHARE_FILE = "never-share.txt"
_VERSION = 1  # of the decoder: a new number makes older cache entries unused


def read_folder(
    folder: Path, test_share: float, size: int | None, mode: str | None, progress: bool, by_owner: bool = False
) -> RawDataset:
    """The data set in a folder of images; decoded pixels are cached. by_owner: images are in OWNER/CLASS/."""
    home = folder / "train" if _subfolders(folder / "train") else folder
    names, paths = _owners_images(home) if by_owner else _class_images(home)
    targets = _class_of(names, paths)  # (n,)
    owners, owner_names = _owner_of(paths) if by_owner else (None, ())
    if home == folder or (tests := _test_folder(folder)) is None:
        test = held_out_samples(str(folder), targets, test_share, owners)  # (n,)
    else:
        more = _owners_images(tests)[1] if by_owner else _test_images(tests, names, home)
        _refuse_unknown_classes(more, names, tests, home)
        owners = None if owners is None else np.append(owners, np.zeros(len(more), dtype=np.int64))
        paths, targets = [*paths, *more], np.append(targets, _class_of(names, more))
        test = np.arange(len(paths)) >= len(paths) - len(more)  # (n + m,)
    shareable = _shareable_images(folder, paths)
    pixels = _pixels(folder, paths, size, mode, progress)  # (n + m, channels, height, width)
    first, last = (np.flatnonzero(half) for half in (~test, test))
    first, last = (half[balanced_order(targets[half], SEED)] for half in (first, last))
    halves = (pixels[first], targets[first], pixels[last], targets[last])
    allowed = None if shareable is None else shareable[first]
    raw = RawDataset(*halves, len(names), pixel_max=255, labels=names, shareable=allowed, source=f"images in {folder}")
    return raw._replace(owners=None if owners is None else owners[first], owner_names=owner_names)


def _subfolders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder}: cannot be read ({error}); check that it is a folder you may read") from error


def _images(folder: Path) -> list[Path]:
    """The image files of one class, by name; hidden files and other suffixes are left out."""
    try:
        inside = sorted(folder.iterdir())
    except OSError as error:
        raise DataError(f"{folder}: cannot be read ({error}); check that it is a folder you may read") from error
    return [p for p in inside if p.suffix.lower() in SUFFIXES and not p.name.startswith(".") and p.is_file()]


def _class_images(home: Path) -> tuple[tuple[str, ...], list[Path]]:
    """The names of the classes, and every image of theirs in order."""
    found = {folder.name: _images(folder) for folder in _subfolders(home)}
    if not any(found.values()):
        raise DataError(
            f"{home}: no folder in it holds images; put those of each class into a folder named after it, "
            f"as in {home / 'CLASS' / '1.png'}, or use --owners folders where each owner has such a folder "
            f"(images end in {', '.join(SUFFIXES)})"
        )
    if empty := [name for name, images in found.items() if not images]:
        raise DataError(
            f"{home}: the class folder {empty[0]!r} holds no image; add images or remove it "
            f"(images end in {', '.join(SUFFIXES)})"
        )
    if len(found) < 2:
        raise DataError(
            f"{home}: {next(iter(found))!r} is the only class, and one class cannot be learned; "
            f"put images of another class into a folder beside it"
        )
    return tuple(found), [path for images in found.values() for path in images]


def _owners_images(home: Path) -> tuple[tuple[str, ...], list[Path]]:
    """The names of the classes of all owners, and every image of theirs, one owner after the other."""
    paths = [path for owner in _subfolders(home) for each in _subfolders(owner) for path in _images(each)]
    names = tuple(sorted({path.parent.name for path in paths}))
    if len(names) < 2:
        raise DataError(
            f"{home}: {len(names)} classes were found in its owners' folders, and two are needed; put images into "
            f"{home / 'OWNER' / 'CLASS' / '1.png'} (images end in {', '.join(SUFFIXES)})"
        )
    return names, paths


def _owner_of(paths: Sequence[Path]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """The owner of each image, by the folder its class folder is in, and the owners' names."""
    return number_owners("owners", np.array([path.parent.parent.name for path in paths]), len(paths))


def _class_of(names: Sequence[str], paths: Sequence[Path]) -> NDArray[np.int64]:
    """The class of each image, by the folder it is in."""
    number = {name: index for index, name in enumerate(names)}
    return np.array([number[path.parent.name] for path in paths], dtype=np.int64)


def _test_folder(folder: Path) -> Path | None:
    return next((folder / name for name in ("test", "val", "valid") if (folder / name).is_dir()), None)


def _test_images(tests: Path, names: Sequence[str], home: Path) -> list[Path]:
    found = {folder.name: _images(folder) for folder in _subfolders(tests)}
    _refuse_unknown_classes([path for images in found.values() for path in images], names, tests, home)
    images = [path for name in names for path in found.get(name, [])]
    if not images:
        raise DataError(
            f"{tests}: no image in it; put test images into folders named as in {home}, "
            f"or remove the folder to hold out some training images for tests"
        )
    return images


def _refuse_unknown_classes(images: Sequence[Path], names: Sequence[str], tests: Path, home: Path) -> None:
    """Refuse test images of a class without training images."""
    if unknown := [path.parent.name for path in images if path.parent.name not in names]:
        raise DataError(
            f"{tests}: the class {unknown[0]!r} is not in {home}, so it cannot be learned; "
            f"add training images of it or remove it (training has {', '.join(names)})"
        )


def _shareable_images(folder: Path, paths: Sequence[Path]) -> NDArray[np.bool_] | None:
    """False for each image that a line of never-share.txt names; None where there is no such file."""
    file = folder / NEVER_SHARE_FILE
    if not file.exists():
        return None
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read as text ({error}); write it in UTF-8") from error
    inside = [path.relative_to(folder).as_posix() for path in paths]
    shareable = np.ones(len(paths), dtype=np.bool_)  # (n,)
    for number, line in enumerate(map(str.strip, lines), start=1):
        if not line or line.startswith("#"):
            continue
        named = np.array([_matches(line, path) for path in inside])  # (n,)
        if not named.any():
            raise DataError(
                f"{file}, line {number}: {line!r} matches no image; write a path relative to {folder}, "
                f"a folder in it, or a pattern such as {Path(inside[0]).parent.as_posix()}/*"
            )
        shareable &= ~named
    return shareable


def _matches(line: str, path: str) -> bool:
    return path == line or path.startswith(line.rstrip("/") + "/") or fnmatchcase(path, line)


def _pixels(
    folder: Path, paths: Sequence[Path], size: int | None, mode: str | None, progress: bool
) -> NDArray[np.uint8]:
    """The decoded images, from the cache where no file has changed since they were decoded."""
    key = _key(folder, paths, size, mode)
    cached = load_cached(key)
    if cached is not None and cached.dtype == np.uint8 and cached.ndim == 4 and len(cached) == len(paths):
        return cached
    bar = ProgressLine(folder.name, len(paths)) if progress else None
    pixels = decode_all(paths, size, mode, done=lambda: None if bar is None else bar.update(1))
    if bar is not None:
        bar.close()
    save_cached(key, pixels)
    return pixels


def _key(folder: Path, paths: Sequence[Path], size: int | None, mode: str | None) -> str:
    import PIL

    try:
        stats = [(path, path.stat()) for path in paths]
    except OSError as error:
        raise DataError(f"{folder}: a file disappeared while it was read ({error}); try again") from error
    files = [(path.relative_to(folder).as_posix(), stat.st_size, stat.st_mtime_ns) for path, stat in stats]
    # With the folder: copies elsewhere may have the same names, sizes and dates.
    return cache_key(_VERSION, PIL.__version__, str(folder.resolve()), size, mode, files)
