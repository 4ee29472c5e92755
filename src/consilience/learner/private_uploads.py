"""Noise on what a learner uploads, after its exchanges contributed and before anything is encoded.

Encodings, and the residuals that they leave for the next upload, only see values with noise: they are post-processing,
which tells nothing more about the data. So is everything that the relay and other learners do with an upload.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from consilience.config.privacy import Private
from consilience.errors import ConfigurationError
from consilience.exchanges.averaging import AveragingExchange
from consilience.exchanges.base import Contribution, Exchange, View
from consilience.functional.noise import class_sums_sensitivity, private_class_means
from consilience.functional.upload_noise import private_upload
from consilience.privacy.plan import StepPlan
from consilience.wire import schema

NOISE = "privacy"
"""The owner of the noise of an upload, where random numbers are named by their owner."""
ENTERING = "privacy sampling"
"""Beside them, where samples have budgets of their own: 1 for samples that enter an upload, (samples,)."""


@dataclass(frozen=True)
class LearnerPrivacy:
    """What the learners of a cohort do so that their uploads are private.

    noise: the multiplier of an upload, or of the class means in it. steps: by number of samples, how a learner with so
    many takes private steps; empty where steps are not private.
    """

    private: Private
    clip: float
    noise: float
    steps: Mapping[int, StepPlan] = field(default_factory=dict)


def traveling(exchanges: Sequence[Exchange]) -> list[Exchange]:
    """The exchanges whose uploads leave the learner."""
    return [e for e in exchanges if e.scope == "everybody"]


def noise_size(privacy: LearnerPrivacy, exchanges: Sequence[Exchange], channels: Mapping[str, schema.Channel]) -> int:
    """How many normal numbers an upload to these exchanges needs."""
    return sum(_values(privacy, e, channels[e.name]) for e in traveling(exchanges))


def private_contributions(
    privacy: LearnerPrivacy,
    exchanges: Sequence[Exchange],
    channels: Mapping[str, schema.Channel],
    views: Mapping[str, View],
    contributions: Mapping[str, Contribution],
    normal: Tensor,
) -> dict[str, Contribution]:
    """The contributions of one upload with noise; those that stay with the learner are left as they are.

    exchanges: those that contributed, in order. views: what each saw. normal: `noise_size` standard normal numbers.
    """
    noised = _whole_upload if privacy.private == "upload" else _class_means
    found = noised(privacy, traveling(exchanges), channels, views, contributions, normal)
    return {name: found.get(name, given) for name, given in contributions.items()}


def _whole_upload(
    privacy: LearnerPrivacy,
    exchanges: Sequence[Exchange],
    channels: Mapping[str, schema.Channel],
    views: Mapping[str, View],
    contributions: Mapping[str, Contribution],
    normal: Tensor,
) -> dict[str, Contribution]:
    """All tensors as one vector with noise. Weights, which would tell how many samples there are, are all 1."""
    flat = {(e.name, key): t for e in exchanges for key, t in contributions[e.name].tensors.items()}
    named = {f"{name}/{key}": tensor for (name, key), tensor in flat.items()}
    noisy = private_upload(named, privacy.clip, privacy.noise, normal)
    found = {}
    for e in exchanges:
        tensors = {key: noisy[f"{e.name}/{key}"] for key in contributions[e.name].tensors}
        found[e.name] = Contribution(
            _within_bounds(channels[e.name], tensors), torch.ones_like(contributions[e.name].weight)
        )
    return found


def _class_means(
    privacy: LearnerPrivacy,
    exchanges: Sequence[Exchange],
    channels: Mapping[str, schema.Channel],
    views: Mapping[str, View],
    contributions: Mapping[str, Contribution],
    normal: Tensor,
) -> dict[str, Contribution]:
    """Class means of noised sums and counts. Uploads that use no samples are those of parameters that are private."""
    averaging = [e for e in exchanges if isinstance(e, AveragingExchange)]
    for e in (e for e in exchanges if e not in averaging):
        if privacy.private != "training" or e.needs_representations:
            raise ConfigurationError(
                f"private is {privacy.private!r}, and exchange {e.name!r} uploads no class means: its upload would "
                f"have no noise; use private='upload'"
            )
    deviation, start, found = privacy.noise * _sensitivity(privacy, averaging, channels), 0, {}
    for e in averaging:
        given, (values, member) = contributions[e.name], e.class_samples(views[e.name])
        size = _values(privacy, e, channels[e.name])
        own, start = normal[start : start + size], start + size
        least = int(getattr(e, "min_count", 1))
        means, counts = private_class_means(values, member, privacy.clip, deviation, own, least)
        ((key, before),) = given.tensors.items()
        tensors = {key: means.reshape(before.shape)}
        weight = counts.reshape(given.weight.shape)
        equal = getattr(e, "weighting", "samples") == "equal"
        found[e.name] = Contribution(
            _within_bounds(channels[e.name], tensors), (weight > 0).to(weight.dtype) if equal else weight
        )
    return found


def _sensitivity(
    privacy: LearnerPrivacy, exchanges: Sequence[AveragingExchange], channels: Mapping[str, schema.Channel]
) -> float:
    """By how much all class sums and counts of an upload change together when one sample contributes nothing."""
    each = [class_sums_sensitivity(privacy.clip, _entries(channels[e.name]), e.sample_influence) for e in exchanges]
    return math.sqrt(sum(change**2 for change in each))


def _values(privacy: LearnerPrivacy, exchange: Exchange, channel: schema.Channel) -> int:
    """How many values of an exchange's upload get noise."""
    values = _entries(channel) * sum(math.prod(tensor.shape) for tensor in channel.tensors.values())
    if privacy.private == "upload":
        return values
    return values + _entries(channel) * math.prod(channel.rows) if isinstance(exchange, AveragingExchange) else 0


def _entries(channel: schema.Channel) -> int:
    return channel.keep if isinstance(channel, schema.Pool) else 1


def _within_bounds(channel: schema.Channel, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Noise may exceed the bounds of a channel; what does is set to them."""
    return {key: t.clamp(channel.tensors[key].low, channel.tensors[key].high) for key, t in tensors.items()}
