"""A member's state on disk: one small index, and one file per large part, written only when that part is new.

    peer/state.json    round, versions, pending upload, and the name of each part's file
    peer/receipts.jsonl every receipt with the relay's signature, one line each, to prove later what was acknowledged
    peer/SHA256        one answer, residual, upload or charter, or what is private; named by the SHA-256 of its content

A save writes the parts that are new, then replaces the index, which commits all of them at once, and then deletes files
that the index no longer names. A process that is killed at any point leaves the index of before or after the save.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from safetensors.numpy import load, save

from consilience.channels import Answer
from consilience.errors import CheckpointError, ConfigurationError
from consilience.files import MEMBER_FOLDER, lock_file, replace_file, report_write_errors, unlock_file
from consilience.peer.state import Arrays, PeerState, PendingUpload
from consilience.wire.charter import Charter, read_charter
from consilience.wire.headers import Part

LAYOUT = 3
"""The number of this layout. 1 was one file, `peer.safetensors`; in 2 names of tensors were in the pending body."""
_INDEX, _RECEIPTS, _LOCK = "state.json", "receipts.jsonl", "lock"
_OURS = re.compile(r"([0-9a-f]{64}|state\.json)(\.new)?")
_FIRST_LAYOUT = "peer.safetensors"


@dataclass(frozen=True)
class Identity:
    """Who a member is: its federation's charter, its number and its name there."""

    charter: Charter
    number: int
    name: str


