"""Checkpoints: the one module that knows how learners, channels and answers are laid out on disk.

Arrays are named `learners.COHORT.FIELD...` with one row per learner, `channels.FEDERATION.CHANNEL.NAME`,
`answers.NUMBER.TENSOR` and `counts.NUMBER` for the answers held, `held.COHORT.EXCHANGE` for who holds which, and
`took_part`. `chosen`, (federations, learners, learners), are the partners that learners chose. `models.cohort` and
`models.row` tell where each learner's model is, (federations, learners). Everything else is a few numbers, among them
the layout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from consilience.channels import Answer
from consilience.errors import CheckpointError
from consilience.learner.initial_state import drawn_state
from consilience.learner.layout import Layout
from consilience.learner.learner import Learner
from consilience.learner.rebuild import OBJECTIVE, OTHER
from consilience.learner.spec import LearnerSpec
from consilience.learner.state import LearnerState, Path
from consilience.simulation.records.run_folder import RunFolder
from consilience.simulation.round.run_state import RunState
from consilience.simulation.round.scopes import apply_partners

LAYOUT = 3
"""Of the checkpoints that this version writes and reads."""


@dataclass(frozen=True, eq=False)  # comparing by value would compare whole arrays
class Checkpoint:
    """What is saved of a run after a round: named arrays, and a few numbers."""

    arrays: Mapping[str, np.ndarray]
    numbers: Mapping[str, Any]

    @property
    def round(self) -> int:
        """After which it was saved."""
        return int(self.numbers["round"])

    def channel(self, federation: int, name: str) -> dict[str, np.ndarray]:
        """The arrays of a channel, by name."""
        return self._under(f"channels.{federation}.{name}.")

    def learners(self, cohort: int, like: LearnerState) -> LearnerState:
        """The stacked state of a cohort; like: a state of the same structure."""
        return LearnerState.unflatten({path: self._tensor(_learner_name(cohort, path)) for path in like.flatten()})

    def model_state(self, cohort: int, row: int, learner: Learner, device: str) -> LearnerState:
        """The model of a learner as it was saved by a run on a device; everything else in the state is new."""
        saved = Checkpoint({k: v[row] for k, v in self._under(f"learners.{cohort}.").items()}, self.numbers)
        channels_last, binding = torch.device(device).type == "cpu", learner.binding
        others = {
            kind: saved._laid_out(f"other_buffers.{kind}", layout, channels_last)
            for kind, layout in binding.other_buffers.items()
        }
        return replace(
            drawn_state(learner, 0),
            parameters=saved._laid_out("parameters", binding.parameters, channels_last),
            buffers=saved._laid_out("buffers", binding.buffers, channels_last),
            other_buffers=others,
        ).to(learner.device)

    def _laid_out(self, name: str, layout: Layout, channels_last: bool) -> Tensor:
        """A flat array in the order of this layout: on a GPU, kernels of convolutions are saved in another order."""
        flat, saved = self._tensor(name), Layout(layout.shapes, channels_last=channels_last)
        if layout.size != flat.numel():
            raise CheckpointError(f"the checkpoint has {flat.numel()} {name} of a learner, its model {layout.size}")
        return layout.flat(saved.views(flat)).to(flat.dtype)

    def _tensor(self, name: str) -> Tensor:
        return torch.from_numpy(np.array(self.arrays[name]))

    def _under(self, prefix: str) -> dict[str, np.ndarray]:
        return {name.removeprefix(prefix): array for name, array in self.arrays.items() if name.startswith(prefix)}


def run_checkpoint(run: RunState) -> Checkpoint:
    """Everything that the next round depends on."""
    arrays: dict[str, Any] = {}
    for number, batch in run.answers.batches.items():
        arrays |= {f"answers.{number}.{name}": tensor for name, tensor in batch.tensors.items()}
        arrays[f"counts.{number}"] = batch.count
    for i, held in enumerate(run.answers.held):
        arrays |= {f"held.{i}.{name}": numbers for name, numbers in held.items()}
    for i in range(len(run.engine.plans)):
        arrays |= {_learner_name(i, path): tensor for path, tensor in run.engine.read(i).flatten().items()}
    for f, federation in enumerate(run.federations):
        for channel, state in federation.state().items():
            arrays |= {f"channels.{f}.{channel}.{name}": tensor for name, tensor in state.items()}
    if run.chosen is not None:
        arrays["chosen"] = run.chosen.astype(np.uint8)
    arrays["took_part"] = run.took_part.astype(np.uint8)
    if run.privacy is not None:
        arrays |= {f"privacy.{name}": getattr(run.privacy, name) for name in run.privacy.fields}
    arrays |= {f"models.{key}": places for key, places in model_places(run).items()}
    numbers = {
        "models": [_model_source(plan.spec) for plan in run.engine.plans],
        "next": run.answers.next,
        "versions": {str(number): batch.version for number, batch in run.answers.batches.items()},
        "round": run.round,
        "diverged": {str(f): what for f, what in run.diverged.items()},
    }
    return Checkpoint(_as_numpy(arrays), numbers)


def model_places(run: RunState) -> dict[str, np.ndarray]:
    """Where each learner's model is between rounds: its cohort and its row there, (federations, learners) each."""
    cohort = run.setup.cohorts.main
    row = np.take_along_axis(run.setup.cohorts.rows, cohort[None], axis=0)[0]
    return {"cohort": cohort.astype(np.int64), "row": row.astype(np.int64)}


