"""What an upload says about a sample: the statistics of the membership attack, one function for each kind of upload.

The attacker sees the upload as the relay decodes it, knows the answers that the learner had, and is given the learner's
model of that moment and samples of the same distribution: more than most attackers have, since an audit should err on
the side of the attacker. Larger values speak for membership.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from consilience.exchanges import Clusters, Gradients, Observations, Weights
from consilience.exchanges.base import Exchange, Received
from consilience.exchanges.class_means import ClassMeans
from consilience.functional.clusters import nearest_center
from consilience.functional.similarity import unit_rows
from consilience.learner.learner import Learner
from consilience.learner.passes import represent
from consilience.learner.state import LearnerState

_SHRINKAGE = 0.1  # of the covariance of the attacker's features towards a sphere
_STEP = 0.01  # along a vote, in units of the common values' length


@dataclass(frozen=True, eq=False)
class LabeledSamples:
    """Inputs (samples, ...) and their classes (samples,), on the learner's device."""

    inputs: Tensor
    targets: Tensor


@dataclass(frozen=True, eq=False)
class Uploaded:
    """One learner's upload to an exchange: tensors, its weight, and the answer that the learner had."""

    exchange: Exchange
    tensors: Mapping[str, Tensor]
    weight: Tensor
    received: Received


def is_attacked(exchange: Exchange) -> bool:
    """Whether there is an attack on the uploads of an exchange."""
    return isinstance(exchange, ClassMeans | Observations | Clusters | Weights | Gradients)


def statistics_per_upload(exchange: Exchange) -> int:
    """How many statistics an upload gives for each sample."""
    return 2 if is_attacked(exchange) else 0


def upload_statistics(
    learner: Learner, state: LearnerState, upload: Uploaded, samples: LabeledSamples, auxiliary: LabeledSamples
) -> Tensor:
    """The statistics of samples, (samples, 2).

    state: the learner's, after local training. auxiliary: the attacker's own samples.
    """
    if isinstance(upload.exchange, Weights | Gradients):
        return _weight_statistics(learner, state, upload, samples)
    learner.bind(state)
    if isinstance(upload.exchange, Clusters):
        return _cluster_statistics(learner, upload, samples, auxiliary)
    seen, known = (_averaged(learner, upload.exchange, some) for some in (samples, auxiliary))
    entries, counts = upload.tensors["mean"].double(), upload.weight
    if not isinstance(upload.exchange, Observations):
        entries, counts = entries[None], counts[None]
    each = [
        means_statistics(seen, samples.targets, mean, count, known, auxiliary.targets)
        for mean, count in zip(entries, counts, strict=True)
    ]
    return torch.stack(each).mean(0)


def means_statistics(
    values: Tensor, targets: Tensor, means: Tensor, counts: Tensor, known: Tensor, known_targets: Tensor
) -> Tensor:
    """How far the mean of a sample's class lies in the sample's direction, and how near it is, (samples, 2).

    values: (samples, width) what is averaged; means: (classes, width) as uploaded; counts: (classes,). known: the
    attacker's values (others, width), whose class means and covariance make the directions comparable. The first is the
    statistic of tracing attacks on means (Homer et al. 2008; Dwork et al. 2015), 0 for a class that was not uploaded.
    """
    classes = len(means)
    marks = torch.nn.functional.one_hot(known_targets, classes).to(known.dtype)  # (others, classes)
    per_class = marks.sum(0)
    centers = (marks.T @ known) / per_class.clamp(min=1)[:, None]  # (classes, width)
    centers = torch.where((per_class > 0)[:, None], centers, known.mean(0))
    spread = known - centers[known_targets]
    covariance = spread.T @ spread / max(len(spread) - 1, 1)
    scale = covariance.diagonal().mean().clamp(min=1e-12)
    covariance = (1 - _SHRINKAGE) * covariance + _SHRINKAGE * scale * torch.eye(len(covariance), dtype=known.dtype)
    moved = torch.linalg.solve(covariance, (means - centers).T).T  # (classes, width)
    there = (counts > 0).to(values.dtype)[targets]
    along = (moved[targets] * (values - centers[targets])).sum(1)
    near = -(values - means[targets]).square().sum(1) / scale
    return torch.stack([along, near], 1) * there[:, None]


def confidence(logits: Tensor, targets: Tensor) -> Tensor:
    """The logit of the probability of a sample's class, (samples,): nearly Gaussian over shadow models."""
    own = logits.gather(1, targets[:, None])[:, 0]
    others = logits.scatter(1, targets[:, None], -torch.inf)
    return own - others.logsumexp(1)


def _averaged(learner: Learner, exchange: Exchange, samples: LabeledSamples) -> Tensor:
    """What the exchange averages, (samples, width), in float64: features or logits."""
    seen = represent(learner, samples.inputs, samples.targets)
    view = learner.view(exchange, seen, learner.count(len(samples.targets)))
    values = exchange.of(view) if isinstance(exchange, ClassMeans) else view.features
    return values.double()


def _cluster_statistics(
    learner: Learner, upload: Uploaded, samples: LabeledSamples, auxiliary: LabeledSamples
) -> Tensor:
    """As of class means, with the center that is nearest to a sample in the place of its class."""
    seen, known = (unit_rows(_averaged(learner, upload.exchange, some)) for some in (samples, auxiliary))
    centers, count = upload.received.tensors["mean"].double(), upload.received.count
    if not bool((count > 0).any()):  # before the first answer learners make clusters of their own
        centers, count = upload.tensors["mean"].double(), upload.weight
    mine, theirs = (nearest_center(rows, centers, count) for rows in (seen, known))
    return means_statistics(seen, mine, upload.tensors["mean"].double(), upload.weight, known, theirs)


@torch.no_grad()
def _weight_statistics(learner: Learner, state: LearnerState, upload: Uploaded, samples: LabeledSamples) -> Tensor:
    """The confidence of the model that the upload describes, and what it gained over the common one, (samples, 2)."""
    found = []
    changes, common = upload.tensors, upload.received.tensors
    step = 1.0
    if isinstance(upload.exchange, Gradients):  # signs have no length: a short step along them
        lengths = (torch.cat([group[name].flatten() for name in changes]).norm() for group in (common, changes))
        step = _STEP * float(next(lengths)) / max(float(next(lengths)), 1e-12)
    for factor in (step, 0.0):
        own = state.clone()
        for layout, flat in ((learner.binding.parameters, own.parameters), (learner.binding.buffers, own.buffers)):
            views = layout.views(flat)
            for name in changes.keys() & views.keys():
                views[name].copy_(common[name] + factor * changes[name])
        learner.bind(own)
        logits = represent(learner, samples.inputs, samples.targets)["logits"]
        found.append(confidence(logits.double(), samples.targets))
    return torch.stack([found[0], (found[0] - found[1]) / step], 1)
