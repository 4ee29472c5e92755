"""Uploads and answers as the relay sees them, for whoever watches a simulation: audits of what uploads reveal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from consilience.channels import Answer


@dataclass(frozen=True, eq=False)
class SeenUpload:
    """What learners of one federation upload to a channel in a round, as the relay decodes it."""

    round: int
    channel: str
    federation: int
    cohort: int
    rows: np.ndarray  # (learners,) in the cohort
    learners: np.ndarray  # (learners,) their numbers
    held: np.ndarray  # (learners,) numbers of the answers that they hold
    tensors: Mapping[str, Tensor]  # (learners, ...) each
    weights: Tensor  # (learners,) or (learners, rows)


OnUpload = Callable[[SeenUpload], None]
"""Called with every upload, while the learners' states are those after local training."""

AnswerKey = tuple[int, str, int, int, int]
"""Federation, channel, round, whether it catches up, and how many entries are drawn."""
SentAnswer = tuple[Answer, np.ndarray]
"""Answers, and which of them each reader gets."""
OnAnswer = Callable[[AnswerKey, SentAnswer], SentAnswer]
"""Called with the answers to a federation's learners; returns what they get instead."""
