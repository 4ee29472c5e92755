"""The message bodies of a federation: checks what a header says a body holds, and gives the codec for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

import numpy as np

from consilience.relay.checksums import DamagedRecord
from consilience.relay.rejections import Rejection
from consilience.relay.tables import StoredUpload
from consilience.wire import schema
from consilience.wire.charter import Charter, message_of
from consilience.wire.codec import Codec
from consilience.wire.encodings import is_vote
from consilience.wire.headers import Part, Parts, parse_parts


class Messages:
    """The codecs for the charter's channels."""

    def __init__(self, charter: Charter) -> None:
        self.channels, self.samples = charter.channels, charter.rules.samples
        self.largest = Codec(charter.message("up")).size
        """The length of the largest upload, in bytes."""
        self._cached_codec = lru_cache(maxsize=128)(self._codec)
        self.parse_header = lru_cache(maxsize=256)(self._parse_header)
        """The parts that a header names, in the charter's order; refuses what the charter does not allow."""

    def codec_for(self, direction: schema.Direction, parts: Parts) -> Codec:
        """The codec of a body that holds these parts."""
        return self._cached_codec(direction, tuple((name, part.entries, part.full) for name, part in parts.items()))

    def reply_codec(self, channel: str) -> Codec:
        """The codec of a body that holds only by how much one moving mean moved."""
        return self._cached_codec("down", ((channel, None, None),))

    def _codec(self, direction: schema.Direction, held: tuple[tuple[str, int | None, int | None], ...]) -> Codec:
        parts = {name: Part(entries=entries, full=full) for name, entries, full in held}
        return Codec(message_of(self.channels, direction, parts))

    def read_stored(self, upload: StoredUpload | None, channel: str) -> dict[str, np.ndarray]:
        """A channel's tensors of a body that was checked when it was received."""
        if upload is None:  # an upload is stored as long as a contribution needs it
            raise DamagedRecord("uploads", f"the upload of a contribution to {channel}")
        codec = self.codec_for("up", self.parse_header(upload.header))
        return codec.read(upload.body, only=[k for k in codec.message if k.startswith(f"{channel}.")])

    def decode_upload(self, parts: Parts, body: bytes) -> dict[str, np.ndarray]:
        """The tensors of an upload, checked against the charter."""
        tensors = self.codec_for("up", parts).decode(body)
        for name, part in parts.items():
            if self.channels[name].rows:
                count = int(tensors[f"{name}.count"].sum(dtype=np.int64))
                if count > self.samples * (part.entries or 1):
                    raise Rejection(
                        "absurd-count",
                        f"{name}.count: {count} samples; at most {self.samples} are accepted",
                        field=f"{name}.count",
                    )
        return tensors

    def body_size(self, header: str) -> int:
        """How long the body beside this header is; refuses a header that the charter does not allow."""
        return self.codec_for("up", self.parse_header(header)).size

    def _parse_header(self, header: str) -> Mapping[str, Part]:
        parts = parse_parts(header)
        for name, part in parts.items():
            if name not in self.channels:
                known = ", ".join(self.channels)
                raise Rejection("unknown-channel", f"no channel {name!r} here; there are {known}", field=name)
            self._check_part(self.channels[name], part)
        return MappingProxyType({name: parts[name] for name in self.channels if name in parts})

    def _check_part(self, channel: schema.Channel, part: Part) -> None:
        name, moving = channel.name, channel.moves
        if isinstance(channel, schema.Pool):
            if part.entries is None or not 1 <= part.entries <= channel.keep:
                raise Rejection(
                    "entries", f"{name}: entries={part.entries}; 1 to {channel.keep} may be uploaded", field=name
                )
        elif part.entries is not None:
            raise Rejection("entries", f"{name} is not a pool, and has no entries", field=name)
        if moving != (part.version is not None) or part.full is not None:
            raise Rejection(
                "malformed-upload", f"{name}: a moving mean needs a version; other channels have none", field=name
            )
        if bool(channel.rows) == (part.weight is not None):
            how = "in the body, by row" if channel.rows else "in the header, as weight=N"
            raise Rejection("wrong-weight", f"{name}: the weight of a contribution is sent {how}", field=name)
        if moving and part.weight not in (0.0, 1.0) and all(is_vote(t.up) for t in channel.tensors.values()):
            raise Rejection(
                "wrong-weight", f"{name}: weight={part.weight:g}; the weight of a vote is 1 or 0", field=name
            )
        if part.weight is not None and part.weight > self.samples:
            most = self.samples
            raise Rejection("absurd-count", f"{name}: weight={part.weight:g}; at most {most} is accepted", field=name)


def clip_to_bounds(channel: schema.Channel, named: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors within the channel's bounds: rounding, and the zeros of an empty channel, may be outside."""
    bounds = {f"{channel.name}.{k}": (t.low, t.high) for k, t in channel.tensors.items()}
    return {k: x if bounds[k] == (-math.inf, math.inf) else np.clip(x, *bounds[k]) for k, x in named.items()}


def contribution_weight(channel: schema.Channel, tensors: Mapping[str, np.ndarray], weight: float | None) -> np.ndarray:
    """The weight of a contribution to a mean, (1, *rows): its counts if it has rows, else the one from the header."""
    return tensors["count"].astype(np.float64) if channel.rows else np.array([weight or 0.0])
