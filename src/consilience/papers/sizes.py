"""The sizes that the reproductions of one paper come in: as published, shorter, and for two cores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from consilience.papers.cells import Cell, Outcome, Reproduction, Scale, Shown

Size = TypeVar("Size")


@dataclass(frozen=True)
class Sizes(Generic[Size]):
    """short: minutes of one large GPU, with fewer of what `fewer` names; quick: what --quick takes."""

    published: Size
    short: Size
    quick: Size
    fewer: str = "rounds"

    def both(
        self,
        name: str,
        summary: str,
        cells: Callable[[Size, Scale], list[Cell]],
        told: Callable[[Sequence[Outcome]], list[Shown]],
    ) -> tuple[Reproduction, Reproduction]:
        """A reproduction as published, and a short one beside it; under --quick both are quick."""

        def one(name: str, summary: str, size: Size) -> Reproduction:
            return Reproduction(name, summary, lambda scale: cells(self.quick if scale.quick else size, scale), told)

        short = one(f"{name}-short", f"{summary}; in fewer {self.fewer}", self.short)
        return one(name, summary, self.published), short