def _model_source(spec: LearnerSpec) -> dict[str, Any]:
    """What a cohort's models can be rebuilt from."""
    return {
        "name": spec.model,
        "named": spec.named,
        "file_sha256": spec.file_sha256,
        "own_head": spec.own_head,
        "own_model": spec.own_model,
        "frozen_sha256": spec.frozen_sha256,
    }


def restore_run(run: RunState, checkpoint: Checkpoint) -> None:
    """Continue a run, which must have been started, from a checkpoint."""
    arrays, numbers, device = checkpoint.arrays, checkpoint.numbers, run.engine.example.device

    def on_device(saved: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
        return {name: torch.from_numpy(array.copy()).to(device) for name, array in saved.items()}

    for i, plan in enumerate(run.engine.plans):
        run.engine.write(i, np.arange(len(plan.members)), checkpoint.learners(i, run.engine.read(i)))
    for f, federation in enumerate(run.federations):
        federation.load({name: on_device(checkpoint.channel(f, name)) for name in federation.channels})
    for i, held in enumerate(run.answers.held):
        held.update({name: arrays[f"held.{i}.{name}"].copy() for name in held})
    run.answers.batches.clear()
    for number, version in numbers["versions"].items():
        tensors = on_device(checkpoint._under(f"answers.{number}."))
        count = torch.from_numpy(arrays[f"counts.{number}"].copy()).to(device)
        run.answers.batches[int(number)] = Answer(tensors, count, int(version))
    run.answers.next, run.round = int(numbers["next"]), int(numbers["round"])
    run.took_part, run.model_location = arrays["took_part"].astype(bool), run.setup.cohorts.main.copy()
    if run.chosen is not None:
        run.chosen = arrays["chosen"].astype(bool)
    apply_partners(run)
    for name in run.privacy.fields if run.privacy is not None else ():
        getattr(run.privacy, name)[:] = arrays[f"privacy.{name}"]
    run.diverged = {int(f): str(what) for f, what in numbers["diverged"].items()}


def learner_checkpoint(states: Sequence[LearnerState], round_: int) -> Checkpoint:
    """The states of a single learner, one for each of its roles, after a round."""
    flat = [(i, path, tensor) for i, state in enumerate(states) for path, tensor in state.flatten().items()]
    return Checkpoint(_as_numpy({_learner_name(i, path): tensor[None] for i, path, tensor in flat}), {"round": round_})


def restore_learner(states: Sequence[LearnerState], checkpoint: Checkpoint) -> None:
    """Copy what `learner_checkpoint` gave into a single learner's states."""
    for i, state in enumerate(states):
        state.copy_(checkpoint.learners(i, state).row(0))


def save_checkpoint(
    folder: RunFolder,
    checkpoint: Checkpoint,
    more: Mapping[str, Any] | None = None,
    best: Mapping[int, Mapping[str, Tensor]] | None = None,
) -> None:
    """Save a checkpoint in a folder; more: further numbers; best: by cohort, model vectors of the best round so far."""
    numbers = {"layout": LAYOUT, **checkpoint.numbers, **(more or {})}
    arrays = {f"learners.{i}.{key}": tensor for i, vectors in (best or {}).items() for key, tensor in vectors.items()}
    folder.save(checkpoint.arrays, numbers, checkpoint.round, None if best is None else _as_numpy(arrays))


def load_checkpoint(folder: RunFolder) -> Checkpoint | None:
    """The newest checkpoint of a folder, None where there is none; one of another layout is refused."""
    saved = folder.load()
    if saved is None:
        return None
    arrays, numbers = saved
    _refuse_other_layout(folder, numbers)
    return Checkpoint(arrays, numbers)


def _refuse_other_layout(folder: RunFolder, numbers: Mapping[str, Any]) -> None:
    layout = numbers.get("layout", 1)
    if layout != LAYOUT:
        older = isinstance(layout, int) and layout < LAYOUT
        hint = (
            "an earlier version of consilience wrote it: finish the run with that version, or start it again in "
            "another folder"
            if older
            else "a newer version of consilience wrote it: use that version"
        )
        raise CheckpointError(
            f"the checkpoint in {folder.path} has layout {layout}, and this version reads layout {LAYOUT}; {hint}"
        )


class SavedModels:
    """The learners' models in a run's newest checkpoint, read row by row when they are asked for.

    best: those of the best round instead of the last.
    """

    def __init__(self, folder: RunFolder, best: bool = False) -> None:
        self.folder, self.best = folder, best

    @cached_property
    def _newest(self) -> tuple[FilePath, dict[str, Any]]:
        """The file of the checkpoint, and its numbers."""
        saved = self.folder.newest()
        if saved is None:
            raise CheckpointError(f"{self.folder.path} has no checkpoint any more")
        _refuse_other_layout(self.folder, saved[1])
        if "models" not in saved[1]:
            raise CheckpointError(
                f"the checkpoint in {self.folder.path} does not say whose models it has: an earlier version of "
                f"consilience wrote it; start the run again in another folder"
            )
        return saved

    @property
    def numbers(self) -> Mapping[str, Any]:
        """The numbers of the checkpoint."""
        return self._newest[1]

    @cached_property
    def places(self) -> dict[str, np.ndarray]:
        """As `model_places` gave them."""
        with safe_open(self._newest[0], "np") as file:
            return {key: file.get_tensor(f"models.{key}") for key in ("cohort", "row")}

    @cached_property
    def _file(self) -> FilePath:
        """The file with the models."""
        found = self.folder.best(self.numbers) if self.best else self._newest[0]
        if found is None:
            raise CheckpointError(f"the checkpoint in {self.folder.path} has no models of a best round")
        return found

    def row(self, cohort: int, row: int) -> dict[str, Tensor]:
        """The flat vectors of a learner's model: see `is_model_vector`."""
        prefix = f"learners.{cohort}."
        with safe_open(self._file, "pt") as file:
            names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118  # it is no dictionary
            wanted = {name.removeprefix(prefix): name for name in names}
            return {key: file.get_slice(name)[row] for key, name in wanted.items() if is_model_vector(key)}


MODEL_FIELDS = ("parameters", "buffers", "other_buffers", "objective_state")
"""The fields of a state that hold a learner's model and its own answer."""


def is_model_vector(name: str) -> bool:
    """Whether a part of a learner's state, by its dotted path, belongs to its model or to its own answer."""
    return name in ("parameters", "buffers") or name.startswith((OTHER, OBJECTIVE))


def _learner_name(cohort: int, path: Path) -> str:
    return ".".join(("learners", str(cohort), *path))


def _as_numpy(arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {k: v.numpy(force=True) if isinstance(v, Tensor) else np.asarray(v) for k, v in arrays.items()}
