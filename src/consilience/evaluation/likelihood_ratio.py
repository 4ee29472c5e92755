"""Membership inference by likelihood ratio with shadow models (LiRA, Carlini et al. 2022).

Every model is trained on a random half of the samples. Each in turn is the target of the attack, and all others are
its shadow models: of each sample, some were trained with it (in) and the others without it (out). The attacker compares
what it sees of the target with two Gaussians per sample, fitted to the shadow models that are in and out.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from consilience.errors import ConfigurationError, TrainingError
from consilience.validation import check_choice

Form = Literal["online", "offline"]
"""online: log-likelihood ratio of in and out. offline: how unlikely the target is among shadow models that are out; the
attacker needs no shadow model that was trained on the sample."""
MIN_MODELS = 8
"""Models, at least: the target, and shadow models for two Gaussians."""
_LEAST = 2  # shadow models that are in, and that are out, of a sample that is attacked
_OWN_VARIANCE = 16  # shadow models on each side from which a sample has a variance of its own
_SHRINKAGE = 0.1  # of the covariance of several statistics towards its diagonal
_TINY = 1e-12


def likelihood_ratio_scores(statistics: np.ndarray, member: np.ndarray, form: Form = "online") -> np.ndarray:
    """The score of every sample in every model as the target, (models, samples); larger for members.

    statistics: (models, samples) or (models, samples, several): what the attacker sees of a model about a sample. Of
    several, those in the linear combination that separates the shadow models' members best. member: (models, samples)
    whether the model was trained with the sample, drawn for each model by itself: if exactly half of the models had a
    sample, the shadow models of a target would reveal whether the target has it. NaN where a sample has too few shadow
    models that are in or out.
    """
    check_choice("form", form, get_args(Form))
    seen = _checked(statistics, member)
    scores = np.full(member.shape, np.nan)
    for target in range(len(seen)):
        others = np.arange(len(seen)) != target
        shadow, inside = seen[others], member[others]
        weights = _separating_direction(shadow, inside) if seen.shape[2] > 1 else np.ones(1)
        scores[target] = _score(seen[target] @ weights, shadow @ weights, inside, form)
    return scores


def _score(target: np.ndarray, shadow: np.ndarray, inside: np.ndarray, form: Form) -> np.ndarray:
    """The scores of one target, (samples,), from the values of its shadow models, (models, samples)."""
    fewest = np.minimum(inside.sum(0), (~inside).sum(0))  # the same rule for both sides, or the rule tells them apart
    own = fewest >= _OWN_VARIANCE
    means, deviations = zip(*(_gaussians(shadow, side, own) for side in (inside, ~inside)), strict=True)
    from_in, from_out = ((target - m) / s for m, s in zip(means, deviations, strict=True))
    ratio = (from_out**2 - from_in**2) / 2 + np.log(deviations[1] / deviations[0])
    # Offline, larger means more likely a member: the statistics of members are larger, by their definition.
    found = ratio if form == "online" else from_out
    scores: np.ndarray = np.where(fewest >= _LEAST, found, np.nan)
    return scores


def _gaussians(values: np.ndarray, side: np.ndarray, own: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each sample over the models of a side, (samples,) each.

    own: which samples have a variance of their own; with few models it is too uncertain, and all have the same one.
    """
    count = np.maximum(side.sum(0), 1)
    mean = (values * side).sum(0) / count
    squares = (((values - mean) * side) ** 2).sum(0)
    freedom = np.maximum(count - 1, 1)
    common = squares.sum() / max((np.maximum(side.sum(0) - 1, 0)).sum(), 1)
    variance = np.where(own, squares / freedom, common)
    return mean, np.sqrt(np.maximum(variance, _TINY + 1e-6 * common))


def _separating_direction(shadow: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Fisher's linear discriminant of the shadow models' members and others, with each sample's own level removed."""
    level = _level(shadow, inside)
    centered = shadow - level  # (models, samples, several)
    spread = centered.reshape(-1, shadow.shape[2]).std(0) + _TINY
    centered = centered / spread
    difference = centered[inside].mean(0) - centered[~inside].mean(0)
    within = centered - np.where(inside[..., None], difference / 2, -difference / 2)
    within = within.reshape(-1, shadow.shape[2])
    covariance = within.T @ within / len(within)
    covariance = (1 - _SHRINKAGE) * covariance + _SHRINKAGE * np.diag(np.diag(covariance) + _TINY)
    direction: np.ndarray = np.linalg.solve(covariance, difference) / spread
    return direction


def _level(shadow: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """The middle between a sample's mean over models that are in and over those that are out, (samples, several)."""
    sides = [
        (shadow * side[..., None]).sum(0) / np.maximum(side.sum(0), 1)[:, None]  # (samples, several)
        for side in (inside, ~inside)
    ]
    middle: np.ndarray = (sides[0] + sides[1]) / 2
    return middle


def _checked(statistics: np.ndarray, member: np.ndarray) -> np.ndarray:
    """Statistics as (models, samples, several) in float64; what cannot be attacked is refused."""
    seen = np.asarray(statistics, dtype=np.float64)
    seen = seen[..., None] if seen.ndim == 2 else seen
    if seen.shape[:2] != member.shape or member.dtype != np.bool_:
        raise ConfigurationError(
            f"statistics have the shape {np.shape(statistics)} and memberships {member.dtype} of {member.shape}; give "
            f"(models, samples) statistics, and one true or false for each"
        )
    if len(seen) < MIN_MODELS:
        raise ConfigurationError(
            f"there are {len(seen)} shadow models; the attack needs {MIN_MODELS} or more, half of them with each sample"
        )
    if not member.any() or member.all():
        kind = "members" if member.all() else "others"
        raise ConfigurationError(f"all samples are {kind}; the attack needs members and others: train on a half")
    if not np.isfinite(seen).all():
        bad = int((~np.isfinite(seen)).sum())
        raise TrainingError(f"{bad} of {seen.size} statistics are NaN or infinite; check the training of the models")
    return seen
