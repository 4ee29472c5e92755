"""Contrastive losses: two views of one sample are to be more alike than views of two samples."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from consilience.functional.similarity import unit_rows


def info_nce(first: Tensor, second: Tensor, temperature: float | Tensor) -> Tensor:
    """InfoNCE: each row of the first view against all of the second (FLESD, equation 3): one way, B - 1 negatives.

    first, second: (B, width), of any length; row i of both is the same sample. The mean over the batch.
    """
    similar = unit_rows(first) @ unit_rows(second).T / temperature  # (B, B)
    return -similar.log_softmax(-1).diagonal().mean()


def nt_xent(first: Tensor, second: Tensor, temperature: float | Tensor) -> Tensor:
    """NT-Xent: each row of both views against the 2B - 1 others (SimCLR, Chen et al. 2020): both directions.

    first, second: (B, width), of any length; row i of both is the same sample. The mean over the 2B rows.
    """
    rows = unit_rows(torch.cat([first, second]))  # (2B, width)
    itself = torch.eye(len(rows), dtype=torch.bool, device=rows.device)
    similar = (rows @ rows.T / temperature).masked_fill(itself, -math.inf)  # (2B, 2B)
    chance = similar.log_softmax(-1)
    return -torch.cat([chance.diagonal(len(first)), chance.diagonal(-len(first))]).mean()
