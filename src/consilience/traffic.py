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

    def message(
        self, direction: Direction, names: Iterable[str] | None = None, whole: Iterable[str] = ()
    ) -> dict[str, Field]:
        """A whole body, for all channels or some; those in `whole` come as common values and not as a reply."""
        wanted, values = self.channels if names is None else set(names), set(whole)
        fields: dict[str, Field] = {}
        for name, channel in self.channels.items():
            if name in wanted:
                part = channel.message(direction)
                fields |= {k: Field(f.shape) for k, f in part.items()} if name in values else part
        return fields

    def _measure(self, direction: Direction, names: frozenset[str], whole: frozenset[str]) -> int:
        return wire.size(self.message(direction, names, whole))

    def up(self, names: Iterable[str]) -> int:
        """Bytes of a body that puts up these channels."""
        return self._size("up", frozenset(names), frozenset())

    def down(self, names: Iterable[str], missed: Mapping[str, int] | None = None) -> int:
        """Bytes of a body that answers these channels.

        Where replies of a moving mean were missed, they come one by one, or the whole common values do where that is
        less.
        """
        wanted, whole, earlier = frozenset(names), frozenset[str](), 0
        body = self._size("down", wanted, whole)
        for name, replies in (missed or {}).items():
            if name not in wanted or replies <= 1:
                continue
            one_by_one = (replies - 1) * self._size("down", frozenset([name]), frozenset())
            instead = self._size("down", wanted, whole | {name})
            if instead - body < one_by_one:
                whole, body = whole | {name}, instead
            else:
                earlier += one_by_one
        return body + earlier
