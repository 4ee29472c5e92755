"""The settings of a run: one flat table and the method's own, checked when made, written as TOML."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from consilience.errors import ConfigurationError, DataError, UnknownName

MODEL_OF = {"digits": "mlp", "mnist": "lenet5", "fashion-mnist": "resnet9"}
"""The model a data set is published with, where none is asked for."""


class MethodConfig(BaseModel):
    """A method's name and its own settings, checked by the method itself."""

    model_config = ConfigDict(frozen=True, extra="allow")
    name: str = "consilience"

    @property
    def settings(self) -> dict[str, Any]:
        """All but the name."""
        return dict(self.__pydantic_extra__ or {})


class Config(BaseModel):
    """Everything that decides what a run computes, and how it is run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    data: str = Field("digits", description="data set: digits, mnist, fashion-mnist")
    data_dir: str | None = Field(None, description="folder with the data files")
    train: int | None = Field(None, ge=1, description="take the first so many training samples")
    test: int | None = Field(None, ge=1, description="take the first so many test samples")
    learners: int = Field(5, ge=1, description="number of data owners")
    partition: str = Field("iid", description="iid, or dirichlet(ALPHA)")
    model: str | None = Field(None, description="lenet5, resnet9, mlp; by default what suits the data")
    method: MethodConfig = Field(default_factory=MethodConfig)
    rounds: int = Field(50, ge=1, description="communication rounds")
    epochs: int = Field(1, ge=1, description="passes over the local data in a round")
    batch_size: int = Field(32, ge=1, description="samples in a mini-batch")
    optimiser: str = Field("adam", description="adam or sgd")
    optimiser_state: Literal["keep", "reset"] = Field(
        "keep", description="of the optimiser between rounds: keep or reset"
    )
    lr: float = Field(1e-3, gt=0, description="learning rate")
    momentum: float = Field(0.0, ge=0, lt=1, description="of sgd")
    weight_decay: float = Field(0.0, ge=0, description="pull of all weights towards 0")
    participation: float = Field(1.0, gt=0, le=1, description="share of learners that take part in a round")
    offline: float = Field(0.0, ge=0, le=1, description="chance that a learner cannot be reached in a round")
    seed: int = Field(0, ge=0, le=2**53, description="the first seed")
    seeds: int = Field(1, ge=1, description="how many seeds to run")
    eval_every: int = Field(1, ge=1, description="test every so many rounds, and after the last")
    engine: Literal["auto", "loop", "stack"] = Field(
        "auto", description="how learners are run: loop, one after the other; stack, all in one step; or auto"
    )
    device: str = Field("cpu", description="cpu or cuda")
    workers: int | None = Field(None, ge=0, description="worker processes of the loop; by default one a core")
    precision: Literal["float32", "bf16", "float64"] = Field(
        "float32", description="of the model's arithmetic: float32, bf16 (weights stay float32) or float64"
    )
    variants: tuple[dict[str, Any], ...] = Field(
        (), description="settings in which federations of one run differ, as a sweep writes them"
    )
    deterministic: bool = Field(
        False,
        description="on a GPU, the same bits every time, somewhat slower; torch warns where it has no such operation",
    )

    @field_validator("lr")
    @classmethod
    def _finite(cls, value: float) -> float:
        if value != value or value in (float("inf"), float("-inf")):
            raise ValueError("must be finite")
        return value

    @property
    def model_name(self) -> str:
        """The model asked for, or the one that suits the data."""
        return self.model or MODEL_OF.get(self.data, "mlp")

    def variant(self, number: int) -> Config:
        """The configuration of one of the variants alone."""
        given = self.model_dump(exclude_none=True, exclude={"variants"})
        for key, value in self.variants[number].items():
            place(given, key, value)
        return make_config(given)

    def to_toml(self) -> str:
        """The file that alone reproduces the run."""
        return tomli_w.dumps(self.model_dump(exclude_none=True))


def make_config(settings: Mapping[str, Any]) -> Config:
    """Settings as a Config; an unknown key is refused with the nearest known one."""
    known = Config.model_fields
    for key in settings:
        if key not in known:
            raise UnknownName("setting", key, known)
    try:
        return Config(**settings)
    except ValidationError as error:
        raise ConfigurationError("; ".join(_in_words(e) for e in error.errors())) from None


def _in_words(error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"]) or "settings"
    allowed = {key: value for key, value in error.get("ctx", {}).items() if key != "error"}
    words = {
        "greater_than_equal": "it must be {ge} or more",
        "greater_than": "it must be more than {gt}",
        "less_than_equal": "it must be {le} or less",
        "less_than": "it must be less than {lt}",
        "int_parsing": "it must be a whole number",
        "int_type": "it must be a whole number",
        "int_from_float": "it must be a whole number",
        "float_parsing": "it must be a number",
        "float_type": "it must be a number",
        "literal_error": "it must be {expected}",
        "string_type": "it must be a word",
        "model_type": 'it must be a table with a name, such as method = {{ name = "fedavg" }}',
    }
    said = words[error["type"]].format(**allowed) if error["type"] in words else error["msg"].lower()
    return f"{where} is {error['input']!r}; {said}"


def read_config(path: Path) -> Config:
    """A Config from a TOML file."""
    try:
        return make_config(tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: no such file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise DataError(f"{path}: not a readable TOML file: {error}") from error


def method_table(text: str) -> dict[str, Any]:
    """A method given as NAME or NAME:KEY=VALUE:KEY=VALUE, as the table it stands for."""
    name, *given = text.split(":")
    table: dict[str, Any] = {}
    for setting in given:
        override(table, setting)
    if "name" in table:
        raise ConfigurationError(f"{text!r} names the method twice")
    return {**table, "name": name}


def override(settings: dict[str, Any], text: str) -> None:
    """Apply `a.b=value` to nested settings; the value is read as TOML, or taken as a word."""
    key, value = setting_of(text)
    place(settings, key, parsed(value))


def setting_of(text: str) -> tuple[str, str]:
    """Key and value of `a.b=value`."""
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise ConfigurationError(f"{text!r} is no setting; write KEY=VALUE, such as method.kd=3")
    return key.strip(), value.strip()


def parsed(value: str) -> Any:
    """A value as TOML has it, or a word."""
    try:
        return tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return value


def place(settings: dict[str, Any], key: str, value: Any) -> None:
    """Put a value at `a.b` in nested settings."""
    *folders, name = key.split(".")
    for folder in folders:
        settings = settings.setdefault(folder, {})
        if not isinstance(settings, dict):
            raise ConfigurationError(f"{key!r}: {folder!r} has no keys of its own")
    settings[name] = value
