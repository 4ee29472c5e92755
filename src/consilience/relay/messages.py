"""The bodies of a federation: what a header beside one may say, how long it then is, and what it decodes to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from consilience.relay.rejections import Rejection
from consilience.relay.store import Upload
from consilience.wire import schema
from consilience.wire.charter import Charter, message_of
from consilience.wire.codec import Codec
from consilience.wire.encodings import is_vote
from consilience.wire.headers import Part, Parts, parse_parts


class Messages:
    """The charter's channels, as bodies."""

    def __init__(self, charter: Charter) -> None:
        self.channels, self.samples = charter.channels, charter.rules.samples
        self.largest = Codec(charter.message("up")).size
        """The longest body that may come, in bytes."""
        self.codec = lru_cache(maxsize=128)(self._codec)

    def of(self, direction: schema.Direction, parts: Parts) -> Codec:
        """Of a body that holds what a header says."""
        return self.codec(direction, tuple((name, part.entries, part.whole) for name, part in parts.items()))

    def _codec(self, direction: schema.Direction, said: tuple[tuple[str, int | None, int | None], ...]) -> Codec:
        parts = {name: Part(entries=entries, whole=entire) for name, entries, entire in said}
        return Codec(message_of(self.channels, direction, parts))

    def stored(self, upload: Upload | None, channel: str) -> dict[str, np.ndarray]:
        """A channel's tensors of a body that was judged when it came."""
        assert upload is not None, "an entry's upload is kept as long as the entry"
        codec = self.of("up", parse_parts(upload.put))
        return codec.read(upload.body, only=[k for k in codec.message if k.startswith(f"{channel}.")])

    def size(self, put: str) -> int:
        """How long the body is that such a header stands beside; refuses a header that cannot be."""
        return self.of("up", self.meant(put)).size

    def meant(self, put: str) -> dict[str, Part]:
        """What a header says, in the charter's order, and as the charter allows it."""
        parts = parse_parts(put)
        for name, part in parts.items():
            if name not in self.channels:
                known = ", ".join(self.channels)
                raise Rejection("unknown-channel", f"no channel {name!r} here; there are {known}", field=name)
            self._check_part(self.channels[name], part)
        return {name: parts[name] for name in self.channels if name in parts}

    def _check_part(self, channel: schema.Channel, part: Part) -> None:
        name, moving = channel.name, channel.moves
        if isinstance(channel, schema.Pool):
            if part.entries is None or not 1 <= part.entries <= channel.keep:
                said = f"{name}: entries={part.entries}; 1 to {channel.keep} may be put"
                raise Rejection("entries", said, field=name)
        elif part.entries is not None:
            raise Rejection("entries", f"{name} is no pool, and has no entries", field=name)
        if moving != (part.version is not None) or part.whole is not None:
            raise Rejection("malformed-put", f"{name}: a moving mean, and only that, comes with a version", field=name)
        if bool(channel.rows) == (part.weight is not None):
            how = "in the body, by row" if channel.rows else "beside the body, as weight=N"
            raise Rejection("wrong-weight", f"{name}: what a contribution weighs travels {how}", field=name)
        if moving and part.weight not in (0.0, 1.0) and all(is_vote(t.up) for t in channel.tensors.values()):
            raise Rejection("wrong-weight", f"{name}: weight={part.weight:g}; a vote weighs 1, or 0", field=name)
        if part.weight is not None and part.weight > self.samples:
            most = self.samples
            raise Rejection("absurd-count", f"{name}: weight={part.weight:g}; at most {most} is taken", field=name)

    def reply(self, channel: str) -> Codec:
        """Of a body that holds by how much one moving mean moved, and nothing else."""
        return self.codec("down", ((channel, None, None),))


def bounded(channel: schema.Channel, named: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Within the channel's bounds: rounding on the way here, and zeros where there is nothing, may lie outside."""
    bounds = {f"{channel.name}.{k}": (t.low, t.high) for k, t in channel.tensors.items()}
    return {k: x if bounds[k] == (-math.inf, math.inf) else np.clip(x, *bounds[k]) for k, x in named.items()}
