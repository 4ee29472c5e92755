"""Clusters: mean features of clusters that all learners have in common, for learners without labels.

One step of k-means per round, over the samples of all learners: each assigns its samples to the nearest common center
and uploads the mean of each cluster; the mean over all learners is the new center.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from consilience.config.schedules import Rate, number_or_schedule
from consilience.exchanges.base import Contribution, Exchange, Received, State, View
from consilience.functional.class_means import class_means
from consilience.functional.clusters import first_clusters, mean_of_views, nearest_center
from consilience.functional.similarity import unit_rows
from consilience.task import Task
from consilience.validation import check_integer
from consilience.wire import schema
from consilience.wire.encodings import FLOAT32, Encoding


@dataclass(frozen=True)
class Clusters(Exchange):
    """Pull the features of every sample, as vectors of length 1, toward the nearest of the common centers.

    A sample's center is the one nearest to the mean of its views, so that all its views are pulled to the same. A
    cluster in which nobody has samples has count 0: it is left out, and nothing is assigned to it again. The pull alone
    would let all features collapse into one point. The learner's own contrastive loss keeps samples apart, and the
    weight must be small beside it.
    """

    name: str = field(default="clusters", kw_only=True)
    feature_tensors: ClassVar[tuple[str, ...]] = ("mean",)
    uploads_before_training: ClassVar[bool] = True
    clusters: int = 20
    weight: Rate = 0.3
    min_count: int = 2
    encoding: Encoding = FLOAT32

    def __post_init__(self) -> None:
        check_integer("clusters", self.clusters)
        number_or_schedule("kd", self.weight)
        check_integer("min_count", self.min_count)

    def describe_upload(self) -> str:
        """What leaves the learner, in a few words."""
        return f"the mean feature and the sample count of each of {self.clusters} clusters"

    def channel(self, task: Task) -> schema.Mean:
        """A standing mean of (clusters, width), weighted by the samples of each cluster."""
        means = schema.Tensor((self.clusters, task.width), self.encoding, self.encoding, -1.0, 1.0)
        return schema.Mean(self.name, {"mean": means}, rows=(self.clusters,))

    def penalty(self, state: State, view: View, received: Received) -> Tensor:
        """Mean squared distance of unit features to their centers; 0 before there are any."""
        rows, centers, count = unit_rows(view.features), received.tensors["mean"], received.count
        positions = view.batch.positions  # none in a training loop of one's own, where each row is one sample
        seen = mean_of_views(rows, positions) if len(positions) else rows
        own = nearest_center(seen.detach(), centers, count)
        return ((rows - centers[own]).square().sum(1) * (count > 0)[own]).mean()

    def contribute(self, state: State, view: View, received: Received) -> Contribution:
        """The means of the learner's own samples in each cluster, weighted by their number."""
        rows = unit_rows(view.features)
        nearest = nearest_center(rows, received.tensors["mean"], received.count)
        first = first_clusters(rows, view.valid, self.clusters)
        own = torch.where((received.count > 0).any(), nearest, first)
        means, count = class_means(rows, own, self.clusters, view.valid, self.min_count)
        return Contribution({"mean": means}, count)
