"""Similarities of samples of the public set: of learners as last uploaded, of the ensemble, and after distillation.

All come from a run's last checkpoint: the channel still has the uploads, from before the distillation; the model is the
distilled one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from consilience.config.schedules import value_at
from consilience.exchanges import Similarity
from consilience.functional.similarity import ensemble_similarities, matrix_block, unit_rows
from consilience.simulation.records.export import SavedRun

SAMPLES = 40
"""Samples of the public set: the rows and columns of a matrix."""
_LEARNERS = 3
_DIGITS = 2  # enough for a color


@dataclass(frozen=True)
class Similarities:
    """Rows `{whose, row, similar}`, similar a list over the same samples; each sample's class; and a description."""

    rows: list[dict[str, Any]]
    classes: list[str]
    text: str


def similarities(run: SavedRun, samples: int = SAMPLES) -> Similarities | None:
    """Matrices of some samples, sorted by class; None if no learner uploads similarities of a public set."""
    exchange = next(
        (e for participant in run.participants for e in participant.role.exchanges if isinstance(e, Similarity)), None
    )
    if exchange is None or run.method.host is None:
        return None
    uploaded = _uploads(run.checkpoint.channel(0, exchange.name))
    if not len(uploaded["who"]):
        return None
    inputs, targets = run.public
    chosen = np.argsort(targets, kind="stable")
    if len(chosen) > samples:
        chosen = chosen[np.linspace(0, len(chosen) - 1, samples).round().astype(int)]
    temperature = value_at(exchange.temperature, run.round)
    matrices = dict(_before(uploaded, chosen, temperature)) | dict(_after(run, inputs[chosen]))
    rows = [
        {"whose": whose, "row": place, "similar": [_rounded(value) for value in row]}
        for whose, matrix in matrices.items()
        for place, row in enumerate(matrix)
    ]
    labels = run.data.labels
    names = [labels[c] if labels else str(c) for c in targets[chosen]]
    return Similarities(rows, names, _describe(run, temperature, len(chosen), len(uploaded["who"])))


def _uploads(there: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The uploads in the channel, and the learners that have one."""
    marked = there.get("present", there.get("weights", np.zeros((0, 1))))  # (learners, entries) or (learners,)
    return {**there, "who": np.flatnonzero(marked.reshape(len(marked), -1).any(1))}


def _before(
    uploaded: Mapping[str, np.ndarray], chosen: np.ndarray, temperature: float
) -> Iterator[tuple[str, np.ndarray]]:
    """Similarities of some learners, and the ensemble: the mean of all, sharpened."""
    some = uploaded["who"][:_LEARNERS]
    if "values.rows" in uploaded:
        entries = torch.from_numpy(uploaded["values.rows"][uploaded["who"], 0][:, chosen])  # (learners, samples, width)
        for who, rows in zip(some, entries, strict=False):
            yield f"learner {who}", (rows @ rows.T).numpy()
        floor = uploaded.get("values.floor")
        floors = None if floor is None else torch.from_numpy(floor[uploaded["who"], 0][:, chosen])
        everything = torch.arange(len(chosen))
        together = ensemble_similarities(entries, torch.ones(len(entries)), everything, everything, temperature, floors)
        yield "ensemble", together.numpy()
        return
    for who in some:  # uploaded sharpened; a similarity that was cut off is not known
        with np.errstate(divide="ignore"):
            yield f"learner {who}", 1 + temperature * np.log(_selected_matrix(uploaded["values.similar"][who], chosen))
    yield "ensemble", _selected_matrix(uploaded["sums.similar"] / uploaded["count"], chosen)


def _selected_matrix(triangle: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Some rows and columns of a symmetric matrix with a unit diagonal, from its upper triangle."""
    size, places = (1 + math.isqrt(1 + 8 * len(triangle))) // 2, torch.from_numpy(chosen)
    return matrix_block(torch.from_numpy(triangle), size, places, places).numpy()


def _after(run: SavedRun, inputs: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Similarities of the first distilled model."""
    distilled = [
        a.learner for a in run.participants for e in a.role.exchanges if isinstance(e, Similarity) and e.distills
    ]
    for who in distilled[:1]:
        rows = unit_rows(torch.from_numpy(run.features(who, inputs)))
        yield f"distilled, learner {who}", (rows @ rows.T).numpy()


def _rounded(value: float) -> float | None:
    return round(float(value), _DIGITS) if math.isfinite(value) else None


def _describe(run: SavedRun, temperature: float, samples: int, learners: int) -> str:
    many = f"{learners} learner" + "s" * (learners != 1)
    return (
        f"{samples} samples of the public set, sorted by class, after round {run.round}{run.which}: each cell is "
        f"the product of two samples' features of length 1. Learners' similarities are those of their last upload. The "
        f"ensemble is what is distilled, the mean over {many} of exp((product - 1) / {temperature:g}). Last: "
        f"the distilled model."
    )
