"""What engines are asked to do, and what comes of it.

Large things do not travel with jobs: learners' state and the training data lie in memory that everybody sees, and what
learners put up is written into numbered slots of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from consilience.channels import Answer

Held = Mapping[str, int]
"""The number of the newest answer a learner has, by exchange."""


@dataclass(frozen=True)
class Work:
    """Train some rows of a cohort and write what they put up into a slot."""

    cohort: int
    rows: tuple[int, ...]
    round: int
    held: tuple[Held, ...]
    put: tuple[tuple[str, ...], ...]  # for each row the exchanges it contributes to
    train: bool = True
    evaluate: bool = False
    slot: int = 0


@dataclass(frozen=True)
class Receive:
    """Let new answers change some rows of a cohort."""

    cohort: int
    rows: tuple[int, ...]
    held: tuple[Held, ...]


@dataclass(frozen=True)
class Evaluate:
    """Test some rows of a cohort."""

    cohort: int
    rows: tuple[int, ...]


@dataclass(frozen=True)
class Learn:
    """Hear new answers, and forget those nobody has any more."""

    answers: Mapping[int, Answer]
    forget: tuple[int, ...] = ()


Job = Work | Receive | Evaluate | Learn


@dataclass
class Done:
    """What came of a job, one entry a row."""

    losses: np.ndarray | None = None  # (rows, terms)
    right: np.ndarray | None = None  # (rows, classes) test samples told right
    nonsense: list[str] = field(default_factory=list)  # for each row what is no number where one should be, or ""
    seconds: dict[str, np.ndarray] = field(default_factory=dict)
