"""What engines are asked to do, and what comes of it.

Large things do not travel with jobs: learners' state and the training data lie in memory that everybody sees, and so
does what learners put up, in the loop in numbered slots of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from consilience.channels import Answer

Held = Mapping[str, np.ndarray]
"""The numbers of answers by exchange, one a row; -1 where a row has none."""


@dataclass(frozen=True, eq=False)
class Work:
    """Train some rows of a cohort and write what they put up into a slot."""

    cohort: int
    rows: np.ndarray
    round: int
    held: Held
    put: tuple[str, ...]  # the exchanges to contribute to
    up: np.ndarray  # (rows,) whether a row can be reached, and so does contribute
    train: bool = True
    evaluate: bool = False
    slot: int = 0


@dataclass(frozen=True, eq=False)
class Receive:
    """Let new answers change some rows of a cohort."""

    cohort: int
    rows: np.ndarray
    news: Held


@dataclass(frozen=True, eq=False)
class Evaluate:
    """Test some rows of a cohort, on the common test set or each on its own."""

    cohort: int
    rows: np.ndarray
    own: bool = False


@dataclass(frozen=True, eq=False)
class Probe:
    """Test what some rows of a cohort make of samples, by classifiers trained on it."""

    cohort: int
    rows: np.ndarray
    probes: tuple[str, ...]
    seen: np.ndarray  # (rows, 2) from where to where in the training set a row's probe is trained


@dataclass(frozen=True, eq=False)
class Inspect:
    """Ask some rows of a cohort what they tell of the test samples, all together, and what a layer gives away."""

    cohort: int
    rows: np.ndarray
    logits: bool
    layer: str | None = None


@dataclass(frozen=True, eq=False)
class StoreAnswers:
    """Hear new answers, by the number of the first reader's, and forget those nobody has any more."""

    answers: Mapping[int, Answer]
    forget: tuple[int, ...] = ()


Job = Work | Receive | Evaluate | Probe | Inspect | StoreAnswers


@dataclass
class Done:
    """What came of a job, one entry a row."""

    losses: np.ndarray | None = None  # (rows, terms and the share of samples told right)
    right: np.ndarray | None = None  # (rows, classes) test samples told right; (rows, probes, classes) by probes
    non_finite: Mapping[int, str] = field(default_factory=dict)  # which entry is no number where one should be, and how
    seconds: dict[str, np.ndarray] = field(default_factory=dict)
    logits: np.ndarray | None = None  # (heads, samples, classes) of the test samples, the sum over all rows
    dependence: np.ndarray | None = None  # (rows,) distance correlation of the inputs and a layer's outputs
