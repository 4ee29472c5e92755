"""Evaluation with the newest common part: where an exchange owns a part of the model, absent learners hold an old one.

The published accuracy of two-stage learning is that of all devices' private parts, each followed by the common part as
it is now (Ma et al. 2020, section 3.3). Learners hold the newest values while they are evaluated, and then their own
again: nothing is downloaded, and evaluation changes no training.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from consilience.exchanges.base import Received
from consilience.exchanges.owning import OwningExchange
from consilience.simulation.federation import Federation
from consilience.simulation.round.run_state import RunState


@contextmanager
def with_newest_parts(run: RunState) -> Iterator[None]:
    """For a while, all learners that have joined hold the newest values of the parts that exchanges own.

    A learner that has never downloaded such a part holds the newest values too; where nothing has been aggregated yet,
    they are the common ones of the start.
    """
    joined, before = run.setup.federations.joined(run.round), list[tuple[int, np.ndarray, dict[str, Tensor]]]()
    for cohort, learner in enumerate(run.learners):
        owning = [e for e in learner.exchanges if isinstance(e, OwningExchange) and e.name in learner.downloading]
        federations, numbers = run.at(cohort)
        for f in np.unique(federations) if owning else ():
            rows = np.flatnonzero((federations == f) & joined[numbers])
            values = {k: v for e in owning for k, v in _newest(run.federations[f], e, run.round).items()}
            if rows.size:
                before.append((cohort, rows, _held(run, cohort, rows, values)))
                run.engine.write_parameters(cohort, rows, values)
    try:
        yield
    finally:
        for cohort, rows, held in before:
            run.engine.write_parameters(cohort, rows, held)


def _newest(federation: Federation, exchange: OwningExchange, round_: int) -> dict[str, Tensor]:
    """The part that an exchange owns, by parameter, as its channel has it now."""
    answers, _ = federation.answers(exchange.name, np.zeros(1, dtype=np.int64), round_)
    answer = answers[0]
    return exchange.owned_values(Received(answer.tensors, answer.count, torch.ones((), dtype=torch.bool)))


def _held(run: RunState, cohort: int, rows: np.ndarray, names: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies of the parameters that some rows hold, (rows, ...) each."""
    stacked = run.engine.read(cohort, fields=["parameters"]).parameters
    views = run.learners[cohort].binding.parameters.views(stacked)
    index = torch.from_numpy(rows).to(stacked.device)
    return {name: views[name].index_select(0, index) for name in names}
