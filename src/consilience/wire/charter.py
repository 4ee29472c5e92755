"""A federation's charter: what is learned, how, and which messages are allowed. A learner writes it, a relay reads it.

The relay needs the channels and the rules; peers build the method from its name and settings, and check that their own
channels are the charter's.
"""

from __future__ import annotations

import hashlib
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from pydantic import Field, ValidationError, model_validator

from consilience.errors import ConfigurationError, WireError
from consilience.task import SINGLE_LABEL, Target, TaskKind
from consilience.validation import describe_error
from consilience.wire import codec, schema
from consilience.wire.channel_settings import ChannelSettings, channel_content
from consilience.wire.common_values import CommonValues, common_values_message, named_values, values_fingerprint
from consilience.wire.headers import Parts
from consilience.wire.members import MemberKey, check_members
from consilience.wire.privacy import PrivacySettings
from consilience.wire.roles import PublicSetSettings, RoleSettings
from consilience.wire.rules import Rules
from consilience.wire.scaling_settings import ScalingSettings
from consilience.wire.section import CharterSection
from consilience.wire.targets import TargetSettings

PROTOCOL = 2
"""The version of the protocol that this library implements; see docs/protocol.md."""
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
"""Allowed names of federations, channels and members."""
MIN_CLASSES = 2
WITHOUT_RELAY = "representation-sharing, fedproto or federated-distillation"
"""Methods that work without a relay."""


