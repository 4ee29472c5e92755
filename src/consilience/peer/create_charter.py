"""From a method and a model to a federation's charter: what may travel, and where common weights start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from consilience.errors import ConfigurationError
from consilience.files import replace_file, report_write_errors
from consilience.learner.learner import Learner, LearnerSpec
from consilience.method import Role
from consilience.methods import build_method
from consilience.models import model_factory
from consilience.optimizers import build_optimizer
from consilience.randomness import seed_of
from consilience.simulation.setup.participants import Model
from consilience.wire import schema
from consilience.wire.agreement import describe_difference, merge_channels, without_local_choices
from consilience.wire.charter import Charter, CommonValues, Rules, build_charter, encode_start_values, start_values_file


def charter_of(
    name: str,
    method: Mapping[str, Any],
    shape: tuple[int, ...],
    classes: int,
    models: Sequence[Model],
    *,
    width: int | None = None,
    seed: int = 0,
    rules: Rules | None = None,
) -> tuple[Charter, CommonValues]:
    """The charter of a federation for learners of these models, and the common values it starts from.

    method: its name and its settings. shape: of an input.
    """
    settings = dict(method)
    chosen = build_method(settings.pop("name"), settings)
    if len(chosen.roles) > 1:
        raise ConfigurationError(
            f"method {chosen.name!r} has the roles {', '.join(chosen.roles)} and a public set; members over a relay "
            f"have one role so far: simulate it, or found a federation for a method of one role, such as fedavg"
        )
    role = next(iter(chosen.roles.values()))
    learners = [_learner(role, model, shape, classes, width) for model in models]
    first = learners[0]
    for learner in learners[1:]:
        for key, channel in learner.channels.items():
            if without_local_choices(channel) != without_local_choices(first.channels[key]):
                raise ConfigurationError(
                    f"{first.task.model} and {learner.task.model} cannot share {key!r}: "
                    f"{describe_difference(first.channels[key], channel)}"
                )
    first.wear(first.initial(seed_of("common weights", seed)))
    starts = {
        e.name: {k: t.numpy(force=True) for k, t in c.items()} for e in first.exchanges if (c := first.common_values(e))
    }
    channels: dict[str, schema.Channel] = merge_channels([learner.channels for learner in learners])
    return build_charter(name, method, classes, channels, starts, seed, rules), starts


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


def _learner(role: Role, model: Model, shape: tuple[int, ...], classes: int, width: int | None) -> Learner:
    build = model_factory(model, shape, classes, width) if isinstance(model, str) else model
    name = model if isinstance(model, str) else getattr(model, "__name__", "own model")
    return Learner(LearnerSpec(build, role, build_optimizer("sgd", 0.1, 0.0, 0.0), shape, name))
