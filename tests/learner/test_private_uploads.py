"""Noise on uploads as a real plan asks for it: its standard deviation, and what one sample changes before it."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from consilience.exchanges.base import Contribution
from consilience.exchanges.observations import Observations
from consilience.functional.noise import COUNT_SCALE
from consilience.learner.private_uploads import LearnerPrivacy, noise_size, private_contributions
from consilience.privacy.gaussian import noise_of_releases
from consilience.privacy.plan import PrivacyPlan
from consilience.task import Task
from consilience.wire import schema

EPSILON, DELTA, UPLOADS, CLIP = 4.0, 1e-5, 3, 0.5


class Means(Observations):
    """Observations whose samples are given; one entry, one class."""

    def class_samples(self, view: object) -> tuple[Tensor, Tensor]:
        assert isinstance(view, Tensor)
        return view, torch.ones(1, len(view), 1, dtype=view.dtype)


def channel(width: int) -> schema.Pool:
    return schema.Pool("observations", {"mean": schema.Tensor((1, width), low=-1e9, high=1e9)}, rows=(1,), keep=1)


def test_a_whole_upload_has_the_planned_deviation() -> None:
    plan = PrivacyPlan("upload", EPSILON, DELTA, CLIP, UPLOADS, True)
    privacy, width = LearnerPrivacy("upload", CLIP, plan.noise), 40_000
    e, channels = Observations(), {"observations": channel(width)}
    given = {"observations": Contribution({"mean": torch.zeros(1, 1, width)}, torch.ones(1, 1))}
    normal = torch.randn(noise_size(privacy, [e], channels), generator=torch.Generator().manual_seed(1000))
    found = private_contributions(privacy, [e], channels, {}, given, normal)["observations"].tensors["mean"]
    planned = 2 * CLIP * noise_of_releases(EPSILON, DELTA, UPLOADS)  # two uploads differ by twice the clip
    assert float(found.std()) == pytest.approx(planned, rel=0.02)


def test_class_means_of_observations_have_the_planned_deviation() -> None:
    """A missing sample changes a sum by two rows, because another takes its place, and a count by one."""
    plan = PrivacyPlan("fixed-encoder", EPSILON, DELTA, CLIP, UPLOADS, True)
    privacy, width, count = LearnerPrivacy("fixed-encoder", CLIP, plan.noise), 2_000, 4_000
    e, channels = Means(), {"observations": channel(width)}
    given = {"observations": Contribution({"mean": torch.zeros(1, 1, width)}, torch.ones(1, 1))}
    rows = torch.zeros(count, width, dtype=torch.float64)
    normal = torch.randn(noise_size(privacy, [e], channels), generator=torch.Generator().manual_seed(1000)).double()
    changed = 1e-4  # so small that no mean is clipped
    normal = normal * changed
    views = {"observations": rows}
    found = private_contributions(privacy, [e], channels, views, given, normal)["observations"]  # type: ignore[arg-type]
    sensitivity = CLIP * math.sqrt(2**2 + COUNT_SCALE**2)
    planned = changed * sensitivity * noise_of_releases(EPSILON, DELTA, UPLOADS) / count
    assert float(found.tensors["mean"].std()) == pytest.approx(planned, rel=0.05)


def test_a_missing_sample_changes_an_observation_by_two_rows() -> None:
    """Another sample takes its place: opposite rows change the sum by twice the clip, as `sample_influence` says."""
    chance = torch.rand(200, 1, 6, generator=torch.Generator().manual_seed(1000), dtype=torch.float64)
    features = torch.tensor([[1.0]] + [[-1.0]] * 5, dtype=torch.float64)
    moved = []
    for draws in chance:
        sums = []
        for valid in (torch.ones(6), torch.tensor([0.0, 1, 1, 1, 1, 1])):
            view = SimpleNamespace(
                task=Task(1, 1), targets=torch.zeros(6, dtype=torch.int64), features=features,
                valid=valid.double(), draws=draws,
            )  # fmt: skip
            rows, member = Observations(n_avg=2).class_samples(view)  # type: ignore[arg-type]
            sums.append(float(torch.einsum("erc,rw->ecw", member, rows).sum()))
        moved.append(abs(sums[0] - sums[1]))
    assert max(moved) == Observations.sample_influence == 2
