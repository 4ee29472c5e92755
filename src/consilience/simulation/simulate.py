"""`simulate`: one run, from settings to a result; begun, watched, interrupted, resumed."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

from consilience.config.config import Config, make_config
from consilience.config.overrides import parse_method
from consilience.data import Dataset
from consilience.errors import CheckpointError, ConfigurationError
from consilience.method import Method
from consilience.methods import build_method
from consilience.simulation.engines.base import Engine
from consilience.simulation.engines.choose import check_device, choose_engine, open_engine, settled
from consilience.simulation.records.checkpoint import load_checkpoint, restore_run, run_checkpoint, save_checkpoint
from consilience.simulation.records.fingerprint import marks
from consilience.simulation.records.history import History
from consilience.simulation.records.memory import device_peak_mb, held_mb
from consilience.simulation.records.provenance import in_words, provenance
from consilience.simulation.records.run_folder import RunFolder, refuse_taken
from consilience.simulation.result import Result
from consilience.simulation.round.round import Rounds
from consilience.simulation.setup.inputs import cut_data, in_full, load_data, models_of, with_model
from consilience.simulation.setup.participants import Model
from consilience.simulation.setup.setup import Setup, build_setup

log = logging.getLogger("consilience")

OnRound = Callable[[str, int, int, History], None]
"""Called after each round with the method's name, the round, how many there will be, and the history so far."""
_SAVE_SECONDS = 30.0  # between checkpoints; resuming gives the same bits from any of them


def simulate(
    config: Config | None = None,
    *,
    data: Dataset | str | None = None,
    model: Model | Sequence[Model] | None = None,
    method: Method | str | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    on_round: OnRound | None = None,
    keep_models: bool = True,
    **settings: Any,
) -> Result:
    """Simulate a federation and return what came out.

    data, model, method: names, or your own: a `Dataset`, a function that builds a model (or one for each learner), a
    `Method`; a method's name may bring settings, "fedavg:start=different". settings: the keys of the configuration,
    such as `rounds=50`. out: a folder to keep the run in.
    resume: the folder of a run to go on with; it gives the same bits as a run that was never stopped.
    keep_models: whether the folder has what everybody learned when the run has come to its end.

        >>> result = simulate(method="representation-sharing", rounds=2, learners=2)
        >>> result.accuracy.shape
        (1, 2)
    """
    folder = None
    if resume is not None:
        if config is not None or settings or out is not None or isinstance(data, str) or isinstance(method, str):
            raise ConfigurationError("resume takes its settings from the run's folder; give it no others")
        folder = RunFolder.open(Path(resume))
        config = folder.config
    else:
        config = _resolve(config, data, model, method, settings)
    if isinstance(method, Method) and config.variants:
        raise ConfigurationError("variants are made of a method's settings; give the method by its name")
    chosen = method if isinstance(method, Method) else build_method(config.method.name, config.method.settings)
    check_device(config.execution.device)
    config = _paced(config, chosen)
    if out is not None:
        refuse_taken(Path(out))
    watched = on_round is not None and sys.stderr.isatty()  # then a download shows how far it is
    dataset = cut_data(data, config) if isinstance(data, Dataset) else load_data(config, watched)
    config = with_model(config, dataset)
    setup = build_setup(config, chosen, dataset, models_of(model, config))
    if folder is None:
        _introduce(config, dataset, setup)
    with settled(config):
        stacked = choose_engine(config, setup)
    if out is not None:  # from here on everything should work
        folder = RunFolder.create(Path(out), config)
        folder.keep_provenance(provenance(config, dataset, setup.data.local_datasets))
    with settled(config), open_engine(config, setup, stacked) as engine:
        made_of = marks(dataset, chosen, config) if folder else {}  # all data is read for them
        return _Run(config, setup, engine, folder, on_round, made_of, keep_models).go()


def begin_or_go_on(folder: Path, config: Config, on_round: OnRound | None = None, keep_models: bool = True) -> Result:
    """The run of a folder: from where it stopped, or from its beginning where it has not begun."""
    if (folder / "config.toml").exists():
        return simulate(resume=folder, on_round=on_round, keep_models=keep_models)
    return simulate(config, out=folder, on_round=on_round, keep_models=keep_models)


