"""What the relay sees of an upload, and the residual that a lossy encoding leaves at the learner (error feedback)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from consilience.exchanges.base import Contribution
from consilience.wire import schema


def keeps_residual(channel: schema.Channel, tensor: schema.Tensor) -> bool:
    """Whether a learner adds to its next upload what the encoding rounded away: for coarse encodings of changes."""
    return channel.moves and tensor.up.feedback


def zero_residuals(
    channels: Mapping[str, schema.Channel], dtype: torch.dtype, device: torch.device
) -> dict[str, dict[str, Tensor]]:
    """Residuals before the first upload, by exchange and tensor."""
    kept = {
        name: {key: tensor.shape for key, tensor in channel.tensors.items() if keeps_residual(channel, tensor)}
        for name, channel in channels.items()
    }
    return {
        name: {key: torch.zeros(shape, dtype=dtype, device=device) for key, shape in shapes.items()}
        for name, shapes in kept.items()
        if shapes
    }


def as_sent(
    channel: schema.Channel, contribution: Contribution, residuals: Mapping[str, Tensor]
) -> tuple[Contribution, dict[str, Tensor]]:
    """The contribution as the relay decodes it, and the new residuals, by tensor.

    residuals: what encodings rounded away so far; it is added before encoding (error feedback).
    """
    seen, after = {}, {}
    for name, tensor in channel.tensors.items():
        value = contribution.tensors[name]
        if not keeps_residual(channel, tensor):
            seen[name] = channel.encoding(name, "up").quantize(value)
            continue
        wanted = value + residuals[name]
        seen[name] = tensor.up.quantize(wanted)
        after[name] = wanted - seen[name]
    return Contribution(seen, contribution.weight), after
