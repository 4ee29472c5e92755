"""What processes of a simulation share, in one block of memory: data, frozen parts, learners' states and uploads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from consilience.learner.initial_state import template_state
from consilience.learner.learner import Learner
from consilience.learner.state import LearnerState, stacked_shapes
from consilience.simulation.engines.answers import Batches
from consilience.simulation.engines.cohort import Cohort, CohortPlan
from consilience.simulation.engines.loop.executor import LocalExecutor, UploadSlot
from consilience.simulation.engines.loop.shared_memory import BY_LEARNER, Key, Shapes
from consilience.simulation.engines.shared_data import SharedData, data_dtype
from consilience.wire import schema

_DATA, _FROZEN, _STATE, _UPLOAD, _WEIGHT = "data", "frozen", BY_LEARNER, "upload", "weight"


def shared_shapes(
    plans: Sequence[CohortPlan],
    learners: Sequence[Learner],
    data: Mapping[str, NDArray[Any]],
    slots: int,
    job_rows: Sequence[int],
) -> Shapes:
    """Shapes and types of everything that is shared; slots: for uploads, each with room for a job's rows."""
    dtype = plans[0].spec.dtype
    shapes: dict[Key, tuple[tuple[int, ...], torch.dtype]] = {
        (_DATA, key): (array.shape, data_dtype(array, dtype)) for key, array in data.items()
    }
    for i, (plan, learner) in enumerate(zip(plans, learners, strict=True)):
        stacked = stacked_shapes(template_state(learner), len(plan.members))
        shapes |= {(_STATE, i, *path): shape for path, shape in stacked.items()}
        shapes |= {(_FROZEN, i, kind): shape for kind, shape in learner.modules.frozen.shapes.items()}
        lead = (slots, job_rows[i])
        for name, channel in learner.channels.items():
            tensors, weight = upload_shapes(channel)
            shapes |= {(_UPLOAD, i, name, key): ((*lead, *shape), dtype) for key, shape in tensors.items()}
            shapes[_WEIGHT, i, name] = ((*lead, *weight), dtype)
    return shapes


def is_constant(key: Key) -> bool:
    """Whether a tensor holds samples or a frozen part, and not states or uploads."""
    return key[0] in (_DATA, _FROZEN)


def fill_constants(
    tensors: Mapping[Key, Tensor], learners: Sequence[Learner], data: Mapping[str, NDArray[Any]]
) -> None:
    """Copy the data and the frozen parts into memory that is shared."""
    for key, array in data.items():
        tensors[_DATA, key].copy_(torch.from_numpy(array))
    for i, learner in enumerate(learners):
        for kind, values in learner.modules.frozen.flat().items():
            tensors[_FROZEN, i, kind].copy_(values)


def make_executor(plans: Sequence[CohortPlan], tensors: Mapping[Key, Tensor], batches: Batches) -> LocalExecutor:
    """An executor over tensors with the shapes of `shared_shapes`."""
    data = {str(key[1]): tensor for key, tensor in tensors.items() if key[0] == _DATA}
    cohorts, slots = [], []
    for i, plan in enumerate(plans):
        paths = {key[2:]: tensor for key, tensor in tensors.items() if key[:2] == (_STATE, i)}
        cohorts.append(Cohort(plan, LearnerState.unflatten(paths)))  # type: ignore[arg-type]  # all keys are names
        slots.append(_upload_slot(tensors, i))
    executor = LocalExecutor(cohorts, SharedData(**data), slots, batches)
    for i, learner in enumerate(executor.learners):
        learner.modules.frozen.use({str(key[2]): t for key, t in tensors.items() if key[:2] == (_FROZEN, i)})
    return executor


def _upload_slot(tensors: Mapping[Key, Tensor], cohort: int) -> UploadSlot:
    weights = {str(key[2]): tensor for key, tensor in tensors.items() if key[:2] == (_WEIGHT, cohort)}
    uploads: dict[str, dict[str, Tensor]] = {name: {} for name in weights}
    for key, tensor in tensors.items():
        if key[:2] == (_UPLOAD, cohort):
            uploads[str(key[2])][str(key[3])] = tensor
    return {name: (uploads[name], weight) for name, weight in weights.items()}


def upload_shapes(channel: schema.Channel) -> tuple[dict[str, tuple[int, ...]], tuple[int, ...]]:
    """Shapes of one learner's upload, and of its weight."""
    lead = (channel.keep,) if isinstance(channel, schema.Pool) else ()
    return {k: (*lead, *t.shape) for k, t in channel.tensors.items()}, (*lead, *channel.rows)


def upload_values(learner: Learner) -> int:
    """How many numbers a learner uploads to all of its exchanges, weights included."""
    shapes = [upload_shapes(channel) for channel in learner.channels.values()]
    return sum(math.prod(weight) + sum(math.prod(s) for s in tensors.values()) for tensors, weight in shapes)
