"""The rules of a federation: what its relay accepts, and how long it waits."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from consilience.wire.section import CharterSection


class Rules(CharterSection):
    """What a relay accepts, and how long it waits."""

    min_contributions: int = Field(
        default=2, ge=1, description="the fewest contributions with which a moving mean is aggregated"
    )
    deadline: float = Field(
        default=60.0,
        gt=0,
        description="seconds after the first contribution until a moving mean is aggregated with those it has",
    )
    expire: int = Field(
        default=0, ge=0, description="rounds after which a contribution that was not renewed is removed; 0 is never"
    )
    round_seconds: float = Field(
        default=30.0, ge=0, description="with `expire`, the fewest seconds of a round, however fast members upload"
    )
    samples: int = Field(default=10_000_000, ge=1, lt=2**31, description="the most samples a member may claim")
    partners: int = Field(
        default=0, ge=0, description="the fewest partners that a member may ask for answers of; 0: nobody may"
    )
    partner_lists: int = Field(
        default=4, ge=1, le=1000, description="how many different lists of partners a member may ask with"
    )

    def to_plain(self) -> dict[str, Any]:
        """As the charter writes them: without those about partners that are at their defaults, as in older charters."""
        usual = type(self)()
        return {k: v for k, v in self.model_dump().items() if not k.startswith("partner") or v != getattr(usual, k)}
