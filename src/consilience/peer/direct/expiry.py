"""When the contribution of a member that has vanished ends: counted in the rounds of the member that aggregates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from consilience.files import replace_file


class FirstUsed:
    """In which round of this member each message counted first: by that, contributions expire as at a relay.

    folder: where it is saved; None where nothing expires.
    """

    def __init__(self, folder: Path | None) -> None:
        self._file = folder / "first-used.json" if folder is not None else None
        self._known: dict[str, list[int]] = {}
        if self._file is not None and self._file.exists():
            self._known = _read(self._file)

    def since(self, channel: str, rounds: Mapping[str, int], now: int) -> dict[str, int]:
        """For each member, the round of this one since which its message counts; now: this member's round."""
        before = dict(self._known)
        for name, round_ in rounds.items():
            key = f"{channel} {name}"
            if key not in self._known or self._known[key][0] != round_:
                self._known[key] = [round_, now]
        if self._file is not None and before != self._known:
            replace_file(self._file, json.dumps(self._known).encode())
        return {name: self._known[f"{channel} {name}"][1] for name in rounds}


def _read(file: Path) -> dict[str, list[int]]:
    """What was saved; nothing where the file is damaged, so that contributions count a while longer."""
    try:
        return {str(key): [int(number) for number in pair] for key, pair in json.loads(file.read_bytes()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
