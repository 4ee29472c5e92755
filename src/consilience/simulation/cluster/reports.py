"""What runs on other machines report while they are under way, and whether they should stop."""

from __future__ import annotations

from dataclasses import dataclass, field

from consilience.simulation.cluster.packed_folder import PackedFolder
from consilience.simulation.records.round_record import Record


@dataclass(frozen=True, eq=False)
class Report:
    """What is new of a run. A run that starts reports its node, and then the shape and the first files of its folder.

    first: the number of the first of the records.
    """

    run: int
    node: str
    records: tuple[Record, ...] = ()
    first: int = 0
    rounds: int = 0
    method: str = ""
    seeds: tuple[int, ...] = ()
    learners: int = 0
    variants: int = 1
    files: PackedFolder = field(default_factory=dict)
    logged: tuple[tuple[int, str], ...] = ()


class Reports:
    """Keeps reports until they are taken, in a process of its own."""

    def __init__(self) -> None:
        self._new: list[Report] = []
        self._stopped = False

    def add(self, report: Report) -> bool:
        """Add a report; whether the run should stop."""
        self._new.append(report)
        return self._stopped

    def take(self) -> list[Report]:
        """The reports since the last call."""
        taken, self._new = self._new, []
        return taken

    def stop(self) -> None:
        """Ask all runs to stop after their round."""
        self._stopped = True
