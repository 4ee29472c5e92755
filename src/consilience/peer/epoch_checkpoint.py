"""The peer's part of a trainer's checkpoint, as a file of its own where the trainer has no place for it.

CHECKPOINT/consilience.safetensors    the modules that the optimizer trains, and in the metadata whose they are
"""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from consilience.errors import CheckpointError
from consilience.files import replace_file, report_write_errors
from consilience.peer.federated_epochs import FederatedEpochs

FILE = "consilience.safetensors"


def write_checkpoint(folder: Path, epochs: FederatedEpochs) -> None:
    """Write the peer's part into a checkpoint's folder."""
    state = epochs.state()
    owner = {key: state[key] for key in ("federation", "member")}
    tensors = {f"{name}/{key}": t.contiguous() for name, held in state["modules"].items() for key, t in held.items()}
    with report_write_errors(folder, "choose another output_dir"):
        replace_file(folder / FILE, save(tensors, owner))


def read_checkpoint(folder: Path, epochs: FederatedEpochs) -> None:
    """Give the peer the values of a checkpoint's folder; another member's are refused."""
    file = folder / FILE
    if not file.is_file():
        if epochs.peer.parameters():
            raise CheckpointError(
                f"{file} is not there, and the optimizer trains modules of the peer; the checkpoint was made without "
                f"it: load its model, and train without resume_from_checkpoint"
            )
        return
    modules: dict[str, dict[str, object]] = {name: {} for name in epochs.state()["modules"]}
    try:
        with safe_open(file, framework="pt") as opened:
            owner = opened.metadata() or {}
            for name in opened.keys():  # noqa: SIM118  # it is no mapping
                module, _, key = name.partition("/")
                modules.setdefault(module, {})[key] = opened.get_tensor(name)
    except SafetensorError as error:
        raise CheckpointError(f"{file} is damaged: {error}; resume from another checkpoint") from error
    epochs.load_state({**owner, "modules": modules}, str(file))
