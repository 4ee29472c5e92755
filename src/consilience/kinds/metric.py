"""The score of a kind of task: what stands in tables, charts and records where classification has its accuracy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """A score in percent, of which more is better.

    key: its name in records, under `metric`. name: as headings and axes write it. meaning: what it is. groups: what the
    score of the own answer weighs as in a learner's own data.
    """

    key: str
    name: str
    meaning: str
    groups: str

    @property
    def title(self) -> str:
        """The name at the beginning of a sentence."""
        return self.name[:1].upper() + self.name[1:]


ACCURACY = Metric("accuracy", "accuracy", "the share of the samples whose class is predicted", "test classes")
F1 = Metric(
    "f1",
    "F1",
    "the harmonic mean of precision and recall over all decisions about labels (micro-averaged)",
    "labels",
)
R2 = Metric(
    "r2",
    "R²",
    "the share of the variance of the test targets that is predicted; below 0 is worse than always predicting the mean",
    "bins of the target",
)

METRICS = {metric.key: metric for metric in (ACCURACY, F1, R2)}
"""Every score by its key."""
