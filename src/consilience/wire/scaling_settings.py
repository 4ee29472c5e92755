"""How members scale their inputs, as a federation's charter writes it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from consilience.wire.section import CharterSection


class ScalingSettings(CharterSection):
    """How members scale their inputs: the same for all, as measured by whoever creates the federation."""

    kind: Literal["none", "pixels", "columns", "fields"]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    pixel_max: int = Field(default=1, ge=1)
    fields: tuple[FieldScalingSettings, ...] = Field(
        default=(), description="where an input has several fields: each in order, with its scaling"
    )


class FieldScalingSettings(CharterSection):
    """One of several fields of an input: its name, how many numbers a sample has in it, and how they are scaled."""

    name: str
    size: int = Field(ge=1)
    scaling: ScalingSettings
