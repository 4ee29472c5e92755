"""The channels of a federation, as its charter writes them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from pydantic import Field

from consilience.wire import schema
from consilience.wire.common_values import values_fingerprint
from consilience.wire.encodings import encoding_name, parse_encoding
from consilience.wire.robustness import PLAIN, Robustness, build_robustness
from consilience.wire.section import CharterSection


class TensorSettings(CharterSection):
    """One tensor of a channel, as the charter writes it."""

    shape: tuple[int, ...]
    up: str = "float32"
    down: str = "float32"
    low: float = -math.inf
    high: float = math.inf

    def to_schema(self) -> schema.Tensor:
        """The tensor of the schema."""
        if any(n < 0 for n in self.shape) or math.prod(self.shape) > 2**31:
            raise ValueError(f"shape {self.shape} is not allowed; sizes are 0 or more, with at most 2^31 values in all")
        if not self.low <= self.high or self.low == math.inf or self.high == -math.inf:
            raise ValueError(f"bounds {self.low} to {self.high} allow no value; low must not be above high")
        return schema.Tensor(self.shape, parse_encoding(self.up), parse_encoding(self.down), self.low, self.high)


class RobustnessSettings(CharterSection):
    """How a mean resists a bad member, as the charter writes it."""

    aggregation: str = Field(default="mean", max_length=40, description="mean, trimmed(SHARE) or median")
    clip_norm: float | None = Field(default=None, description="the largest norm of a contribution")
    clip_ratio: float | None = Field(default=None, description="the same, as a multiple of the median norm")
    weight_cap: int | None = Field(default=None, ge=1, lt=2**31, description="the largest weight that counts")

    def to_robustness(self) -> Robustness:
        """The robustness of the schema."""
        return build_robustness(self.aggregation, self.clip_norm, self.clip_ratio, self.weight_cap)


class ChannelSettings(RobustnessSettings):
    """One channel, as the charter writes it: how the relay combines what members upload."""

    kind: Literal["standing", "moving", "pool"]
    rows: tuple[int, ...] = ()
    max_staleness: int = Field(default=8, ge=0)
    quorum: int | None = Field(default=None, ge=1)
    keep: int = Field(default=1, ge=1, le=1000)
    draw: int = Field(default=1, ge=1, le=1000)
    by: Literal["member", "row"] = "member"
    include_self: bool = True
    repeat: bool = True
    public_set: str = Field(
        default="", max_length=64, description="SHA-256 of the public set that contributions refer to"
    )
    start: str | None = Field(default=None, description="SHA-256 of the common values at the start, of a moving mean")
    frozen_sha256: str = Field(
        default="",
        pattern=r"^([0-9a-f]{64})?$",
        description="SHA-256 of the frozen parameters beside which the tensors are trained",
    )
    tensors: dict[str, TensorSettings] = Field(min_length=1)

    def to_schema(self, name: str) -> schema.Channel:
        """The channel of the schema."""
        tensors = {key: settings.to_schema() for key, settings in self.tensors.items()}
        for key, tensor in tensors.items():
            if min(self.rows, default=1) < 1 or tensor.shape[: len(self.rows)] != self.rows:
                raise ValueError(
                    f"channel {name!r} has weights of rows {self.rows}, but {key!r} has shape {tensor.shape}; a shape "
                    f"starts with the rows, each 1 or more"
                )
        if self.kind == "pool" and self.by == "row" and not self.rows:
            raise ValueError(f"channel {name!r} is drawn by row and has no rows; give it 'rows', or draw by member")
        if self.kind == "pool" and self.to_robustness() != PLAIN:
            raise ValueError(
                f"channel {name!r} is a pool, of which members get single entries: there is nothing to aggregate, clip "
                f"or weigh; leave out {', '.join(RobustnessSettings.model_fields)}"
            )
        if self.kind == "pool":
            more: dict[str, Any] = {"keep": self.keep, "draw": self.draw, "by": self.by}
            more |= {"include_self": self.include_self, "repeat": self.repeat, "public_set": self.public_set}
            return schema.Pool(name, tensors, self.rows, **more)
        if self.kind == "moving" and self.rows:
            raise ValueError(f"a moving mean has one weight per member; channel {name!r} has rows {self.rows}")
        if self.kind == "moving" and self.start is None:
            raise ValueError(f"channel {name!r} is a moving mean; it needs 'start', the SHA-256 of its start values")
        return schema.Mean(
            name,
            tensors,
            self.rows,
            moving=self.kind == "moving",
            max_staleness=self.max_staleness,
            quorum=self.quorum,
            public_set=self.public_set,
            robustness=self.to_robustness(),
        )


def channel_content(channel: schema.Channel, start: Mapping[str, np.ndarray] | None) -> dict[str, Any]:
    """What a charter says of a channel; start: the common values of a moving mean."""
    tensors = {
        key: {"shape": t.shape, "up": encoding_name(t.up), "down": encoding_name(t.down), "low": t.low, "high": t.high}
        for key, t in channel.tensors.items()
    }
    common = {"rows": channel.rows, "public_set": channel.public_set, "tensors": tensors}
    if isinstance(channel, schema.Pool):
        pool = {key: getattr(channel, key) for key in ("keep", "draw", "by", "include_self", "repeat")}
        return {"kind": "pool", **common, **pool}
    assert isinstance(channel, schema.Mean)
    if not channel.moving:
        return {"kind": "standing", **common, **channel.robustness.settings()}
    assert start is not None, "a moving mean needs start values"
    more = {
        "max_staleness": channel.max_staleness,
        "quorum": channel.quorum,
        "start": values_fingerprint(channel, start),
    }
    return {"kind": "moving", **common, **more, **channel.robustness.settings()}
