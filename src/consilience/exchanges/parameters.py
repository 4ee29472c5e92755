"""Exchanges of parameters alone: whatever the model computes, none of their hooks uses samples."""

from __future__ import annotations

from typing import ClassVar

from consilience.exchanges.base import Exchange


class ParameterExchange(Exchange):
    """What an exchange says of itself that reads and changes parameters, and no features, logits or targets."""

    needs_representations: ClassVar[bool] = False
    needs_batches: ClassVar[bool] = False
