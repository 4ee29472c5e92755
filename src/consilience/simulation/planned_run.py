"""One of several runs that do not depend on each other: of a comparison, a sweep or a reproduction."""

from __future__ import annotations

from collections.abc import Sequence
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
