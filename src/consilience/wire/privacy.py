"""The privacy of a federation's uploads, as its charter writes it: members follow it, and a relay cannot check it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from consilience.wire.section import CharterSection


class PrivacySettings(CharterSection):
    """Which mechanism noises what members upload, and the budget of each member over all of its uploads."""

    private: Literal["upload", "training", "fixed-encoder"] = Field(description="what is noised")
    epsilon: float = Field(gt=0, allow_inf_nan=False, description="the budget of each member")
    delta: float = Field(gt=0, lt=1, allow_inf_nan=False, description="the probability with which epsilon may fail")
    clip: float = Field(
        gt=0, allow_inf_nan=False, description="the largest norm of an upload, or of a sample's gradient and features"
    )
    uploads: int = Field(ge=1, description="for how many uploads the budget is; a member uploads no more than these")
