"""`model.json`: what a model is, what it was trained on, and how well it does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from consilience.data import Dataset
from consilience.errors import CheckpointError, ConfigurationError
from consilience.input_fields import InputFields, InputShape
from consilience.task import SINGLE_LABEL, Target
from consilience.validation import describe_error

CARD, WEIGHTS, ONNX = "model.json", "model.safetensors", "model.onnx"
OWN_ANSWER, OWN_ONNX = "own_answer.safetensors", "own_answer.onnx"
FORMAT = 1
"""Of the folders that this version writes and reads."""
InputKind = Literal["image", "table", "text", "fields"]
ModelSource = Literal["built-in", "file", "python"]
"""Where a model's class comes from: this library, a file of the user's, or an object of a user's program."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class InputDescription(_Record):
    """What a model takes as input, and what it predicts: classes, labels or a number."""

    kind: InputKind
    shape: tuple[int, ...]
    classes: int
    labels: tuple[str, ...]
    alphabet: str = ""
    columns: tuple[str, ...] = ()
    """Names of a table's columns, in the order of the inputs."""
    fields: dict[str, Any] | None = None
    """Where an input is several arrays: the record of its `InputFields`, which a sample's row is packed of."""
    target: Target = SINGLE_LABEL
    """What is predicted of a sample."""
    scaling: dict[str, Any]
    """How values become inputs: the record of a `Scaling`."""

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> InputDescription:
        """From the record of a data set, as `describe_dataset` writes it."""
        kind: InputKind = "text" if record["alphabet"] else "image" if len(record["shape"]) == 3 else "table"
        known = {key: record[key] for key in cls.model_fields if key != "kind" and key in record}
        return cls(kind="fields" if known.get("fields") else kind, **known)

    @property
    def input_fields(self) -> InputFields | None:
        """The fields of an input that is several arrays."""
        return None if self.fields is None else InputFields.from_record(self.fields)

    @property
    def model_shape(self) -> InputShape:
        """The shape that the model is built for: of one input, or of its fields."""
        return self.shape if self.input_fields is None else self.input_fields.shape

    @property
    def class_names(self) -> list[str]:
        """The names of the classes or labels, or their numbers where they have none."""
        return list(self.labels) or [str(number) for number in range(self.classes)]


def describe_inputs(data: Dataset) -> InputDescription:
    """The inputs of a data set."""
    known = {key: getattr(data, key) for key in ("shape", "classes", "labels", "alphabet", "columns", "target")}
    fields = None if data.fields is None else data.fields.record()
    return InputDescription.of_record(known | {"fields": fields, "scaling": data.scaling.record()})


class ModelFile(_Record):
    """The user's file that defines the model."""

    name: str
    sha256: str


class ModelCard(_Record):
    """Everything about an exported model but its weights."""

    format: int = FORMAT
    consilience: str
    """The version of the library that wrote it."""
    model: str
    """A built-in model's name, FILE.py:NAME@LAYER with the file in the same folder, or the name of a Python object."""
    source: ModelSource
    file: ModelFile | None = None
    arguments: dict[str, Any]
    """What the model was built with: input shape, number of classes, and feature width where one was set."""
    feature_width: int
    parameters: int
    dtype: str
    weights_sha256: str = ""
    own_answer_sha256: str = ""
    """Of `own_answer.safetensors`, where the learner has an answer of its own for data like its own."""
    inputs: InputDescription
    trained: dict[str, Any] = Field(default_factory=dict)
    """How it was trained: method, data, learner, seed, round, and metrics."""


def read_card(folder: Path) -> ModelCard:
    """The card of an exported model; a folder without one, or with one of another version, is refused."""
    file = folder / CARD
    if not file.is_file():
        raise ConfigurationError(
            f"{folder} has no {CARD}: it is not an exported model; write one with: consilience export RUN --out FOLDER"
        )
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(content, dict) and content.get("format") != FORMAT:
            raise CheckpointError(
                f"{file} has format {content.get('format')!r}, and this version reads format {FORMAT}; export the "
                f"model again with this version"
            )
        return ModelCard.model_validate(content)
    except ValidationError as error:
        raise CheckpointError(f"{file} is damaged: {describe_error(error)}; export the model again") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}; export the model again") from error
