"""The run folder: `config.toml`, `data.json`, `metrics.jsonl` and the newest checkpoint.

Files are replaced atomically: a new one is written beside the old, synced to disk, and renamed.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import safetensors
import tomli_w
from safetensors.numpy import load_file, save_file

from consilience.config.config import Config, read_config
from consilience.errors import CheckpointError, ConfigurationError, UnknownName
from consilience.files import MEMBER_FOLDER, file_sha256, readable_json, replace_file, report_write_errors, sync_file

_POINTER = "checkpoint.json"
_CHECKPOINT, _BEST = "checkpoint", "best"
RESULT = "result.json"
PROVENANCE = "data.json"
LOCK = ".lock"
Plan = TypeVar("Plan")


class RunFolder:
    """One run's folder on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, config: Config) -> RunFolder:
        """A new folder with the resolved configuration; a folder that already holds a run is refused."""
        refuse_used_folder(path)
        folder = cls(path)
        with report_write_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            folder._replace("config.toml", config.to_toml().encode())
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """An existing run's folder."""
        if not (path / "config.toml").is_file():
            raise wrong_folder_error("run folder", "config.toml", path)
        return cls(path)

    @property
    def config(self) -> Config:
        """The resolved configuration of the run; one of an older layout is refused."""
        file = self.path / "config.toml"
        with _refuse_other_layout(file, "run"):
            return read_config(file)

    # -- metrics -------------------------------------------------------------------------------------------------------

    @property
    def metrics(self) -> Path:
        """The file with the metrics."""
        return self.path / "metrics.jsonl"

    def lines(self) -> Iterator[str]:
        """The lines of metrics; bytes that are not UTF-8 are replaced, so that the reader refuses the line."""
        try:
            with self.metrics.open(encoding="utf-8", errors="replace") as file:
                yield from file
        except OSError as error:
            raise CheckpointError(f"{self.metrics} cannot be read: {error.strerror or error}") from error

    def append(self, lines: Iterable[str]) -> None:
        """Add lines of metrics."""
        with report_write_errors(self.metrics), self.metrics.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)

    def rewrite(self, lines: Iterable[str]) -> None:
        """Replace all lines of metrics."""
        with report_write_errors(self.metrics):
            self._replace("metrics.jsonl", "".join(f"{line}\n" for line in lines).encode())

    # -- the result ----------------------------------------------------------------------------------------------------

    @property
    def result(self) -> dict[str, Any] | None:
        """The summary of the run when it last finished or was stopped, or None."""
        file = self.path / RESULT
        if not file.exists():
            return None
        try:
            content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            if not isinstance(content, dict) or "finished" not in content:
                raise ValueError("it holds no result")
        except ValueError as error:
            raise CheckpointError(f"{file} is damaged: {error}") from error
        return content

    def save_result(self, summary: Mapping[str, Any]) -> None:
        """Save the summary of the run."""
        with report_write_errors(self.path / RESULT):
            self._replace(RESULT, json.dumps(summary, indent=1).encode())

    def save_provenance(self, found: Mapping[str, Any]) -> None:
        """Save the origin of the data and its split between learners."""
        with report_write_errors(self.path / PROVENANCE):
            self._replace(PROVENANCE, readable_json(found).encode())

    def delete_unstarted(self) -> None:
        """Delete what there is of a run that was refused before its first round; files of others stay."""
        with suppress(OSError):
            for name in ("config.toml", PROVENANCE, LOCK):
                (self.path / name).unlink(missing_ok=True)
            self.path.rmdir()

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def save(
        self,
        arrays: Mapping[str, np.ndarray],
        numbers: Mapping[str, Any],
        round_: int,
        best: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Save a checkpoint; the one before is removed only when this one is on disk.

        best: models of the best round so far, in a file of their own that belongs to the checkpoint.
        """
        contents = {_CHECKPOINT: arrays} | ({} if best is None else {_BEST: best})
        files = {kind: f"{kind}-{round_}.safetensors" for kind in contents}
        with report_write_errors(self.path / files[_CHECKPOINT]):
            digests = {kind: _write_beside(self.path / files[kind], content) for kind, content in contents.items()}
            sync_file(self.metrics)
            pointer = {
                "file": files[_CHECKPOINT],
                "sha256": digests[_CHECKPOINT],
                "config": file_sha256(self.path / "config.toml"),
                **numbers,
            }
            if best is not None:
                pointer["best"] = {"file": files[_BEST], "sha256": digests[_BEST]}
            for name in files.values():
                (self.path / f"{name}.new").replace(self.path / name)
            self._replace(_POINTER, json.dumps({"seal": _seal(pointer), **pointer}, indent=1).encode())
            for old in self._tensor_files():
                if old.name not in files.values():
                    old.unlink(missing_ok=True)

    def _tensor_files(self) -> list[Path]:
        return [file for kind in (_CHECKPOINT, _BEST) for file in self.path.glob(f"{kind}-*.safetensors")]

    def remove_checkpoints(self) -> None:
        """Remove the checkpoints of a finished run whose models are not needed."""
        with report_write_errors(self.path):
            (self.path / _POINTER).unlink(missing_ok=True)
            for old in self._tensor_files():
                old.unlink(missing_ok=True)

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint; `load` tells whether it is intact."""
        return (self.path / _POINTER).exists()

    def load(self) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
        """The newest checkpoint, or None if there is none; a damaged one is refused, and the error names its file."""
        found = self.newest()
        return None if found is None else (load_file(found[0]), found[1])

    def newest(self) -> tuple[Path, dict[str, Any]] | None:
        """The file of the newest checkpoint, and its numbers; checked as `load` does, but not read into memory."""
        pointer = self.path / _POINTER
        if not pointer.exists():
            return None
        try:
            numbers = json.loads(pointer.read_text(encoding="utf-8"))
            if numbers.pop("seal") != _seal(numbers):
                raise ValueError("its content has changed since it was written")
            file = self.path / Path(numbers["file"]).name
            expected, config = numbers["sha256"], numbers["config"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{pointer} is damaged: {error}") from error
        if file_sha256(self.path / "config.toml") != config:
            raise CheckpointError(
                f"{self.path / 'config.toml'} has changed since the run started; a run is resumed with its own settings"
            )
        _refuse_changed(file, expected)
        return file, numbers

    def best(self, numbers: Mapping[str, Any]) -> Path | None:
        """The file with the models of the best round, None where there is none; numbers: of the checkpoint."""
        if "best" not in numbers:
            return None
        file = self.path / Path(numbers["best"]["file"]).name
        _refuse_changed(file, numbers["best"]["sha256"])
        return file

    def _replace(self, name: str, content: bytes) -> None:
        replace_file(self.path / name, content)


_KINDS = {"config.toml": ("run", "run"), "comparison.toml": ("comparison", "compare"), "sweep.toml": ("sweep", "sweep")}
"""What a folder is, by the file that says so, and the command that resumes it."""


def kind_of(path: Path) -> tuple[str, str] | None:
    """What a folder holds and the command for it, or None if it holds no run, comparison or sweep."""
    return next((kind for file, kind in _KINDS.items() if (path / file).is_file()), None)


def refuse_used_folder(path: Path) -> None:
    """Refuse to start in a folder that already holds a run, a comparison or a sweep, and in a file."""
    refuse_file(path)
    if (kind := kind_of(path)) is not None:
        raise used_folder_error(path, kind[0])


def refuse_file(path: Path) -> None:
    """Refuse a file in the place of a run's folder."""
    if path.is_file():
        raise ConfigurationError(f"{path} is a file, and a run is saved in a folder; choose another name")


def used_folder_error(path: Path, what: str) -> ConfigurationError:
    """The error for a folder that cannot be started in, since it holds a run, a comparison or a sweep."""
    return ConfigurationError(
        f"{path} already holds a {what}; resume it with {resume_command(path)}, or choose another folder"
    )


def wrong_folder_error(wanted: str, file: str, path: Path) -> ConfigurationError:
    """The error for a folder that holds something else."""
    kind = kind_of(path)
    missing = f"it has no {file}" if path.is_dir() else "there is no such folder"
    hint = f"it is a {kind[0]}: consilience {kind[1]} --resume {path}" if kind else missing
    return ConfigurationError(f"{path} is not a {wanted}: {hint}")


def resume_command(folder: Path) -> str:
    """The command that resumes a run, a comparison or a sweep, or what resumes a member of a federation."""
    if (folder / MEMBER_FOLDER).is_dir():
        return "the `consilience join` command that started it"
    _, command = kind_of(folder) or ("run", "run")
    return f"consilience {command} --resume {folder}"


def new_folder(config: Config, what: str) -> Path:
    """A folder under `runs/` that does not exist yet."""
    name = re.sub(r"[^\w.+-]+", "-", what)
    base = Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{config.data_name}-{name}"
    tries = [base, *(base.with_name(f"{base.name}-{i}") for i in range(2, 1000))]
    return next(path for path in tries if not path.exists())


def save_plan(path: Path, kind: str, content: Mapping[str, Any]) -> None:
    """Create the folder of a comparison or a sweep, and save its plan."""
    with report_write_errors(path):
        path.mkdir(parents=True, exist_ok=True)
        replace_file(path / f"{kind}.toml", tomli_w.dumps(content).encode())


def read_plan(path: Path, kind: str, make: Callable[[dict[str, Any]], Plan]) -> Plan:
    """The plan in a folder, built by `make`; a damaged one is refused, and the error names its file."""
    plan = path / f"{kind}.toml"
    if not plan.is_file():
        raise wrong_folder_error(kind, plan.name, path)
    try:
        with _refuse_other_layout(plan, kind):
            return make(tomllib.loads(plan.read_text(encoding="utf-8")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise CheckpointError(f"{plan} is damaged: {error}") from error


@contextmanager
def _refuse_other_layout(file: Path, kind: str) -> Iterator[None]:
    """Say that a file with an unknown setting is of another version; kind: what is in its folder."""
    try:
        yield
    except UnknownName as error:
        if error.kind != "setting":
            raise
        raise CheckpointError(
            f"{file} has the layout of another version of consilience, with the setting {error.name!r}; start the "
            f"{kind} again in a new folder"
        ) from error


def _seal(numbers: Mapping[str, Any]) -> str:
    """A digest of the numbers, by which a changed one is noticed."""
    return hashlib.sha256(json.dumps(numbers, sort_keys=True).encode()).hexdigest()


def _write_beside(path: Path, arrays: Mapping[str, np.ndarray]) -> str:
    """Write arrays beside the file of that path, with the suffix .new, and return their SHA-256."""
    fresh = path.with_name(f"{path.name}.new")
    try:
        save_file({k: np.asarray(v, order="C") for k, v in arrays.items()}, fresh)
    except safetensors.SafetensorError as error:  # it hides the OSError of a full disk
        fresh.unlink(missing_ok=True)
        raise OSError(None, str(error)) from error
    sync_file(fresh)
    return file_sha256(fresh)


def _refuse_changed(file: Path, expected: str) -> None:
    """Refuse a file that is missing or not the one that was written."""
    if not file.is_file():
        raise CheckpointError(f"{file} is missing, though {_POINTER} names it")
    if file_sha256(file) != expected:
        raise CheckpointError(f"{file} is damaged: its SHA-256 is not the one {_POINTER} recorded")
