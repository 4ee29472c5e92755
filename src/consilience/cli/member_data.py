"""The data of a member that joins by a command: read, scaled and numbered as its federation's charter says."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np

from consilience.config.config import Config
from consilience.data import Dataset, Scaling
from consilience.errors import ConfigurationError
from consilience.kinds import kind_of
from consilience.simulation.setup.inputs import load_data
from consilience.wire.charter import Charter

log = logging.getLogger("consilience")

_ROUNDING = 1e-3


def load_member_data(charter: Charter, config: Config) -> Dataset:
    """The member's data, scaled as the charter says; by itself, with a warning, where the charter does not say."""
    target = None if charter.target is None else charter.predicted
    if charter.scaling is None:
        data = load_data(config, progress=True, target=target)
        if data.scaling.kind != "none":
            log.warning(
                "the charter of %r fixes no scaling, so your inputs are scaled by your own samples; members with other "
                "data scale differently",
                charter.name,
            )
    else:
        data = load_data(
            config, progress=True, scaling=Scaling.from_record(charter.scaling.model_dump()), target=target
        )
        _warn_of_other_pixels(data)
    if data.columns and charter.columns and data.columns != charter.columns:
        raise ConfigurationError(
            f"your data has the columns {', '.join(data.columns)}, and federation {charter.name!r} has "
            f"{', '.join(charter.columns)}; name and order them in the same way"
        )
    return _with_classes_of(charter, data)


def _with_classes_of(charter: Charter, data: Dataset) -> Dataset:
    """The member's data with the classes of the federation, by their names; a member need not have all of them."""
    numbered = all(name.isdecimal() for name in data.labels)
    common = charter.labels or (tuple(map(str, range(charter.classes))) if numbered else ())
    if charter.kind == "regression" or not data.labels or not common or data.labels == common:
        return data
    if unknown := [name for name in data.labels if name not in common]:
        raise ConfigurationError(
            f"your data has the {kind_of(data.target).group} {unknown[0]!r}, and federation {charter.name!r} has "
            f"{', '.join(common)}; name the classes in the same way"
        )
    number = np.array([common.index(name) for name in data.labels])
    halves = data.targets, data.test_targets
    targets, test_targets = (_renumbered(data, half, number, len(common)) for half in halves)
    return replace(data, targets=targets, test_targets=test_targets, classes=len(common), labels=charter.labels)


def _renumbered(data: Dataset, targets: np.ndarray, number: np.ndarray, count: int) -> np.ndarray:
    """Targets with the federation's numbers of classes or labels."""
    if data.kind == "single-label":
        return np.asarray(number[targets])
    found = np.zeros((len(targets), count), dtype=np.int64)
    found[:, number] = targets
    return found


def _warn_of_other_pixels(data: Dataset) -> None:
    """Warn of images that are not fractions from 0 to 1, as those that the charter's scaling was measured on."""
    if data.scaling.kind != "pixels":
        return
    mean, std = data.scaling.of_pixels
    low, high = (float(value * std + mean) for value in (data.inputs.min(), data.inputs.max()))
    if low < -_ROUNDING or high > 1 + _ROUNDING:
        log.warning(
            "your inputs lie in %.3g to %.3g, and the charter scales pixels from 0 to 1; save bytes, or fractions",
            low,
            high,
        )
