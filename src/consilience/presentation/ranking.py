"""Which metric ranks the outcomes of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal


def ranked_by(summaries: Sequence[Mapping[str, Any]]) -> Literal["ensemble", "accuracy"]:
    """The ensemble's accuracy if all runs that did not diverge have it; else the mean accuracy of learners."""
    converged = [s for s in summaries if not s["diverged"] and s["accuracy"]["mean"] is not None]
    has_ensemble = [(s.get("ensemble") or {}).get("mean") is not None for s in converged]
    return "ensemble" if converged and all(has_ensemble) else "accuracy"
