"""Runs that do not depend on each other, here or on a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from consilience.simulation.planned_run import PlannedRun
from consilience.simulation.result import Result
from consilience.simulation.run import OnRound


def run_all(runs: Sequence[PlannedRun], on_round: OnRound | None = None) -> Iterator[Result]:
    """The results in the order of the runs: one after the other here, or at the same time on the cluster they name.

    The last one may be of a run that was stopped.
    """
    if runs and runs[0].config.execution.cluster is not None:
        from consilience.simulation.cluster.tasks import run_on_cluster

        yield from run_on_cluster(runs, on_round)
        return
    result = None
    for run in runs:
        if result is not None:
            result.raise_if_interrupted()
        result = run.run(on_round)
        yield result
        if not result.finished:
            return
