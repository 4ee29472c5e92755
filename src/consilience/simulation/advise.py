"""`advise`: does working together pay on this data? A short trial on samples that learners hold out."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

from consilience.config.config import KEYS, Config, make_config
from consilience.config.settings import Settings
from consilience.data import Dataset
from consilience.data.own_data import DataSource, to_dataset
from consilience.errors import ConfigurationError
from consilience.files import readable_json, replace_file, report_write_errors
from consilience.kinds import kind_of
from consilience.presentation.advice import Advice, make_advice
from consilience.presentation.tables import plural
from consilience.presentation.trial import WORTH, TrialSize
from consilience.simulation.advice.candidates import CONTROL
from consilience.simulation.advice.trial import OnProgress, Trial, plan_trial
from consilience.simulation.compare import config_for_method
from consilience.simulation.engines.choose import check_device
from consilience.simulation.records.provenance import owners_of
from consilience.simulation.setup.inputs import (
    load_data,
    models_of,
    resolve_config,
    select_samples,
    with_learners,
    with_model,
)
from consilience.simulation.setup.participants import Model
from consilience.validation import check_integer, check_number

log = logging.getLogger("consilience")

USUAL = {"rounds": 30, "seeds": 8}
"""How long a trial is, where the settings do not say."""
USUAL_STEPS = 10
"""Steps of a learner in a round, at least, where the settings do not say how many epochs a round has. With one epoch,
learners with few samples would hardly be trained when the trial ends, and whoever learns fast would look better."""
MIN_SEEDS, MIN_ROUNDS = 3, 5
"""Fewer seeds have no interval to speak of; fewer rounds than these are no trial, however little time there is."""
ADVICE, TRIAL = "advice.json", "trial.toml"
"""The files of a folder: what the trial says, and the settings that repeat it."""


def advise(
    config: Config | None = None,
    *,
    data: DataSource | None = None,
    model: Model | Sequence[Model] | None = None,
    method: str | None = None,
    bytes_per_round: int | None = None,
    worth: float = WORTH,
    time: float | None = None,
    out: str | Path | None = None,
    on_progress: OnProgress | None = None,
    **settings: Unpack[Settings],
) -> Advice:
    """Try on held-out samples whether learners should work together, and say so in three sentences.

    Every learner's training samples are divided into as many parts as there are seeds. With each seed learners hold one
    part out and train on the others: alone (also for longer, and with another batch order), by `method`, and by two
    alternatives, one that shares all weights and one that shares small tensors. Their own answers to what they held out
    are compared. The test part of the data is removed before anything is trained.

    data, model, settings: as in `simulate`, with 30 rounds and 8 seeds unless they are given. method: the one asked
    about, by default the configuration's. bytes_per_round: the most bytes that a learner may send and receive in a
    round, together; methods that need more are not tried. worth: the smallest gain worth having, in points of percent.
    time: minutes that the trial may take; it has fewer rounds then. out: a folder for the answer and its numbers.
    on_progress: called after each round with the method's name, the rounds done, and the rounds of all methods.

        >>> advice = advise(data="digits", learners=2, train=60, rounds=1, seeds=3)
        >>> len(advice.sentences)
        3
    """
    _check(bytes_per_round, worth, time)
    given = to_dataset(data)
    wanted = resolve_config(_with_usual_length(config, settings), given, model, None, dict(settings))
    _refuse(wanted)
    check_device(wanted.execution.device)
    folder = None if out is None else Path(out)
    if folder is not None:
        _refuse_used(folder)
        wanted.check_savable()
    dataset = select_samples(given, wanted) if isinstance(given, Dataset) else load_data(wanted)
    wanted = _for_learners(with_learners(with_model(wanted, dataset), dataset), dataset, config, settings)
    asked = method or wanted.method.name
    trial = plan_trial(wanted, asked, dataset, models_of(model, wanted), bytes_per_round)
    if time is not None:
        trial = _in_time(trial, time)
    size = _size(trial, bytes_per_round, worth)
    for left in trial.candidates.left_out:
        if left.reason:
            log.info("%s is not tried: %s", left.method, left.reason)
    log.info("a trial with %s, %s and %s", *(plural(n, w) for n, w in _counts(trial, size)))
    answers = trial.run(on_progress)
    candidates = trial.candidates
    advice = make_advice(size, answers, [each.name for each in candidates.alone], CONTROL, candidates.left_out)
    if folder is not None:
        save_advice(folder, advice, config_for_method(trial.config, asked))
    return advice


def save_advice(folder: Path, advice: Advice, config: Config) -> None:
    """Write the answer with its numbers, and the settings of the trial, with the method asked about."""
    with report_write_errors(folder, "choose another place"):
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / TRIAL, config.to_toml().encode())
        replace_file(folder / ADVICE, readable_json(advice.to_dict()).encode())


def _counts(trial: Trial, size: TrialSize) -> list[tuple[int, str]]:
    return [(len(trial.candidates.all), "method"), (size.seeds, "seed"), (size.rounds, "round")]


def _size(trial: Trial, budget: int | None, worth: float) -> TrialSize:
    config = trial.config
    owners = owners_of(config, trial.data, trial.split)
    named = bool(owners) and all(owners) and not all(owner.startswith("learner ") for owner in owners)
    names = owners if named else [str(who) for who in range(config.federation.learners)]
    return TrialSize(
        config.data_name,
        tuple(names),
        trial.folds.samples,
        config.training.rounds,
        config.federation.seeds,
        config.federation.seed,
        float(worth),
        budget,
        kind_of(trial.data.target).metric.key,
    )


def _with_usual_length(config: Config | None, settings: Settings) -> Config:
    """The configuration with a trial's number of rounds and seeds, where neither it nor the settings say another."""
    usual = {key: value for key, value in USUAL.items() if not _says(config, settings, key)}
    if config is not None and config.training.total_epochs is not None:
        usual.pop("rounds", None)  # they are divided between the configuration's rounds
    return make_config({**(config.settings() if config else {}), **usual})


