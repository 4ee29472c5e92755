"""Settings of a measurement of leakage."""

from __future__ import annotations

from dataclasses import dataclass

from consilience.validation import check_integer


@dataclass(frozen=True)
class LeakageSettings:
    """layers: names of modules, "features" or "cut"; by default the cut, or the features of models without one.

    learners: only the first N are examined. epochs: of an attacker's training. auxiliary: test samples of the attacker,
    by default half of them, at most 2,000.
    """

    layers: tuple[str, ...] = ()
    learners: int = 3
    epochs: int = 30
    auxiliary: int | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        check_integer("learners", self.learners)
        check_integer("epochs", self.epochs)
        if self.auxiliary is not None:
            check_integer("auxiliary", self.auxiliary)