def rehearse(config: Config, data: Dataset | None = None) -> None:
    """Everything of a run but the work: what is wrong with the settings is told now."""
    check_device(config.execution.device)
    config = in_full(config)
    method = build_method(config.method.name, config.method.settings)
    data = load_data(config) if data is None else data
    config = with_model(config, data)
    build_setup(config, method, data, models_of(None, config))


def _paced(config: Config, method: Method) -> Config:
    """The configuration in one round, with the epochs of all, where the method communicates once."""
    if not method.once or config.training.rounds == 1:
        return config
    epochs = config.training.rounds * config.training.epochs
    log.info("%s communicates once: 1 round of %d epochs", method.name, epochs)
    return config.replace(rounds=1, epochs=epochs)


def _introduce(config: Config, data: Dataset, setup: Setup) -> None:
    """Tell how the data was dealt, and of classes that are tested and never seen in training."""
    log.info("%s", in_words(config, data, setup.data.local_datasets[0]))
    dealt = np.concatenate(setup.data.local_datasets[0].parts)  # of several owners not all need be there
    seen, tested = np.unique(data.targets[dealt]), np.unique(data.test_targets)
    if len(unseen := np.setdiff1d(tested, seen)):
        said = f"class {unseen[0]}" if len(unseen) == 1 else f"{len(unseen)} classes, the first {unseen[0]},"
        log.warning("%s of the tests nobody has in training: take more samples, or mix them first", said)


def _resolve(
    config: Config | None,
    data: Dataset | str | None,
    model: Model | Sequence[Model] | None,
    method: Method | str | None,
    settings: dict[str, Any],
) -> Config:
    given = config.settings() if config else {}
    given |= settings
    if data is not None:
        given["data"] = data if isinstance(data, str) else data.name
    if isinstance(model, str):
        given["model"] = model
    elif model is not None:
        given["model"] = ",".join(_model_name(m) for m in (model if isinstance(model, Sequence) else [model]))
    if isinstance(method, str):
        given["method"] = parse_method(method)
    elif method is not None:
        given["method"] = {**method.settings, "name": method.source or method.name}
    resolved = in_full(make_config(given))
    return resolved.replace(data=given["data"]) if isinstance(data, Dataset) else resolved


def _model_name(model: Model) -> str:
    return model if isinstance(model, str) else getattr(model, "__name__", type(model).__name__)


