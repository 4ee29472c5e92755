"""CIFAR-100: 32x32 color photographs of 100 classes in 20 groups, from the original binary files.

A record is 3,074 bytes: the coarse label (the group), the fine label (the class), then the red, the green and the blue
plane. The version of pickled Python objects is never read: unpickling runs code.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from consilience.data.download import FOLDER_VARIABLE, chosen_folder, download
from consilience.data.raw_dataset import RawDataset
from consilience.data.readers.binary_files import read_bounded, read_tar_members
from consilience.errors import DataError

_COARSE = (
    "aquatic_mammals fish flowers food_containers fruit_and_vegetables household_electrical_devices "
    "household_furniture insects large_carnivores large_man-made_outdoor_things large_natural_outdoor_scenes "
    "large_omnivores_and_herbivores medium_mammals non-insect_invertebrates people reptiles small_mammals trees "
    "vehicles_1 vehicles_2"
)
_FINE = (
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle "
    "caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant "
    "flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man "
    "maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree "
    "plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper "
    "snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train "
    "trout tulip turtle wardrobe whale willow_tree wolf woman worm"
)
COARSE, FINE = tuple(_COARSE.split()), tuple(_FINE.split())
"""The names of the groups and of the classes, in the order of their labels."""
ARCHIVE = "cifar-100-binary.tar.gz"
PICKLED = ("cifar-100-python.tar.gz", "cifar-100-python")
RECORDS = {"train.bin": 50_000, "test.bin": 10_000}
"""The files, and the most records that each may have: the originals have as many, and a cut file has fewer."""
SHAPE = (3, 32, 32)
RECORD = 2 + 3 * 32 * 32


def read_cifar100(directory: Path | None, progress: bool, *, coarse: bool = False) -> RawDataset:
    """The whole data set from `directory`, else the folder in CONSILIENCE_DATA, else by download.

    coarse: the 20 groups are the classes.
    """
    folder = chosen_folder(directory)
    if folder is None:
        return _from_archive(download("cifar100", ARCHIVE, progress), coarse)
    for place in (folder / "cifar100", folder):
        for inside in (place, place / "cifar-100-binary"):
            if any((inside / file).is_file() for file in RECORDS):
                return _from_files(inside, coarse)
        if (place / ARCHIVE).is_file():
            return _from_archive(place / ARCHIVE, coarse)
    raise _missing(folder)


def _missing(folder: Path) -> DataError:
    places = (folder / "cifar100", folder)
    pickled = next((place / each for place in places for each in PICKLED if (place / each).exists()), None)
    if pickled is not None:
        return DataError(
            f"{pickled} is the version of CIFAR-100 made of pickled Python objects, which are code and are not read; "
            f"download the binary version, {ARCHIVE}, from the same page and put it there"
        )
    return DataError(
        f"data set 'cifar100' needs {' and '.join(RECORDS)}, or {ARCHIVE}; none is in {places[0]} or {places[1]}. "
        f"Point --data-dir or {FOLDER_VARIABLE} to a folder that has them, or leave both out to download them"
    )


def _from_files(folder: Path, coarse: bool) -> RawDataset:
    missing = [file for file in RECORDS if not (folder / file).is_file()]
    if missing:
        raise DataError(f"{folder}: {missing[0]} missing; both files of CIFAR-100 are needed, {' and '.join(RECORDS)}")
    bodies = {file: read_bounded(folder / file, most * RECORD) for file, most in RECORDS.items()}
    return _raw(
        {f"{folder / file}": (file, body) for file, body in bodies.items()}, coarse, f"binary files in {folder}"
    )


def _from_archive(path: Path, coarse: bool) -> RawDataset:
    bodies = read_tar_members(path, {file: most * RECORD for file, most in RECORDS.items()})
    missing = [file for file in RECORDS if file not in bodies]
    if missing:
        raise DataError(f"{path}: {', '.join(missing)} missing in it; is it the binary version of CIFAR-100?")
    return _raw({f"{path}, {file}": (file, bodies[file]) for file in RECORDS}, coarse, str(path))


def _raw(files: dict[str, tuple[str, bytes]], coarse: bool, source: str) -> RawDataset:
    train, test = (decode_records(where, body, RECORDS[file], coarse) for where, (file, body) in files.items())
    names = COARSE if coarse else FINE
    return RawDataset(*train, *test, len(names), pixel_max=255, labels=names, source=source)


def decode_records(
    where: str, body: bytes, most: int, coarse: bool = False
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images (n, 3, 32, 32) and labels (n,) of a file's content, which has at most this many records."""
    if not body or len(body) % RECORD or len(body) > most * RECORD:
        received = f"more than {most * RECORD}" if len(body) > most * RECORD else str(len(body))
        raise DataError(
            f"{where}: 1 to {most} whole records of {RECORD} bytes expected, {received} bytes received; fetch it again"
        )
    records = np.frombuffer(body, dtype=np.uint8).reshape(-1, RECORD)
    for kind, labels, names in (("coarse", records[:, 0], COARSE), ("fine", records[:, 1], FINE)):
        if (bad := labels >= len(names)).any():
            at = int(np.argmax(bad))
            raise DataError(
                f"{where}: {kind} labels must lie in 0..{len(names) - 1}, but that of record {at} is {labels[at]}; "
                f"is it a file of CIFAR-100? Fetch it again"
            )
    return records[:, 2:].reshape(-1, *SHAPE), records[:, 0 if coarse else 1].astype(np.int64)
