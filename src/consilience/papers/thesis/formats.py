"""How results of cells are written in tables: accuracies, paired differences, and shares of bytes."""

from __future__ import annotations

from collections.abc import Mapping

from consilience.papers.cells import Outcome
from consilience.presentation.gains import by_seed
from consilience.presentation.paired import paired_difference


def format_accuracy(outcome: Outcome | None, key: str = "accuracy") -> str | None:
    """A mean accuracy and its standard deviation over seeds."""
    if outcome is None or outcome.summary[key]["mean"] is None:
        return None
    reached = outcome.summary[key]
    spread = "" if reached["std_seeds"] is None else f" ± {reached['std_seeds']:.1f}"
    return f"{reached['mean']:.1f}{spread}"


def format_difference(ours: Outcome, theirs: Outcome) -> str | None:
    """The paired difference by seed and its 95 % interval: +1.2 (+0.4 to +2.0); two seeds have their two values."""
    found = paired_difference(by_seed(ours.summary), by_seed(theirs.summary))
    if found is None:
        return None
    if found.low is None or found.high is None:
        return f"{found.mean:+.1f} (one seed)"
    interval = found.interval() if found.seeds == 2 else f"{found.low:+.1f} to {found.high:+.1f}"
    return f"{found.mean:+.1f} ({interval})"


def both_ways(sent: Mapping[str, float]) -> float:
    """The bytes of upload and download together."""
    return sent["up"] + sent["down"]


def format_share(ours: Outcome, theirs: Outcome) -> str | None:
    """The share of another method's bytes, upload and download together, as a fraction: 1/8.1."""
    own, other = (both_ways(each.summary["message_bytes"]) for each in (ours, theirs))
    return f"1/{other / own:.1f}" if own else None
