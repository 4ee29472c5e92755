"""How alike samples of the public set look: to learners as they last put it up, to all of them, and after distilling.

Everything is of a run's last checkpoint: what learners put up still lies in the channel, and is theirs before they
distilled it; the model is the one that came of it.
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
from consilience.functional.similarity import block, ensemble, unit
from consilience.simulation.records.export import SavedRun

SAMPLES = 40
"""Of the public set: a matrix has so many rows, and columns."""
_LEARNERS = 3
_DIGITS = 2  # enough for a color


@dataclass(frozen=True)
class Similarities:
    """Rows `{whose, row, similar}`, similar a list over the same samples; each sample's class; and it all in words."""

    rows: list[dict[str, Any]]
    classes: list[str]
    text: str


def similarities(kept: SavedRun, samples: int = SAMPLES) -> Similarities | None:
    """Matrices of some samples, sorted by class; None where nobody has put up how a public set looks to it."""
    trade = next(
        (e for participant in kept.actors for e in participant.role.exchanges if isinstance(e, Similarity)), None
    )
    if trade is None or kept.method.host is None:
        return None
    put = _put_up(kept.checkpoint.channel(0, trade.name))
    if not len(put["who"]):
        return None
    inputs, targets = kept.public
    chosen = np.argsort(targets, kind="stable")
    if len(chosen) > samples:
        chosen = chosen[np.linspace(0, len(chosen) - 1, samples).round().astype(int)]
    temperature = value_at(trade.temperature, kept.round)
    matrices = dict(_before(put, chosen, temperature)) | dict(_after(kept, inputs[chosen]))
    rows = [
        {"whose": whose, "row": place, "similar": [_short(value) for value in row]}
        for whose, matrix in matrices.items()
        for place, row in enumerate(matrix)
    ]
    labels = kept.data.labels
    names = [labels[c] if labels else str(c) for c in targets[chosen]]
    return Similarities(rows, names, _in_words(kept, temperature, len(chosen), len(put["who"])))


def _put_up(there: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What lies in the channel, and the learners it is of."""
    marked = there.get("present", there.get("weights", np.zeros((0, 1))))  # (learners, entries) or (learners,)
    return {**there, "who": np.flatnonzero(marked.reshape(len(marked), -1).any(1))}


def _before(put: Mapping[str, np.ndarray], chosen: np.ndarray, temperature: float) -> Iterator[tuple[str, np.ndarray]]:
    """Similarities at some learners, and what they are taken together as: all sharpened, and the mean of them."""
    some = put["who"][:_LEARNERS]
    if "values.rows" in put:
        entries = torch.from_numpy(put["values.rows"][put["who"], 0][:, chosen])  # (learners, samples, width)
        for who, rows in zip(some, entries, strict=False):
            yield f"learner {who}", (rows @ rows.T).numpy()
        floors = torch.from_numpy(put["values.floor"][put["who"], 0][:, chosen]) if "values.floor" in put else None
        everything = torch.arange(len(chosen))
        together = ensemble(entries, torch.ones(len(entries)), everything, everything, temperature, floors)
        yield "ensemble", together.numpy()
        return
    for who in some:  # as they came, sharpened; one that was cut off is not known
        with np.errstate(divide="ignore"):
            yield f"learner {who}", 1 + temperature * np.log(_square(put["values.similar"][who], chosen))
    yield "ensemble", _square(put["sums.similar"] / put["count"], chosen)


def _square(triangle: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Some rows and columns of the symmetric matrix with ones on its diagonal of which this is the part above it."""
    size, places = (1 + math.isqrt(1 + 8 * len(triangle))) // 2, torch.from_numpy(chosen)
    return block(torch.from_numpy(triangle), size, places, places).numpy()


def _after(kept: SavedRun, inputs: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Similarities by the first model that distilled them."""
    taught = [a.learner for a in kept.actors for e in a.role.exchanges if isinstance(e, Similarity) and e.distills]
    for who in taught[:1]:
        rows = unit(torch.from_numpy(kept.features(who, inputs)))
        yield f"distilled, learner {who}", (rows @ rows.T).numpy()


def _short(value: float) -> float | None:
    return round(float(value), _DIGITS) if math.isfinite(value) else None


def _in_words(kept: SavedRun, temperature: float, samples: int, learners: int) -> str:
    many = f"{learners} learner" + "s" * (learners != 1)
    return (
        f"{samples} samples of the public set, sorted by class, after round {kept.round}{kept.which}: each cell is "
        f"the product of two samples' features of length 1. Learners are shown as they last put the set up. The "
        f"ensemble is what is distilled, the mean over {many} of exp((product - 1) / {temperature:g}). Last is "
        f"what came of it."
    )
