"""What travels, in bytes: counted from the channels' schemas, equal to the length of the encoded bodies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

from consilience import schema, wire
from consilience.schema import Direction, Field


class Traffic:
    """Sizes of the bodies of one role: one body each way a round, holding every channel that takes part."""

    def __init__(self, channels: Mapping[str, schema.Channel]) -> None:
        self.channels = dict(channels)
        self._size = cache(self._measure)

    def message(self, direction: Direction, names: Iterable[str] | None = None) -> dict[str, Field]:
        """A whole body, for all channels or some."""
        wanted = self.channels if names is None else set(names)
        parts = [c.message(direction) for n, c in self.channels.items() if n in wanted]
        return {k: f for part in parts for k, f in part.items()}

    def _measure(self, direction: Direction, names: frozenset[str]) -> int:
        return wire.size(self.message(direction, names))

    def up(self, names: Iterable[str]) -> int:
        """Bytes of a body that puts up these channels."""
        return self._size("up", frozenset(names))

    def down(self, names: Iterable[str], missed: Mapping[str, int] | None = None) -> int:
        """Bytes of a body that answers these channels.

        Where replies of a moving mean were missed, they come one by one, or the whole common values do where that is
        less.
        """
        total = self._size("down", frozenset(names))
        for name, replies in (missed or {}).items():
            if name not in names or replies == 1:
                continue
            one = self._size("down", frozenset([name]))
            # Without any reply missing or new, this channel's part of the body falls away.
            whole = wire.size({k: Field(f.shape) for k, f in self.channels[name].message("down").items()})
            total += min((replies - 1) * one, whole - one)
        return total
