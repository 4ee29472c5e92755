"""Files of a data set by name, in a folder or in a zip archive; nothing is extracted to disk."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, Protocol, Self

from consilience.data.readers.binary_files import read_bounded
from consilience.data.readers.images import ImageFile, StoredImage
from consilience.errors import DataError, first_sentence


class FileTree(Protocol):
    """Files by name, relative to the data set's folder and with `/`."""

    names: frozenset[str]

    def read(self, name: str, most: int) -> bytes:
        """The content of a file, which may have at most this many bytes."""

    def image(self, name: str, most: int) -> ImageFile:
        """An image to decode, of at most this many bytes."""

    def fingerprint(self, names: Sequence[str]) -> Any:
        """A JSON value that changes when one of these files changes."""


class FolderTree:
    """The files of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            inside = [path for path in folder.rglob("*") if path.is_file()]
        except OSError as error:
            raise DataError(f"{folder}: cannot be read ({error}); check that it is a folder you may read") from error
        self.names = frozenset(path.relative_to(folder).as_posix() for path in inside)

    def __str__(self) -> str:
        return str(self.folder)

    def read(self, name: str, most: int) -> bytes:
        """The content of a file."""
        return _checked(f"{self.folder / name}", read_bounded(self.folder / name, most), most)

    def image(self, name: str, most: int) -> ImageFile:
        """The path of an image."""
        return self.folder / name

    def fingerprint(self, names: Sequence[str]) -> Any:
        """The folder, and the sizes and dates of the files: copies elsewhere may have the same of both."""
        try:
            stats = [(self.folder / name).stat() for name in names]
        except OSError as error:
            raise DataError(f"{self.folder}: a file disappeared while it was read ({error}); try again") from error
        return [str(self.folder.resolve()), [(stat.st_size, stat.st_mtime_ns) for stat in stats]]


class ZipTree:
    """The files of a zip archive, or of one folder in it; an archive with names outside of it is refused."""

    def __init__(self, path: Path) -> None:
        self.path, self.root = path, ""
        with self._reading():
            self.archive = zipfile.ZipFile(path)
        names = [info.filename for info in self.archive.infolist() if not info.is_dir()]
        for name in names:
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name.replace("\\", "/")).parts:
                self.archive.close()
                raise DataError(
                    f"{path}: it has a file outside of its own folder, {name!r}; fetch the original archive"
                )
        self.names = frozenset(names)

    def below(self, root: str) -> Self:
        """Keep only the files whose names begin with `root`, which is left out of the names."""
        self.root = root
        self.names = frozenset(name.removeprefix(root) for name in self.names if name.startswith(root))
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.archive.close()

    def __str__(self) -> str:
        return str(self.path)

    def read(self, name: str, most: int) -> bytes:
        """The content of a file."""
        with self._reading(), self.archive.open(f"{self.root}{name}") as file:
            body = file.read(most + 1)
        return _checked(f"{self.path}, {name}", body, most)

    def image(self, name: str, most: int) -> ImageFile:
        """The content of an image."""
        return StoredImage(f"{self.path}, {name}", self.read(name, most))

    def fingerprint(self, names: Sequence[str]) -> Any:
        """The checksums that the archive has of the files, so that copies of it share a cache entry."""
        with self._reading():
            return [self.archive.getinfo(f"{self.root}{name}").CRC for name in names]

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # a damaged archive can make the parser raise nearly anything
            said = first_sentence(error) or type(error).__name__
            raise DataError(f"{self.path}: not a valid .zip file ({said}); fetch it again") from error


def _checked(where: str, body: bytes, most: int) -> bytes:
    if len(body) > most:
        raise DataError(f"{where}: at most {most} bytes expected, more received; fetch it again")
    return body
