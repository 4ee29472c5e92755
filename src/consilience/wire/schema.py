"""The schema of messages: the tensors of each channel, with shapes, encodings and bounds.

A schema fixes the largest message, so a relay can refuse a body before it reads it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from consilience.errors import ConfigurationError
from consilience.wire.encodings import FLOAT32, INT32, Encoding, is_vote
from consilience.wire.robustness import PLAIN, Robustness

Direction = Literal["up", "down"]
T = TypeVar("T")


@dataclass(frozen=True)
class Field:
    """One tensor of a message, in one direction."""

    shape: tuple[int, ...]
    encoding: Encoding = FLOAT32
    low: float = -math.inf
    high: float = math.inf

    @property
    def size(self) -> int:
        """The number of values."""
        return math.prod(self.shape)


Message = Mapping[str, Field]
"""All tensors of a body: names to fields. Names are `channel.tensor`."""


@dataclass(frozen=True)
class Tensor:
    """One tensor of a channel: its shape, its bounds, and its encoding in each direction."""

    shape: tuple[int, ...]
    up: Encoding = FLOAT32
    down: Encoding = FLOAT32
    low: float = -math.inf
    high: float = math.inf

    def field(self, direction: Direction) -> Field:
        """The tensor in one direction."""
        encoding = self.up if direction == "up" else self.down
        return Field(self.shape, encoding, self.low, self.high)


@dataclass(frozen=True)
class Channel:
    """One thing that members upload and the relay combines: a `Mean` or a `Pool`.

    rows: shape of a contribution's weight. () is one number, the sample count, and is sent in the header; (C,) is a
    count per class and is sent in the body. scope: "oneself" is never sent; the learner gets back what it uploaded.
    public_set: fingerprint of the public set that contributions refer to; members must have the same one.
    """

    name: str
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    rows: tuple[int, ...] = ()
    scope: Literal["everybody", "oneself"] = "everybody"
    public_set: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        if not self.name or "." in self.name:
            raise ConfigurationError(
                f"channel name {self.name!r}: use a name without dots, as `channel.tensor` has one"
            )
        if self.rows and "count" in self.tensors:
            raise ConfigurationError(
                f"channel {self.name!r}: 'count' is the name of its rows' weights; rename the tensor"
            )

    @property
    def moves(self) -> bool:
        """Whether contributions are changes, each counted once, that move common values."""
        return False

    def own_tensors(self, named: Mapping[str, T]) -> dict[str, T]:
        """The tensors of a body that belong to this channel, by their names in the channel."""
        prefix = f"{self.name}."
        return {key[len(prefix) :]: each for key, each in named.items() if key.startswith(prefix)}

    def encoding(self, name: str, direction: Direction) -> Encoding:
        """The encoding of one of the tensors in one direction."""
        return self.tensors[name].field(direction).encoding

    def message(self, direction: Direction) -> dict[str, Field]:
        """The tensors of a body that belong to this channel."""
        if self.scope == "oneself":
            return {}  # never sent
        fields = {f"{self.name}.{k}": t.field(direction) for k, t in self.tensors.items()}
        if self.rows:
            fields[f"{self.name}.count"] = Field(self.rows, INT32, low=0)
        return fields


@dataclass(frozen=True)
class Mean(Channel):
    """The weighted mean of what members upload.

    Standing: of each member's newest contribution. Moving: common values that move by the mean of the changes since
    the last aggregation, each counted once. max_staleness: versions that a change may be behind. quorum: contributions
    with which a moving mean is aggregated without waiting for the other members. robustness: how it resists a bad
    member.
    """

    moving: bool = False
    max_staleness: int = 8
    quorum: int | None = None
    robustness: Robustness = PLAIN

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.robustness.clips and self.takes_votes:
            raise ConfigurationError(
                f"channel {self.name!r} takes votes, which all have the same norm: clip_norm and clip_ratio cannot "
                f"tell them apart; leave them out, or use aggregation 'median', the vote of the majority"
            )

    @property
    def takes_votes(self) -> bool:
        """Whether members upload only signs, each of which counts the same."""
        return bool(self.tensors) and all(is_vote(tensor.up) for tensor in self.tensors.values())

    @property
    def moves(self) -> bool:
        """Whether contributions are changes, each counted once, that move common values."""
        return self.moving


@dataclass(frozen=True)
class Pool(Channel):
    """The newest `keep` entries of each member, of which an answer is `draw` random ones.

    by: "member" draws entire entries (as published); "row" draws each class from members that have it. include_self:
    whether a member may draw its own entries. repeat: whether entries are drawn again if there are fewer than `draw`;
    else their places are empty.
    """

    keep: int = 1
    draw: int = 1
    by: Literal["member", "row"] = "member"
    include_self: bool = True
    repeat: bool = True

    def encoding(self, name: str, direction: Direction) -> Encoding:
        """The encoding of one of the tensors in one direction, for several entries at once."""
        return Channel.encoding(self, name, direction).stacked()

    def message(self, direction: Direction) -> dict[str, Field]:
        """The tensors of a body that belong to this channel: `keep` entries up, `draw` down."""
        count = self.keep if direction == "up" else self.draw
        fields = Channel.message(self, direction)
        return {k: replace(f, shape=(count, *f.shape), encoding=f.encoding.stacked()) for k, f in fields.items()}
