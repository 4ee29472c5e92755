"""The 4-bit tensors of a message: all levels in one packed tensor, and the scales of all rows in another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

import numpy as np

from consilience.errors import WireError
from consilience.wire.encodings import INT4, Nibble
from consilience.wire.schema import Field
from consilience.wire.value_check import Values, check_scales, refuse_first


class Nibbles:
    """Packs and unpacks the 4-bit tensors of a message, in the order of the message."""

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self.fields = dict(fields)
        self._values, self._scales = dict[str, slice](), dict[str, slice]()
        self._total, rows = 0, 0
        for name, field in self.fields.items():
            first, rows = rows, rows + cast(Nibble, field.encoding).rows(field.shape)
            start, self._total = self._total, self._total + field.size
            self._values[name], self._scales[name] = slice(start, self._total), slice(first, rows)

    def write(self, arrays: Mapping[str, Values]) -> dict[str, Values]:
        """The packed levels and the scales of these tensors."""
        if not self.fields:
            return {}
        found = [cast(Nibble, field.encoding).levels(arrays[name]) for name, field in self.fields.items()]
        scales = np.concatenate([scale for _, scale in found])
        check_scales("int4_scales", scales, INT4.top)
        levels = np.zeros(self._total + self._total % 2, dtype=np.int8)
        levels[: self._total] = np.concatenate([level.ravel() for level, _ in found])
        pairs = levels.view(np.uint8).reshape(-1, 2) & 0xF
        return {"int4": pairs[:, 0] << 4 | pairs[:, 1], "int4_scales": scales}

    def check(self, packed: Values, scales: Values) -> None:
        """Refuse invalid scales and levels, values after the last, and rows of zeros in another form than `write`'s."""
        check_scales("int4_scales", scales, INT4.top)
        if self._total % 2 and packed[-1] & 0xF:
            why = f"tensor 'int4' has more than its {self._total} values; the bits that fill its last byte must be 0"
            raise WireError(why, code="padding", field="int4")
        zero = np.zeros(len(scales), dtype=bool)
        for name, levels, _ in self._split(packed, scales):
            shaped = levels.reshape(self.fields[name].shape)
            refuse_first(name, shaped, shaped == -8, f"levels run from -{INT4.top} to {INT4.top}", "out-of-bounds")
            zero[self._scales[name]] = ~levels.any(axis=1)
        why = "the scale of a row is 0 if all of its levels are 0, and only then"
        refuse_first("int4_scales", scales, zero != (scales == 0), why, "bad-scale")

    def read(self, packed: Values, scales: Values) -> dict[str, Values]:
        """The values: levels times the scale of their row."""
        return {
            name: (levels.astype(np.float32) * scale[:, None]).reshape(self.fields[name].shape)
            for name, levels, scale in self._split(packed, scales)
        }

    def scales_of(self, name: str, scales: Values) -> Values:
        """The scales of the rows of one tensor."""
        return scales[self._scales[name]]

    def _split(self, packed: Values, scales: Values) -> Iterator[tuple[str, Values, Values]]:
        """Each tensor's name, levels (rows, rest) as 8-bit integers, and scales (rows,)."""
        pairs = np.stack([packed, packed << 4], axis=1).view(np.int8) >> 4  # of a signed integer: keeps the sign
        levels = pairs.reshape(-1)
        for name, field in self.fields.items():
            scale = self.scales_of(name, scales)
            yield name, levels[self._values[name]].reshape(len(scale), field.size // max(len(scale), 1)), scale
