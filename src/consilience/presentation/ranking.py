"""By what outcomes of one comparison are ranked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal


def ranked_by(summaries: Sequence[Mapping[str, Any]]) -> Literal["ensemble", "accuracy"]:
    """What all learners tell together, where all that stayed sound were asked so; else what each tells."""
    sound = [s for s in summaries if not s["diverged"] and s["accuracy"]["mean"] is not None]
    asked = [(s.get("ensemble") or {}).get("mean") is not None for s in sound]
    return "ensemble" if sound and all(asked) else "accuracy"
