"""Opening data files, compressed or not, with errors that name the file."""

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
    """The uncompressed file, open for reading; errors while it is read are DataErrors that name the file.

    A file is compressed if its name ends in .gz; one that is not what its name says is damaged.
    """
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            yield cast(BinaryIO, file)
    except EOFError as error:
        raise DataError(f"{path}: the compressed file ends too early; fetch it again") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: not a valid gzip file ({error}); fetch it again") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error}); check that it is a file you may read") from error
