"""A run as a task on another machine: in a folder of that machine, which is sent back when the run has ended."""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import consilience
from consilience.data import Dataset
from consilience.errors import ClusterError
from consilience.simulation.cluster.node import KeptLog, keep_log, node_name
from consilience.simulation.cluster.packed_folder import PackedFolder, pack, unpack
from consilience.simulation.cluster.reports import Report
from consilience.simulation.planned_run import PlannedRun
from consilience.simulation.records.history import History
from consilience.simulation.records.run_folder import PROVENANCE
from consilience.simulation.result import Result
from consilience.simulation.run import StopRun

_FIRST_FILES = ("config.toml", PROVENANCE)  # of a run folder: they are written before any round


@dataclass(frozen=True, eq=False)
class Ended:
    """What a task gives back: the files of the run's folder, or its result where it has none. None if not started."""

    files: PackedFolder | None = None
    result: Result | None = None
    asked_to_stop: bool = False


def run_remotely(
    planned: PlannedRun, data: Dataset | None, files: PackedFolder | None, number: int, version: str, reports: Any
) -> Ended:
    """Run it here, on a machine of the cluster, from the files of its folder; None: it is not saved.

    data: the run's own, which several runs may have in common. number: of the run, among those that are run together.
    version: of consilience, where the run was planned.
    """
    import ray

    node, log = node_name(), keep_log()
    if version != consilience.__version__:
        raise ClusterError(
            f"consilience is {consilience.__version__} on {node}, and {version} where the run was started; install the "
            f"same version"
        )
    if ray.get(reports.add.remote(Report(number, node))):
        return Ended()
    torch.set_num_threads(1)  # as in any process of the loop
    with nullcontext() if files is None else tempfile.TemporaryDirectory(prefix="consilience-") as folder:
        place = None if folder is None else Path(folder) / "run"
        if place is not None and files:
            unpack(files, place)
        reporter = _Reporter(number, node, place, reports, log)
        try:
            result = replace(planned, data=data, folder=place).run(reporter)
        except Exception as error:
            error.add_note(f"on the cluster: run {number + 1}, on {node}")
            raise
        if place is None:
            return Ended(result=result)
        return Ended(files=pack(place), asked_to_stop=result.asked_to_stop)


class _Reporter:
    """Reports every round, and stops the run when it is asked to."""

    def __init__(self, number: int, node: str, place: Path | None, reports: Any, log: KeptLog) -> None:
        self.number, self.node, self.place, self.reports, self.log = number, node, place, reports, log
        self._sent = 0  # records

    def __call__(self, method: str, round_: int, rounds: int, history: History) -> None:
        """Called after each round."""
        import ray

        first = {} if self._sent else self._first(history)
        report = Report(
            self.number,
            self.node,
            tuple(history.records[self._sent :]),
            self._sent,
            rounds,
            method,
            logged=tuple(self.log.take()),
            **first,
        )
        self._sent = len(history.records)
        if ray.get(self.reports.add.remote(report)):
            raise StopRun

    def _first(self, history: History) -> dict[str, Any]:
        """What the first report says of the run: its shape, and the files that are written before any round."""
        shape = {"seeds": history.seeds, "learners": history.learners, "variants": history.variants}
        files = {} if self.place is None else {name: (self.place / name).read_bytes() for name in _FIRST_FILES}
        return {**shape, "files": files}