def _for_learners(wanted: Config, dataset: Dataset, config: Config | None, settings: Settings) -> Config:
    """The configuration with a trial's usual epochs, where none were given; refused for a single learner."""
    if wanted.federation.learners < 2:
        raise ConfigurationError(
            f"learners is {wanted.federation.learners}; working together needs two or more: give --learners, or data "
            f"with several owners and partition owners"
        )
    if _says(config, settings, "epochs", "total_epochs"):
        return wanted
    return wanted.replace(epochs=_usual_epochs(wanted, dataset))


def _says(config: Config | None, settings: Settings, *keys: str) -> bool:
    """Whether the settings, or those of which the configuration was made, have one of these keys."""
    if config is None:
        return any(key in settings for key in keys)
    return any(key in settings or KEYS[key][1] in getattr(config, KEYS[key][0]).model_fields_set for key in keys)


def _usual_epochs(config: Config, data: Dataset) -> int:
    """As many passes over a learner's samples as take the usual steps of a round, on average over learners."""
    samples = len(data.targets) / config.federation.learners * (1 - 1 / config.federation.seeds)
    return math.ceil(USUAL_STEPS / math.ceil(samples / config.training.batch_size))


def _in_time(trial: Trial, minutes: float) -> Trial:
    """The trial with as many rounds as the time allows, by the time that one round of every method takes."""
    asked, each = trial.config.training.rounds, trial.seconds_per_round()
    possible = math.floor(60 * minutes / each)
    if possible >= asked:
        return trial
    if possible < MIN_ROUNDS:
        raise ConfigurationError(
            f"time is {minutes:g} minutes, and {MIN_ROUNDS} rounds of the trial take about "
            f"{math.ceil(MIN_ROUNDS * each / 6) / 10:g}; allow more, or make it smaller with fewer samples (train), "
            f"fewer seeds ({MIN_SEEDS} or more) or a smaller model"
        )
    log.info("%s fit into %g minutes, instead of %d", plural(possible, "round"), minutes, asked)
    return trial.with_rounds(possible)


def _check(bytes_per_round: int | None, worth: float, time: float | None) -> None:
    if bytes_per_round is not None:
        check_integer("bytes_per_round", bytes_per_round)
    check_number("worth", worth, low=0.0)
    if time is not None:
        check_number("time", time, low=0.0)


def _refuse(config: Config) -> None:
    """Refuse settings that have no place in a trial."""
    if config.variants:
        raise ConfigurationError("the configuration has variants, which belong to a sweep; leave them out")
    if config.federation.seeds < MIN_SEEDS:
        raise ConfigurationError(
            f"seeds is {config.federation.seeds}; a trial holds out another part of the samples with each seed and "
            f"needs {MIN_SEEDS} or more: use {USUAL['seeds']}, or leave seeds out"
        )


def _refuse_used(folder: Path) -> None:
    if (folder / ADVICE).exists():
        raise ConfigurationError(f"{folder} already holds {ADVICE}; choose another folder")
