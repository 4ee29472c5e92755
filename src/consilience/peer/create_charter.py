"""Create a federation's charter from a method and models: what may travel, and the common weights at the start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError
from torch import nn

from consilience.data import Scaling
from consilience.errors import ConfigurationError
from consilience.files import replace_file, report_write_errors
from consilience.functional.group_channels import refuse_single_samples
from consilience.input_fields import InputFields
from consilience.learner.initial_state import common_values
from consilience.learner.learner import Learner
from consilience.learner.private_uploads import LearnerPrivacy
from consilience.learner.spec import LearnerSpec
from consilience.method import Method, Role
from consilience.methods import build_method
from consilience.methods.task_kinds import method_for_kind
from consilience.models import SplitModel, build_for, model_factory, split_or_whole
from consilience.optimizers import build_optimizer
from consilience.peer.charter_frozen import agreed_digests
from consilience.peer.charter_means import MeanRules
from consilience.simulation.setup.compatibility import check_roles
from consilience.simulation.setup.participants import Model
from consilience.simulation.setup.privacy import check_private, refuse_several_roles
from consilience.task import SINGLE_LABEL, Public, Target
from consilience.user_code import absolute_name
from consilience.validation import describe_error
from consilience.wire import schema
from consilience.wire.agreement import describe_difference, merge_channels, without_local_choices
from consilience.wire.charter import (
    Charter,
    build_charter,
    checked_charter,
    encode_start_values,
    read_charter,
    start_values_file,
)
from consilience.wire.common_values import CommonValues
from consilience.wire.privacy import PrivacySettings
from consilience.wire.roles import PublicSetSettings, RoleSettings, describe_public_set
from consilience.wire.rules import Rules
from consilience.wire.scaling_settings import ScalingSettings


@dataclass(frozen=True)
class TaskShape:
    """What a model is built for: the shape of an input, the number of outputs, and the feature width, if it is set.

    scaling, labels, columns: how members scale their inputs, and the names of classes and columns, if they are fixed.
    counts: the creator's samples of each class, if they are known; from them comes how much a member may count for.
    learners, public: for a method of several roles, how many members there will be, and the public set as members have
    it, scaled, (samples, *inputs). target: what is predicted of a sample.
    """

    inputs: tuple[int, ...]
    classes: int
    width: int | None = None
    scaling: Scaling | None = None
    labels: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()
    learners: int = 0
    public: np.ndarray | None = None
    target: Target = SINGLE_LABEL
    fields: InputFields | None = None
    """Where an input is several arrays, of whose rows `inputs` is the shape."""


def create_charter(
    name: str,
    method: Mapping[str, Any],
    task: TaskShape,
    models: Sequence[Model],
    *,
    seed: int = 0,
    rules: Rules | None = None,
    means: MeanRules | None = None,
    privacy: PrivacySettings | None = None,
) -> tuple[Charter, CommonValues]:
    """The charter of a federation for learners of these models, and the common values it starts from.

    method: its name, or FILE.py:NAME, and its settings. The charter names a file without its folder. means: how means
    resist a bad member; by default norms are clipped, and weights capped if the creator's samples are known. privacy:
    how uploads are made private; the creator's samples then set no cap, which would tell how many there are.
    """
    settings = dict(method)
    chosen = build_method(absolute_name(settings.pop("name")), settings)
    chosen = method_for_kind(chosen, task.target.kind)
    _refuse_turns(chosen)
    _refuse_local_only(chosen)
    roles, public = _roles(chosen, task)
    if privacy is not None:
        acting = [number for number in range(task.learners) for _ in chosen.roles_of(number)]
        refuse_several_roles(acting, privacy.private)
    learners = [_learner(role, model, task, public, privacy) for model in models for role in roles.values()]
    first: dict[str, Learner] = {}
    for learner in learners:
        for key, channel in learner.channels.items():
            other = first.setdefault(key, learner)
            if without_local_choices(channel) != without_local_choices(other.channels[key]):
                raise ConfigurationError(
                    f"{other.task.model} and {learner.task.model} cannot share {key!r}: "
                    f"{describe_difference(other.channels[key], channel)}"
                )
    common = {n: values for each in learners[: len(roles)] for n, values in common_values(each, seed).items()}
    starts = {name: {k: t.numpy(force=True) for k, t in values.items()} for name, values in common.items()}
    merged = merge_channels([learner.channels for learner in learners])
    resist, counts = (means or MeanRules()).apply, () if privacy is not None else task.counts
    channels: dict[str, schema.Channel] = {key: resist(channel, counts) for key, channel in merged.items()}
    described, frozen = {**method, "name": chosen.name}, agreed_digests(learners)
    charter = build_charter(name, described, task.classes, channels, starts, seed, rules, task.target, frozen)
    scaling = None if task.scaling is None else ScalingSettings.model_validate(task.scaling.record())
    more: dict[str, Any] = {"privacy": privacy, "scaling": scaling, "labels": task.labels, "columns": task.columns}
    if len(roles) > 1 or public is not None:
        more |= {"roles": _role_settings(chosen, roles, task.learners), "public_set": public}
        return read_charter(charter.model_copy(update=more).to_toml(), f"federation {name!r}"), starts
    return charter.model_copy(update=more), starts


def with_members(charter: Charter, members: Sequence[tuple[str, str]]) -> Charter:
    """The charter of a federation without a relay: with the names and the public keys of its members."""
    listed = [{"name": name, "key": key} for name, key in members]
    return checked_charter({**charter.model_dump(by_alias=True), "members": listed}, f"federation {charter.name!r}")


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


def _refuse_local_only(method: Method) -> None:
    """What a member uploads over a relay is a mean of two samples or more, over all dimensions of its features."""
    for exchange in (e for role in method.roles.values() for e in role.exchanges):
        if getattr(exchange, "dimensions", 1.0) < 1:
            raise ConfigurationError(
                f"{exchange.name}: dimensions is {getattr(exchange, 'dimensions', 1.0)}, which is for simulations: a "
                f"member of a relay takes the width of features from the charter; leave dimensions and subspace out"
            )
        refuse_single_samples(getattr(exchange, "min_count", 2))


def _refuse_turns(method: Method) -> None:
    if any(role.turns is not None for role in method.roles.values()):
        raise ConfigurationError(
            f"method {method.name!r} cannot run over a relay: its server trains the upper part of the model and "
            f"answers every batch with a gradient, and a relay only aggregates what members upload in a round; "
            f"simulate it, or create a federation for two-stage, which also cuts the model, or representation-sharing"
        )


def _roles(method: Method, task: TaskShape) -> tuple[dict[str, Role], PublicSetSettings | None]:
    """The roles as members have them in a federation of this size, and the public set, if the method has one."""
    if len(method.roles) == 1 and method.host is None:
        return dict(method.roles), None
    if not task.learners:
        raise ConfigurationError(
            f"method {method.name!r} has the roles {', '.join(method.roles)}: say how many members the federation will "
            f"have, such as --learners 3"
        )
    check_roles(method, task.learners)
    public = None
    if method.host is not None:
        if task.public is None:
            raise ConfigurationError(
                f"method {method.name!r} has a public set; give its samples, such as --public PATH"
            )
        if task.public.shape[1:] != task.inputs:
            raise ConfigurationError(
                f"the samples of the public set have the shape {task.public.shape[1:]}, and those of the data "
                f"{task.inputs}; use samples of one shape"
            )
        public = _public_set(task.public, method)
    fitted = {
        name: replace(role, exchanges=tuple(e.for_federation(task.learners) for e in role.exchanges))
        for name, role in method.roles.items()
    }
    return fitted, public


def _public_set(samples: np.ndarray, method: Method) -> PublicSetSettings:
    assert method.host is not None
    try:
        return describe_public_set(samples, method.host)
    except ValidationError as error:
        raise ConfigurationError(f"the public set: {describe_error(error)}") from None


def _role_settings(method: Method, roles: Mapping[str, Role], learners: int) -> RoleSettings:
    shared = {n: [e.name for e in role.exchanges if e.scope == "everybody"] for n, role in roles.items()}
    uploads = {n: tuple(e for e in shared[n] if e in role.uploading) for n, role in roles.items()}
    try:
        return RoleSettings(
            learners=learners,
            order=tuple(roles),
            usual=method.usual or tuple(roles)[:1],
            members={number: method.roles_of(number) for number in method.members},
            uploads=uploads,
        )
    except ValidationError as error:
        raise ConfigurationError(f"method {method.name!r}: {describe_error(error)}") from None


def _learner(
    role: Role, model: Model, task: TaskShape, public: PublicSetSettings | None, privacy: PrivacySettings | None
) -> Learner:
    shape = task.inputs if task.fields is None else task.fields.shape
    build = model_factory(model, shape, task.classes, task.width) if isinstance(model, str) else model
    if role.takes_any_model and not isinstance(model, str) and task.fields is None:
        build = partial(_build_split_or_whole, model, task.classes)
    name = model if isinstance(model, str) else getattr(model, "__name__", "own model")
    role = replace(role, objective=role.objective.for_held_out(False))  # nothing of an own model travels
    shown = None if public is None or role.data == "own" else Public(public.samples, public.sha256)
    private = None if privacy is None else LearnerPrivacy(privacy.private, privacy.clip, noise=1.0)
    optimizer = build_optimizer("sgd", 0.1, 0.0, 0.0)
    build = build_for(build, task.fields)
    learner = Learner(
        LearnerSpec(build, role, optimizer, task.inputs, name, public=shown, privacy=private, target=task.target)
    )
    check_private(learner)
    return learner


def _build_split_or_whole(build: Callable[[], nn.Module], classes: int) -> SplitModel:
    return split_or_whole(build(), classes)