class Charter(CharterSection):
    """Everything the members of a federation have agreed on."""

    protocol: int = PROTOCOL
    name: str
    seed: int = Field(default=0, ge=0, le=2**53)
    classes: int = Field(ge=1)
    method: dict[str, Any] = Field(description="the method's name and its own settings")
    scaling: ScalingSettings | None = Field(default=None, description="how members scale their inputs")
    target: TargetSettings | None = Field(default=None, description="what is predicted, where it is not one class")
    labels: tuple[str, ...] = Field(default=(), description="names of the classes, in the order of their numbers")
    columns: tuple[str, ...] = Field(default=(), description="names of a table's columns, in the order of inputs")
    relay_key: str = Field(
        default="",
        pattern=r"^(ed25519:[A-Za-z0-9+/]{43}=)?$",
        description="the public key of the relay, which signs receipts and answers; the relay adds it",
    )
    members: tuple[MemberKey, ...] = Field(
        default=(), description="the members and their keys, of a federation without a relay"
    )
    rules: Rules = Rules()
    privacy: PrivacySettings | None = Field(default=None, description="how uploads are made private, where they are")
    roles: RoleSettings | None = Field(default=None, description="who has which role, where there are several")
    public_set: PublicSetSettings | None = Field(default=None, description="the samples that all members have")
    channel_settings: dict[str, ChannelSettings] = Field(alias="channels", min_length=1)

    @model_validator(mode="after")
    def _check(self) -> Charter:
        if self.protocol != PROTOCOL:
            raise ValueError(
                f"protocol is {self.protocol}; this library implements {PROTOCOL}, in which bodies have another form "
                f"(docs/protocol.md); use the version of consilience that the charter was made with, or create the "
                f"federation again with this one"
            )
        for what, name in [("name", self.name), *(("channel", name) for name in self.channel_settings)]:
            if not NAME.fullmatch(name):
                raise ValueError(
                    f"{what} {name[:80]!r}: use lower-case letters, digits and dashes, 64 at most, and start with a "
                    f"letter or digit"
                )
        if not isinstance(self.method.get("name"), str):
            raise ValueError('method has no name; give it one, such as name = "fedavg"')
        self._check_classes()
        self._check_roles()
        if self.members:
            self._check_members()
        codec.encoded_size(self.message("up"))
        codec.encoded_size(self.message("down"))
        return self

    def _check_classes(self) -> None:
        """Refuse a number of outputs that the kind of task does not have."""
        if self.kind == "regression" and self.classes != 1:
            raise ValueError(f"classes is {self.classes}, and a regression predicts one number; write classes = 1")
        if self.kind != "regression" and self.classes < MIN_CLASSES:
            raise ValueError(f"classes is {self.classes}; it must be {MIN_CLASSES} or more")

    @property
    def kind(self) -> TaskKind:
        """The kind of task."""
        return "single-label" if self.target is None else self.target.kind

    @property
    def predicted(self) -> Target:
        """What is predicted of a sample."""
        return SINGLE_LABEL if self.target is None else self.target.to_target()

    def _check_roles(self) -> None:
        """Refuse roles and a public set that do not fit the channels."""
        if self.roles is not None:
            uploaded = {channel for channels in self.roles.uploads.values() for channel in channels}
            wrong = sorted(uploaded ^ self.channel_settings.keys())
            if wrong:
                what = "which is no channel" if wrong[0] in uploaded else "to which nobody uploads"
                raise ValueError(f"roles.uploads and channels differ in {wrong[0]!r}, {what}")
        public = self.public_set
        if public is not None and self.roles is not None and public.host >= self.roles.learners:
            raise ValueError(f"public_set.host is {public.host}; there are members 0 to {self.roles.learners - 1}")
        for name, channel in self.channel_settings.items():
            if public is not None and channel.public_set not in ("", public.sha256):
                raise ValueError(f"channel {name!r} refers to another public set than `public_set` describes")

    def _check_members(self) -> None:
        """Refuse members that cannot do without a relay."""
        check_members(self.members)
        for name, channel in self.channel_settings.items():
            if channel.kind == "moving":
                raise ValueError(
                    f"method {self.method['name']!r} shares {name!r}, common values that all members move together: "
                    f"that needs one place that says which changes have counted, a relay. Without a relay use "
                    f"{WITHOUT_RELAY}, or leave the members out"
                )
        if self.roles is not None or self.public_set is not None:
            raise ValueError(
                f"method {self.method['name']!r} has roles or a public set, which members get from a relay; without "
                f"one use {WITHOUT_RELAY}, or leave the members out"
            )
        if self.relay_key:
            raise ValueError("a charter has the key of a relay, or members with keys of their own, and not both")

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the charter's text: by it, members without a relay see that they have agreed on the same."""
        return hashlib.sha256(self.to_toml().encode()).hexdigest()

    def uploads_of(self, number: int) -> frozenset[str]:
        """The channels to which a member uploads, by its number."""
        return frozenset(self.channel_settings) if self.roles is None else self.roles.uploads_of(number)

    @property
    def channels(self) -> dict[str, schema.Channel]:
        """The channels of the schema."""
        return {name: settings.to_schema(name) for name, settings in self.channel_settings.items()}

    def message(self, direction: schema.Direction) -> dict[str, schema.Field]:
        """The largest body in one direction."""
        return {k: f for channel in self.channels.values() for k, f in channel.message(direction).items()}

    def start_values_message(self) -> dict[str, schema.Field]:
        """The body with the first common values of every moving mean."""
        moving = [c for c in self.channels.values() if c.moves]
        return {k: f for channel in moving for k, f in common_values_message(channel).items()}

    def with_relay_key(self, key: str) -> Charter:
        """The charter as the relay with this key serves it."""
        return self.model_copy(update={"relay_key": key})

    def to_toml(self) -> str:
        """The charter as TOML; infinite bounds are left out."""
        content = self.model_dump(mode="python", by_alias=True, exclude_none=True, exclude_defaults=True)
        channels = _finite(content.pop("channels"))
        plain = {"protocol": self.protocol, **content, "rules": self.rules.to_plain()}
        plain |= {} if self.roles is None else {"roles": self.roles.to_plain()}
        return tomli_w.dumps({**plain, "channels": channels})


