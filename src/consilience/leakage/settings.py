"""How a run's leakage is looked for."""

from __future__ import annotations

from dataclasses import dataclass

from consilience.validation import check_integer


@dataclass(frozen=True)
class Settings:
    """layers: modules by name, or where the model is cut, else its features. learners: the first so many are examined.

    epochs: of an attacker's training. auxiliary: test samples it has, by default half of them, 2,000 at most.
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