class StateFolder:
    """Saves and loads the state of one member; a folder of None saves nothing."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._lock: IO[bytes] | None = None
        self._created = False
        self._receipt: dict[str, Any] = {}
        """The receipt that was saved last."""
        self._files: dict[int, tuple[Any, str]] = {}
        """Parts that are on disk, by `id`, with their file's name; holding a part keeps its `id` its own."""

    @property
    def path(self) -> Path:
        """Where the state is."""
        assert self.folder is not None
        return self.folder / MEMBER_FOLDER

    # -- locking -----------------------------------------------------------------------------------------------------

    def lock(self) -> None:
        """Be the only one that uses the folder, until `unlock` or the end of the process.

        Two would save over each other's state, and upload different bytes under the number of one round.
        """
        if self.folder is None:
            return
        self._created = not self.folder.exists()
        with report_write_errors(self.folder, "choose another folder"):
            self._lock = lock_file(
                self.folder / _LOCK,
                f"{self.folder} is used already, by another process or by another peer of this process, and a member "
                f"has one at a time; stop that process, or close that peer, peer.close(), first. A launcher such as "
                f"torchrun, or a trainer on several devices, starts several processes: use one. For another member, "
                f"choose another folder: consilience.join(..., folder=...), or consilience join --out FOLDER",
            )

    def unlock(self) -> None:
        """Let others use the folder; a new one in which nothing was saved, as after a refused token, is removed."""
        if self._lock is None or self.folder is None:
            return
        if self._created and not self.path.exists():
            with contextlib.suppress(OSError):  # something else is in it, or it is gone
                (self.folder / _LOCK).unlink()
                self.folder.rmdir()
        unlock_file(self._lock)
        self._lock = None

    # -- saving ------------------------------------------------------------------------------------------------------

    def save(self, identity: Identity, state: PeerState) -> None:
        """Write what is new since the last save, all of it or nothing."""
        if self.folder is None:
            return
        files: dict[int, tuple[Any, str]] = {}
        with report_write_errors(self.path, "choose another folder"):
            self.path.mkdir(parents=True, exist_ok=True)
            self._keep_receipt(state.receipt)
            index = self._index(identity, state, files)
            text = json.dumps(index, indent=1)
            replace_file(self.path / _INDEX, f"{text}\n{_sha256(text.encode())}\n".encode())
            self._files = files
            self._delete_unused()

    def _index(self, identity: Identity, state: PeerState, files: dict[int, tuple[Any, str]]) -> dict[str, Any]:
        """The content of the index; parts that are not on disk yet are written on the way."""

        def stored(part: Any) -> str:
            return self._store(part, files)

        def all_stored(parts: dict[str, Arrays]) -> dict[str, str]:
            return {name: stored(arrays) for name, arrays in parts.items()}

        pending = state.pending
        return {
            "layout": LAYOUT,
            "charter": stored(identity.charter),
            "number": identity.number,
            "name": identity.name,
            "round": state.round,
            "awaiting": state.awaiting,
            "answers": {name: {"file": stored(a), "version": a.version} for name, a in state.answers.items()},
            "residuals": all_stored(state.residuals),
            "private": stored(state.private) if state.private else None,
            "receipt": state.receipt,
            "spent": state.spent,
            "pending": pending
            and {
                "round": pending.round,
                "may_have_arrived": pending.may_have_arrived,
                "was_sent": pending.was_sent,
                "parts": {name: vars(part) for name, part in pending.parts.items()},
                "body": stored(pending.body),
                "residuals_if_accepted": all_stored(pending.residuals_if_accepted),
                "residuals_if_refused": all_stored(pending.residuals_if_refused),
            },
        }

    def _keep_receipt(self, receipt: dict[str, Any]) -> None:
        if receipt.get("signature") and receipt != self._receipt:
            with (self.path / _RECEIPTS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(receipt) + "\n")
        self._receipt = receipt

    def _store(self, part: Any, files: dict[int, tuple[Any, str]]) -> str:
        """Write a part, unless it is on disk; its file's name."""
        known = self._files.get(id(part)) or files.get(id(part))
        if known is None:
            content = _encode(part)
            known = part, _sha256(content)
            if not (self.path / known[1]).exists():
                replace_file(self.path / known[1], content)
        files[id(part)] = known
        return known[1]

    def _delete_unused(self) -> None:
        used = {name for _, name in self._files.values()} | {_INDEX}
        for file in self.path.iterdir():
            if file.name not in used and _OURS.fullmatch(file.name):
                file.unlink()

    # -- loading -----------------------------------------------------------------------------------------------------

    def load(self) -> tuple[Identity, PeerState] | None:
        """What was saved last; None where nothing was."""
        if self.folder is None:
            return None
        if not (self.path / _INDEX).exists():
            self._refuse_first_layout()
            return None
        try:
            index = self._read_index()
            charter = self._part(read_charter(self._read(index["charter"]).decode(), "its charter"), index["charter"])
            identity = Identity(charter, int(index["number"]), str(index["name"]))
            state = self._read_state(index)
            self._receipt = state.receipt
            return identity, state
        except (OSError, ValueError, KeyError, TypeError, ConfigurationError) as error:
            raise CheckpointError(
                f"{self.path} is damaged: {error}; delete that folder to start again from what the relay has"
            ) from error

    def _refuse_first_layout(self) -> None:
        assert self.folder is not None
        file = self.folder / _FIRST_LAYOUT
        if file.exists():
            raise CheckpointError(
                f"{file} is a state of layout 1, and this version reads layout {LAYOUT}; continue with the version "
                f"that wrote it, or delete the file to start again from what the relay has"
            )

    def _read_index(self) -> dict[str, Any]:
        text, _, seal = (self.path / _INDEX).read_text(encoding="utf-8").rstrip("\n").rpartition("\n")
        if seal != _sha256(text.encode()):
            raise ValueError(f"{_INDEX} is not what was written")
        index: dict[str, Any] = json.loads(text)
        if index["layout"] != LAYOUT:
            raise CheckpointError(
                f"{self.path} is a state of layout {index['layout']}, and this version reads layout {LAYOUT}; continue "
                f"with the version that wrote it, or delete that folder to start again from what the relay has"
            )
        return index

    def _read_state(self, index: dict[str, Any]) -> PeerState:
        answers = {}
        for name, saved in index["answers"].items():
            arrays = load(self._read(saved["file"]))
            tensors = {k.removeprefix("tensors."): v for k, v in arrays.items() if k != "count"}
            answers[name] = self._part(Answer(tensors, arrays["count"], int(saved["version"])), saved["file"])
        private = index.get("private")
        return PeerState(
            int(index["round"]),
            answers,
            dict(index["awaiting"]),
            self._read_residuals(index["residuals"]),
            None if index["pending"] is None else self._read_pending(index["pending"]),
            {} if private is None else self._part(load(self._read(private)), private),
            dict(index.get("receipt", {})),
            {key: int(index.get("spent", {}).get(key, 0)) for key in PeerState().spent},
        )

    def _read_pending(self, saved: dict[str, Any]) -> PendingUpload:
        return PendingUpload(
            int(saved["round"]),
            {name: Part(**part) for name, part in saved["parts"].items()},
            self._part(self._read(saved["body"]), saved["body"]),
            self._read_residuals(saved["residuals_if_accepted"]),
            self._read_residuals(saved["residuals_if_refused"]),
            bool(saved["may_have_arrived"]),
            bool(saved.get("was_sent", True)),
        )

    def _read_residuals(self, saved: dict[str, str]) -> dict[str, Arrays]:
        return {name: self._part(load(self._read(file)), file) for name, file in saved.items()}

    def _read(self, file: str) -> bytes:
        content = (self.path / file).read_bytes()
        if _sha256(content) != file:
            raise ValueError(f"{file} is not what was written")
        return content

    def _part(self, part: Any, file: str) -> Any:
        """Remember that a part is on disk."""
        self._files[id(part)] = part, file
        return part


def _encode(part: Answer | Arrays | Charter | bytes) -> bytes:
    if isinstance(part, bytes):
        return part
    if isinstance(part, Charter):
        return part.to_toml().encode()
    arrays = part if isinstance(part, dict) else {f"tensors.{k}": t for k, t in part.tensors.items()}
    if isinstance(part, Answer):
        arrays = {**arrays, "count": part.count}
    return save({k: np.asarray(v, order="C") for k, v in arrays.items()})


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
