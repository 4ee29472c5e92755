"""How a mean resists a bad member: a cap of weights, a clip of norms, and the kind of aggregation."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any, Literal

from consilience.errors import ConfigurationError, UnknownName

Aggregation = Literal["mean", "trimmed", "median"]
_KINDS = ("mean", "trimmed(SHARE)", "median")
_TRIMMED = re.compile(r"trimmed\s*\((.*)\)")


@dataclass(frozen=True)
class Robustness:
    """What a channel does about members whose contributions are wrong; by default nothing.

    aggregation, trim: "mean"; "trimmed", the mean of each coordinate without the share `trim` of its values at each
    end; or "median", of each coordinate. clip_norm: a contribution of a larger norm is scaled down to it. clip_ratio:
    so is one whose norm is more than this many times the median norm of the contributions it is aggregated with.
    weight_cap: a larger weight counts as this one, for each row by itself if a contribution has a weight for each.
    """

    aggregation: Aggregation = "mean"
    trim: float = 0.0
    clip_norm: float = math.inf
    clip_ratio: float = math.inf
    weight_cap: float = math.inf

    def __post_init__(self) -> None:
        if self.aggregation not in ("mean", "trimmed", "median"):
            raise UnknownName("aggregation", self.aggregation, _KINDS)
        if self.aggregation == "trimmed" and not 0 < self.trim < 0.5:
            raise ConfigurationError(
                f"aggregation trimmed({self.trim:g}): the share trimmed at each end must be above 0 and below 0.5, "
                f"which leaves nobody; use trimmed(0.2), or median"
            )
        if self.aggregation != "trimmed" and self.trim:
            raise ConfigurationError(f"trim is {self.trim:g}, and aggregation {self.aggregation!r} trims nothing")
        for name, low in (("clip_norm", 0.0), ("clip_ratio", 1.0), ("weight_cap", 0.0)):
            value = getattr(self, name)
            if not value > low and not (name == "clip_ratio" and value == low):  # NaN is refused here as well
                least = "1 or more" if name == "clip_ratio" else "above 0"
                raise ConfigurationError(f"{name} is {value}; it must be {least}")

    @property
    def clips(self) -> bool:
        """Whether contributions of a large norm are scaled down."""
        return min(self.clip_norm, self.clip_ratio) < math.inf

    @property
    def needs_all(self) -> bool:
        """Whether a mean needs all contributions at once: sums that are added to and removed from do not do."""
        return self.aggregation != "mean" or self.clip_ratio < math.inf

    @property
    def label(self) -> str:
        """The kind of aggregation as a setting writes it: mean, trimmed(0.2) or median."""
        return f"trimmed({self.trim:g})" if self.aggregation == "trimmed" else self.aggregation

    def without_clip(self) -> Robustness:
        """The same without a clip of norms."""
        return replace(self, clip_norm=math.inf, clip_ratio=math.inf)

    def settings(self) -> dict[str, Any]:
        """What is not the default, as a charter writes it."""
        numbers = {key: getattr(self, key) for key in ("clip_norm", "clip_ratio", "weight_cap")}
        kind = {} if self.aggregation == "mean" else {"aggregation": self.label}
        return kind | {key: value for key, value in numbers.items() if value < math.inf}


def build_robustness(
    aggregation: str = "mean",
    clip_norm: float | None = None,
    clip_ratio: float | None = None,
    weight_cap: float | None = None,
) -> Robustness:
    """Robustness from settings, of which None is none.

    >>> build_robustness("trimmed(0.2)", clip_norm=5.0).label
    'trimmed(0.2)'
    """
    kind, trim = parse_aggregation(aggregation)
    limits = (math.inf if value is None else float(value) for value in (clip_norm, clip_ratio, weight_cap))
    return Robustness(kind, trim, *limits)


def parse_aggregation(text: str) -> tuple[Aggregation, float]:
    """The kind of aggregation that a setting names, and the share trimmed at each end."""
    word = text.strip()
    if word == "mean":
        return "mean", 0.0
    if word == "median":
        return "median", 0.0
    found = _TRIMMED.fullmatch(word)
    if found is None:
        raise UnknownName("aggregation", text[:80], _KINDS)
    try:
        share = float(found[1])
    except ValueError:
        raise ConfigurationError(
            f"aggregation {text[:80]!r}: {found[1][:40]!r} is not a number; write trimmed(0.2)"
        ) from None
    Robustness("trimmed", share)  # refuses a share that leaves nobody
    return "trimmed", share


PLAIN = Robustness()
"""A plain weighted mean."""
