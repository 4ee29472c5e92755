"""Observations: means of a few samples of each class, compared by contrast (Berdoz 2022, Theorem 1 and Algorithm 2)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from consilience.config.schedules import Rate, as_number, number_or_schedule
from consilience.exchanges.averaging import AveragingExchange
from consilience.exchanges.base import Contribution, Received, Scope, State, View
from consilience.exchanges.dimensions import Subspace, check_dimensions, only_shared, shared_width, with_zeros
from consilience.functional.group_channels import check_observation_size, mean_tensor
from consilience.functional.group_means import Weighting, sampled_group_means, sampled_membership, upload_weight
from consilience.functional.mutual_information import mutual_information_bound
from consilience.kinds import ALL_KINDS, group_count, kind_of
from consilience.task import Task, TaskKind
from consilience.validation import check_choice, check_integer
from consilience.wire import schema
from consilience.wire.encodings import FLOAT32, Encoding

Discriminator = Literal["classifier", "exponential", "exponential-mlp"]
Draw = Literal["member", "row"]
_TINY = 1e-7  # keeps logarithms finite


@dataclass(frozen=True)
class Observations(AveragingExchange):
    """Train the model to predict whether a sample s and an observation t of a class share a class.

    n_avg: samples averaged in one observation. up, down: observations uploaded and drawn in a round.
    discriminator: "classifier" uses the probability that the learner's own classifier gives both the same class;
    "exponential" trains a linear layer g and uses exp(g(s).g(t)/tau) as the density ratio; in "exponential-mlp" g has a
    hidden layer. weighting: with "equal", 1 is uploaded for each class that the observation has, and not how many
    samples it averages. dimensions: the share of the feature dimensions that is uploaded; the others count as 0.
    subspace: which dimensions these are.
    """

    name: str = field(default="observations", kw_only=True)
    varies: ClassVar[tuple[str, ...]] = ("weight", "temperature")
    feature_tensors: ClassVar[tuple[str, ...]] = ("mean",)
    uploads_before_training: ClassVar[bool] = True
    allows_partners: ClassVar[bool] = True
    kind_hint: ClassVar[str] = ", with discriminator='exponential' for all"
    sample_influence: ClassVar[int] = 2  # another sample takes the place of one that is missing
    weight: Rate = 1.0
    n_avg: int = 10
    up: int = 1
    down: int = 1
    discriminator: Discriminator = "classifier"
    temperature: Rate = 0.1
    min_count: int = 2
    encoding: Encoding = FLOAT32
    draw: Draw = "member"
    include_self: bool = True
    scope: Scope = "everybody"
    weighting: Weighting = "samples"
    dimensions: float = 1.0
    subspace: Subspace = "first"

    def __post_init__(self) -> None:
        number_or_schedule("contrast", self.weight)
        for what in ("n_avg", "up", "down", "min_count"):
            check_integer(what, getattr(self, what))
        number_or_schedule("temperature", self.temperature, low=1e-6)
        check_choice("discriminator", self.discriminator, get_args(Discriminator))
        check_choice("draw", self.draw, get_args(Draw))
        check_choice("scope", self.scope, get_args(Scope))
        check_choice("weighting", self.weighting, get_args(Weighting))
        check_dimensions(self.dimensions, self.subspace, self.encoding)
        check_observation_size(self.n_avg, self.min_count)

    @property
    def kinds(self) -> tuple[TaskKind, ...]:
        """All, but the classifier gives probabilities that two samples have the same class only where each has one."""
        return ("single-label",) if self.discriminator == "classifier" else ALL_KINDS

    @property
    def batch_draws(self) -> int:
        """One number per sample, where there is more than one observation to choose from."""
        return 1 if self.down > 1 else 0

    @property
    def sample_draws(self) -> int:
        """One number per sample for each observation uploaded."""
        return self.up

    def channel(self, task: Task) -> schema.Pool:
        """A pool of (groups, width) entries with a count for each group."""
        groups = group_count(task)
        shape = (groups, shared_width(task.width, self.dimensions, self.subspace))
        return schema.Pool(
            self.name,
            mean_tensor(shape, task.bound, self.encoding),
            rows=(groups,),
            scope=self.scope,
            keep=self.up,
            draw=self.down,
            by=self.draw,
            include_self=self.include_self,
        )

    def describe_upload(self) -> str:
        """What leaves the learner, in a few words."""
        times = "" if self.up == 1 else f" {self.up} times"
        if self.n_avg == 1:
            return f"the feature of one sample of each class{times}"
        return f"the mean feature of up to {self.n_avg} samples of each class{times}"

    def modules(self, task: Task) -> dict[str, nn.Module]:
        """The exponential discriminator's own layers: one linear layer, or one more behind a ReLU."""
        if self.discriminator == "classifier":
            return {}
        layer = nn.Linear(task.width, task.width)
        if self.discriminator == "exponential":
            return {"discriminator": layer}
        return {"discriminator": nn.Sequential(layer, nn.ReLU(), nn.Linear(task.width, task.width))}

    def penalty(self, state: State, view: View, received: Received) -> Tensor:
        """Binary cross-entropy, averaged over batch and classes; classes the observation lacks do not count."""
        same = self._same_class(view, with_zeros(received.tensors["mean"], view.task.width))  # (down, rows, classes)
        present = (received.count > 0).to(same.dtype)  # (down, classes)
        if self.down > 1:
            chosen = (view.draws[0] * self.down).long()  # (rows,) an observation for each sample
            same = same.gather(0, chosen[None, :, None].expand(1, *same.shape[1:]))[0]
            present = present[chosen]  # (rows, classes)
        else:
            same, present = same[0], present[0].expand_as(same[0])
        everything = torch.ones(len(same), dtype=same.dtype, device=same.device)
        answer = kind_of(view.task).membership(view.task, view.targets, everything)  # (rows, classes)
        loss = -(answer * same.clamp(min=_TINY).log() + (1 - answer) * (1 - same).clamp(min=_TINY).log())
        return (loss * present).sum() / present.sum().clamp(min=1)

    def _same_class(self, view: View, entries: Tensor) -> Tensor:
        """The probability that sample and observation share a class, (down, rows, classes)."""
        if self.discriminator == "classifier":
            mine = view.logits.softmax(-1)  # (rows, classes)
            theirs = view.classify(entries).softmax(-1)  # (down, classes of the observation, classes)
            return torch.einsum("bk,dck->dbc", mine, theirs)
        project = view.modules["discriminator"]
        mine, theirs = F.normalize(project(view.features), dim=-1), F.normalize(project(entries), dim=-1)
        ratio = torch.einsum("bk,dck->dbc", mine, theirs) / as_number(self.temperature)
        return (ratio - math.log(max(group_count(view.task) - 1, 1))).sigmoid()

    def metrics(
        self, task: Task, penalty: np.ndarray, received: np.ndarray, samples: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Theorem 1's lower bound on the mutual information, in-sample: of the samples that were trained on."""
        if task.classes < 3 or task.target.kind != "single-label":
            return {}
        return {"mutual_information": mutual_information_bound(penalty, received > 0, samples)}

    def contribute(self, state: State, view: View, received: Received) -> Contribution:
        """`up` independent observations, each over at most `n_avg` samples of a class."""
        member = kind_of(view.task).membership(view.task, view.targets, view.valid)
        drawn = [
            sampled_group_means(
                only_shared(view.features, self.dimensions, self.subspace),
                member,
                chance,
                self.n_avg,
                self.min_count,
            )
            for chance in view.draws
        ]
        count = upload_weight(torch.stack([c for _, c in drawn]), self.weighting)
        return Contribution({"mean": torch.stack([m for m, _ in drawn])}, count)

    def class_samples(self, view: View) -> tuple[Tensor, Tensor]:
        """Features, and the samples of each observation."""
        member = kind_of(view.task).membership(view.task, view.targets, view.valid)
        drawn = [sampled_membership(member, chance, self.n_avg) for chance in view.draws]
        return only_shared(view.features, self.dimensions, self.subspace), torch.stack(drawn)
