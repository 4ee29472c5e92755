"""Split learning: learners take turns, each with the server's part of the model as the one before left it.

The server's part, with its optimizer state, is a part of every row of the cohort. It is copied from row to row in the
order of the turns, and to all rows after the last one, so that between rounds every learner is tested with the newest.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from consilience.learner.batches import batch_widths
from consilience.learner.learner import Learner
from consilience.learner.split_messages import SplitMessages
from consilience.learner.state import LearnerState
from consilience.simulation.engines.jobs import Job, JobResult, Work
from consilience.simulation.records.round_record import Record
from consilience.simulation.round.participation import Presence
from consilience.simulation.round.run_state import RunState
from consilience.task import SERVER


def take_turns(run: RunState, cohort: int, presence: Presence, record: Record) -> Iterator[tuple[Work, JobResult]]:
    """Train those who can be reached, in the order of their numbers; the federations of a run side by side.

    A learner that is offline does not train in that round: without the server it cannot.
    """
    federations, members = run.at(cohort)
    last = np.full(run.setup.federations.count, -1)  # the row with the newest common part, by federation
    for rows in _turns(federations, members, presence.exchanges[federations, members]):
        before = last[federations[rows]]
        _copy_common_part(run, cohort, before[before >= 0], rows[before >= 0])
        _count_bytes(run, cohort, rows, record)
        jobs: list[Job] = [
            Work(cohort, some, run.round, run.answers.held_by(cohort, some), (), np.ones(len(some), dtype=bool))
            for some in run.engine.split(Work, cohort, rows)
        ]
        for job, result in run.engine.run(jobs):
            assert isinstance(job, Work)
            yield job, result
        last[federations[rows]] = rows
    everybody = np.flatnonzero(last[federations] >= 0)
    _copy_common_part(run, cohort, last[federations[everybody]], everybody)


def _turns(federations: np.ndarray, members: np.ndarray, present: np.ndarray) -> Iterator[np.ndarray]:
    """The rows of each turn: of every federation at most one."""
    order = np.lexsort((members, federations))
    order = order[present[order]]
    _, first, count = np.unique(federations[order], return_index=True, return_counts=True)
    for turn in range(count.max(initial=0)):
        yield order[first[count > turn] + turn]


def _copy_common_part(run: RunState, cohort: int, source: np.ndarray, target: np.ndarray) -> None:
    """Copy what all learners have in common from some rows to others."""
    moved = source != target
    if not moved.any():
        return
    source, target, learner = source[moved], target[moved], run.learners[cohort]
    state = run.engine.read(cohort, target)
    theirs = _common_part(learner, run.engine.read(cohort, source))
    for key, tensor in _common_part(learner, state).items():
        tensor.copy_(theirs[key])
    run.engine.write(cohort, target, state)


def _common_part(learner: Learner, state: LearnerState) -> dict[tuple[str, str], Tensor]:
    """The shared tensors, and what the server's optimizer remembers, as views; learners keep their optimizers' own."""
    assert learner.role.turns is not None
    tensors = learner.binding.model_tensors(state)
    found = {("model", name): tensors[name] for name in SplitMessages(learner.task, learner.role.turns).shared}
    for slot, values in state.optimizer.items():
        named = learner.binding.parameters.views(values)
        found |= {(slot, name): named[name] for name in learner.task.covered(SERVER, learner.task.parameters)}
    return found


def _count_bytes(run: RunState, cohort: int, rows: np.ndarray, record: Record) -> None:
    """Count what travels in a turn. The device part comes from the learner before, if there is one, and goes on."""
    learner, plan = run.learners[cohort], run.engine.plans[cohort]
    assert learner.role.turns is not None
    federations, members = run.at(cohort)
    messages, steps = SplitMessages(learner.task, learner.role.turns), run.engine.read(cohort, fields=["step"]).step
    several = run.setup.federations.learners > 1
    for row in rows:
        f = federations[row]
        batches = batch_widths(plan.work, int(plan.members.sizes[row]), even=bool(plan.members.even[row]))
        trained = bool(steps[np.flatnonzero(federations == f)].any())  # before this turn, by anybody
        for way, weights in (("up", several), ("down", several and trained)):
            size, values = messages.size("up" if way == "up" else "down", batches, weights)
            record[f"bytes.{way}"][f, members[row]] += size
            record[f"values.{way}"][f, members[row]] += values
