"""Objectives: what a learner minimizes on its own data."""

from __future__ import annotations

import re
from collections.abc import Callable

from consilience.errors import ConfigurationError, UnknownName
from consilience.functional.augmentation import Views
from consilience.objectives.base import Objective
from consilience.objectives.cross_entropy import CrossEntropy
from consilience.objectives.simclr import Augmented, SimCLR
from consilience.objectives.two_answers import TwoAnswers
from consilience.objectives.two_stage import TwoStage

__all__ = [
    "OBJECTIVES",
    "Augmented",
    "CrossEntropy",
    "Objective",
    "SimCLR",
    "TwoAnswers",
    "TwoStage",
    "Views",
    "build_objective",
]

OBJECTIVES: dict[str, Callable[[], Objective]] = {
    "cross-entropy": CrossEntropy,
    "calibrated": TwoAnswers,
    "simclr": SimCLR,
    "nt-xent": lambda: SimCLR(both=True),
}
"""Objectives by name; those that contrast may name their temperature, "simclr(0.4)"."""


def build_objective(text: str, own_head: bool = False, own_model: bool = False) -> Objective:
    """The objective of that name; "simclr" and "nt-xent" may have a temperature.

    own_head: also train a private head for data like the learner's own, which needs an objective with labels.
    own_model: also train a model that never leaves the learner, where the learner holds out samples to choose by.

    >>> build_objective("simclr(0.2)").temperature
    0.2
    """
    objective = _named_objective(text)
    if not own_head and not own_model:
        return objective
    if not isinstance(objective, CrossEntropy):
        setting = "own_head" if own_head else "own_model"
        raise ConfigurationError(
            f"{setting} trains a classifier, and objective {text!r} learns without labels; leave {setting} out, or use "
            f"cross-entropy or calibrated"
        )
    return TwoAnswers(calibrated=isinstance(objective, TwoAnswers), own_head=own_head, own_model=own_model)


def _named_objective(text: str) -> Objective:
    word, bracket, inside = text.strip().partition("(")
    if word.strip() not in OBJECTIVES:
        raise UnknownName("objective", word.strip(), OBJECTIVES)
    objective = OBJECTIVES[word.strip()]()
    if not bracket:
        return objective
    given = re.fullmatch(r"\s*([0-9.eE+-]+)\s*\)", inside)
    try:
        temperature = float(given[1]) if given else None
    except ValueError:
        temperature = None
    if temperature is None or not isinstance(objective, SimCLR):
        raise ConfigurationError(
            f"objective {text!r}: write cross-entropy, calibrated, simclr, nt-xent, or simclr(0.4)"
        )
    return SimCLR(temperature, objective.both)
