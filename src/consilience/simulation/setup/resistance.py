"""How the means of a run resist bad members, and which learners misbehave; what contradicts the method is refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from consilience.config.attacks import Attack, parse_attack
from consilience.config.config import Config
from consilience.errors import ConfigurationError
from consilience.method import Method
from consilience.wire import schema
from consilience.wire.robustness import PLAIN, Robustness

_FEWEST = 3


def robust_channel(channel: schema.Channel, robustness: Robustness) -> schema.Channel:
    """A channel with the run's settings; pools and what is never sent are not aggregated, and votes have one norm."""
    if not isinstance(channel, schema.Mean) or channel.scope == "oneself" or robustness == PLAIN:
        return channel
    if channel.takes_votes:
        return replace(channel, robustness=_for_votes(robustness))
    cap = min(robustness.weight_cap, channel.robustness.weight_cap)  # an exchange may cap weights itself
    return replace(channel, robustness=replace(robustness, weight_cap=cap))


def _for_votes(robustness: Robustness) -> Robustness:
    return replace(robustness.without_clip(), weight_cap=PLAIN.weight_cap)


def attacks_of(config: Config, method: Method) -> dict[int, Attack]:
    """The learners that misbehave in what they upload; a pooled method has no uploads."""
    found = {
        who: parse_attack(group.attack)
        for who, (_, group) in config.groups_by_learner().items()
        if group.attack is not None
    }
    return {} if method.pooled else {who: attack for who, attack in found.items() if attack.changes_uploads}


def check_robustness(
    robustness: Robustness, attacks: Mapping[int, Attack], channels: Collection[schema.Channel], learners: int
) -> None:
    """Refuse settings that change nothing of what these channels do."""
    sent = [channel for channel in channels if channel.scope == "everybody"]
    means = [channel for channel in sent if isinstance(channel, schema.Mean)]
    if sent and robustness != PLAIN:
        _check_means(robustness, sent, means, learners)
    if any(attack.swaps_rows for attack in attacks.values()) and sent and not any(each.rows for each in sent):
        raise ConfigurationError(
            f"attack 'prototype-swap' uploads the values of one class as another's, and "
            f"{', '.join(c.name for c in sent)} has nothing by class; share prototypes or logits, or use sign-flip"
        )


def _check_means(
    robustness: Robustness, sent: Collection[schema.Channel], means: Collection[schema.Mean], learners: int
) -> None:
    names = ", ".join(channel.name for channel in sent)
    setting = f"aggregation {robustness.label!r}" if robustness.aggregation != "mean" else "clip_norm, clip_ratio"
    if not means:
        raise ConfigurationError(
            f"{setting} is for means, and the method shares {names}, which is a pool: learners get single entries, and "
            f"nothing is aggregated; leave it out, or choose another method"
        )
    if robustness.clips and all(mean.takes_votes for mean in means):
        raise ConfigurationError(
            f"clip_norm and clip_ratio cannot tell votes apart, which {names} takes: they all have the same norm; "
            f"leave them out"
        )
    if robustness.aggregation != "mean" and learners < _FEWEST:
        raise ConfigurationError(
            f"{setting} with {learners} learners: nothing can be trimmed of two; use {_FEWEST} learners or more, or "
            f"aggregation 'mean'"
        )