def message_of(channels: Mapping[str, schema.Channel], direction: schema.Direction, parts: Parts) -> schema.Message:
    """The message that a header describes: N entries of a pool, full common values or a reply of a moving mean."""
    fields: dict[str, schema.Field] = {}
    for name, part in parts.items():
        channel = channels[name]
        message = common_values_message(channel) if part.full else channel.message(direction)
        if isinstance(channel, schema.Pool) and part.entries is not None:
            message = {k: replace(f, shape=(part.entries, *f.shape[1:])) for k, f in message.items()}
        fields |= message
    return fields


def build_charter(
    name: str,
    method: Mapping[str, Any],
    classes: int,
    channels: Mapping[str, schema.Channel],
    starts: CommonValues,
    seed: int = 0,
    rules: Rules | None = None,
    target: Target = SINGLE_LABEL,
    frozen: Mapping[str, str] | None = None,
) -> Charter:
    """The charter of a federation with these channels; channels that are never sent are left out.

    frozen: of the channels whose tensors are trained beside a frozen part, its SHA-256.
    """
    sent = {key: channel for key, channel in channels.items() if channel.scope == "everybody"}
    if not sent:
        raise ConfigurationError(
            f"method {method['name']!r} shares nothing, so it needs no federation; choose a method that does, such as "
            f"representation-sharing"
        )
    content = {
        "name": name,
        "seed": seed,
        "classes": classes,
        "method": dict(method),
        "rules": rules or Rules(),
        "channels": {
            key: {**channel_content(channel, starts.get(key)), "frozen_sha256": (frozen or {}).get(key, "")}
            for key, channel in sent.items()
        },
        **({} if target == SINGLE_LABEL else {"target": asdict(target)}),
    }
    return checked_charter(content, f"federation {name!r}")


def read_charter(text: str, where: str = "the charter") -> Charter:
    """A charter from its TOML; an error names the setting at fault."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{where} is not TOML: {error}") from error
    return checked_charter(content, where)


def checked_charter(content: Mapping[str, Any], where: str) -> Charter:
    """The charter with this content; what is wrong with it is a `ConfigurationError`."""
    try:
        return Charter.model_validate(content)
    except ValidationError as error:
        raise ConfigurationError(f"{where}: {describe_error(error)}") from None
    except (ConfigurationError, WireError) as error:
        raise ConfigurationError(f"{where}: {error}") from error


def start_values_file(charter: Path) -> Path:
    """The file of the first common values: beside the charter, with the same name."""
    return charter.with_suffix(".safetensors")


def encode_start_values(charter: Charter, starts: CommonValues) -> bytes:
    """The first common values of every moving mean as one body; empty if there is no moving mean."""
    named = {k: v for key, values in starts.items() for k, v in named_values(charter.channels[key], values).items()}
    return codec.encode(charter.start_values_message(), named)


def decode_start_values(
    charter: Charter, body: bytes, where: str = "the start values"
) -> dict[str, dict[str, np.ndarray]]:
    """The first common values by channel; refuses values whose SHA-256 is not the charter's."""
    try:
        named = codec.decode(charter.start_values_message(), body)
    except WireError as error:
        raise ConfigurationError(f"{where}: {error}") from error
    starts: dict[str, dict[str, np.ndarray]] = {}
    for key, channel in charter.channels.items():
        if charter.channel_settings[key].kind != "moving":
            continue
        starts[key] = {name: named[f"{key}.{name}"] for name in channel.tensors}
        if values_fingerprint(channel, starts[key]) != charter.channel_settings[key].start:
            raise ConfigurationError(f"{where}: the SHA-256 of the values of {key!r} is not the one in the charter")
    return starts


def _finite(content: Any) -> Any:
    """The same without infinite numbers, which are bounds that allow everything."""
    if isinstance(content, Mapping):
        return {k: _finite(v) for k, v in content.items() if not (isinstance(v, float) and math.isinf(v))}
    return [_finite(v) for v in content] if isinstance(content, list | tuple) else content
