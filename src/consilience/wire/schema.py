"""What may travel: the tensors of a channel, with shapes, encodings and bounds.

A schema fixes the largest message, so a relay can refuse a body before reading it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from consilience.errors import ConfigurationError
from consilience.wire.encodings import FLOAT32, INT32, Encoding

Direction = Literal["up", "down"]
Thing = TypeVar("Thing")


@dataclass(frozen=True)
class Field:
    """One tensor on the wire, in one direction."""

    shape: tuple[int, ...]
    encoding: Encoding = FLOAT32
    low: float = -math.inf
    high: float = math.inf

    @property
    def size(self) -> int:
        """How many values."""
        return math.prod(self.shape)


Message = Mapping[str, Field]
"""A whole body: tensor names to fields. Names are `channel.tensor`."""


@dataclass(frozen=True)
class Tensor:
    """One tensor of a channel: its shape, its bounds, and how it is encoded each way."""

    shape: tuple[int, ...]
    up: Encoding = FLOAT32
    down: Encoding = FLOAT32
    low: float = -math.inf
    high: float = math.inf

    def field(self, direction: Direction) -> Field:
        """The tensor as it travels one way."""
        encoding = self.up if direction == "up" else self.down
        return Field(self.shape, encoding, self.low, self.high)


@dataclass(frozen=True)
class Channel:
    """How the relay combines what is put up; see `Mean` and `Pool` in `channels`.

    rows: shape of the weight that travels with a contribution. () is one number, the sample count, and travels beside
    the body; (C,) is a count for each class and travels inside it. about: what contributions are about, as a mark that
    all members must share: two who looked at different things have nothing to combine.
    """

    name: str
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    rows: tuple[int, ...] = ()
    scope: Literal["everybody", "oneself"] = "everybody"
    about: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        if not self.name or "." in self.name:
            raise ConfigurationError(f"channel {self.name!r}: its name must have no dots; `channel.tensor` has one")
        if self.rows and "count" in self.tensors:
            raise ConfigurationError(f"channel {self.name!r}: 'count' is what its rows weigh; rename the tensor")

    @property
    def moves(self) -> bool:
        """Whether contributions are changes, each counted once, that move common values."""
        return False

    def own_tensors(self, named: Mapping[str, Thing]) -> dict[str, Thing]:
        """Of what travels in a body, what belongs to this channel, by the names it has there."""
        prefix = f"{self.name}."
        return {key[len(prefix) :]: each for key, each in named.items() if key.startswith(prefix)}

    def encoding(self, name: str, direction: Direction) -> Encoding:
        """How one of the tensors is written down on its way."""
        return self.tensors[name].field(direction).encoding

    def message(self, direction: Direction) -> dict[str, Field]:
        """The part of a body that belongs to this channel."""
        if self.scope == "oneself":
            return {}  # what only concerns oneself need not travel
        fields = {f"{self.name}.{k}": t.field(direction) for k, t in self.tensors.items()}
        if self.rows:
            fields[f"{self.name}.count"] = Field(self.rows, INT32, low=0)
        return fields


@dataclass(frozen=True)
class Mean(Channel):
    """The weighted mean of what members put up.

    Standing: of each member's newest contribution. Moving: of contributions since the last close, each counted once.
    """

    moving: bool = False
    max_staleness: int = 8
    quorum: int | None = None

    @property
    def moves(self) -> bool:
        """Whether contributions are changes, each counted once, that move common values."""
        return self.moving


@dataclass(frozen=True)
class Pool(Channel):
    """Everybody's newest `keep` entries, of which an answer is `draw` random ones.

    by: "member" draws whole entries (as published); "row" draws each class from members who have it. repeat: whether
    entries are given again where there are fewer than are drawn; else nothing fills their place.
    """

    keep: int = 1
    draw: int = 1
    by: Literal["member", "row"] = "member"
    include_self: bool = True
    repeat: bool = True

    def encoding(self, name: str, direction: Direction) -> Encoding:
        """How one of the tensors is written down on its way, several entries at once."""
        return Channel.encoding(self, name, direction).stacked()

    def message(self, direction: Direction) -> dict[str, Field]:
        """The part of a body that belongs to this channel: `keep` entries up, `draw` down."""
        count = self.keep if direction == "up" else self.draw
        fields = Channel.message(self, direction)
        return {k: replace(f, shape=(count, *f.shape), encoding=f.encoding.stacked()) for k, f in fields.items()}
