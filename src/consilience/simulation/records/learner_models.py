"""The learners' models after a run: weights in stacked tensors or in the run's folder, modules built when asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from consilience.config.config import Config
from consilience.errors import ConfigurationError
from consilience.export import InputDescription, OwnAnswer, make_card, write_model
from consilience.export.load import NO_OWN_ANSWER
from consilience.learner.rebuild import ModelKind
from consilience.models import SplitModel, build_for, model_factory
from consilience.simulation.records.checkpoint import SavedModels, model_places
from consilience.simulation.records.model_rows import ModelRows
from consilience.simulation.round.run_state import RunState
from consilience.simulation.setup.cohorts import DTYPES
from consilience.simulation.setup.inputs import models_of
from consilience.simulation.setup.participants import Model


@dataclass(frozen=True, eq=False)  # comparing by value would compare whole arrays
class LearnerModels:
    """The model of every learner of every federation."""

    rows: ModelRows
    kinds: Sequence[ModelKind]  # of each cohort
    cohort: np.ndarray  # (federations, learners) where a learner's model is, and
    row: np.ndarray  # (federations, learners) its row there
    rounds: np.ndarray  # (federations,) the round after which it is
    inputs: InputDescription

    def kind(self, federation: int, learner: int) -> ModelKind:
        """What a learner's model is built by."""
        return self.kinds[int(self.cohort[federation, learner])]

    def build(self, federation: int, learner: int) -> SplitModel:
        """A new module with a learner's weights, on the CPU and in evaluation mode."""
        return self.kind(federation, learner).rebuild(self._vectors(federation, learner))

    def build_own_answer(self, federation: int, learner: int) -> OwnAnswer | None:
        """A new module with a learner's own answer; None where it has no other than its model's."""
        return self.kind(federation, learner).rebuild_own_answer(self._vectors(federation, learner))

    def _vectors(self, federation: int, learner: int) -> dict[str, Tensor]:
        return self.rows.row(int(self.cohort[federation, learner]), int(self.row[federation, learner]))

    def of(self, federations: slice) -> LearnerModels:
        """The models of some federations."""
        return replace(
            self, cohort=self.cohort[federations], row=self.row[federations], rounds=self.rounds[federations]
        )


class ModelsBySeed(Mapping[tuple[int, int], nn.Module]):
    """Models by (seed, learner). Each access builds a new module; nothing is built before."""

    def __init__(self, models: LearnerModels, seeds: Sequence[int]) -> None:
        self._models, self._seeds = models, tuple(seeds)

    def __getitem__(self, key: tuple[int, int]) -> nn.Module:
        seed, learner = key
        return self._models.build(*self.place(seed, learner)).original

    def own_answer(self, seed: int, learner: int) -> nn.Module:
        """A learner's own answer; refused where it has no other than its model's."""
        answer = self._models.build_own_answer(*self.place(seed, learner))
        if answer is None:
            raise ConfigurationError(f"learner {learner} {NO_OWN_ANSWER}")
        return answer

    def place(self, seed: int, learner: int) -> tuple[int, int]:
        """The federation of a seed, and the learner's number; unknown ones are refused."""
        learners = self._models.cohort.shape[1]
        if seed not in self._seeds:
            raise ConfigurationError(f"there is no seed {seed}; the run has {', '.join(map(str, self._seeds))}")
        if not 0 <= learner < learners:
            raise ConfigurationError(f"there is no learner {learner}; the run has learners 0 to {learners - 1}")
        return self._seeds.index(seed), learner

    def export(
        self, folder: Path, federation: int, learner: int, width: int | None, trained: dict[str, Any], *, onnx: bool
    ) -> None:
        """Write a learner's model into a folder; width: of the features, where one was set; trained: for its card."""
        models = self._models
        kind, own = models.kind(federation, learner), models.build_own_answer(federation, learner)
        model = models.build(federation, learner) if own is None else own.model
        card = make_card(model, kind.name, kind.named, models.inputs, width, trained)
        write_model(folder, model, card, kind.name, own, onnx=onnx)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return ((seed, learner) for seed in self._seeds for learner in range(self._models.cohort.shape[1]))

    def __len__(self) -> int:
        return self._models.cohort.size

    def __repr__(self) -> str:
        seeds, learners = self._models.cohort.shape
        return f"<{len(self)} models by (seed, learner): {seeds} seeds, {learners} learners>"


def models_of_run(
    run: RunState, rows: ModelRows, inputs: InputDescription, rounds: np.ndarray | None = None
) -> LearnerModels:
    """The models of a run in this process; rounds: after which they are, (federations,); by default the last."""
    kinds = [
        ModelKind(
            spec.build,
            spec.model,
            spec.named,
            spec.file_sha256,
            spec.dtype,
            torch.device(spec.device).type == "cpu",
            spec.own_head,
            spec.own_model,
            spec.frozen_sha256,
        )
        for spec in (plan.spec for plan in run.engine.plans)
    ]
    last = np.full(run.setup.federations.count, run.round)
    return LearnerModels(rows, kinds, **model_places(run), rounds=last if rounds is None else rounds, inputs=inputs)


def models_of_folder(
    saved: SavedModels,
    config: Config,
    inputs: InputDescription,
    model: Model | Sequence[Model] | None = None,
    rounds: np.ndarray | None = None,
) -> LearnerModels:
    """The models of a run's folder; model: what builds them, where the run was given objects and not names.

    rounds: after which they are, (federations,); by default that of the checkpoint.
    """
    given = {_called(each): each for each in ([] if model is None else models_of(model, config))}
    dtype, on_cpu = DTYPES[config.execution.precision], torch.device(config.execution.device).type == "cpu"
    kinds = []
    for each in saved.numbers["models"]:
        name, named = str(each["name"]), bool(each["named"])
        build = given[name] if name in given else partial(_refuse_object, name, str(saved.folder.path))
        if named:
            build = model_factory(name, inputs.model_shape, inputs.classes, config.model.width)
        assert callable(build)
        build = build_for(build, inputs.input_fields)
        private = bool(each.get("own_head")), bool(each.get("own_model"))
        frozen, file = str(each.get("frozen_sha256", "")), str(each["file_sha256"])
        kinds.append(ModelKind(build, name, named, file, dtype, on_cpu, *private, frozen))
    last = np.full(len(saved.places["row"]), int(saved.numbers["round"]))
    return LearnerModels(saved, kinds, **saved.places, rounds=last if rounds is None else rounds, inputs=inputs)


def _called(model: Any) -> str:
    return model if isinstance(model, str) else getattr(model, "__name__", "own model")


def _refuse_object(name: str, folder: str) -> NoReturn:
    raise ConfigurationError(
        f"the model {name!r} of {folder} was an object of a Python program and cannot be built by its name; give what "
        f"builds it: Result.load(folder, model={name})"
    )
