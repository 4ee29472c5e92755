"""Files with pairs of learners: links of a graph, or learners and their partners."""

from __future__ import annotations

from pathlib import Path

from consilience.errors import ConfigurationError


def read_pairs(key: str, file: str, learners: int) -> list[tuple[int, int]]:
    """The pairs of learners in a file, one in a line; empty lines and what follows a # do not count."""
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{key}: {file} cannot be read: {error}") from None
    found = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].replace(",", " ").split()
        if not words:
            continue
        if len(words) != 2 or not all(word.isdecimal() for word in words):
            raise ConfigurationError(f"{key}: {file}, line {number} is {line[:80]!r}; write two numbers of learners")
        pair = int(words[0]), int(words[1])
        if max(pair) >= learners:
            raise ConfigurationError(
                f"{key}: {file}, line {number} names learner {max(pair)}; there are learners 0 to {learners - 1}"
            )
        found.append(pair)
    return found
