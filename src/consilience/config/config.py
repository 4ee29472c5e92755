"""The configuration of a run: a few named parts, made from one flat table of settings, checked, written as TOML."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo

from consilience.config.groups import GroupConfig
from consilience.config.network import NetworkConfig
from consilience.config.overrides import set_nested
from consilience.config.parts import (
    DATA_SUFFIXES,
    DEFAULT_MODELS,
    ConfigPart,
    DataConfig,
    EvaluationConfig,
    ExecutionConfig,
    FederationConfig,
    ModelConfig,
    TrainingConfig,
)
from consilience.config.privacy import PrivacyConfig
from consilience.config.schedules import Schedule
from consilience.errors import ConfigurationError, DataError, UnknownName
from consilience.user_code import absolute_name, short_name
from consilience.validation import describe_error

__all__ = ["KEYS", "Config", "GroupConfig", "MethodConfig", "field_of_key", "make_config", "read_config"]


class MethodConfig(BaseModel):
    """A method's name and its own settings, checked by the method itself."""

    model_config = ConfigDict(frozen=True, extra="allow")
    name: str = "consilience"

    @model_validator(mode="before")
    @classmethod
    def _is_a_table(cls, given: Any) -> Any:
        if isinstance(given, str):
            raise ValueError(f'it must be a table: write method.name = "{given}", and settings as method.KEY = VALUE')
        return given

    @field_validator("name")
    @classmethod
    def _with_full_path(cls, name: str) -> str:
        return absolute_name(name)

    @property
    def label(self) -> str:
        """The name for people to read: of FILE.py:NAME without the file's folder."""
        return short_name(self.name)

    @property
    def settings(self) -> dict[str, Any]:
        """All but the name."""
        return dict(self.__pydantic_extra__ or {})


