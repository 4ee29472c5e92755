"""What a member without torch can share: means of features or logits by class, as the charter describes them.

The means are those of the exchanges `Prototypes`, `Logits` and `Observations`, computed by the same functions, and so
are the channels of means. Which exchanges a method has is repeated here, and how its settings are those of a pool; a
test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from consilience.config.built_in_methods import BUILT_IN
from consilience.errors import ConfigurationError, UnknownName
from consilience.functional.class_means import class_means, sampled_means
from consilience.functional.group_channels import (
    LARGEST_LOGIT,
    check_observation_size,
    mean_tensor,
    means_channel,
    refuse_single_samples,
)
from consilience.functional.group_means import Weighting, upload_weight
from consilience.randomness import AFTER_TRAINING, uniform_by_sample
from consilience.validation import check_choice, check_integer
from consilience.wire import schema
from consilience.wire.agreement import describe_difference, without_local_choices
from consilience.wire.charter import Charter
from consilience.wire.encodings import parse_encoding

Values = Literal["features", "logits"]
METHODS: dict[str, tuple[str, ...]] = {
    "representation-sharing": ("prototypes", "observations"),
    "fedproto": ("prototypes",),
    "federated-distillation": ("logits",),
}
"""The methods that members without torch can take part in, and their exchanges."""
OBSERVATIONS, LOGITS, PROTOTYPES = "observations", "logits", "prototypes"


@dataclass(frozen=True)
class Place:
    """Where random draws are made: the federation's seed, the member's number and the round."""

    seed: int
    number: int
    round: int


@dataclass(frozen=True)
class ArrayExchange:
    """One exchange of a member without torch: of what it uploads means, and how.

    min_count: the fewest samples of a class that is uploaded. size: samples that one observation averages, at most; 0
    where means are of all samples.
    """

    channel: schema.Channel
    min_count: int
    weighting: Weighting
    size: int = 0

    @property
    def name(self) -> str:
        """The name of the exchange and of its channel."""
        return self.channel.name

    @property
    def values(self) -> Values:
        """Of what it uploads means."""
        return LOGITS if self.name == LOGITS else "features"  # type: ignore[return-value]

    @property
    def width(self) -> int:
        """How many values a sample has: the width of features, or the number of classes."""
        return self.channel.tensors["mean"].shape[-1]

    def refuse_beyond_bounds(self, means: np.ndarray, federation: str) -> None:
        """Refuse means that the charter does not allow."""
        low, high = (getattr(self.channel.tensors["mean"], bound) for bound in ("low", "high"))
        largest = means.ravel()[np.abs(means).argmax()]
        if not low <= largest <= high:
            raise ConfigurationError(
                f"a mean of your {self.values} is {largest:g}, and federation {federation!r} allows {low:g} to "
                f"{high:g}; scale your {self.values} as the other members do, or ask for a charter with a larger bound"
            )

    def contribute(self, values: np.ndarray, labels: np.ndarray, place: Place) -> tuple[np.ndarray, np.ndarray]:
        """The means (classes, width) and their weights (classes,); of observations with one more axis in front.

        values: (rows, width) float32. labels: (rows,) int64.
        """
        classes, valid = self.channel.rows[0], np.ones(len(labels), np.float32)
        if not isinstance(self.channel, schema.Pool):
            means, count = class_means(values, labels, classes, valid, self.min_count)
            return means, upload_weight(count, self.weighting)
        shape = self.channel.keep, len(labels)
        chances = uniform_by_sample(self.name, shape, place.seed, place.round, place.number, AFTER_TRAINING)
        drawn = [sampled_means(values, labels, classes, valid, chance, self.size, self.min_count) for chance in chances]
        return np.stack([m for m, _ in drawn]), upload_weight(np.stack([c for _, c in drawn]), self.weighting)


def array_exchanges(method: Mapping[str, Any], classes: int, width: int, bound: float) -> list[ArrayExchange]:
    """The exchanges of a method that members without torch can take part in, with the channels that it has.

    method: its name and settings. width, bound: of features, how many a sample has and the largest absolute value.
    """
    name, settings = str(method["name"]), _checked_settings(method)
    weighting, min_count = settings["weighting"], settings.get("min_count", 2)
    refuse_single_samples(min_count)
    names = METHODS[name] if settings.get("means", "global") == "global" else (OBSERVATIONS,)
    exchanges = []
    for each in names:
        shape, high = ((classes, classes), LARGEST_LOGIT) if each == LOGITS else ((classes, width), bound)
        encoding = parse_encoding(settings["encoding"])
        if each != OBSERVATIONS:
            means = means_channel(each, shape, high, encoding, weighting)
            exchanges.append(ArrayExchange(means, min_count, weighting))
            continue
        check_observation_size(settings["n_avg"], min_count)
        tensors, (up, down) = mean_tensor(shape, high, encoding), (settings["up"], settings["down"])
        pool = schema.Pool(each, tensors, rows=(classes,), keep=up, draw=down)
        exchanges.append(ArrayExchange(pool, min_count, weighting, settings["n_avg"]))
    return exchanges


def exchanges_of_charter(charter: Charter) -> list[ArrayExchange]:
    """The exchanges of a federation at a member without torch; refuses what needs torch, by its name."""
    _refuse_federation(charter)
    channels = charter.channels
    width = max(tensor.shape[-1] for channel in channels.values() for tensor in channel.tensors.values())
    own = {e.name: e for e in array_exchanges(charter.method, charter.classes, width, 1.0)}
    if own.keys() != channels.keys():
        raise ConfigurationError(
            f"federation {charter.name!r} has the channels {', '.join(channels)}, and method "
            f"{charter.method['name']!r} the exchanges {', '.join(own)}; use the version of consilience that the "
            f"charter was written with"
        )
    for name, e in own.items():
        if without_local_choices(e.channel) != without_local_choices(channels[name]):
            raise ConfigurationError(
                f"channel {name!r} of federation {charter.name!r} is not the one of method "
                f"{charter.method['name']!r}: {describe_difference(e.channel, channels[name])}; use the version of "
                f"consilience that the charter was written with"
            )
    return [ArrayExchange(channels[name], e.min_count, e.weighting, e.size) for name, e in own.items()]


def _refuse_federation(charter: Charter) -> None:
    """Refuse a federation that shares what only a model in torch has, or makes uploads private in training."""
    name, method = charter.name, str(charter.method["name"])
    advice = (
        f"take part with torch, consilience.join(...) or `consilience join`; without torch the methods "
        f"{', '.join(METHODS)} work"
    )
    if charter.target is not None:
        raise ConfigurationError(
            f"federation {charter.name!r} is for {charter.kind}, and members without torch share means by class; take "
            f"part with torch, consilience.join(...) or `consilience join`"
        )
    if charter.roles is not None:
        roles = ", ".join(charter.roles.order)
        raise ConfigurationError(f"members of federation {name!r} have the roles {roles}, which train models; {advice}")
    if charter.public_set is not None:
        raise ConfigurationError(f"federation {name!r} has a public set, of which models are distilled; {advice}")
    moving = [key for key, channel in charter.channels.items() if channel.moves]
    if moving:
        raise ConfigurationError(
            f"federation {name!r} shares {moving[0]!r}, parameters of a model in torch that all members move together; "
            f"{advice}"
        )
    if method not in METHODS:
        raise ConfigurationError(
            f"federation {name!r} uses the method {method!r}, which is written for torch; {advice}"
        )
    if charter.privacy is not None and charter.privacy.private != "upload":
        raise ConfigurationError(
            f"federation {name!r} makes uploads private by private = {charter.privacy.private!r}, noise for single "
            f"samples that the model's training adds; {advice}, and private = 'upload' does, too"
        )


def _checked_settings(method: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a method with their defaults, of those that decide what is uploaded."""
    name = str(method["name"])
    known = BUILT_IN[name].settings
    for key in method:
        if key != "name" and key not in known:
            raise UnknownName("setting", key, known, of=f"method {name!r}")
    settings = {**known, **{key: value for key, value in method.items() if key != "name"}}
    for key in ("n_avg", "up", "down", "min_count"):
        if key in settings:
            check_integer(key, settings[key])
    check_choice("weighting", settings["weighting"], get_args(Weighting))
    if settings.get("dimensions", 1.0) != 1:
        raise ConfigurationError(
            f"dimensions is {settings['dimensions']}, which is for simulations; leave dimensions and subspace out"
        )
    return settings
