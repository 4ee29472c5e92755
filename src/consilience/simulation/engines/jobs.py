"""Jobs for engines, and their results.

Large things do not travel with jobs: learners' states, the training data and uploads are in memory that all processes
share, and the engine brings the answers that learners hold to where the job is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from consilience.simulation.engines.answers import Held
from consilience.task import AnswerKind

TestSet = Literal["common", "own", "validation"]
"""Samples to test on: everybody's, a learner's own test set, or what a learner held out for validation."""


@dataclass(frozen=True, eq=False)
class Work:
    """Train some rows of a cohort, and write what they upload into a slot."""

    cohort: int
    rows: np.ndarray
    round: int
    held: Held
    uploads: tuple[str, ...]  # the exchanges to upload to
    online: np.ndarray  # (rows,) whether a row can be reached: only then it uploads
    train: bool = True
    evaluate: bool = False
    slot: int = 0


@dataclass(frozen=True, eq=False)
class Receive:
    """Let new answers change some rows of a cohort."""

    cohort: int
    rows: np.ndarray
    fresh: Held


@dataclass(frozen=True, eq=False)
class Evaluate:
    """Test an answer of some rows of a cohort: on the common test set, each on its own, or on what each held out."""

    cohort: int
    rows: np.ndarray
    tests: TestSet = "common"
    answer: AnswerKind = "common"


@dataclass(frozen=True, eq=False)
class Choose:
    """Let the objective of some rows of a cohort choose by the samples that each held out."""

    cohort: int
    rows: np.ndarray


@dataclass(frozen=True, eq=False)
class Represent:
    """Compute the features of the samples that some rows of a cohort held out."""

    cohort: int
    rows: np.ndarray


@dataclass(frozen=True, eq=False)
class Probe:
    """Test the representations of some rows of a cohort, by classifiers trained on them."""

    cohort: int
    rows: np.ndarray
    probes: tuple[str, ...]
    training: np.ndarray  # (rows, 2) first and last position in the training set for each row's probe
    held_out: tuple[np.ndarray, ...] | None = None
    """With a validation split, for each row the positions that its federation holds out. A probe is not trained on
    them, and predicts them."""


@dataclass(frozen=True, eq=False)
class Inspect:
    """Sum the test samples' logits over some rows of a cohort, or measure what a layer gives away of the inputs."""

    cohort: int
    rows: np.ndarray
    logits: bool
    layer: str | None = None


@dataclass(frozen=True, eq=False)
class Measure:
    """Take further measures of some rows of a cohort, on the common test set."""

    cohort: int
    rows: np.ndarray
    metrics: tuple[str, ...]


Job = Work | Receive | Evaluate | Choose | Represent | Probe | Inspect | Measure


@dataclass
class JobResult:
    """The result of a job, with one entry per row."""

    losses: np.ndarray | None = None  # (rows, loss terms and the share of correct predictions)
    correct: np.ndarray | None = None  # (rows, classes) correct test samples; (rows, probes, classes) of probes
    non_finite: Mapping[int, str] = field(default_factory=dict)  # by entry: what is NaN or infinite
    seconds: dict[str, np.ndarray] = field(default_factory=dict)
    logits: np.ndarray | None = None  # (heads, samples, classes) of the test samples, summed over all rows
    measured: Mapping[str, np.ndarray] = field(default_factory=dict)  # (rows,) by key of a round's record
    dependence: np.ndarray | None = None  # (rows,) distance correlation of the inputs and a layer's outputs
    features: tuple[np.ndarray, ...] = ()  # of each row: (samples, width) of what it held out
    validated: tuple[np.ndarray, ...] = ()  # of each row: which held-out samples its first probe predicts correctly


def non_finite_parameter() -> str:
    """What is wrong with a learner whose training diverged."""
    return "a parameter is NaN or infinite after training"


def non_finite_upload(exchange: str) -> str:
    """What is wrong with an upload that no channel takes."""
    return f"the upload to exchange {exchange!r} is NaN or infinite"
