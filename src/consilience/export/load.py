"""Reads a trained model from its folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import get_args

import torch
from safetensors.torch import load
from torch import nn

from consilience.errors import CheckpointError, ConfigurationError
from consilience.export.card import OWN_ANSWER, WEIGHTS, ModelCard, read_card
from consilience.export.own_answer import OwnAnswer, own_answer
from consilience.files import file_sha256
from consilience.models import SplitModel, build_model, to_split_model, with_fields
from consilience.task import AnswerKind

NO_OWN_ANSWER = (
    "has no own answer: its method was trained without one; train with a method's objective=calibrated or "
    "own_head=true, or use the common answer"
)
"""After the thing that has none, in an error."""


def load_model(
    folder: str | Path, model: Callable[[], nn.Module] | None = None, *, answer: AnswerKind = "common"
) -> nn.Module:
    """The model of a folder that `consilience export` or `consilience join` wrote, ready to predict.

    It is a module of its own class, on the CPU and in evaluation mode. It takes inputs scaled as `model.json` says.
    model: the class or function that builds the module, where it was an object of your program and not a name or file.
    answer: "common", the model, for everybody's data; "own", an `OwnAnswer` around it, for data like the learner's own.

        >>> model = load_model("exported")  # doctest: +SKIP
        >>> logits = model(inputs)  # doctest: +SKIP
    """
    check_answer(answer)
    built, card = load_split_model(Path(folder), model)
    return built.original if answer == "common" else load_own_answer(Path(folder), built, card)


def check_answer(answer: str) -> None:
    """Refuse anything but one of the two answers."""
    if answer not in get_args(AnswerKind):
        raise ConfigurationError(f"answer is {answer!r}; it must be 'common' or 'own'")


def load_own_answer(folder: Path, model: SplitModel, card: ModelCard) -> OwnAnswer:
    """The own answer of a folder around its model; refused where the folder has none."""
    if not card.own_answer_sha256:
        raise ConfigurationError(f"the model of {folder} {NO_OWN_ANSWER}")
    file = folder / OWN_ANSWER
    if not file.is_file():
        raise ConfigurationError(
            f"{file} is not there: the folder was passed on without its learner's own answer; use the common answer"
        )
    _refuse_changed(file, card.own_answer_sha256)
    return own_answer(model, load(file.read_bytes()))


def load_split_model(folder: Path, model: Callable[[], nn.Module] | None = None) -> tuple[SplitModel, ModelCard]:
    """The model of a folder as features and classifier, and its card; changed files are refused."""
    card = read_card(folder)
    file = folder / WEIGHTS
    if not file.is_file():
        raise CheckpointError(f"{file} is missing; export the model again")
    _refuse_changed(file, card.weights_sha256)
    with torch.random.fork_rng(devices=[]):
        built = _build(folder, card, model).to(getattr(torch, card.dtype))
        fields = card.inputs.input_fields
        built = built if fields is None else with_fields(built, fields)
    try:
        built.original.load_state_dict(load(file.read_bytes()))
    except RuntimeError as error:
        raise CheckpointError(
            f"{folder}: the weights do not fit model {card.model!r}: {' '.join(str(error).split())}; build the model "
            f"as it was trained"
        ) from error
    built.original.eval()
    return built.eval(), card


def _refuse_changed(file: Path, sha256: str) -> None:
    if file_sha256(file) != sha256:
        raise CheckpointError(f"{file} has changed since it was written: its SHA-256 is not the one in model.json")


def _build(folder: Path, card: ModelCard, model: Callable[[], nn.Module] | None) -> SplitModel:
    if model is not None:
        return to_split_model(model())
    if card.source == "python":
        raise ConfigurationError(
            f"{folder}: the model {card.model!r} was an object of a Python program and cannot be built by its name; "
            f"give what builds it: load_model(folder, model={card.model})"
        )
    name = card.model
    if card.file is not None:
        own = folder / card.file.name
        if not own.is_file():
            raise CheckpointError(f"{own} is missing, and it defines the model; export the model again")
        if file_sha256(own) != card.file.sha256:
            raise CheckpointError(
                f"{own} has changed since the model was exported: its SHA-256 is not the one in model.json; restore "
                f"it, or export the model again"
            )
        name = f"{own.absolute()}:{card.model.rpartition(':')[2]}"
    arguments = card.arguments
    shape = tuple(arguments["shape"]) if card.inputs.fields is None else card.inputs.model_shape
    return build_model(name, shape, int(arguments["classes"]), arguments["width"])
