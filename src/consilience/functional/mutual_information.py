"""A lower bound on the mutual information of two learners' representations (Berdoz 2022, Theorem 1).

A sample s of class y is paired with an observation t_c of each class c. Let L be the sum of the cross-entropies of
these pairs, in expectation over s. With m classes that both the learner and the observation have, one pair is of the
same class and m - 1 are not, so that Theorem 1 has K = m - 1: I(s, t) >= log(m - 1) - L.

The theorem takes the m - 1 pairs to be draws from the product of the marginals, but they are one of each other class.
For these pairs, with class shares p of the samples: the best prediction is h = p(s, t) / (m p(s) u(t)), where u is the
mean over classes of the densities of t. Hence L >= -E log h = log m - I(s, t) - KL(p(t) | u(t)), and that divergence is
at most log m - H(p), H being the entropy in nats. So I(s, t) >= H(p) - L. If classes are even, H(p) = log m, a little
more than Theorem 1 has; if they are skewed it may be less, and no more than H(p) can be true: t depends on s by the
class alone.

Samples of classes that the observation lacks have no pair of the same class and do not count. All terms of L are
positive, so if `share` of the samples count, L of these is at most L of all samples / share.
"""

from __future__ import annotations

import numpy as np


def mutual_information_bound(loss: np.ndarray, present: np.ndarray, samples: np.ndarray) -> np.ndarray:
    """The smaller of log(m - 1) and H(p), minus L, of each learner: (learners,); NaN where no sample counts.

    loss: (learners,) the mean over all pairs of samples and classes that are present. present: (learners,
    observations, classes) what each observation has; with several, a sample is paired with a random one. samples:
    (learners, classes).
    """
    counted = samples[:, None] * present  # (learners, observations, classes)
    total = counted.sum(-1)
    shares = counted / np.maximum(total, 1)[..., None]
    entropy = -(shares * np.log(np.where(shares > 0, shares, 1))).sum(-1)
    pairs = (counted > 0).sum(-1)  # m
    most = np.minimum(np.log(np.maximum(pairs - 1, 1)), entropy).mean(-1)
    share = (total / np.maximum(samples.sum(-1), 1)[:, None]).min(-1, initial=1.0)
    of_all = loss * present.sum(-1).mean(-1)  # L of all samples
    return np.where(share > 0, most - of_all / np.where(share > 0, share, 1), np.nan)
