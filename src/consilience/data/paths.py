"""Data sets at a path: which reader a file or folder has, and which options belong to it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from consilience.data.arrays import TEST_SHARE
from consilience.data.raw_dataset import RawDataset
from consilience.data.readers import csv_table, parquet
from consilience.data.readers.columns import Columns
from consilience.data.readers.huggingface import ImageOptions, is_saved_dataset, read_saved_dataset
from consilience.data.readers.image_folder import read_folder
from consilience.data.readers.npz import read_archive
from consilience.data.readers.table import TableOptions, raw_from_table
from consilience.errors import ConfigurationError, DataError

TABLES = (*csv_table.SUFFIXES, *parquet.SUFFIXES)
SUFFIXES = (".npz", *TABLES)
"""How the names of files end that can be read."""


@dataclass(frozen=True)
class FileOptions:
    """How a file or folder is read; an option that does not belong to it is refused."""

    test_share: float = TEST_SHARE
    image_size: int | None = None
    image_mode: str | None = None
    table: TableOptions = field(default_factory=TableOptions)
    test_data: str | None = None


def read_path(path: Path, options: FileOptions, progress: bool) -> RawDataset:
    """The data set in a file or folder, not scaled yet."""
    if path.is_dir() and is_saved_dataset(path):
        _refuse(path, "a saved data set", options, "test_data")
        images = ImageOptions(options.image_size, options.image_mode)
        return read_saved_dataset(path, options.table, images, options.test_share)
    if path.is_dir():
        _refuse(path, "a folder of images", options, "label", "drop", "test_data")
        by_owner = _owners_are_folders(options.table.owners)
        reader = partial(read_folder, path, options.test_share, options.image_size, options.image_mode)
        return reader(progress, by_owner=by_owner)
    if path.suffix in TABLES:
        _refuse(path, "a table", options, "image_size", "image_mode")
        tests = None if options.test_data is None else read_table(Path(options.test_data).expanduser())
        source = str(path) if tests is None else f"{path}, tests in {options.test_data}"
        return raw_from_table(str(path), read_table(path), tests, options.table, options.test_share, source)
    _refuse(path, "an .npz file", options, "image_size", "image_mode", "label", "owners", "drop", "test_data")
    return read_archive(path, options.test_share, options.table.kind)


def read_table(path: Path) -> Columns:
    """The columns of a table by name."""
    if not path.is_file():
        raise DataError(f"{path}: there is no such file")
    return parquet.read_parquet(path) if path.suffix in parquet.SUFFIXES else csv_table.read_csv(path)


def _owners_are_folders(owners: str | None) -> bool:
    """Whether the folders of an image folder are owners, with a folder for each class in them."""
    if owners not in (None, "folders"):
        raise ConfigurationError(
            f"owners is {owners!r}; of a folder of images it is 'folders', where images are in OWNER/CLASS/*.png"
        )
    return owners is not None


def refuse_file_options(name: str, options: FileOptions) -> None:
    """Refuse options of files and folders for a data set that is neither."""
    _refuse(Path(name), "neither a file nor a folder", options, *FILE_OPTIONS)


FILE_OPTIONS = {
    "image_size": "folders of images",
    "image_mode": "folders of images",
    "label": "tables",
    "owners": "tables and folders of images",
    "drop": "tables",
    "test_data": "tables",
}
"""Which data each option is for."""


def _refuse(path: Path, kind: str, options: FileOptions, *names: str) -> None:
    for name in names:
        value = getattr(options.table, name, None) or getattr(options, name, None)
        if value:
            raise ConfigurationError(
                f"{name} is for {FILE_OPTIONS[name]}, and {os.fspath(path)!r} is {kind}; leave it out"
            )


def name_of_path(path: str | Path) -> str:
    """The name of the data set at a path: the last part, without the suffix."""
    name = Path(os.path.abspath(path)).name
    return next((name.removesuffix(suffix) for suffix in SUFFIXES if name.endswith(suffix)), name)
