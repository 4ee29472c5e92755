"""What travels, in bytes: counted from the channels' schemas, equal to the length of the encoded bodies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache

from consilience.wire import codec, schema
from consilience.wire.schema import Direction, Field

Weigh = Callable[[Direction, frozenset[str], frozenset[str]], int]
"""What a body of these channels comes to; of some of them whole common values."""


class ByteCount:
    """Sizes of the bodies of one role: one body each way a round, holding every channel that takes part."""

    def __init__(self, channels: Mapping[str, schema.Channel]) -> None:
        self.channels = dict(channels)
        self._size, self._values = cache(self._measure), cache(self._count)

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

    def _count(self, direction: Direction, names: frozenset[str], whole: frozenset[str]) -> int:
        return sum(each.size for each in self.message(direction, names, whole).values())

    def _measure(self, direction: Direction, names: frozenset[str], whole: frozenset[str]) -> int:
        return codec.encoded_size(self.message(direction, names, whole))

    def up(self, names: Iterable[str]) -> int:
        """Bytes of a body that puts up these channels."""
        return self._size("up", frozenset(names), frozenset())

    def down(self, names: Iterable[str], missed: Mapping[str, int] | None = None) -> int:
        """Bytes of a body that answers these channels.

        Where replies of a moving mean were missed, they come one by one, or the whole common values do where that is
        less.
        """
        return self._answered(self._size, names, missed or {})

    def values(self, direction: Direction, names: Iterable[str], missed: Mapping[str, int] | None = None) -> int:
        """How many numbers are in such a body, of however many bits each."""
        if direction == "up":
            return self._values("up", frozenset(names), frozenset())
        return self._answered(self._values, names, missed or {})

    def _answered(self, weigh: Weigh, names: Iterable[str], missed: Mapping[str, int]) -> int:
        wanted, missing = frozenset(names), {k: n for k, n in missed.items() if n > 1}
        whole = self.whole(wanted, missing)
        one_by_one = {k: n - 1 for k, n in missing.items() if k in wanted - whole}
        more = sum(n * weigh("down", frozenset([k]), frozenset()) for k, n in one_by_one.items())
        return weigh("down", wanted, whole) + more

    def whole(self, names: Iterable[str], missed: Mapping[str, int]) -> frozenset[str]:
        """The moving means whose common values are less than the replies that were missed."""
        wanted, whole = frozenset(names), frozenset[str]()
        for name, replies in missed.items():
            if name not in wanted or replies <= 1:
                continue
            body, instead = (self._size("down", wanted, some) for some in (whole, whole | {name}))
            if instead - body < (replies - 1) * self._reply(name):
                whole |= {name}
        return whole

    def _reply(self, name: str) -> int:
        return self._size("down", frozenset([name]), frozenset())
