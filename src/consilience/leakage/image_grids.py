"""Grids of images: samples of a learner, and their reconstructions below."""

from __future__ import annotations

import io
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from consilience.presentation.images import picture_grid

COLUMNS = 10


def select_columns(targets: np.ndarray, most: int = COLUMNS) -> np.ndarray:
    """Indices of the samples to show, in the order of classes: one of each class, then others up to `most`."""
    _, firsts = np.unique(targets, return_index=True)
    others = np.setdiff1d(np.arange(len(targets)), firsts)
    shown: np.ndarray = np.concatenate([firsts, others])[:most]
    return shown[np.argsort(targets[shown], kind="stable")]


def image_grid(rows: Mapping[str, Tensor]) -> bytes:
    """Rows of images (columns, channels, height, width) by name, as a PNG; an image of NaN stays blank."""
    columns = len(next(iter(rows.values())))
    images = torch.cat([row.float().cpu() for row in rows.values()]).numpy()
    png = io.BytesIO()
    picture_grid(images, columns=columns, row_names=list(rows)).save(png, format="PNG")
    return png.getvalue()
