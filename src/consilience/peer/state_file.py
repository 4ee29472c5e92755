"""One file that holds all a member needs to go on: written whole or not at all, and known to be what was written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from consilience.files import replace_file, report_write_errors


def keep(file: Path, numbers: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Write it, with a digest by which damage is noticed."""
    text, plain = json.dumps(numbers), {k: np.asarray(v, order="C") for k, v in arrays.items()}
    content = save(plain, {"peer": text, "seal": _seal(text, plain)})
    with report_write_errors(file, "choose another folder"):
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, content)


def kept(file: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What `keep` wrote; a ValueError where it is something else."""
    try:
        with safe_open(file, framework="numpy") as opened:
            told = opened.metadata() or {}
            arrays = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118  # it is no mapping
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    if told["seal"] != _seal(told["peer"], arrays):
        raise ValueError("it is not what was written")
    numbers: dict[str, Any] = json.loads(told["peer"])
    return numbers, arrays


def _seal(text: str, arrays: Mapping[str, np.ndarray]) -> str:
    made = hashlib.sha256(text.encode())
    for key in sorted(arrays):
        made.update(f"{key} {arrays[key].dtype} {arrays[key].shape}".encode())
        made.update(arrays[key].tobytes())
    return made.hexdigest()
