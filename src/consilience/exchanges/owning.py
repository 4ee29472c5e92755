"""Exchanges that own a part of the model: only they move it, and not the local optimizer."""

from __future__ import annotations

from typing import Self

from torch import Tensor

from consilience.exchanges.base import Exchange, Received


class OwningExchange(Exchange):
    """The hooks of an exchange whose `owned_part` is the same for all learners, on a moving mean.

    All learners are evaluated with the newest values of the part, also those that have not downloaded them yet.
    """

    @property
    def moves_before_batches(self) -> bool:
        """Whether it moves the part before every mini-batch of a round and not once, by `values_before_batch`.

        Answers then also have the channel's last move (`LAST_MOVE`), and gradients are those of the last batch.
        """
        return False

    def for_batches(self, batches: int) -> Self:
        """The exchange in a federation whose learners take this number of mini-batches in a round, on average."""
        return self

    def values_before_batch(self, received: Received, progress: Tensor) -> dict[str, Tensor]:
        """The part at a mini-batch; progress: which share of the round's batches is done after it, up to 1."""
        return {}

    def owned_values(self, received: Received) -> dict[str, Tensor]:
        """The part as an answer gives it, by parameter."""
        return dict(received.tensors)