class Config(BaseModel):
    """Everything that decides what a run computes, and how it is run.

    Files, options and `simulate` have one flat table of settings; `make_config` distributes its keys to these parts.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    data: DataConfig = DataConfig.defaults()
    federation: FederationConfig = FederationConfig.defaults()
    network: NetworkConfig = NetworkConfig.defaults()
    model: ModelConfig = ModelConfig.defaults()
    training: TrainingConfig = TrainingConfig.defaults()
    privacy: PrivacyConfig = PrivacyConfig.defaults()
    evaluation: EvaluationConfig = EvaluationConfig.defaults()
    execution: ExecutionConfig = ExecutionConfig.defaults()
    method: MethodConfig = Field(default_factory=MethodConfig, description="the method's name and its own settings")
    groups: dict[str, GroupConfig] = Field(
        default_factory=dict, description="learners with settings of their own, by a name you choose"
    )
    variants: tuple[dict[str, Any], ...] = Field(
        default=(), description="settings in which federations of one run differ, as a sweep writes them"
    )

    @model_validator(mode="after")
    def _groups_fit(self) -> Config:
        members, rounds = self.groups_by_learner(), self.training.rounds
        for name, group in self.groups.items():
            if group.joins > rounds:
                raise ConfigurationError(
                    f"groups.{name}.joins is {group.joins}, and the run has {rounds} rounds: its learners would never "
                    f"join; choose a round up to {rounds}"
                )
        first = min(group.joins for _, group in members.values()) if len(members) == self.federation.learners else 1
        if first > 1:
            raise ConfigurationError(f"no learner joins before round {first}; let at least one join in round 1")
        if self.federation.public is not None and 0 in members and members[0][1].samples is not None:
            raise ConfigurationError(
                f"public is {self.federation.public}, and groups.{members[0][0]}.samples is {members[0][1].samples}: "
                f"both set the number of samples of learner 0; give one of the two"
            )
        return self

    def groups_by_learner(self) -> dict[int, tuple[str, GroupConfig]]:
        """Name and settings of the group of each learner that is in one; refuses a learner in two groups."""
        found: dict[int, tuple[str, GroupConfig]] = {}
        for name, group in self.groups.items():
            for who in group.numbers(name, self.federation.learners):
                if who in found:
                    raise ConfigurationError(
                        f"learner {who} is in the groups {found[who][0]!r} and {name!r}; one is enough"
                    )
                found[who] = name, group
        return found

    @property
    def learner_models(self) -> list[str]:
        """The model of each learner."""
        named, members = self.model_name.split(","), self.groups_by_learner()
        own = [members[who][1].model if who in members else None for who in range(self.federation.learners)]
        return [model or named[who % len(named)] for who, model in enumerate(own)]

    def learners_by_group(self) -> dict[str, list[int]]:
        """Learners by their group or else their model; empty where all are alike."""
        found: dict[str, list[int]] = {}
        members = self.groups_by_learner()
        for who, model in enumerate(self.learner_models):
            other = f"others ({model})" if self.groups else model
            found.setdefault(members[who][0] if who in members else other, []).append(who)
        return found if len(found) > 1 else {}

    @property
    def data_name(self) -> str:
        """The name of the data set, or of its file or folder without the path."""
        source = self.data.source
        path = Path(source)
        return path.stem if path.name != source or path.suffix in DATA_SUFFIXES else source

    @property
    def model_name(self) -> str:
        """The model asked for, or the one that suits the data."""
        return self.model.name or DEFAULT_MODELS.get(self.data.source, "mlp")

    def variant(self, number: int) -> Config:
        """The configuration of one of the variants alone."""
        settings = {key: value for key, value in self.settings().items() if key != "variants"}
        for key, value in self.variants[number].items():
            set_nested(settings, key, value)
        return make_config(settings)

    def settings(self, *, exclude_none: bool = True) -> dict[str, Any]:
        """The flat settings that `make_config` makes this configuration of."""
        flat: dict[str, Any] = {}
        for name, value in self:
            if isinstance(value, ConfigPart):
                flat |= value.settings(exclude_none=exclude_none)
            else:
                flat |= self.model_dump(include={name}, exclude_none=exclude_none)
        return flat

    def replace(self, **changes: Any) -> Config:
        """A copy with some flat settings changed, which are not checked."""
        by_part: dict[str, dict[str, Any]] = {}
        update: dict[str, Any] = {}
        for key, value in changes.items():
            part, field = KEYS[key]
            if field is None:
                update[part] = value
            else:
                by_part.setdefault(part, {})[field] = value
        update |= {part: getattr(self, part).model_copy(update=fields) for part, fields in by_part.items()}
        return self.model_copy(update=update)

    def __repr__(self) -> str:
        """The settings that differ from their defaults."""
        own, usual = self.settings(), Config().settings()
        return f"Config({', '.join(f'{k}={v!r}' for k, v in own.items() if k not in usual or usual[k] != v)})"

    __str__ = __repr__

    def check_savable(self) -> None:
        """Refuse a setting that no file can hold: a function, which is not a name."""
        if not isinstance(augment := self.training.augment, str):
            name = getattr(augment, "__name__", type(augment).__name__)
            raise ConfigurationError(
                f"augment is {name!r}, an object of your program, which cannot be saved in a run's folder; define it "
                f"in a file and give its name, augment='FILE.py:NAME', or run without `out`"
            )

    def to_toml(self) -> str:
        """The flat settings as a file that alone reproduces the run."""
        self.check_savable()
        return tomli_w.dumps(self.settings())


def _part_types() -> dict[str, type[ConfigPart]]:
    kinds = {name: field.annotation for name, field in Config.model_fields.items()}
    return {name: kind for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, ConfigPart)}


PARTS = _part_types()
"""The parts of a configuration by name."""
KEYS: dict[str, tuple[str, str | None]] = {
    key: (name, field)
    for name in Config.model_fields
    for key, field in (PARTS[name].keys().items() if name in PARTS else [(name, None)])
}
"""Every flat key, the part it belongs to, and the field it sets there; None where it is a part by itself."""


def field_of_key(key: str) -> FieldInfo:
    """The field that a flat key sets: its type, default and description."""
    part, field = KEYS[key]
    return Config.model_fields[part] if field is None else PARTS[part].model_fields[field]


def make_config(settings: Mapping[str, Any]) -> Config:
    """A configuration made of flat settings; an unknown key is refused with the nearest known one."""
    settings = _spell_schedules(settings)
    _refuse_unknown_keys(settings)
    problems: list[str] = []
    parts: dict[str, Any] = {key: value for key, value in settings.items() if KEYS[key][1] is None}
    for name, kind in PARTS.items():
        try:
            parts[name] = kind.model_validate({key: v for key, v in settings.items() if KEYS[key][0] == name})
        except ValidationError as error:
            problems.append(describe_error(error))
    if problems:
        raise ConfigurationError("; ".join(problems))
    try:
        return Config(**parts)
    except ValidationError as error:
        raise ConfigurationError(describe_error(error)) from None


def _refuse_unknown_keys(settings: Mapping[str, Any]) -> None:
    for key in settings:
        if key not in KEYS:
            raise UnknownName("setting", key, KEYS)
    groups = settings.get("groups") or {}
    for name, group in groups.items() if isinstance(groups, Mapping) else ():
        for key in group if isinstance(group, Mapping) else ():
            if key not in GroupConfig.model_fields:
                raise UnknownName("setting", key, GroupConfig.model_fields, of=f"group {name!r}")


def _spell_schedules(value: Any) -> Any:
    """Settings with schedules as text, in nested tables and lists too."""
    if isinstance(value, Mapping):
        return {key: _spell_schedules(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_spell_schedules(each) for each in value]
    return str(value) if isinstance(value, Schedule) else value


def read_config(path: Path) -> Config:
    """A configuration from a TOML file of flat settings."""
    try:
        return make_config(tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: no such file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise DataError(
            f'{path}: not a readable TOML file: {error}; write text in quotes, such as data = "digits"'
        ) from error
