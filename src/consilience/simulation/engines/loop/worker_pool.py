"""Worker processes, kept between simulations: importing torch takes longer than many a run."""

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
from consilience.simulation.engines.cohort import CohortPlan
from consilience.simulation.engines.jobs import Done, Job, StoreAnswers, Work
from consilience.simulation.engines.loop.shared_memory import SharedMemory
from consilience.user_code import files_of

_AHEAD = 2  # jobs a worker has in hand, so that it never waits for the next


_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # glibc gives memory of this size back at once and takes it anew at every step; page faults cost a tenth of one.
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
    "MALLOC_TOP_PAD_": str(2**24),
}


class Worker:
    """One process and the line to it."""

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
        self.line: Connection[Any, Any] = Connection(os.dup(ours.fileno()))

    def tell(self, kind: str, content: Any) -> None:
        """Say something."""
        try:
            self.line.send((kind, content))
        except OSError as error:
            raise self._gone() from error

    def hear(self) -> Any:
        """Wait for a reply; what failed there is raised here."""
        try:
            kind, content = self.line.recv()
        except (EOFError, OSError) as error:
            raise self._gone() from error
        if kind == "failed":
            raise content
        return content

    def _gone(self) -> ConsilienceError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=5)
        code = self.process.poll()
        why = "out of memory?" if code == -9 else "see its messages above"
        return ConsilienceError(f"worker process {self.process.pid} ended with exit code {code} ({why})")

    def dismiss(self) -> None:
        """Hang up and wait for the process to end."""
        self.line.close()
        self.socket.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class WorkerPool:
    """Some workers that share an arena."""

    def __init__(self, size: int) -> None:
        self.workers = [Worker() for _ in range(size)]

    def set_up(self, plans: list[CohortPlan], shared_memory: SharedMemory) -> None:
        """Give everybody the cohorts and the memory they lie in."""
        files = files_of(_modules_of(plans))
        for worker in self.workers:
            if files:  # a user's own exchanges: each process runs the file itself, before it reads the plans
                worker.tell("files", files)
                worker.hear()
            worker.tell("setup", (plans, shared_memory.shapes))
            socket.send_fds(worker.socket, [b"+"], [shared_memory.fd])
        for worker in self.workers:
            worker.hear()

    def tell_all(self, job: StoreAnswers) -> None:
        """New answers for everybody, as plain arrays. Nobody replies: what is told next is heard after it."""
        job = StoreAnswers({n: _plain(a) for n, a in job.answers.items()}, job.forget)
        for worker in self.workers:
            worker.tell("learn", job)

    def run(self, jobs: list[Job], slots: int) -> Iterator[tuple[Job, Done]]:
        """Do jobs in parallel and give results in the order of the jobs, whatever order they end in.

        A job's slot is free again when the caller asks for the next result.
        """
        waiting, free = list(enumerate(jobs))[::-1], list(range(slots))
        in_hand: dict[Worker, list[tuple[int, Job]]] = {w: [] for w in self.workers}
        finished: dict[int, tuple[Job, Done]] = {}
        lines = {w.line: w for w in self.workers}
        for following in range(len(jobs)):
            while True:
                self._hand_out(waiting, free, in_hand)
                if following in finished:
                    break
                for line in wait([w.line for w, todo in in_hand.items() if todo]):
                    worker = lines[line]  # type: ignore[index]
                    number, job = in_hand[worker].pop(0)
                    finished[number] = (job, worker.hear())
            job, done = finished.pop(following)
            yield job, done
            if isinstance(job, Work):
                free.append(job.slot)

    def _hand_out(self, waiting: Any, free: list[int], in_hand: Any) -> None:
        while waiting:
            worker = min(in_hand, key=lambda w: len(in_hand[w]))
            needs_slot = isinstance(waiting[-1][1], Work)
            if len(in_hand[worker]) >= _AHEAD or (needs_slot and not free):
                return
            number, job = waiting.pop()
            if needs_slot:
                job = replace(job, slot=free.pop())
            worker.tell("do", job)
            in_hand[worker].append((number, job))

    def dismiss(self) -> None:
        """End every process."""
        for worker in self.workers:
            worker.dismiss()
        self.workers = []


def _plain(answer: Answer) -> Answer:
    tensors = {k: t.numpy(force=True) for k, t in answer.tensors.items()}
    return Answer(tensors, answer.count.numpy(force=True), answer.version)


_teams: dict[int, WorkerPool] = {}


def worker_pool_of(size: int) -> WorkerPool:
    """The team of that size; it is kept until the program ends."""
    pool = _teams.get(size)
    if pool is None or any(w.process.poll() is not None for w in pool.workers):
        if pool is not None:
            pool.dismiss()
        pool = _teams[size] = WorkerPool(size)
    return pool


def ready(size: int) -> bool:
    """Whether there is a team of that size already."""
    return size in _teams


def forget(pool: WorkerPool) -> None:
    """End a team that may be in the middle of something, so that nobody gets it again."""
    for size in [s for s, t in _teams.items() if t is pool]:
        del _teams[size]
    for worker in pool.workers:
        worker.process.kill()
    pool.dismiss()


@atexit.register
def dismiss_all() -> None:
    """End every team."""
    while _teams:
        _teams.popitem()[1].dismiss()


def portable(plans: list[CohortPlan]) -> bool:
    """Whether other processes can be given these plans: not where a class or function lives in a user's script."""
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
    """Notes which modules a pickle needs."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.modules: set[str] = set()

    def find_class(self, module: str, name: str) -> Any:
        self.modules.add(module)
        return super().find_class(module, name)


def _importable(package: str) -> bool:
    """Whether a new process finds it too, and not only this one, which has loaded it by some other way."""
    return package != "__main__" and any(finder.find_spec(package, None) for finder in sys.meta_path)
