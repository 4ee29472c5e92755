"""Shakespeare's plays by role: every role with enough text is an owner; the label is the next character.

The text is the Moby Shakespeare. `speeches.jsonl.gz` has one JSON object per line, with "play", "speaker" and "text";
lines of verse end in "\\n". Text without a speaker has the speaker "", and belongs to no role.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from consilience.data.download import locate_file
from consilience.data.raw_dataset import RawDataset
from consilience.data.readers.compression import open_data_file
from consilience.data.readers.text import text_windows
from consilience.errors import DataError, first_sentence

FILE = "speeches.jsonl.gz"
LEAST = 10_000
"""Characters that a role must speak to be an owner, as in McMahan et al. (2017); ends of speeches do not count."""
LARGEST = 1 << 26
"""The most bytes that are read: ten times the plays."""

_KEYS = ("play", "speaker", "text")


def read_shakespeare(directory: Path | None, progress: bool) -> RawDataset:
    """All roles of at least LEAST characters: 133 of them, the last fifth of each for tests."""
    return read_roles(locate_file("shakespeare", FILE, directory, progress))


def read_roles(path: Path) -> RawDataset:
    """The data set in one file of speeches."""
    spoken: dict[str, list[str]] = {}
    characters: set[str] = set()
    for play, speaker, text in _speeches(path):
        characters.update(text)
        if speaker:
            spoken.setdefault(f"{speaker} in {play}", []).append(text)
    roles = {role: "\n".join(said) for role, said in spoken.items() if sum(map(len, said)) >= LEAST}
    if not roles:
        raise DataError(f"{path}: none of {len(spoken)} roles speaks {LEAST:,} characters; is it the right file?")
    alphabet = "".join(sorted(characters | {"\n"}))
    return text_windows(str(path), roles, alphabet=alphabet, source=f"speeches in {path}")


def _speeches(path: Path) -> Iterator[tuple[str, str, str]]:
    """Play, speaker and text of each speech, in order."""
    for number, line in enumerate(_content(path).splitlines(), 1):
        where = f"{path}, line {number}"
        try:
            speech = json.loads(line)
        except (ValueError, RecursionError) as error:  # bytes that are not UTF-8 among them
            raise DataError(f"{where}: not a JSON object ({first_sentence(error)}); fetch the file again") from error
        if not isinstance(speech, dict) or not all(isinstance(speech.get(key), str) for key in _KEYS):
            raise DataError(
                f"{where}: a speech has the keys {', '.join(_KEYS)}, each with text, got "
                f"{', '.join(map(repr, speech)) if isinstance(speech, dict) else type(speech).__name__}; "
                f"is it the right file?"
            )
        yield speech["play"], speech["speaker"], speech["text"]


def _content(path: Path) -> bytes:
    with open_data_file(path) as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise DataError(f"{path}: it holds more than {LARGEST} bytes; is it the right file?")
    return content
