"""Where learners' models are: a learner of several roles takes its model from cohort to cohort."""

from __future__ import annotations

import numpy as np

from consilience.simulation.round.run_state import RunState


def bring_models(run: RunState, cohort: int, rows: np.ndarray) -> None:
    """Copy the newest models of these rows into them, where they are in other cohorts."""
    federations, members = run.at(cohort)
    locations = run.model_location[federations[rows], members[rows]]
    for other in np.unique(locations[locations != cohort]):
        moved = rows[locations == other]
        at = federations[moved], members[moved]
        _copy_models(run, int(other), run.setup.cohorts.rows[other][at], cohort, moved)
        run.model_location[at] = cohort


def _copy_models(run: RunState, source: int, source_rows: np.ndarray, target: int, target_rows: np.ndarray) -> None:
    """Copy the tensors that models of two cohorts have in common."""
    state = run.engine.read(target, target_rows)
    mine = run.learners[target].binding.model_tensors(state)
    theirs = run.learners[source].binding.model_tensors(run.engine.read(source, source_rows))
    for name in mine.keys() & theirs.keys():
        mine[name].copy_(theirs[name])
    run.engine.write(target, target_rows, state)


def return_models(run: RunState) -> None:
    """Between rounds every model is in the cohort of its learner's first role."""
    for i in np.unique(run.setup.cohorts.main).tolist():
        bring_models(run, i, run.setup.cohorts.rows[i][run.setup.cohorts.main == i])
