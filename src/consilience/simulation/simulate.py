"""`simulate`: one run, from settings to a result."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Unpack, get_args

import numpy as np
import torch

from consilience.config.config import Config
from consilience.config.settings import Settings
from consilience.data import Dataset
from consilience.data.own_data import DataSource, to_dataset
from consilience.data.partition import parse_partition
from consilience.errors import ConfigurationError, ConsilienceError
from consilience.kinds import kind_of
from consilience.method import Method
from consilience.methods import build_method
from consilience.simulation.engines.base import Engine, EngineName
from consilience.simulation.engines.choose import (
    check_device,
    choose_engine,
    open_engine,
    torch_configured_for,
)
from consilience.simulation.records.fingerprint import frozen_fingerprint, run_fingerprints
from consilience.simulation.records.provenance import describe_split, provenance
from consilience.simulation.records.run_folder import RunFolder, refuse_used_folder
from consilience.simulation.records.run_lock import lock_folder
from consilience.simulation.result import Result
from consilience.simulation.run import OnRound, Run
from consilience.simulation.setup.inputs import (
    load_data,
    models_of,
    resolve_config,
    select_samples,
    with_absolute_paths,
    with_learners,
    with_model,
)
from consilience.simulation.setup.participants import Model
from consilience.simulation.setup.setup import Setup, build_setup

log = logging.getLogger("consilience")


def simulate(
    config: Config | None = None,
    *,
    data: DataSource | None = None,
    model: Model | Sequence[Model] | None = None,
    method: Method | str | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    on_round: OnRound | None = None,
    keep_models: bool = True,
    **settings: Unpack[Settings],
) -> Result:
    """Simulate a federation and return its result.

    data, model, method: names, or your own. Data: a `Dataset`, arrays (inputs, labels) or (inputs, labels, test inputs,
    test labels), a torch data set, or a list with one of them for each learner. Model: a function that builds one, or
    one for each learner. Method: a `Method`; its name may have settings, "fedavg:start=different".
    settings: the keys of the configuration, such as `rounds=50`; they override those of `config`.
    out: a folder to save the run in.
    resume: the folder of a run to continue; the result has the same bits as a run that was never stopped.
    on_round: called after each round with the method's name, the round, the number of rounds and the `History`.
    keep_models: whether the folder has the learners' models when the run is finished.

        >>> result = simulate(method="representation-sharing", rounds=2, learners=2)
        >>> result.accuracy.shape
        (1, 2)
    """
    folder, own = None, to_dataset(data)
    if resume is not None:
        if config is not None or settings or out is not None or isinstance(own, str) or isinstance(method, str):
            raise ConfigurationError("resume takes its settings from the run's folder; give it no others")
        folder = RunFolder.open(Path(resume))
        config = folder.config
    else:
        config = resolve_config(config, own, model, method, settings)
    if isinstance(method, Method) and config.variants:
        raise ConfigurationError("variants are made of a method's settings; give the method by its name")
    chosen = method if isinstance(method, Method) else build_method(config.method.name, config.method.settings)
    check_device(config.execution.device, config.execution.cluster)
    config = in_one_round(config, chosen)
    if out is not None:
        refuse_used_folder(Path(out))
        config.check_savable()
    show_progress = on_round is not None and sys.stderr.isatty()  # of a download
    dataset = select_samples(own, config) if isinstance(own, Dataset) else load_data(config, show_progress)
    config = with_learners(with_model(config, dataset), dataset)
    setup = build_setup(config, chosen, dataset, models_of(model, config))
    if folder is None:
        _log_data(config, dataset, setup)
    with torch_configured_for(config):
        name = choose_engine(config, setup, before=_engine_before(folder, config))
    place = folder.path if folder is not None else Path(out) if out is not None else None
    with lock_folder(place) if place is not None else nullcontext():
        new = None
        if out is not None:
            folder = new = RunFolder.create(Path(out), config)
            folder.save_provenance(provenance(config, dataset, setup.data.local_datasets))
        with torch_configured_for(config), _opened(config, setup, name, new) as engine:
            # All data is read for them.
            fingerprints = run_fingerprints(dataset, chosen, config) | frozen_fingerprint(setup) if folder else {}
            return Run(config, setup, engine, folder, on_round, fingerprints, keep_models).run()


@contextmanager
def _opened(config: Config, setup: Setup, name: EngineName, new: RunFolder | None) -> Iterator[Engine]:
    """The engine. Where it is refused, as by a cluster that is not there, the new folder is deleted again."""
    with ExitStack() as stack:
        try:
            engine = stack.enter_context(open_engine(config, setup, name))
        except ConsilienceError:
            if new is not None:
                new.delete_unstarted()
            raise
        yield engine


def _engine_before(folder: RunFolder | None, config: Config) -> EngineName | None:
    """The engine of a run that is resumed, where it may have been chosen by measuring; else None."""
    if folder is None or config.execution.engine != "auto" or torch.device(config.execution.device).type != "cuda":
        return None
    saved = folder.newest()
    before = None if saved is None else saved[1].get("engine")
    return before if before in get_args(EngineName) else None


def check_run(config: Config, data: Dataset | None = None, model: Model | Sequence[Model] | None = None) -> None:
    """Set a run up without running it, so that wrong settings are refused now.

    A run that will be a task on a cluster is set up on the CPU: the machine that runs it knows which devices it has.
    """
    if config.execution.cluster is None:
        check_device(config.execution.device)
    else:
        config = config.replace(device="cpu")
    method = build_method(config.method.name, config.method.settings)
    if data is None:
        config = with_absolute_paths(config)
        data = load_data(config)
    config = with_learners(with_model(config, data), data)
    build_setup(config, method, data, models_of(model, config))


def in_one_round(config: Config, method: Method) -> Config:
    """The configuration in one round, with the epochs of all rounds, where the method communicates once."""
    if not method.once or config.training.rounds == 1:
        return config
    epochs = config.training.rounds * config.training.epochs
    log.info("%s communicates once: 1 round of %d epochs", method.name, epochs)
    return config.replace(rounds=1, epochs=epochs)


def _log_data(config: Config, data: Dataset, setup: Setup) -> None:
    """Log how the data is split; warn of owners that it mixes, and of tested classes that no learner has."""
    log.info("%s", describe_split(config, data, setup.data.local_datasets[0]))
    if data.owners is not None and parse_partition(config.federation.partition).word != "owners":
        log.warning(
            "%s: samples have %d owners, and partition %s ignores them; with partition owners each is a learner",
            data.name,
            len(data.owner_names),
            config.federation.partition,
        )
    assigned = np.concatenate(setup.data.local_datasets[0].parts)  # not all owners need be learners
    seen, tested = data.group_counts(data.targets[assigned]), data.group_counts(data.test_targets)
    if len(unseen := np.flatnonzero((tested > 0) & (seen == 0))):
        kind, first = kind_of(data.target), unseen[0]
        which = f"{kind.group} {first}" if len(unseen) == 1 else f"{len(unseen)} {kind.several}, the first {first},"
        log.warning("%s of the test set: no learner has training samples; use more samples, or shuffle them", which)
