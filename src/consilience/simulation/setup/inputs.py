"""The inputs of a simulation, from its configuration: absolute paths, data and models."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from consilience.config.config import Config, make_config
from consilience.config.network import FILE_SUFFIX
from consilience.config.overrides import parse_method
from consilience.config.parts import DEFAULT_LEARNERS, DEFAULT_MODELS
from consilience.data import DATASETS, Dataset, Scaling, is_dataset_path, load
from consilience.data.download import FOLDER_VARIABLE
from consilience.data.own_data import ONE_PER_LEARNER
from consilience.data.partition import parse_partition
from consilience.data.paths import FILE_OPTIONS
from consilience.data.raw_dataset import check_class_count, first_samples
from consilience.data.registry import refuse_other_kind
from consilience.errors import ConfigurationError
from consilience.method import Method
from consilience.models import from_file
from consilience.simulation.setup.participants import Model
from consilience.task import Target

_OF_SAMPLES = ("shareable", "owners", "sample_epsilons")  # of training samples, one value for each
_PICTURE = 12  # pixels per side; smaller images get an MLP by default


def with_absolute_paths(config: Config) -> Config:
    """The configuration with absolute paths, so that the run can be resumed from any directory."""
    changes: dict[str, Any] = {}
    if folder := config.data.folder or (os.environ.get(FOLDER_VARIABLE) if config.data.source in DATASETS else None):
        changes["data_dir"] = str(Path(folder).expanduser().absolute())
    if is_dataset_path(config.data.source):
        changes["data"] = str(Path(config.data.source).expanduser().absolute())
    if config.data.test_data is not None:
        changes["test_data"] = str(Path(config.data.test_data).expanduser().absolute())
    for key in ("partners", "topology"):
        if (value := getattr(config.network, key)).endswith(FILE_SUFFIX):
            changes[key] = str(Path(value).expanduser().absolute())
    if config.model.name:
        changes["model"] = ",".join(_absolute_model_name(name.strip()) for name in config.model.name.split(","))
    changes["groups"] = {
        name: group.model_copy(update={"model": _absolute_model_name(group.model)}) if group.model else group
        for name, group in config.groups.items()
    }
    return config.replace(**changes)


def _absolute_model_name(model: str) -> str:
    return from_file.absolute_model_name(model) if from_file.is_model_file(model) else model


def resolve_config(
    config: Config | None,
    data: Dataset | str | None,
    model: Model | Sequence[Model] | None,
    method: Method | str | None,
    settings: Mapping[str, Any],
) -> Config:
    """The configuration with these settings, data, model and method; your own objects are recorded by name."""
    given = {**(config.settings() if config else {}), **settings}
    if isinstance(data, Dataset) and data.source == ONE_PER_LEARNER and given.get("partition", "iid") == "iid":
        given["partition"] = "owners"
    if data is not None:
        given["data"] = data if isinstance(data, str) else data.name
    if isinstance(model, str):
        given["model"] = model
    elif model is not None:
        given["model"] = ",".join(_model_name(m) for m in (model if isinstance(model, Sequence) else [model]))
    if isinstance(method, str):
        given["method"] = parse_method(method)
    elif method is not None:
        if not isinstance(method, Method):
            raise ConfigurationError(f"method is {method!r}; it must be a method's name, FILE.py:NAME or a Method")
        given["method"] = {**method.settings, "name": method.source or method.name}
    resolved = with_absolute_paths(make_config(given))
    return resolved.replace(data=given["data"]) if isinstance(data, Dataset) else resolved


def _model_name(model: Model) -> str:
    return model if isinstance(model, str) else getattr(model, "__name__", type(model).__name__)


def load_data(
    config: Config, progress: bool = False, scaling: Scaling | None = None, target: Target | None = None
) -> Dataset:
    """The data a configuration asks for; scaling, target: those to use, if they are fixed."""
    return load(
        config.data.source,
        directory=config.data.folder,
        train=config.data.train,
        test=config.data.test,
        progress=progress,
        test_share=config.data.test_share,
        image_size=config.data.image_size,
        image_mode=config.data.image_mode,
        label=config.data.label,
        owners=config.data.owners,
        drop=config.data.drop,
        kind=config.data.kind,
        test_data=config.data.test_data,
        scaling=scaling or config.data.scaling,
        classes=config.data.classes,
        target=target,
    )


def with_learners(config: Config, data: Dataset) -> Config:
    """The configuration with a number of learners: by default 5, or one for each owner if they own the data."""
    if config.federation.learner_count is not None:
        return config
    if data.owners is None or parse_partition(config.federation.partition).word != "owners":
        return config.replace(learners=DEFAULT_LEARNERS)
    return config.replace(learners=len(np.unique(data.owners)))


def select_samples(data: Dataset, config: Config) -> Dataset:
    """The first N samples and classes of your own data, if they are set; spread evenly if samples have owners."""
    for key, of in FILE_OPTIONS.items():
        if getattr(config.data, key) is not None:
            advice = "give it to Dataset.from_arrays" if key == "owners" else "leave it out"
            raise ConfigurationError(f"{key} is for {of} and cannot change arrays or a Dataset; {advice}")
    if config.data.scaling != "auto":
        raise ConfigurationError("scaling cannot change a Dataset; give it where the Dataset is made")
    refuse_other_kind(data.name, data.kind, config.data.kind)
    data = _first_classes(data, config.data.classes)
    selected: dict[str, Any] = {}
    for key, half in (("train", ""), ("test", "test_")):
        wanted, available = getattr(config.data, key), len(getattr(data, f"{half}targets"))
        if wanted is not None and wanted > available:
            raise ConfigurationError(f"{key} is {wanted}, and data set {data.name!r} has {available} such samples")
        chosen = first_samples(wanted, available, spread=data.owners is not None)
        for name in (f"{half}inputs", f"{half}targets", *(_OF_SAMPLES if key == "train" else ())):
            whole = getattr(data, name)
            selected[name] = None if whole is None else whole[chosen]
    return replace(data, **selected)


def _first_classes(data: Dataset, count: int | None) -> Dataset:
    """The samples of the first `count` classes of your own data; None: of all."""
    check_class_count(f"data set {data.name!r}", count, data.classes, data.target.kind, text=bool(data.alphabet))
    if count is None:
        return data
    train, test = data.targets < count, data.test_targets < count
    return replace(
        data,
        inputs=data.inputs[train],
        targets=data.targets[train],
        test_inputs=data.test_inputs[test],
        test_targets=data.test_targets[test],
        classes=count,
        labels=data.labels[:count],
        shareable=None if data.shareable is None else data.shareable[train],
        owners=None if data.owners is None else data.owners[train],
        sample_epsilons=None if data.sample_epsilons is None else data.sample_epsilons[train],
    )


def with_model(config: Config, data: Dataset) -> Config:
    """The configuration with the default model for the data, if it names none."""
    if config.model.name is not None:
        return config
    pictures = len(data.shape) == 3 and min(data.shape[1:]) >= _PICTURE
    return config.replace(model=DEFAULT_MODELS.get(config.data.source, "lenet5" if pictures else "mlp"))


def models_of(model: Model | Sequence[Model] | None, config: Config) -> Sequence[Model]:
    """One model for all learners, or one for each: as given, else as in the configuration."""
    if model is None:
        return config.model_name.split(",")
    if isinstance(model, str):
        return model.split(",")
    models = list(model) if isinstance(model, Sequence) else [model]
    for each in models:
        if isinstance(each, nn.Module) or not (isinstance(each, str) or callable(each)):
            raise ConfigurationError(
                f"model is a {type(each).__name__}; give a name, or a function that builds one, such as "
                f"`lambda: SplitModel(...)`, because every learner needs its own weights"
            )
    return models
