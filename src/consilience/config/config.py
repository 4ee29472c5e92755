"""The settings of a run: one flat table and the method's own, checked when made, written as TOML."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from consilience.config.groups import GroupConfig, Rate
from consilience.config.schedules import Schedule
from consilience.errors import ConfigurationError, DataError, UnknownName
from consilience.validation import describe_error

__all__ = ["MODEL_OF", "Config", "GroupConfig", "MethodConfig", "make_config", "read_config"]

MODEL_OF = {
    "digits": "mlp",
    "mnist": "lenet5",
    "fashion-mnist": "resnet9",
    "cifar10": "resnet18",
    "shakespeare": "lstm",
}
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

    data: str = Field(
        "digits",
        description="digits, mnist, fashion-mnist, cifar10, shakespeare; an .npz file; a folder of images, one a class",
    )
    data_dir: str | None = Field(None, description="folder with the files of a data set that goes by a name")
    train: int | None = Field(
        None, ge=1, description="take the first so many training samples; of all owners, where samples have some"
    )
    test: int | None = Field(
        None, ge=1, description="take the first so many test samples; of all owners, where samples have some"
    )
    test_share: float = Field(
        0.2, gt=0, lt=1, description="share of the samples kept for tests, where data comes without"
    )
    image_size: int | None = Field(None, ge=1, description="make the images of a folder so many pixels wide and high")
    image_mode: Literal["gray", "color"] | None = Field(None, description="make the images of a folder gray or color")
    learners: int = Field(5, ge=1, description="number of data owners")
    partition: str = Field(
        "iid",
        description="who gets what: iid, dirichlet(ALPHA), shards(K), quantity(ALPHA), shares(A, B, ...) or owners",
    )
    shift: str = Field(
        "none",
        description="how learners' data differ beyond that: rotate(DEGREES), contrast(FACTOR), noise(SD), "
        "label-noise(P), swap(P), relabel(P), prefer(P), ambiguous, joined by +",
    )
    public: int | None = Field(
        None,
        ge=1,
        description="let learner 0 have so many samples, drawn from all, for a method that works on a public set; by "
        "default it has what the partition deals it",
    )
    model: str | None = Field(
        None,
        description="lenet5, mlp, resnet9, resnet18, encoder18, encoder50, cnn, cnn5, device-cnn, lstm, device-lstm, "
        "or FILE.py:FUNCTION; one for all or, separated by commas, one for each learner; by default what suits the "
        "data",
    )
    width: int | None = Field(None, ge=1, description="feature width d'; by default the model's own")
    method: MethodConfig = Field(default_factory=MethodConfig, description="the method's name and its own settings")
    rounds: int = Field(50, ge=1, description="communication rounds")
    epochs: int = Field(1, ge=1, description="passes over the local data in a round")
    total_epochs: int | None = Field(
        None, ge=1, description="passes over the local data in all rounds; epochs is then this by the number of rounds"
    )
    batch_size: int = Field(32, ge=1, description="samples in a mini-batch")
    optimizer: str = Field("adam", description="adam or sgd")
    optimizer_state: Literal["keep", "reset"] = Field(
        "keep", description="of the optimizer between rounds: keep or reset"
    )
    lr: Rate = Field(1e-3, description="learning rate, or a schedule of it such as 'cosine(0.001, 0, 100)'")
    momentum: float = Field(0.0, ge=0, lt=1, description="of sgd")
    weight_decay: float = Field(0.0, ge=0, description="pull of all weights toward 0")
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
    precision: Literal["auto", "float32", "bf16", "float64"] = Field(
        "auto",
        description="of the model's arithmetic: float32, bf16 (weights stay float32) or float64; auto is float32, but "
        "bf16 on a GPU where learners learn without labels",
    )
    probe: Literal["auto", "none", "linear", "scaled", "knn", "both"] = Field(
        "auto",
        description="test representations by a classifier trained on them: linear as published, scaled (linear, each "
        "feature brought to deviation 1 first), knn (the nearest training samples), both (linear and knn) or none; "
        "auto is scaled and knn where learners learn without labels",
    )
    ensemble: Literal["auto", "on", "off"] = Field(
        "auto",
        description="test the mean of all learners' logits, too, as a device that is new would ask them all: on, off, "
        "or auto, which is on where a part of the model is private and the rest is common",
    )
    watch: str | None = Field(
        None,
        description="a layer whose distance correlation with the inputs is measured wherever models are tested: a "
        "module's name such as features.conv1, features, or cut",
    )
    groups: dict[str, GroupConfig] = Field(
        default_factory=dict, description="learners with terms of their own, by a name you choose"
    )
    variants: tuple[dict[str, Any], ...] = Field(
        (), description="settings in which federations of one run differ, as a sweep writes them"
    )
    deterministic: bool = Field(
        False,
        description="on a GPU, the same bits every time, somewhat slower; torch warns where it has no such operation",
    )

    @model_validator(mode="before")
    @classmethod
    def _epochs_in_all(cls, given: Any) -> Any:
        """Epochs of a round, where those of all rounds are given."""
        total = given.get("total_epochs") if isinstance(given, dict) else None
        rounds = given.get("rounds", cls.model_fields["rounds"].default) if total is not None else None
        if not isinstance(total, int) or not isinstance(rounds, int) or total < 1 or rounds < 1:
            return given  # nothing to share out, or refused as no such number
        if total % rounds:
            raise ConfigurationError(f"total_epochs is {total}, which {rounds} rounds cannot share; take a multiple")
        if given.get("epochs", total // rounds) != total // rounds:
            raise ConfigurationError(
                f"total_epochs is {total} in {rounds} rounds, and epochs is {given['epochs']}; give one of the two"
            )
        return {**given, "epochs": total // rounds}

    @model_validator(mode="after")
    def _groups_fit(self) -> Config:
        members = self.members()
        for name, group in self.groups.items():
            if group.joins > self.rounds:
                raise ConfigurationError(
                    f"groups.{name}.joins is {group.joins}, and the run has {self.rounds} rounds; they would never be "
                    f"there"
                )
        first = min(group.joins for _, group in members.values()) if len(members) == self.learners else 1
        if first > 1:
            raise ConfigurationError(f"nobody is there before round {first}; let somebody join in round 1")
        if self.public is not None and 0 in members and members[0][1].samples is not None:
            raise ConfigurationError(
                f"public is {self.public}, and groups.{members[0][0]}.samples is {members[0][1].samples}: both say how "
                f"many samples learner 0 has; give one of the two"
            )
        return self

    def members(self) -> dict[int, tuple[str, GroupConfig]]:
        """The group of each learner that is in one, and its name; refuses who is not there, or in two of them."""
        found: dict[int, tuple[str, GroupConfig]] = {}
        for name, group in self.groups.items():
            for who in group.numbers(name, self.learners):
                if who in found:
                    raise ConfigurationError(
                        f"learner {who} is in the groups {found[who][0]!r} and {name!r}; one is enough"
                    )
                found[who] = name, group
        return found

    @property
    def models(self) -> list[str]:
        """The model of each learner."""
        named, members = self.model_name.split(","), self.members()
        own = [members[who][1].model if who in members else None for who in range(self.learners)]
        return [model or named[who % len(named)] for who, model in enumerate(own)]

    def kinds(self) -> dict[str, list[int]]:
        """Learners by what sets them apart, their group or else their model; nothing where they are all alike."""
        found: dict[str, list[int]] = {}
        members = self.members()
        for who, model in enumerate(self.models):
            other = f"others ({model})" if self.groups else model
            found.setdefault(members[who][0] if who in members else other, []).append(who)
        return found if len(found) > 1 else {}

    @property
    def data_name(self) -> str:
        """What the data goes by, without the way to it."""
        return Path(self.data).stem if Path(self.data).name != self.data else self.data.removesuffix(".npz")

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
    settings, known = _spelled(settings), Config.model_fields
    for key in settings:
        if key not in known:
            raise UnknownName("setting", key, known)
    groups = settings.get("groups") or {}
    for name, group in groups.items() if isinstance(groups, Mapping) else ():
        for key in group if isinstance(group, Mapping) else ():
            if key not in GroupConfig.model_fields:
                raise UnknownName("setting", key, GroupConfig.model_fields, of=f"group {name!r}")
    try:
        return Config(**settings)
    except ValidationError as error:
        raise ConfigurationError(describe_error(error)) from None


def _spelled(value: Any) -> Any:
    """Settings with schedules as they are written, all the way down."""
    if isinstance(value, Mapping):
        return {key: _spelled(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_spelled(each) for each in value]
    return str(value) if isinstance(value, Schedule) else value


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


def listed(text: str) -> list[str]:
    """What stands between commas, but for those in brackets or quotes."""
    parts = re.findall(r"""(?:[^,"'(]|"[^"]*"|'[^']*'|\([^)]*\)?)+""", text)
    return [part.strip() for part in parts if part.strip()]


def override(settings: dict[str, Any], text: str) -> None:
    """Apply `a.b=value` to nested settings; the value is read as TOML, or taken as a word."""
    key, value = setting_of(text)
    place(settings, key, parsed(value))


def setting_of(text: str, written: str = "no setting; write KEY=VALUE, such as method.kd=3") -> tuple[str, str]:
    """Key and value of `a.b=value`; written: how it should have been, where it is not."""
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise ConfigurationError(f"{text!r} is {written}")
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
