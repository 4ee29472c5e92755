"""What a federation knows, for a library of one's own to train with: class means, observations and mean logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from consilience.channels import Answer, empty_answer
from consilience.peer.array_exchanges import LOGITS, OBSERVATIONS, PROTOTYPES, ArrayExchange
from consilience.validation import check_number


@dataclass(frozen=True)
class Targets:
    """The newest answers of a federation as NumPy arrays, float32; zeros with count 0 where nothing is known yet.

    means: the mean feature of each class over the samples of all members, (classes, width). counts: how many samples
    each is a mean of, (classes,); with weighting "equal", how many members have the class. logits: the mean logits of
    the samples of each class, (classes, classes), and logit_counts, (classes,). observations: means of a few samples of
    a random member, (entries, classes, width), and observation_counts, of how many, (entries, classes). What the
    federation does not share has width 0, and no entries.
    """

    means: np.ndarray
    counts: np.ndarray
    logits: np.ndarray
    logit_counts: np.ndarray
    observations: np.ndarray
    observation_counts: np.ndarray

    @property
    def known(self) -> np.ndarray:
        """The classes whose mean feature is known, (classes,) bool."""
        return self.counts > 0

    @property
    def known_logits(self) -> np.ndarray:
        """The classes whose mean logits are known, (classes,) bool."""
        return self.logit_counts > 0

    @property
    def known_observations(self) -> np.ndarray:
        """The classes that each observation has, (entries, classes) bool."""
        return self.observation_counts > 0

    def as_samples(self, weight: float = 1.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Known means and observations as weighted training samples: features, labels and weights.

        weight: of each mean, and of all observations of a class together. A library takes them beside one's own
        samples, such as `fit(features, labels, sample_weight=weights)` of scikit-learn.
        """
        check_number("weight", weight)
        known, seen = np.flatnonzero(self.known), self.known_observations
        entries, classes = np.nonzero(seen)
        features = np.concatenate([self.means[known], self.observations[entries, classes]])
        shares = weight / np.maximum(seen.sum(axis=0), 1)  # (classes,)
        weights = np.concatenate([np.full(len(known), weight), shares[classes]])
        return features, np.concatenate([known, classes]), weights


def targets_of(exchanges: Sequence[ArrayExchange], answers: Mapping[str, Answer], classes: int) -> Targets:
    """The targets that answers hold; they are copies, which the caller may change."""
    shared = {e.name: e.channel for e in exchanges}
    width = next((e.width for e in exchanges if e.values == "features"), 0)
    empty = {
        PROTOTYPES: ((classes, width), (classes,)),
        LOGITS: ((classes, 0), (classes,)),
        OBSERVATIONS: ((0, classes, width), (0, classes)),
    }
    found: list[np.ndarray] = []
    for name, (values, counts) in empty.items():
        if name in shared:
            answer = answers[name] if name in answers else empty_answer(shared[name])
            found += [np.array(answer.tensors["mean"], np.float32), np.array(answer.count, np.float64)]
        else:
            found += [np.zeros(values, np.float32), np.zeros(counts)]
    return Targets(*found)
