"""Weights of learners' models in memory, apart from the engine they were trained in: stacked vectors on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from consilience.learner.rebuild import OBJECTIVE, OTHER
from consilience.simulation.engines.base import Engine
from consilience.simulation.records.checkpoint import MODEL_FIELDS, SavedModels, is_model_vector
from consilience.simulation.round.evaluate import buffer_size, different_models, model_size
from consilience.simulation.round.run_state import RunState


class ModelRows(Protocol):
    """Where the weights of learners' models are."""

    def row(self, cohort: int, row: int) -> dict[str, Tensor]:
        """The flat vectors of a learner's model and own answer: see `is_model_vector`."""
        ...


class KeptModels:
    """The models after the last round; those that are equal, as after FedAvg, are kept once.

    Of what is trained beside a model only a private head and a model of the learner's own are kept.
    """

    def __init__(self, engine: Engine) -> None:
        self._cohorts = [_keep_different(engine, cohort) for cohort in range(len(engine.plans))]

    def row(self, cohort: int, row: int) -> dict[str, Tensor]:
        """The flat vectors of a learner's model and own answer."""
        kept = self._cohorts[cohort]
        shared = {key: values[kept.like[row]] for key, values in kept.different.items()}
        whole = {key: torch.cat([shared[key], values[row]]) for key, values in kept.private.items()}
        return shared | {key: values[row] for key, values in kept.others.items()} | whole


class _KeptCohort(NamedTuple):
    different: dict[str, Tensor]  # (different models, values) parameters and floating buffers
    like: np.ndarray  # (rows,) which of these each row has
    private: dict[str, Tensor]  # (rows, values) parameters and floating buffers of private heads and own models
    others: dict[str, Tensor]  # (rows, values) other buffers, such as counts of batches, and the objective's state


class BestModels:
    """The models after the best round of each federation so far."""

    def __init__(self, engine: Engine) -> None:
        self.vectors = {i: _vectors(engine, i) for i in range(len(engine.plans))}
        """By cohort and name, (rows, values) each."""

    def update(self, run: RunState, best_rounds: np.ndarray) -> None:
        """Copy the models of the federations whose best round is the one just evaluated."""
        now = np.flatnonzero(best_rounds == run.round)
        for i, kept in self.vectors.items():
            rows = torch.from_numpy(np.flatnonzero(np.isin(run.at(i)[0], now)))
            for key, values in _vectors(run.engine, i, rows).items():
                kept[key].index_copy_(0, rows, values)

    def restore(self, saved: SavedModels) -> None:
        """Continue with the models of a checkpoint."""
        for i, kept in self.vectors.items():
            for row in range(len(kept["parameters"])):
                for key, values in saved.row(i, row).items():
                    kept[key][row].copy_(values)

    def row(self, cohort: int, row: int) -> dict[str, Tensor]:
        """The flat vectors of a learner's model and own answer, as views."""
        return {key: values[row] for key, values in self.vectors[cohort].items()}


def _keep_different(engine: Engine, cohort: int) -> _KeptCohort:
    rows = np.arange(len(engine.plans[cohort].members))
    different, like = different_models(engine, cohort, rows, classifiers=True)
    learner, state = engine.learners[cohort], engine.read(cohort, fields=MODEL_FIELDS)
    head = (learner.task.width + 1) * learner.task.classes if learner.spec.own_head else 0
    sizes = {"parameters": (model_size(learner), head), "buffers": (buffer_size(learner), 0)}
    kept = _vectors(engine, cohort, torch.from_numpy(different), lambda key: key in sizes)
    private = {}
    for key, (model, between) in sizes.items():
        own = model if learner.spec.own_model else 0
        private[key] = getattr(state, key)[:, model : model + between + own].to("cpu", copy=True)
    return _KeptCohort(
        {key: kept[key][:, :model].clone() for key, (model, _) in sizes.items()},
        like,
        private,
        _vectors(engine, cohort, wanted=lambda key: key.startswith((OTHER, OBJECTIVE))),
    )


def _vectors(
    engine: Engine, cohort: int, rows: Tensor | None = None, wanted: Callable[[str], bool] = lambda key: True
) -> dict[str, Tensor]:
    """Copies of the model vectors of a cohort's rows, or of all, on the CPU."""
    stacked = {".".join(path): values for path, values in engine.read(cohort, fields=MODEL_FIELDS).flatten().items()}
    chosen = {key: values for key, values in stacked.items() if is_model_vector(key) and wanted(key)}
    if rows is None:
        return {key: values.to("cpu", copy=True) for key, values in chosen.items()}
    return {key: values.index_select(0, rows.to(values.device)).cpu() for key, values in chosen.items()}
