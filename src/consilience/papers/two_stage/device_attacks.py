"""Images that an attacker reconstructs from the watched layer: measured once, and saved in the run's folder."""

from __future__ import annotations

import base64
import io
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from consilience.errors import CheckpointError
from consilience.evaluation.decoder import DecoderSettings, train_decoder
from consilience.evaluation.reconstruction import reconstruct
from consilience.files import replace_file, report_write_errors
from consilience.functional.distance_correlation import corrected_distance_correlation, distance_correlation
from consilience.leakage.attacker import MAX_RECONSTRUCTED
from consilience.leakage.examined_learner import evenly_spaced, examine_learner, resolve_layers, select_learners
from consilience.leakage.image_grids import select_columns
from consilience.leakage.measure import MAX_CORRELATED
from consilience.leakage.results import LearnerStatistics
from consilience.papers.cells import Outcome
from consilience.papers.two_stage.experiment import ATTACK_EPOCHS, ATTACKED
from consilience.randomness import purpose_key, seed_of
from consilience.simulation.records.export import SavedRun, read_saved_run
from consilience.simulation.records.run_folder import RunFolder

FILE = "reconstructed.npz"
_BATCH = 32  # of the attacker's training
_SAVED = 2  # images of each device: as many as it has classes


@dataclass(frozen=True, eq=False)
class DeviceAttacks:
    """Numbers of each device, (devices,), and some of its training images with their reconstructions.

    auxiliary: test samples of the attacker. correlation, corrected: of test samples and the layer's output.
    baseline: the attacker's mean image instead of the reconstruction. truth, images: (n, channels, height, width).
    """

    devices: np.ndarray
    auxiliary: np.ndarray  # one number
    epochs: np.ndarray  # one number
    correlation: np.ndarray
    corrected: np.ndarray
    ssim: np.ndarray
    baseline_ssim: np.ndarray
    psnr: np.ndarray
    baseline_psnr: np.ndarray
    truth: np.ndarray
    images: np.ndarray

    def over_devices(self, what: str) -> LearnerStatistics:
        """Mean and standard deviation of one of the numbers."""
        return LearnerStatistics.of(getattr(self, what).tolist())


def attacks_of(outcome: Outcome) -> DeviceAttacks:
    """The attacks saved with a run, or new ones on its models."""
    folder = outcome.folder
    config, found = RunFolder(folder).config, _read(folder / FILE)
    if (
        found is not None
        and found.epochs == ATTACK_EPOCHS
        and len(found.devices) == min(ATTACKED, config.federation.learners)
    ):
        return found
    try:
        found = attack_devices(read_saved_run(folder), config.execution.device)
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {error}") from error
    content = io.BytesIO()
    np.savez(content, **{each.name: getattr(found, each.name) for each in fields(DeviceAttacks)})
    with report_write_errors(folder / FILE):
        replace_file(folder / FILE, content.getvalue())
    return found


def record_attacks(outcome: Outcome) -> dict[str, Any]:
    """A record of the attacks: all numbers, and the images with one byte for each pixel."""
    found = attacks_of(outcome)
    numbers = {name: np.round(getattr(found, name), 6).tolist() for name in ("devices", *_NUMBERS)}
    images = {name: _packed(getattr(found, name)) for name in _IMAGES}
    return {"auxiliary": int(found.auxiliary), "epochs": int(found.epochs), **numbers, **images}


def recorded_attacks(outcome: Outcome, name: str = "attacks") -> DeviceAttacks:
    """The attacks of a record."""
    found = outcome.records[name]
    arrays = {key: np.array(found[key]) for key in ("devices", "auxiliary", "epochs", *_NUMBERS)}
    return DeviceAttacks(**arrays, **{key: _unpacked(found[key]) for key in _IMAGES})


def _packed(images: np.ndarray) -> dict[str, Any]:
    pixels = np.round(255 * images.clip(0, 1)).astype(np.uint8)
    return {"shape": list(images.shape), "bytes": base64.b64encode(zlib.compress(pixels.tobytes(), 9)).decode()}


def _unpacked(saved: Mapping[str, Any]) -> np.ndarray:
    pixels = np.frombuffer(zlib.decompress(base64.b64decode(saved["bytes"])), np.uint8)
    return pixels.reshape(saved["shape"]).astype(np.float32) / 255


def attack_devices(run: SavedRun, device: str, epochs: int = ATTACK_EPOCHS) -> DeviceAttacks:
    """Attack the first devices of the first seed, each with a decoder of its own."""
    who = select_learners(run, ATTACKED)
    assert run.config.evaluation.watch is not None
    each = [_attack_device(run, one, run.config.evaluation.watch, device, epochs) for one in who]
    numbers = {name: np.array([float(one[name]) for one in each]) for name in _NUMBERS}
    truth, images = (np.concatenate([one[name] for one in each]) for name in ("truth", "images"))
    auxiliary = np.array(max(int(one["auxiliary"]) for one in each))
    return DeviceAttacks(np.array(who), auxiliary, np.array(epochs), **numbers, truth=truth, images=images)


_IMAGES = ("truth", "images")
_NUMBERS = ("correlation", "corrected", "ssim", "baseline_ssim", "psnr", "baseline_psnr")


def _attack_device(run: SavedRun, who: int, layer: str, device: str, epochs: int) -> dict[str, np.ndarray]:
    (module,) = resolve_layers(run, who, [layer]).values()
    learner = examine_learner(run, who, [module], None, device)
    own, tests, seed = (
        learner.own,
        learner.tests,
        seed_of("leakage decoder", run.config.federation.seed, who, purpose_key(module)),
    )
    assert own.images is not None and tests.images is not None
    known = tests.outputs[module][learner.auxiliary], tests.images[learner.auxiliary]
    decoder = train_decoder(*known, DecoderSettings(epochs, _BATCH, seed=seed))
    indices = evenly_spaced(len(own), MAX_RECONSTRUCTED)
    found = reconstruct(decoder, own.outputs[module][indices], own.images[indices])
    some, columns = evenly_spaced(len(tests), MAX_CORRELATED), select_columns(own.targets[indices], _SAVED)
    inputs, outputs = tests.raw[some], tests.outputs[module][some]
    return {
        "auxiliary": np.array(len(learner.auxiliary)),
        "correlation": distance_correlation(inputs, outputs).numpy(force=True),
        "corrected": corrected_distance_correlation(inputs, outputs).numpy(force=True),
        "ssim": np.array(found.ssim),
        "baseline_ssim": np.array(found.baseline_ssim),
        "psnr": np.array(found.psnr),
        "baseline_psnr": np.array(found.baseline_psnr),
        "truth": own.images[indices[columns]].numpy(force=True),
        "images": found.images[columns].numpy(force=True),
    }


def _read(file: Path) -> DeviceAttacks | None:
    """The saved attacks, or None if there are none or the file is damaged: they can be measured again."""
    try:
        with np.load(file, allow_pickle=False) as saved:
            return DeviceAttacks(**{each.name: saved[each.name] for each in fields(DeviceAttacks)})
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
