"""Files of results in a run's folder: read strictly, and named where they are damaged."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from consilience.errors import CheckpointError

Found = TypeVar("Found")


def read_bytes(file: Path) -> bytes | None:
    """The content of a file; None if there is none."""
    if not file.is_file():
        return None
    try:
        return file.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror or error}") from error


def parse_result(reader: TypeAdapter[Found], file: Path, content: bytes, again: str) -> Found:
    """The result in a file; a damaged one is an error. again: how to measure it again."""
    try:
        return reader.validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise CheckpointError(f"{file} is damaged: {where and f'{where}: '}{first['msg']}; {again}") from error
