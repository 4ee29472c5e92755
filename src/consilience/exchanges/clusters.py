"""Clusters: the mean features of clusters that all learners agree on, for learners without labels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from consilience.config.schedules import Rate, number_or_schedule
from consilience.exchanges.base import Contribution, Exchange, Received, Scope, State, View
from consilience.functional.class_means import class_means
from consilience.functional.clusters import center_contrast, first_clusters, nearest_center
from consilience.functional.similarity import unit_rows
from consilience.task import Task
from consilience.validation import check_choice, check_integer
from consilience.wire import schema
from consilience.wire.encodings import FLOAT32, Encoding

Pull = Literal["distance", "contrast"]


@dataclass(frozen=True)
class Clusters(Exchange):
    name: str = field(default="clusters", kw_only=True)
    varies: ClassVar[tuple[str, ...]] = ("weight", "temperature")
    feature_tensors: ClassVar[tuple[str, ...]] = ("mean",)
    uploads_before_training: ClassVar[bool] = True
    clusters: int = 20
    weight: Rate = 1.0
    pull: Pull = "contrast"
    temperature: Rate = 0.1
    min_count: int = 2
    views: bool = True
    encoding: Encoding = FLOAT32
    scope: Scope = "everybody"

    def describe_upload(self) -> str:
        return f"the mean feature and the sample count of each of {self.clusters} clusters"

    def channel(self, task: Task) -> schema.Mean:
        means = schema.Tensor((self.clusters, task.width), self.encoding, self.encoding, -1.0, 1.0)
        return schema.Mean(self.name, {"mean": means}, rows=(self.clusters,), scope=self.scope)

    def penalty(self, state: State, view: View, received: Received) -> Tensor:
        rows, centers, count = unit_rows(view.features), received.tensors["mean"], received.count
        seen = rows.detach()
        if self.views:
            same = (view.batch.positions[:, None] == view.batch.positions[None, :]).to(rows.dtype)
            seen = same @ seen / same.sum(1, keepdim=True)
        own = nearest_center(seen, centers, count)
        if self.pull == "contrast":
            each = center_contrast(rows, own, centers, count, self.temperature)
        else:
            each = (rows - centers[own]).square().sum(1)
        return (each * (count > 0)[own]).mean()

    def contribute(self, state: State, view: View, received: Received) -> Contribution:
        rows = unit_rows(view.features)
        nearest = nearest_center(rows, received.tensors["mean"], received.count)
        first = first_clusters(rows, view.valid, self.clusters)
        own = torch.where((received.count > 0).any(), nearest, first)
        means, count = class_means(rows, own, self.clusters, view.valid, self.min_count)
        return Contribution({"mean": means}, count)
