"""The sizes of the experiments of one paper: as published, short, and quick for two cores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from consilience.papers.cells import Cell, Outcome, Reproduction, ResultSection, Scale

SizeT = TypeVar("SizeT")


@dataclass(frozen=True)
class Experiment(Generic[SizeT]):
    """A table or figure that can be run at any size of its paper."""

    name: str
    summary: str
    cells: Callable[[SizeT, Scale], list[Cell]]
    sections: Callable[[Sequence[Outcome]], list[ResultSection]]

    def at_size(self, size: SizeT, quick: SizeT) -> Reproduction:
        """The experiment at this size, and at the quick size with --quick.

        Sections of cells without records read the run folders.
        """

        def cells(scale: Scale) -> list[Cell]:
            found = self.cells(quick if scale.quick else size, scale)
            return [replace(cell, reads_folder=not cell.records) for cell in found]

        return Reproduction(self.name, self.summary, cells, self.sections)


@dataclass(frozen=True)
class Sizes(Generic[SizeT]):
    """short: takes minutes on one large GPU, with fewer of what `fewer` names; quick: the size of --quick."""

    published: SizeT
    short: SizeT
    quick: SizeT
    fewer: str = "rounds"

    def reproductions(self, experiment: Experiment[SizeT]) -> tuple[Reproduction, Reproduction]:
        """The experiment as published and a short one; with --quick both have the quick size."""
        short = Experiment(
            f"{experiment.name}-short",
            f"{experiment.summary}; in fewer {self.fewer}",
            experiment.cells,
            experiment.sections,
        )
        return experiment.at_size(self.published, self.quick), short.at_size(self.short, self.quick)
