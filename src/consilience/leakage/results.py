"""The measured leakage of a run, and its files: `leakage.json`, and pictures in a folder beside it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter

from consilience.errors import CheckpointError
from consilience.files import replace_file, report_write_errors
from consilience.leakage.result_file import parse_result, read_bytes

FILE, PICTURES = "leakage.json", "leakage"
_HINT = "nothing of the run itself was changed"


@dataclass(frozen=True)
class LearnerStatistics:
    """A number of each learner, None if it has none; their mean and standard deviation."""

    mean: float | None
    std_learners: float | None
    by_learner: tuple[float | None, ...]

    @classmethod
    def of(cls, values: Sequence[float | None]) -> LearnerStatistics:
        """The statistics of the learners' numbers, in order."""
        each = [None if value is None or not math.isfinite(value) else float(value) for value in values]
        known = [value for value in each if value is not None]
        mean, spread = (float(np.mean(known)), float(np.std(known))) if known else (None, None)
        return cls(mean, spread if len(known) > 1 else None, tuple(each))


@dataclass(frozen=True)
class DistanceCorrelation:
    """Distance correlation of inputs and a layer's outputs, and its square corrected for the bias of few samples."""

    samples: int
    correlation: LearnerStatistics
    corrected: LearnerStatistics


@dataclass(frozen=True)
class LayerReconstruction:
    """Similarity of a learner's own images to those reconstructed from a layer's outputs.

    baseline: the attacker's mean image instead of the reconstruction.
    """

    samples: int
    ssim: LearnerStatistics
    psnr: LearnerStatistics
    baseline_ssim: LearnerStatistics
    baseline_psnr: LearnerStatistics


@dataclass(frozen=True)
class LayerLeakage:
    """The leakage of one layer's outputs, measured on test samples and on a learner's own training samples."""

    name: str
    module: str
    output_size: int  # values per sample
    test_samples: DistanceCorrelation
    own_samples: DistanceCorrelation
    reconstruction: LayerReconstruction | None


@dataclass(frozen=True)
class MeansReconstruction:
    """Similarity of images reconstructed from mean features to the nearest sample in the mean, and to the mean image.

    baseline: the attacker's mean image of the class, compared with the nearest sample.
    """

    ssim_nearest: LearnerStatistics
    ssim_mean: LearnerStatistics
    baseline_ssim: LearnerStatistics
    psnr_nearest: LearnerStatistics
    psnr_mean: LearnerStatistics
    baseline_psnr: LearnerStatistics


@dataclass(frozen=True)
class MembershipLeakage:
    """How well samples in a mean are distinguished from test samples of the class by their distance to the mean.

    Each class is measured by itself and weighted by its samples in means. chance_advantage: the advantage that
    shuffled memberships give.
    """

    auc: LearnerStatistics
    advantage: LearnerStatistics
    chance_advantage: LearnerStatistics


@dataclass(frozen=True)
class MeansLeakage:
    """The leakage of means over some samples of a class (observations), or over all of them (None; prototypes).

    means: the number of means, of classes that have test samples.
    """

    samples_per_mean: int | None
    means: int
    reconstruction: MeansReconstruction | None
    membership: MembershipLeakage | None


@dataclass(frozen=True)
class LeakageResult:
    """The leakage of a run at these learners of its first seed, after a round."""

    round: int
    seed: int
    learners: tuple[int, ...]
    auxiliary_samples: int
    attack_epochs: int
    layers: tuple[LayerLeakage, ...]
    class_means: tuple[MeansLeakage, ...]
    pictures: Mapping[str, str] = field(default_factory=dict)
    """Files in the folder of pictures by content: "layers" and "means"."""


_READER = TypeAdapter(LeakageResult)


def leakage_as_json(leakage: LeakageResult) -> dict[str, object]:
    """The result as a JSON object."""
    found: dict[str, object] = _READER.dump_python(leakage, mode="json")
    return found


def write_leakage(folder: Path, leakage: LeakageResult, pictures: Mapping[str, bytes]) -> None:
    """Write the result into a run's folder; `leakage.json`, which names the pictures, is written last."""
    with report_write_errors(folder / PICTURES, _HINT):
        if pictures:
            (folder / PICTURES).mkdir(exist_ok=True)
        for name, content in pictures.items():
            replace_file(folder / PICTURES / name, content)
    with report_write_errors(folder / FILE, _HINT):
        replace_file(folder / FILE, _READER.dump_json(leakage, indent=1))


def read_leakage(folder: Path) -> LeakageResult | None:
    """The leakage of a run, or None if it was not measured; a damaged file or one of an old layout is an error."""
    file, again = folder / FILE, f"measure again with: consilience leakage {folder}"
    content = read_bytes(file)
    if content is not None and _has_old_layout(content):
        raise CheckpointError(f"{file} has the layout of an earlier version; {again}")
    return None if content is None else parse_result(_READER, file, content, again)


def _has_old_layout(content: bytes) -> bool:
    """Whether the file has the field names that were used before `class_means`."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and {"shared", "auxiliary"} <= found.keys() and "class_means" not in found
