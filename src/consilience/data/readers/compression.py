"""Opening data files, compressed or not, and saying in words what is wrong with one."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from consilience.errors import DataError


@contextmanager
def open_data_file(path: Path) -> Iterator[BinaryIO]:
    """The file's content to read from; what fails while it is read is a DataError that names the file.

    Compression is told by the name alone: a file that is not what its name says is damaged.
    """
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            yield cast(BinaryIO, file)
    except EOFError as error:
        raise DataError(f"{path}: the compressed file ends too early; fetch it again") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: not a sound gzip file ({error}); fetch it again") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error}); check that it is a file you may read") from error
