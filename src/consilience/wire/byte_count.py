"""The sizes of message bodies in bytes: computed from the channels' schemas, equal to the length of encoded bodies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache

from consilience.wire import codec, schema
from consilience.wire.schema import Direction, Field

Measure = Callable[[Direction, frozenset[str], frozenset[str]], int]
"""The size of a body of these channels, of which some hold their full common values."""


class ByteCount:
    """Bytes per round of one role: the sizes of one body each way, with every channel that takes part.

    last_moves: moving means of which learners need the last reply even if they download the full common values.
    """

    def __init__(self, channels: Mapping[str, schema.Channel], last_moves: Iterable[str] = ()) -> None:
        self.channels, self.last_moves = dict(channels), frozenset(last_moves)
        self._size, self._values = cache(self._count_bytes), cache(self._count_values)

    def message(
        self, direction: Direction, names: Iterable[str] | None = None, full: Iterable[str] = ()
    ) -> dict[str, Field]:
        """A body of all channels or of some; channels in `full` hold common values and not a reply."""
        wanted, values = self.channels if names is None else set(names), set(full)
        fields: dict[str, Field] = {}
        for name, channel in self.channels.items():
            if name in wanted:
                part = channel.message(direction)
                fields |= {k: Field(f.shape) for k, f in part.items()} if name in values else part
        return fields

    def _count_values(self, direction: Direction, names: frozenset[str], full: frozenset[str]) -> int:
        return sum(each.size for each in self.message(direction, names, full).values())

    def _count_bytes(self, direction: Direction, names: frozenset[str], full: frozenset[str]) -> int:
        return codec.encoded_size(self.message(direction, names, full))

    def up(self, names: Iterable[str]) -> int:
        """Bytes of an upload to these channels."""
        return self._size("up", frozenset(names), frozenset())

    def in_full(self, names: Iterable[str]) -> int:
        """Bytes of an upload to these channels in float32, whatever their encodings."""
        return self._size("up", frozenset(names), frozenset(names))

    def down(self, names: Iterable[str], missed: Mapping[str, int] | None = None) -> int:
        """Bytes of an answer of these channels.

        missed: how many replies of each moving mean a member has missed. They are downloaded one by one, or the full
        common values are if those are smaller.
        """
        return self._measure_answer(self._size, names, missed or {})

    def values(self, direction: Direction, names: Iterable[str], missed: Mapping[str, int] | None = None) -> int:
        """How many numbers such a body has, whatever their encoding."""
        if direction == "up":
            return self._values("up", frozenset(names), frozenset())
        return self._measure_answer(self._values, names, missed or {})

    def _measure_answer(self, measure: Measure, names: Iterable[str], missed: Mapping[str, int]) -> int:
        wanted, missing = frozenset(names), {k: n for k, n in missed.items() if n > 1}
        full = self.smaller_in_full(wanted, missing)
        one_by_one = {k: n - 1 for k, n in missing.items() if k in wanted - full}
        one_by_one |= dict.fromkeys(full & self.last_moves, 1)
        more = sum(n * measure("down", frozenset([k]), frozenset()) for k, n in one_by_one.items())
        return measure("down", wanted, full) + more

    def smaller_in_full(self, names: Iterable[str], missed: Mapping[str, int]) -> frozenset[str]:
        """The moving means whose full common values take fewer bytes than the replies that were missed."""
        wanted, full = frozenset(names), frozenset[str]()
        for name, replies in missed.items():
            if name not in wanted or replies <= 1:
                continue
            body, instead = (self._size("down", wanted, some) for some in (full, full | {name}))
            if instead - body < (replies - 1) * self._size("down", frozenset([name]), frozenset()):
                full |= {name}
        return full