class _Run:
    """The course of one run: begin or go on, play, record, keep."""

    def __init__(
        self,
        config: Config,
        setup: Setup,
        engine: Engine,
        folder: RunFolder | None,
        on_round: OnRound | None,
        made_of: dict[str, str],
        keep_models: bool,
    ) -> None:
        self.config, self.setup, self.engine, self.folder, self.on_round = config, setup, engine, folder, on_round
        self.made_of, self.keep_models = made_of, keep_models
        self.rounds = Rounds(setup, engine)
        variants = setup.variants.count
        self.history = History(
            setup.federations.seeds[: setup.federations.count // variants], setup.federations.learners, variants
        )
        self.history.folder = folder.path if folder else None
        self.peak = 0.0
        self.device_peak = 0.0  # before this process took the run up
        self._measured = self._saved = -float("inf")

    def go(self) -> Result:
        first = self.rounds.start()
        if not self._resumed():
            self.history.add(first)
            self._keep(0)
            self.saved_round, self._saved = 0, time.monotonic()
            if self.keep_models:
                self._save()
        with self._stop_on_interrupt() as stop:
            while self.rounds.round < self.config.training.rounds and not stop.is_set():
                self._play()
        result = self._result(asked_to_stop=stop.is_set())
        leave = result.finished and not self.keep_models
        if self.rounds.round != self.saved_round and not leave:
            self._save()
        if self.folder is not None:
            self.folder.keep_result(result.summary())
            if leave:
                self.folder.forget()
        return result

    def _resumed(self) -> bool:
        checkpoint = load_checkpoint(self.folder) if self.folder else None
        if self.folder is not None and checkpoint is None and (self.folder.result or {}).get("finished"):
            raise CheckpointError(
                f"{self.folder.path} has come to its end and keeps no models: there is nothing to go on with"
            )
        if checkpoint is None or self.folder is None:
            return False
        numbers = checkpoint.numbers
        other = [what for what, mark in self.made_of.items() if numbers.get("made_of", {}).get(what) != mark]
        if other:
            raise CheckpointError(
                f"the checkpoint in {self.folder.path} is of another run: its {other[0]} is not the one given; go on "
                f"with the very same, your own if it was your own, and in the version that made it"
            )
        try:
            restore_run(self.rounds, checkpoint)
        except torch.OutOfMemoryError:
            raise
        except (KeyError, RuntimeError) as error:  # a model, data or method of one's own that is not the run's
            raise CheckpointError(f"the checkpoint in {self.folder.path} is of another run: {error}") from error
        self.history.read(self.folder.lines(), self.rounds.round, str(self.folder.metrics))
        self.history.seconds, self.peak = dict(numbers["seconds"]), float(numbers["peak_memory_mb"])
        self.device_peak = float(numbers["peak_device_mb"])
        self.folder.rewrite(line for r in range(self.rounds.round + 1) for line in self.history.lines(r))
        self.saved_round = self.rounds.round
        return True

    def _play(self) -> None:
        following = self.rounds.round + 1
        due = following % self.config.evaluation.every == 0 or following == self.config.training.rounds
        self.history.add(self.rounds.play(evaluate=due))
        self._keep(following)
        self._measure()
        if self.on_round is not None:
            self.on_round(self.setup.method.name, following, self.config.training.rounds, self.history)
        if time.monotonic() - self._saved > _SAVE_SECONDS:
            self._save()

    def _keep(self, round_: int) -> None:
        if self.folder is None:
            return
        if round_:
            self.folder.append(self.history.lines(round_))
        else:  # a run that was stopped before its first checkpoint begins anew
            self.folder.rewrite(self.history.lines(round_))

    def _save(self) -> None:
        self.saved_round, self._saved = self.rounds.round, time.monotonic()
        if self.folder is not None:
            peaks = {"peak_memory_mb": self.peak, "peak_device_mb": self._device_peak() or 0.0}
            spent = {"seconds": self.history.seconds, **peaks, "made_of": self.made_of}
            save_checkpoint(self.folder, run_checkpoint(self.rounds), spent)

    def _device_peak(self) -> float | None:
        now = device_peak_mb(self.config.execution.device)
        return None if now is None else max(now, self.device_peak)

    def _measure(self) -> None:
        if time.monotonic() - self._measured > 1.0 or self.rounds.round == self.config.training.rounds:
            self.peak = max(self.peak, held_mb([os.getpid(), *self.engine.processes]))
            self._measured = time.monotonic()

    @contextlib.contextmanager
    def _stop_on_interrupt(self) -> Iterator[threading.Event]:
        """Ctrl-C ends the run after its round, where there is a folder to resume it from; a second one ends it now."""
        stop = threading.Event()
        if self.folder is None or threading.current_thread() is not threading.main_thread():
            yield stop
            return

        def ask(number: int, frame: FrameType | None) -> None:
            if stop.is_set():
                raise KeyboardInterrupt
            stop.set()

        before = signal.signal(signal.SIGINT, ask)
        try:
            yield stop
        finally:
            signal.signal(signal.SIGINT, before)

    def _result(self, asked_to_stop: bool) -> Result:
        learners = list(zip(self.rounds.byte_counts, self.rounds.learners, strict=True))
        return Result(
            config=self.config,
            history=self.history,
            engine=self.engine.name,
            model=",".join(dict.fromkeys(self.config.learner_models)),
            message_bytes={
                "up": max(traffic.up(learner.uploading) for traffic, learner in learners),
                "down": max(traffic.down(learner.receiving) for traffic, learner in learners),
            },
            peak_memory_mb=self.peak,
            peak_device_mb=self._device_peak(),
            finished=self.rounds.round >= self.config.training.rounds,
            asked_to_stop=asked_to_stop,
            folder=self.folder.path if self.folder else None,
            diverged=self.rounds.diverged,
            accuracy_source=self.setup.evaluation.accuracy_source,
        )
