"""Create a federation's charter from a method and models: what may travel, and the common weights at the start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from consilience.data import Scaling
from consilience.errors import ConfigurationError
from consilience.files import replace_file, report_write_errors
from consilience.learner.initial_state import common_values
from consilience.learner.learner import Learner
from consilience.learner.spec import LearnerSpec
from consilience.method import Role
from consilience.methods import build_method
from consilience.models import model_factory
from consilience.optimizers import build_optimizer
from consilience.peer.charter_means import MeanRules
from consilience.simulation.setup.participants import Model
from consilience.user_code import absolute_name
from consilience.wire import schema
from consilience.wire.agreement import describe_difference, merge_channels, without_local_choices
from consilience.wire.charter import (
    Charter,
    CommonValues,
    Rules,
    ScalingSettings,
    build_charter,
    encode_start_values,
    start_values_file,
)


@dataclass(frozen=True)
class TaskShape:
    """What a model is built for: the shape of an input, the number of classes, and the feature width, if it is set.

    scaling, labels, columns: how members scale their inputs, and the names of classes and columns, if they are fixed.
    counts: the creator's samples of each class, if they are known; from them comes how much a member may count for.
    """

    inputs: tuple[int, ...]
    classes: int
    width: int | None = None
    scaling: Scaling | None = None
    labels: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()


def create_charter(
    name: str,
    method: Mapping[str, Any],
    task: TaskShape,
    models: Sequence[Model],
    *,
    seed: int = 0,
    rules: Rules | None = None,
    means: MeanRules | None = None,
) -> tuple[Charter, CommonValues]:
    """The charter of a federation for learners of these models, and the common values it starts from.

    method: its name, or FILE.py:NAME, and its settings. The charter names a file without its folder. means: how means
    resist a bad member; by default norms are clipped, and weights capped if the creator's samples are known.
    """
    settings = dict(method)
    chosen = build_method(absolute_name(settings.pop("name")), settings)
    if len(chosen.roles) > 1:
        raise ConfigurationError(
            f"method {chosen.name!r} has the roles {', '.join(chosen.roles)} and a public set; members over a relay "
            f"have one role so far: simulate it, or create a federation for a method of one role, such as fedavg"
        )
    role = next(iter(chosen.roles.values()))
    if role.turns is not None:
        raise ConfigurationError(
            f"method {chosen.name!r} cannot run over a relay: its server trains the upper part of the model and "
            f"answers every batch with a gradient, and a relay only aggregates what members upload in a round; "
            f"simulate it, or create a federation for two-stage, which also cuts the model, or representation-sharing"
        )
    learners = [_learner(role, model, task) for model in models]
    first = learners[0]
    for learner in learners[1:]:
        for key, channel in learner.channels.items():
            if without_local_choices(channel) != without_local_choices(first.channels[key]):
                raise ConfigurationError(
                    f"{first.task.model} and {learner.task.model} cannot share {key!r}: "
                    f"{describe_difference(first.channels[key], channel)}"
                )
    common = common_values(first, seed)
    starts = {name: {k: t.numpy(force=True) for k, t in values.items()} for name, values in common.items()}
    merged = merge_channels([learner.channels for learner in learners])
    resist = (means or MeanRules()).apply
    channels: dict[str, schema.Channel] = {key: resist(channel, task.counts) for key, channel in merged.items()}
    charter = build_charter(name, {**method, "name": chosen.name}, task.classes, channels, starts, seed, rules)
    scaling = None if task.scaling is None else ScalingSettings.model_validate(task.scaling.record())
    return charter.model_copy(update={"scaling": scaling, "labels": task.labels, "columns": task.columns}), starts


def write_charter(file: Path, charter: Charter, starts: CommonValues) -> list[Path]:
    """Write the charter and, where weights are shared, the common values beside it; what was written."""
    written = [file]
    with report_write_errors(file, "choose another place"):
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, charter.to_toml().encode())
        if charter.start_values_message():
            replace_file(start_values_file(file), encode_start_values(charter, starts))
            written.append(start_values_file(file))
    return written


def _learner(role: Role, model: Model, task: TaskShape) -> Learner:
    build = model_factory(model, task.inputs, task.classes, task.width) if isinstance(model, str) else model
    name = model if isinstance(model, str) else getattr(model, "__name__", "own model")
    role = replace(role, objective=role.objective.for_held_out(False))  # nothing of an own model travels
    return Learner(LearnerSpec(build, role, build_optimizer("sgd", 0.1, 0.0, 0.0), task.inputs, name))
