"""The common values of moving means, as members get them before the first round and know them by their SHA-256."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from consilience.wire import codec, schema

CommonValues = Mapping[str, Mapping[str, np.ndarray]]
"""Common values of moving means: by channel, then by tensor."""


def common_values_message(channel: schema.Channel) -> dict[str, schema.Field]:
    """The message with a moving mean's common values themselves, and not by how much they moved."""
    return {f"{channel.name}.{key}": schema.Field(tensor.shape) for key, tensor in channel.tensors.items()}


def values_fingerprint(channel: schema.Channel, values: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of common values as they are encoded: by it, members see that they start from the same ones."""
    return hashlib.sha256(codec.encode(common_values_message(channel), named_values(channel, values))).hexdigest()


def named_values(channel: schema.Channel, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Common values by their names in a message."""
    return {f"{channel.name}.{key}": np.asarray(value, dtype=np.float32) for key, value in values.items()}
