"""Worker processes, kept between simulations: importing torch takes longer than many runs do."""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any

from consilience.channels import Answer
from consilience.errors import ConsilienceError
from consilience.simulation.engines.answers import Batches
from consilience.simulation.engines.cohort import CohortPlan
from consilience.simulation.engines.jobs import Job, JobResult, Work
from consilience.simulation.engines.loop.shared_memory import SharedMemory
from consilience.simulation.engines.loop.worker import ANSWERS, FAILED, FILES, JOB, SET_UP
from consilience.user_code import files_of

_QUEUED_JOBS = 2  # sent to each worker at a time, so that it never waits for the next one
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # By default glibc returns memory of this size at once; the page faults of getting it again cost a tenth of a step.
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
    "MALLOC_TOP_PAD_": str(2**24),
}


class Worker:
    """One process, and the connection to it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        environment = _ENVIRONMENT | os.environ
        environment["PYTHONPATH"] = os.pathsep.join(p or os.getcwd() for p in sys.path)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "consilience.simulation.engines.loop.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                process_group=0,  # Ctrl-C is for the main process alone
                env=environment,
                stdin=subprocess.DEVNULL,
            )
        self.socket = ours
        self.connection: Connection[Any, Any] = Connection(os.dup(ours.fileno()))
        self._answers: dict[int, Answer] = {}  # those it has been sent

    def set_up(self, plans: list[CohortPlan], shared_memory: SharedMemory) -> None:
        """Send the cohorts of a simulation, and the memory they share."""
        self._answers = {}
        self.send(SET_UP, (plans, shared_memory.shapes))
        socket.send_fds(self.socket, [b"+"], [shared_memory.fd])

    def update_answers(self, batches: Batches) -> None:
        """Send the answers it does not have yet, and the numbers of those no longer held. It does not reply."""
        new = {first: batch for first, batch in batches.items() if self._answers.get(first) is not batch}
        unused = [first for first in self._answers if first not in batches]
        if new or unused:
            self.send(ANSWERS, ({first: _as_numpy(batch) for first, batch in new.items()}, unused))
            self._answers = dict(batches)

    def release(self) -> None:
        """Drop this process's references to answers; the next simulation sends its own."""
        self._answers = {}

    def send(self, kind: str, content: Any) -> None:
        """Send a message."""
        try:
            self.connection.send((kind, content))
        except OSError as error:
            raise self._exit_error() from error

    def reply(self) -> Any:
        """Wait for a reply; an error in the worker is raised here."""
        try:
            kind, content = self.connection.recv()
        except (EOFError, OSError) as error:
            raise self._exit_error() from error
        if kind == FAILED:
            raise content
        return content

    def _exit_error(self) -> ConsilienceError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=5)
        code = self.process.poll()
        why = "out of memory?" if code == -9 else "see its messages above"
        return ConsilienceError(f"worker process {self.process.pid} ended with exit code {code} ({why})")

    def stop(self) -> None:
        """Close the connection and wait for the process to end."""
        self.connection.close()
        self.socket.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class WorkerPool:
    """Worker processes that share memory."""

    def __init__(self, size: int) -> None:
        self.workers = [Worker() for _ in range(size)]

    def set_up(self, plans: list[CohortPlan], shared_memory: SharedMemory) -> None:
        """Send every worker the cohorts of a simulation, and the memory they share."""
        files = files_of(_modules_of(plans))
        for worker in self.workers:
            if files:  # a user's own exchanges: each process runs the file itself, before it reads the plans
                worker.send(FILES, files)
                worker.reply()
            worker.set_up(plans, shared_memory)
        for worker in self.workers:
            worker.reply()

    def run(self, jobs: list[Job], slots: int, batches: Batches) -> Iterator[tuple[Job, JobResult]]:
        """Do jobs in parallel and yield results in the order of the jobs, in whatever order they finish.

        A job's slot is free again when the caller asks for the next result. batches: the answers that learners hold.
        """
        if not jobs:
            return
        for worker in self.workers:  # none has a job now: they all read what they are sent
            worker.update_answers(batches)
        waiting, free = list(enumerate(jobs))[::-1], list(range(slots))
        sent: dict[Worker, list[tuple[int, Job]]] = {w: [] for w in self.workers}
        finished: dict[int, tuple[Job, JobResult]] = {}
        workers = {w.connection: w for w in self.workers}
        for following in range(len(jobs)):
            while True:
                self._send_jobs(waiting, free, sent)
                if following in finished:
                    break
                for connection in wait([w.connection for w, todo in sent.items() if todo]):
                    worker = workers[connection]  # type: ignore[index]
                    number, job = sent[worker].pop(0)
                    finished[number] = (job, worker.reply())
            job, result = finished.pop(following)
            yield job, result
            if isinstance(job, Work):
                free.append(job.slot)

    def _send_jobs(self, waiting: Any, free: list[int], sent: Any) -> None:
        while waiting:
            worker = min(sent, key=lambda w: len(sent[w]))
            needs_slot = isinstance(waiting[-1][1], Work)
            if len(sent[worker]) >= _QUEUED_JOBS or (needs_slot and not free):
                return
            number, job = waiting.pop()
            if needs_slot:
                job = replace(job, slot=free.pop())
            worker.send(JOB, job)
            sent[worker].append((number, job))

    def release(self) -> None:
        """Drop the answers of a simulation that is finished."""
        for worker in self.workers:
            worker.release()

    def stop(self) -> None:
        """End every process."""
        for worker in self.workers:
            worker.stop()
        self.workers = []


def _as_numpy(answer: Answer) -> Answer:
    tensors = {k: t.numpy(force=True) for k, t in answer.tensors.items()}
    return Answer(tensors, answer.count.numpy(force=True), answer.version)


_pools: dict[int, WorkerPool] = {}


def worker_pool_of(size: int) -> WorkerPool:
    """The pool of that size; it is kept until the program ends."""
    pool = _pools.get(size)
    if pool is None or any(w.process.poll() is not None for w in pool.workers):
        if pool is not None:
            pool.stop()
        pool = _pools[size] = WorkerPool(size)
    return pool


def is_running(size: int) -> bool:
    """Whether a pool of that size has been started."""
    return size in _pools


def discard(pool: WorkerPool) -> None:
    """End a pool that may be in the middle of a job, so that it is not used again."""
    for size in [s for s, p in _pools.items() if p is pool]:
        del _pools[size]
    for worker in pool.workers:
        worker.process.kill()
    pool.stop()


@atexit.register
def stop_all() -> None:
    """End every pool."""
    while _pools:
        _pools.popitem()[1].stop()


def portable(plans: list[CohortPlan]) -> bool:
    """Whether other processes can be sent these plans: not where a class or function is in a user's script."""
    try:
        modules = _modules_of(plans)
    except (pickle.PicklingError, AttributeError, TypeError):
        return False
    return all(files_of([module]) or _importable(module.partition(".")[0]) for module in modules)


def _modules_of(plans: list[CohortPlan]) -> set[str]:
    """The modules that a process needs to read these plans."""
    reader = _Reader(io.BytesIO(pickle.dumps(plans)))
    reader.load()
    return reader.modules


class _Reader(pickle.Unpickler):
    """Records which modules a pickle needs."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.modules: set[str] = set()

    def find_class(self, module: str, name: str) -> Any:
        self.modules.add(module)
        return super().find_class(module, name)


def _importable(package: str) -> bool:
    """Whether a new process can import a package: this one may have loaded it in another way."""
    return package != "__main__" and any(finder.find_spec(package, None) for finder in sys.meta_path)
