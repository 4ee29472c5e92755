"""Uploads of learners that misbehave, for studies: changed after encoding, so that a relay would accept them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from consilience.config.attacks import Attack
from consilience.wire import schema

Uploads = tuple[dict[str, Tensor], Tensor]


def misbehave(
    attacks: Mapping[int, Attack], who: np.ndarray, channel: schema.Channel, tensors: dict[str, Tensor], weights: Tensor
) -> Uploads:
    """The uploads (k, ...) of these learners and their weights, changed where a learner attacks."""
    places = [place for place, number in enumerate(who.tolist()) if number in attacks]
    if not places or channel.scope == "oneself":
        return tensors, weights
    changed, claimed = {key: t.clone() for key, t in tensors.items()}, weights.clone()
    for place in places:
        one = slice(place, place + 1)
        mine, claim = _attacked(
            attacks[int(who[place])], channel, {key: t[one] for key, t in tensors.items()}, weights[one]
        )
        for key, value in mine.items():
            changed[key][one] = value
        claimed[one] = claim
    return changed, claimed


def _attacked(attack: Attack, channel: schema.Channel, tensors: dict[str, Tensor], weights: Tensor) -> Uploads:
    """One learner's upload, (1, ...), as it is after the attack."""
    if attack.swaps_rows and channel.rows:
        axis = 2 if isinstance(channel, schema.Pool) else 1  # entries of a pool come before the rows
        tensors = {key: t.roll(1, axis) for key, t in tensors.items()}
        weights = weights.roll(1, axis)
    if attack.claim != 1 and not (isinstance(channel, schema.Mean) and channel.takes_votes):
        weights = torch.round(weights * attack.claim) if channel.rows else weights * attack.claim
    if attack.factor != 1:
        tensors = {key: _scaled(attack.factor, channel, key, t) for key, t in tensors.items()}
    return tensors, weights


def _scaled(factor: float, channel: schema.Channel, key: str, value: Tensor) -> Tensor:
    """The values times a factor, within what the channel accepts, as they are decoded."""
    tensor, encoding = channel.tensors[key], channel.encoding(key, "up")
    most = torch.finfo(torch.float32).max
    scaled = (value * factor).clamp(max(tensor.low, -most), min(tensor.high, most))
    return vmap(encoding.quantize)(scaled) if encoding.lossy else scaled
