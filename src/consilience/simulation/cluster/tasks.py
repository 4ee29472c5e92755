"""Runs as tasks on a cluster, at the same time: reports while they run, Ctrl-C, and what they bring back."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any

import consilience
from consilience.config.config import Config
from consilience.errors import ClusterError
from consilience.simulation.cluster.connect import connected, describe_resources, losses, own_code_by_value
from consilience.simulation.cluster.packed_folder import pack, unpack, write_files
from consilience.simulation.cluster.remote_run import Ended, run_remotely
from consilience.simulation.cluster.reports import Report, Reports
from consilience.simulation.planned_run import PlannedRun
from consilience.simulation.records.history import History
from consilience.simulation.records.run_lock import lock_folder
from consilience.simulation.result import Result
from consilience.simulation.run import OnRound

log = logging.getLogger("consilience")

_START_SECONDS = 120.0  # for the first run to start
_RETRIES = 3  # of a run whose machine was lost
_LOOK_SECONDS = 0.2  # between looks at what runs report


def run_on_cluster(runs: Sequence[PlannedRun], on_round: OnRound | None) -> Iterator[Result]:
    """The results in the order of the runs; after Ctrl-C those of finished runs, and the first that was stopped."""
    with ExitStack() as stack:
        ray = stack.enter_context(connected(str(runs[0].config.execution.cluster)))
        taken = _resources(ray, runs[0].config)
        for run in runs:
            if run.folder is not None:
                stack.enter_context(lock_folder(run.folder))
        together = stack.enter_context(_TasksOf(ray, runs, taken, on_round))
        with _stopping(together, all(run.folder is not None for run in runs)):
            together.wait()
        for number in range(len(runs)):
            result = together.result(number)
            if result is None:  # it had not started when all were stopped
                raise KeyboardInterrupt
            yield result
            if not result.finished:
                return


class _TasksOf:
    """The tasks of some runs, and what is known of each."""

    def __init__(self, ray: Any, runs: Sequence[PlannedRun], taken: dict[str, float], on_round: OnRound | None) -> None:
        self.ray, self.runs, self.taken, self.on_round = ray, runs, taken, on_round
        self.histories: dict[int, History] = {}
        self.nodes: dict[int, str] = {}
        self.ended: dict[int, Ended] = {}
        self.error: BaseException | None = None
        self._shown: dict[int, int] = {}  # records that `on_round` has seen
        self._rounds: dict[int, tuple[str, int]] = {}  # method, and number of rounds

    def __enter__(self) -> _TasksOf:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(self.ray.get_runtime_context().get_node_id(), soft=False)
        kept = {"num_cpus": 0, "scheduling_strategy": here, "max_task_retries": _RETRIES}
        self.reports = self.ray.remote(Reports).options(**kept).remote()  # here: lost only if this program is, too
        task = self.ray.remote(run_remotely).options(max_retries=_RETRIES, scheduling_strategy="SPREAD", **self.taken)
        with own_code_by_value(self.ray):
            data = {id(run.data): run.data for run in self.runs}
            self._data = {key: self.ray.put(each) for key, each in data.items()}  # sent to each machine once
            self.tasks = {self._start(task, number, run): number for number, run in enumerate(self.runs)}
        return self

    def _start(self, task: Any, number: int, run: PlannedRun) -> Any:
        files = None if run.folder is None else pack(run.folder)
        how = number, consilience.__version__, self.reports
        return task.remote(_as_task(run), self._data[id(run.data)], files, *how)

    def __exit__(self, *error: object) -> None:
        for task, number in self.tasks.items():
            if number not in self.ended:
                self.ray.cancel(task, force=True)
        self.ray.kill(self.reports)

    def stop(self) -> None:
        """Ask all runs to stop after their round."""
        self.reports.stop.remote()

    def wait(self) -> None:
        """Wait until all have ended; an error in one stops the others, and is raised when they have stopped."""
        waiting, began = list(self.tasks), time.monotonic()
        while waiting:
            done, waiting = self.ray.wait(waiting, timeout=_LOOK_SECONDS)
            for report in self.ray.get(self.reports.take.remote()):
                self._take(report)
            for task in done:
                self._bring_back(task)
            if not self.nodes and time.monotonic() - began > _START_SECONDS:
                raise ClusterError(
                    f"no run started within {_START_SECONDS:g} s; each takes {_describe(self.taken)} of the cluster, "
                    f"which has {describe_resources(self.ray)}; wait until other programs end, or add machines"
                )
            self._show()
        if self.error is not None:
            raise self.error

    def _take(self, report: Report) -> None:
        """Note what a run reports, and log what it logged."""
        number, run = report.run, self.runs[report.run]
        if not report.rounds:
            self._note_start(report)
        for level, message in report.logged:
            if level > logging.INFO:
                message = f"run {number + 1}, on {report.node}: {message}"
            log.log(level, "%s", message)
        if report.seeds and number not in self.histories:
            self.histories[number] = History(report.seeds, report.learners, report.variants)
            self.histories[number].folder = run.folder
            if run.folder is not None:
                write_files(report.files, run.folder)
        if report.rounds:
            self._rounds[number] = report.method, report.rounds
            known = len(self.histories[number].records) - report.first
            self.histories[number].records.extend(report.records[max(known, 0) :])

    def _note_start(self, report: Report) -> None:
        number, label = report.run, self.runs[report.run].config.method.label
        if number in self.nodes:
            lost = self.nodes[number]
            log.warning("run %d (%s): lost with %s, starts again on %s", number + 1, label, lost, report.node)
        else:
            log.info("run %d (%s): on %s", number + 1, label, report.node)
        self.nodes[number] = report.node

    def _show(self) -> None:
        """Call `on_round` for the first run that has not ended, so that runs are shown one after the other."""
        for number in range(len(self.runs)):
            history = self.histories.get(number)
            if history is not None and self.on_round is not None and len(history.records) > self._shown.get(number, 0):
                method, rounds = self._rounds[number]
                self._shown[number] = len(history.records)
                self.on_round(method, history.rounds, rounds, history)
            if number not in self.ended:
                return

    def _bring_back(self, task: Any) -> None:
        """Take what a task gives back: the files of its folder."""
        number, errors = self.tasks[task], self.ray.exceptions
        self.ended[number] = Ended()
        try:
            self.ended[number] = self.ray.get(task)
        except errors.RayTaskError as error:
            self._fail(error.cause)
        except errors.RayError as error:
            name = f"run {number + 1} ({self.runs[number].config.method.label})"
            what = "was lost too often" if isinstance(error, losses(self.ray)) else "failed on the cluster"
            self._fail(ClusterError(f"{name} {what}: {error}"))
        folder, files = self.runs[number].folder, self.ended[number].files
        if folder is not None and files is not None:
            unpack(files, folder)

    def _fail(self, error: BaseException) -> None:
        self.error = self.error or error
        self.stop()

    def result(self, number: int) -> Result | None:
        """The result of a run, None if it was never started."""
        run, ended = self.runs[number], self.ended[number]
        if run.folder is None or ended.files is None:
            return ended.result
        return replace(Result.load(run.folder, model=run.model), asked_to_stop=ended.asked_to_stop)


def _as_task(run: PlannedRun) -> PlannedRun:
    """The run as it is on its machine: one process, or as many workers as it takes CPUs."""
    workers = run.config.execution.workers or 0
    return replace(run, data=None, config=run.config.replace(cluster=None, workers=workers if workers > 1 else 0))


def _resources(ray: Any, config: Config) -> dict[str, float]:
    """What each run takes; refused where no machine has it."""
    taken = {"num_cpus": float(config.execution.workers or 1)}
    if config.execution.device == "cuda":
        taken |= {"num_cpus": 1.0, "num_gpus": 1.0}
    names = {"num_cpus": "CPU", "num_gpus": "GPU"}
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(all(has.get(names[kind], 0) >= amount for kind, amount in taken.items()) for has in alive):
        raise ClusterError(
            f"each run takes {_describe(taken)} of one machine of cluster {config.execution.cluster!r}, and none has "
            f"that; the cluster has {describe_resources(ray)}; take fewer workers, or add such a machine"
        )
    return taken


def _describe(taken: dict[str, float]) -> str:
    names = {"num_cpus": "CPU", "num_gpus": "GPU"}
    return " and ".join(f"{amount:g} {names[kind]}{'s' * (amount != 1)}" for kind, amount in taken.items())


@contextmanager
def _stopping(together: _TasksOf, saved: bool) -> Iterator[None]:
    """Ctrl-C stops all runs after their rounds, if they are saved; a second one ends them at once."""
    if not saved or threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = False

    def request_stop(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        together.stop()

    before = signal.signal(signal.SIGINT, request_stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
