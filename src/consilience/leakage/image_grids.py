"""Grids of pictures: samples of a learner above what was rebuilt of them."""

from __future__ import annotations

import io
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from consilience.presentation.images import picture_grid

COLUMNS = 10


def columns_of(targets: np.ndarray, most: int = COLUMNS) -> np.ndarray:
    """Places of the samples to show: one of each class, in the order of classes, then others until there are enough."""
    _, firsts = np.unique(targets, return_index=True)
    others = np.setdiff1d(np.arange(len(targets)), firsts)
    shown: np.ndarray = np.concatenate([firsts, others])[:most]
    return shown[np.argsort(targets[shown], kind="stable")]


def grid(rows: Mapping[str, Tensor]) -> bytes:
    """Rows of images (columns, channels, height, width) by name, as a PNG; NaN leaves a place blank."""
    columns = len(next(iter(rows.values())))
    images = torch.cat([row.float().cpu() for row in rows.values()]).numpy()
    kept = io.BytesIO()
    picture_grid(images, columns=columns, row_names=list(rows)).save(kept, format="PNG")
    return kept.getvalue()
