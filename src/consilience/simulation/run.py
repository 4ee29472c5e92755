"""One run: its rounds, its records, its checkpoints."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import torch

from consilience.config.config import Config
from consilience.errors import CheckpointError
from consilience.export import describe_inputs
from consilience.kinds import kind_of
from consilience.learner.split_messages import message_bytes
from consilience.simulation.engines.base import Engine
from consilience.simulation.records.checkpoint import (
    SavedModels,
    load_checkpoint,
    restore_run,
    run_checkpoint,
    save_checkpoint,
)
from consilience.simulation.records.history import VALIDATION, History
from consilience.simulation.records.learner_models import LearnerModels, models_of_run
from consilience.simulation.records.memory import device_peak_mb, memory_mb
from consilience.simulation.records.model_rows import BestModels, KeptModels
from consilience.simulation.records.run_folder import RunFolder
from consilience.simulation.records.timing import PacedWork
from consilience.simulation.result import Result
from consilience.simulation.round.newest_parts import with_newest_parts
from consilience.simulation.round.round import Rounds
from consilience.simulation.setup.setup import Setup

OnRound = Callable[[str, int, int, History], None]
"""Called after each round with the method's name, the round, the number of rounds, and the history so far."""
_SAVE_SECONDS, _SAVE_SHARE = 30.0, 0.1  # between checkpoints; resuming from any of them gives the same bits
_MEASURE_SECONDS, _MEASURE_SHARE = 1.0, 0.01  # between looks at the memory, which walk through all of it


class StopRun(Exception):
    """Raised by `on_round`: the run stops after this round, as after Ctrl-C, and can be resumed."""


