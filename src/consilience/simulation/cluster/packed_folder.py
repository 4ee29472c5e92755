"""A run folder as bytes, to be sent to another machine and back: machines need no disk in common."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from consilience.files import replace_file, report_write_errors
from consilience.simulation.records.run_folder import LOCK, RESULT

PackedFolder = Mapping[str, bytes]
"""The contents of files by their path inside the folder."""


def pack(folder: Path) -> PackedFolder:
    """The files of a folder; nothing where there is none."""
    files = (file for file in sorted(folder.rglob("*")) if file.is_file() and file.name != LOCK)
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def write_files(files: PackedFolder, folder: Path) -> None:
    """Write files into a folder; a result names the folder it is in now."""
    with report_write_errors(folder):
        for name, content in files.items():
            place = folder / name
            place.parent.mkdir(parents=True, exist_ok=True)
            replace_file(place, _moved_result(content, folder) if name == RESULT else content)


def unpack(files: PackedFolder, folder: Path) -> None:
    """Make the files of a folder these, and no others."""
    write_files(files, folder)
    with report_write_errors(folder):
        for name in pack(folder).keys() - files.keys():
            (folder / name).unlink(missing_ok=True)


def _moved_result(content: bytes, folder: Path) -> bytes:
    """The summary of a run, and of its variants, with the folder that it is in now."""
    summary = json.loads(content)
    for each in (summary, *summary.get("variants", ())):
        if each.get("run") is not None:
            each["run"] = str(folder)
    return json.dumps(summary, indent=1).encode()
