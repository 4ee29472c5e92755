"""A worker process: one executor with one thread, which gets its jobs over a socket.

Started as a program of its own, so that it never runs the script that started the simulation.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import socket
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any

import torch

from consilience.channels import Answer
from consilience.simulation.engines.cohort import CohortPlan
from consilience.simulation.engines.loop.executor import LocalExecutor
from consilience.simulation.engines.loop.memory_layout import make_executor
from consilience.simulation.engines.loop.shared_memory import SharedMemory
from consilience.user_code import load_module

FILES, SET_UP, ANSWERS, JOB = "files", "set up", "answers", "job"
"""Messages to a worker: files of the user's own code, a new simulation, new answers (without a reply), and a job."""
DONE, FAILED = "done", "failed"
"""Replies of a worker."""


def do_jobs(connection: Connection, channel: socket.socket) -> None:
    """Set up simulations, store answers and do jobs, until the main process closes the connection."""
    executor: LocalExecutor | None = None
    batches: dict[int, Answer] = {}
    while True:
        try:
            kind, content = connection.recv()
        except (EOFError, OSError):
            return
        reply: tuple[str, Any] = (DONE, None)
        try:
            if kind == FILES:
                for file in content:
                    load_module(file)
            elif kind == SET_UP:
                executor = None  # frees the last simulation's memory first,
                batches = {}
                gc.collect()  # now: modules and their hooks hold each other, and with them all that was shared
                _, (fd, *_), _, _ = socket.recv_fds(channel, 1, 1)
                executor = _set_up(content[0], content[1], fd, batches)
            elif kind == ANSWERS:
                _store(batches, *content)
                continue
            else:
                assert executor is not None
                reply = (DONE, executor.do(content))
        except Exception as error:  # the main process raises it
            reply = (FAILED, _portable(error))
        try:
            connection.send(reply)
        except BrokenPipeError:  # the main process has failed, and says why itself
            return


def _set_up(plans: list[CohortPlan], shapes: Any, fd: int, batches: dict[int, Answer]) -> LocalExecutor:
    try:
        return make_executor(plans, SharedMemory(shapes, fd).tensors, batches)
    finally:
        os.close(fd)


def _store(batches: dict[int, Answer], new: dict[int, Answer], unused: list[int]) -> None:
    """Answers travel as NumPy arrays."""
    for first in unused:
        del batches[first]
    for first, batch in new.items():
        tensors = {k: torch.as_tensor(t) for k, t in batch.tensors.items()}
        batches[first] = Answer(tensors, torch.as_tensor(batch.count), batch.version)


def _portable(error: Exception) -> Exception:
    """The error with its traceback, in a form that the main process can unpickle."""
    place = f"in a worker process:\n{''.join(traceback.format_exception(error))}"
    error.add_note(place)
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # its class cannot be made from its message alone
        error = RuntimeError(f"{type(error).__name__}: {error}")
        error.add_note(place)
    return error


def main() -> None:
    """Entry point: the number of an inherited socket is the only argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process decides when to stop
    torch.set_num_threads(1)
    number = int(sys.argv[1])
    channel = socket.socket(fileno=os.dup(number))
    do_jobs(Connection(number), channel)


if __name__ == "__main__":
    main()
