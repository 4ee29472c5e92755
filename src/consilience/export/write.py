"""Writes a trained model into a folder."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

import consilience
from consilience.errors import ConfigurationError
from consilience.export.card import (
    CARD,
    ONNX,
    OWN_ANSWER,
    OWN_ONNX,
    WEIGHTS,
    InputDescription,
    ModelCard,
    ModelFile,
    ModelSource,
)
from consilience.export.onnx_file import onnx_model
from consilience.export.own_answer import OwnAnswer
from consilience.files import readable_json, replace_file, report_write_errors
from consilience.models import SplitModel, is_model_file
from consilience.user_code import file_digest, imported_siblings, read_file, short_name, split_file_name

log = logging.getLogger("consilience")


def make_card(
    model: SplitModel, name: str, named: bool, inputs: InputDescription, width: int | None, trained: dict[str, Any]
) -> ModelCard:
    """The card of a model; named: whether it can be built by its name, a built-in one or one of a file."""
    file = split_file_name(name)[0] if named and is_model_file(name) else None
    source: ModelSource = "file" if file is not None else "built-in" if named else "python"
    return ModelCard(
        consilience=consilience.__version__,
        model=short_name(name) if file is not None else name,
        source=source,
        file=None if file is None else ModelFile(name=file.name, sha256=file_digest(file)),
        arguments={"shape": list(inputs.shape), "classes": inputs.classes, "width": width},
        feature_width=model.width,
        parameters=sum(p.numel() for p in model.original.parameters()),
        dtype=str(next(model.parameters()).dtype).removeprefix("torch."),
        inputs=inputs,
        trained=trained,
    )


def write_model(
    folder: Path, model: SplitModel, card: ModelCard, name: str, own: OwnAnswer | None = None, *, onnx: bool = False
) -> None:
    """Write the model and its card, and the learner's own answer where it has one, in files of its own.

    name: of the model, with its file's path; onnx: write `model.onnx`, and `own_answer.onnx`, as well. A folder that
    holds something else is refused; an earlier export in it is replaced.
    """
    refuse_other_content(folder)
    written = {WEIGHTS: save(state_tensors(model.original))}
    if own is not None:
        written[OWN_ANSWER] = save(own.private_tensors())
    digests = {file: hashlib.sha256(content).hexdigest() for file, content in written.items()}
    card = card.model_copy(
        update={"weights_sha256": digests[WEIGHTS], "own_answer_sha256": digests.get(OWN_ANSWER, "")}
    )
    if onnx:
        written[ONNX] = onnx_model(model.original, card.inputs)
    if onnx and own is not None:
        written[OWN_ONNX] = onnx_model(own, card.inputs)
    source = None if card.file is None else read_file(split_file_name(name)[0], "")
    if card.file is not None and (others := imported_siblings(split_file_name(name)[0])):
        log.warning("%s imports %s of its folder; copy that into %s as well", card.file.name, ", ".join(others), folder)
    with report_write_errors(folder, "choose another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        for file in {ONNX, OWN_ANSWER, OWN_ONNX} - written.keys():  # of an earlier export, with other weights
            (folder / file).unlink(missing_ok=True)
        for file, content in written.items():
            replace_file(folder / file, content)
        if source is not None and card.file is not None:
            replace_file(folder / card.file.name, source)
        replace_file(folder / CARD, f"{readable_json(card.model_dump())}\n".encode())


def refuse_other_content(folder: Path) -> None:
    """Refuse a folder that holds files but no exported model, so that nothing of the user's is overwritten."""
    if folder.is_dir() and not (folder / CARD).exists() and any(folder.iterdir()):
        raise ConfigurationError(f"{folder} is not empty and holds no exported model; choose another folder")


def state_tensors(module: nn.Module) -> dict[str, Tensor]:
    """The state dictionary on the CPU, each tensor with memory of its own, as safetensors needs it."""
    state: dict[str, Any] = module.state_dict()
    for name, tensor in state.items():
        if not isinstance(tensor, Tensor):
            raise ConfigurationError(
                f"{type(module).__name__} keeps {name!r} in its state dictionary, which is no tensor; leave it out, as "
                f"safetensors holds tensors only"
            )
    return {
        name: tensor.detach().to("cpu", copy=True).contiguous(memory_format=torch.contiguous_format)
        for name, tensor in state.items()
    }