class Run:
    """One run: start or resume, run rounds, record them, save checkpoints."""

    def __init__(
        self,
        config: Config,
        setup: Setup,
        engine: Engine,
        folder: RunFolder | None,
        on_round: OnRound | None,
        fingerprints: dict[str, str],
        keep_models: bool,
    ) -> None:
        self.config, self.setup, self.engine, self.folder, self.on_round = config, setup, engine, folder, on_round
        self.fingerprints, self.keep_models = fingerprints, keep_models
        self.rounds = Rounds(setup, engine)
        variants = setup.variants.count
        self.history = History(
            setup.federations.seeds[: setup.federations.count // variants], setup.federations.learners, variants
        )
        self.history.folder = folder.path if folder else None
        self.best: BestModels | None = None  # with a validation split
        self.peak = 0.0
        self.device_peak = 0.0  # before this process resumed the run
        self._saving = PacedWork(_SAVE_SECONDS, _SAVE_SHARE)
        self._measuring = PacedWork(_MEASURE_SECONDS, _MEASURE_SHARE)

    def run(self) -> Result:
        """Run the rounds that are left, and return the result."""
        first = self.rounds.start()
        if self.config.evaluation.validation and self.keep_models:
            self.best = BestModels(self.engine)
        if not self._resumed():
            self.history.add(first)
            self._record(0)
            self.saved_round = 0
            with self._saving.timed():
                if self.keep_models:
                    self._save()
        with self._stop_on_interrupt() as stop:
            while self.rounds.round < self.config.training.rounds and not stop.is_set():
                try:
                    self._run_round()
                except StopRun:
                    stop.set()
        result = self._result(asked_to_stop=stop.is_set())
        drop_models = result.finished and not self.keep_models
        if self.rounds.round != self.saved_round and not drop_models:
            self._save()
        if self.folder is not None:
            self.folder.save_result(result.summary())
            if drop_models:
                self.folder.remove_checkpoints()
        return result

    def _resumed(self) -> bool:
        checkpoint = load_checkpoint(self.folder) if self.folder else None
        if self.folder is not None and checkpoint is None and (self.folder.result or {}).get("finished"):
            raise CheckpointError(f"{self.folder.path} is finished and has no checkpoint: there is nothing to resume")
        if checkpoint is None or self.folder is None:
            return False
        numbers = checkpoint.numbers
        saved = numbers.get("fingerprints", {})
        other = [what for what, fingerprint in self.fingerprints.items() if saved.get(what) != fingerprint]
        if other:
            raise CheckpointError(
                f"the checkpoint in {self.folder.path} is of another run: its {other[0]} is not the one given; resume "
                f"with the same {other[0]}, and with the version of consilience that started the run"
            )
        try:
            restore_run(self.rounds, checkpoint)
        except torch.OutOfMemoryError:
            raise
        except (KeyError, RuntimeError) as error:  # the user's own model, data or method is another one
            raise CheckpointError(f"the checkpoint in {self.folder.path} is of another run: {error}") from error
        self.history.read(self.folder.lines(), self.rounds.round, str(self.folder.metrics))
        self.history.seconds, self.peak = dict(numbers["seconds"]), float(numbers["peak_memory_mb"])
        self.device_peak = float(numbers["peak_device_mb"])
        self.folder.rewrite(line for r in range(self.rounds.round + 1) for line in self.history.lines(r))
        if self.best is not None:
            self.best.restore(SavedModels(self.folder, best=True))
        self.saved_round = self.rounds.round
        return True

    def _run_round(self) -> None:
        following = self.rounds.round + 1
        due = following % self.config.evaluation.every == 0 or following == self.config.training.rounds
        self.history.add(self.rounds.run(evaluate=due))
        if self.best is not None and due:
            with with_newest_parts(self.rounds):  # the models that were tested
                self.best.update(self.rounds, self.history.best_rounds(VALIDATION))
        self._record(following)
        self._measure()
        if self.on_round is not None:
            self.on_round(self.setup.method.name, following, self.config.training.rounds, self.history)
        if self._saving.due:
            with self._saving.timed():
                self._save()

    def _record(self, round_: int) -> None:
        if self.folder is None:
            return
        if round_:
            self.folder.append(self.history.lines(round_))
        else:  # a run that was stopped before its first checkpoint starts again
            self.folder.rewrite(self.history.lines(round_))

    def _save(self) -> None:
        self.saved_round = self.rounds.round
        if self.folder is not None:
            peaks = {"peak_memory_mb": self.peak, "peak_device_mb": self._device_peak() or 0.0}
            spent = {"seconds": self.history.seconds, **peaks, "fingerprints": self.fingerprints}
            spent["engine"] = self.engine.name  # a resumed run goes on with it, whatever is faster then
            best = None if self.best is None else self.best.vectors
            save_checkpoint(self.folder, run_checkpoint(self.rounds), spent, best)

    def _device_peak(self) -> float | None:
        now = device_peak_mb(self.config.execution.device)
        return None if now is None else max(now, self.device_peak)

    def _measure(self) -> None:
        if self._measuring.due or self.rounds.round == self.config.training.rounds:
            with self._measuring.timed():
                self.peak = max(self.peak, memory_mb([os.getpid(), *self.engine.processes]))

    @contextlib.contextmanager
    def _stop_on_interrupt(self) -> Iterator[threading.Event]:
        """Ctrl-C ends the run after its round, if there is a folder to resume it from; a second one ends it at once."""
        stop = threading.Event()
        if self.folder is None or threading.current_thread() is not threading.main_thread():
            yield stop
            return

        def request_stop(number: int, frame: FrameType | None) -> None:
            if stop.is_set():
                raise KeyboardInterrupt
            stop.set()

        before = signal.signal(signal.SIGINT, request_stop)
        try:
            yield stop
        finally:
            signal.signal(signal.SIGINT, before)

    def _result(self, asked_to_stop: bool) -> Result:
        cohorts = zip(self.rounds.learners, self.engine.plans, strict=True)
        messages = [message_bytes(learner, plan.work.batch_size) for learner, plan in cohorts]
        return Result(
            config=self.config,
            history=self.history,
            engine=self.engine.name,
            model_name=",".join(dict.fromkeys(self.config.learner_models)),
            message_bytes={"up": max(m["up"] for m in messages), "down": max(m["down"] for m in messages)},
            peak_memory_mb=self.peak,
            peak_device_mb=self._device_peak(),
            finished=self.rounds.round >= self.config.training.rounds,
            asked_to_stop=asked_to_stop,
            folder=self.folder.path if self.folder else None,
            diverged=self.rounds.diverged,
            metric=kind_of(self.setup.data.train.target).metric,
            accuracy_source=self.setup.evaluation.accuracy_source,
            privacy=None if self.rounds.privacy is None else self.rounds.privacy.describe(),
            trained=self._models(),
        )

    def _models(self) -> dict[str, LearnerModels]:
        """The models after the last round: in the folder's checkpoint, or else in memory."""
        if not self.keep_models:
            return {}
        inputs = describe_inputs(self.setup.data.train)
        folder = self.folder
        last = KeptModels(self.engine) if folder is None else SavedModels(folder)
        found = {"last": models_of_run(self.rounds, last, inputs)}
        if self.best is not None:
            best = self.best if folder is None else SavedModels(folder, best=True)
            found["best"] = models_of_run(self.rounds, best, inputs, self.history.best_rounds(VALIDATION))
        return found
