"""Exchanges whose upload is means of samples by class: noise for single samples can be added to their sums."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from consilience.exchanges.base import Exchange, View


class AveragingExchange(Exchange):
    """The hooks of an exchange that uploads one tensor, means of samples' values by class, with counts as weights."""

    sample_influence: ClassVar[int] = 1
    """Of how many samples the values in a class's sum change at most when one sample is missing."""

    def class_samples(self, view: View) -> tuple[Tensor, Tensor]:
        """Of which values `contribute` uploads means.

        The values (rows, width), and (entries, rows, classes): 1 where a row counts for a class in an entry.
        """
        raise NotImplementedError
