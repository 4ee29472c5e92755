"""What was found of a run's leakage, and where it is kept: `leakage.json`, and pictures in a folder beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter, ValidationError

from consilience.errors import CheckpointError
from consilience.files import replace_file, report_write_errors

FILE, PICTURES = "leakage.json", "leakage"
_HINT = "nothing of the run itself was changed"


@dataclass(frozen=True)
class OfLearners:
    """A number of each learner, None where it has none; their mean and standard deviation."""

    mean: float | None
    std_learners: float | None
    each: tuple[float | None, ...]

    @classmethod
    def of(cls, values: Sequence[float | None]) -> OfLearners:
        """The numbers of learners in order."""
        each = [None if value is None or not math.isfinite(value) else float(value) for value in values]
        known = [value for value in each if value is not None]
        mean, spread = (float(np.mean(known)), float(np.std(known))) if known else (None, None)
        return cls(mean, spread if len(known) > 1 else None, tuple(each))


@dataclass(frozen=True)
class Dependence:
    """Distance correlation of inputs and outputs over so many samples: plain, and squared without its bias."""

    samples: int
    plain: OfLearners
    corrected: OfLearners


@dataclass(frozen=True)
class Rebuilt:
    """How like a learner's own images are those rebuilt from outputs, beside the mean image for an answer."""

    samples: int
    ssim: OfLearners
    psnr: OfLearners
    guess_ssim: OfLearners
    guess_psnr: OfLearners


@dataclass(frozen=True)
class Layer:
    """What one layer's outputs tell. values: of one sample; tests, own: measured on test and own training samples."""

    name: str
    module: str
    values: int
    tests: Dependence
    own: Dependence
    rebuilt: Rebuilt | None


@dataclass(frozen=True)
class FromMeans:
    """How like are images rebuilt from mean features: to the nearest sample in the mean, and to the samples' mean.

    guess: the mean image that an attacker has of the class, against the nearest sample.
    """

    ssim_nearest: OfLearners
    ssim_mean: OfLearners
    guess_ssim: OfLearners
    psnr_nearest: OfLearners
    psnr_mean: OfLearners
    guess_psnr: OfLearners


@dataclass(frozen=True)
class Members:
    """How well samples in a mean are told from test samples of the class by their distance to it.

    Each class is measured by itself, and its share in the numbers is that of its samples in means.
    by_chance: the advantage that nearer means nothing would seem to give.
    """

    auc: OfLearners
    advantage: OfLearners
    by_chance: OfLearners


@dataclass(frozen=True)
class Shared:
    """What means over n_avg samples of a class tell, or over all of a class (None): observations, and prototypes.

    means: of classes that have test samples, which members are told from.
    """

    n_avg: int | None
    means: int
    rebuilt: FromMeans | None
    members: Members | None


@dataclass(frozen=True)
class Leakage:
    """All that was measured of a run, at these learners of its first seed, after a round."""

    round: int
    seed: int
    learners: tuple[int, ...]
    auxiliary: int
    epochs: int
    layers: tuple[Layer, ...]
    shared: tuple[Shared, ...]
    pictures: Mapping[str, str] = field(default_factory=dict)
    """Files in the folder of pictures, by what they show: "layers" and "means"."""


_READER = TypeAdapter(Leakage)


def as_json(leakage: Leakage) -> dict[str, object]:
    """The same for JSON."""
    found: dict[str, object] = _READER.dump_python(leakage, mode="json")
    return found


def keep(folder: Path, leakage: Leakage, pictures: Mapping[str, bytes]) -> None:
    """Write what was found into a run's folder; the file that names the pictures comes last."""
    with report_write_errors(folder / PICTURES, _HINT):
        if pictures:
            (folder / PICTURES).mkdir(exist_ok=True)
        for name, content in pictures.items():
            replace_file(folder / PICTURES / name, content)
    with report_write_errors(folder / FILE, _HINT):
        replace_file(folder / FILE, _READER.dump_json(leakage, indent=1))


def read(folder: Path) -> Leakage | None:
    """What was found of a run, or None where nobody has looked; a damaged file is refused by name."""
    file = folder / FILE
    if not file.is_file():
        return None
    try:
        return _READER.validate_json(file.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror or error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise CheckpointError(
            f"{file} is damaged: {where and f'{where}: '}{first['msg']}; "
            f"make it again with: consilience leakage {folder}"
        ) from error
