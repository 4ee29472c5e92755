"""Bounded reads of binary data files, from a folder or out of a tar archive; nothing is extracted to disk."""

from __future__ import annotations

import itertools
import tarfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from consilience.errors import DataError, first_sentence

_MEMBERS = 100  # of an archive that are looked at


def read_bounded(path: Path, most: int) -> bytes:
    """The first `most` + 1 bytes of a file: one more than there may be shows a file that is too long."""
    try:
        with path.open("rb") as file:
            return file.read(most + 1)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error}); check that it is a file you may read") from error


def read_tar_members(path: Path, most: Mapping[str, int]) -> dict[str, bytes]:
    """The files of a .tar.gz archive by name, in whatever folder; most: the bytes that each may have."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in itertools.islice(archive, _MEMBERS):
                file = PurePosixPath(member.name).name
                if file in most and member.isreg() and (opened := archive.extractfile(member)) is not None:
                    found[file] = opened.read(most[file] + 1)
    except Exception as error:  # a damaged archive can make the tar and gzip parsers raise nearly anything
        said = first_sentence(error) or type(error).__name__
        raise DataError(f"{path}: not a valid .tar.gz file ({said}); fetch it again") from error
    return found
