"""Runs that do not depend on each other: those of a comparison, a sweep or a reproduction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from consilience.config.config import Config
from consilience.data import Dataset
from consilience.simulation.result import Result
from consilience.simulation.run import OnRound
from consilience.simulation.setup.participants import Model
from consilience.simulation.simulate import simulate


@dataclass(frozen=True, eq=False)
class PlannedRun:
    """What to run, in which folder, and what `simulate` takes beside."""

    config: Config
    folder: Path | None = None
    data: Dataset | None = None
    model: Model | Sequence[Model] | None = None
    keep_models: bool = True

    def run(self, on_round: OnRound | None) -> Result:
        """Run it here: start it, or resume it where it stopped."""
        if self.folder is not None and (self.folder / "config.toml").exists():
            return simulate(
                resume=self.folder,
                data=self.data,
                model=self.model,
                on_round=on_round,
                keep_models=self.keep_models,
            )
        return simulate(
            self.config,
            data=self.data,
            model=self.model,
            out=self.folder,
            on_round=on_round,
            keep_models=self.keep_models,
        )


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
