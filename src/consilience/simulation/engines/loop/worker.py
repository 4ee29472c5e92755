"""A worker process: one pair of hands with one thread, told what to do over a socket.

Started as a program of its own, so that it never runs the script of whoever started the simulation.
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

from consilience.simulation.engines.cohort import Cohort, CohortPlan
from consilience.simulation.engines.loop.executor import Hands
from consilience.simulation.engines.loop.shared_memory import SharedMemory
from consilience.simulation.engines.shared_data import Data
from consilience.user_code import load_module


def assemble(plans: list[CohortPlan], tensors: dict[str, torch.Tensor]) -> Hands:
    """Hands over tensors named `data.*`, `state.COHORT.*` and `slot.COHORT.*`."""

    def under(prefix: str) -> dict[str, torch.Tensor]:
        return {k[len(prefix) :]: t for k, t in tensors.items() if k.startswith(prefix)}

    cohorts = [Cohort(plan, under(f"state.{i}.")) for i, plan in enumerate(plans)]
    return Hands(cohorts, Data(**under("data.")), [under(f"slot.{i}.") for i in range(len(plans))])


def serve(connection: Connection, channel: socket.socket) -> None:
    """Set up, do jobs and answer, until the other side is gone."""
    hands: Hands | None = None
    while True:
        try:
            kind, content = connection.recv()
        except (EOFError, OSError):
            return
        try:
            if kind == "files":
                for file in content:
                    load_module(file)
                reply: tuple[str, Any] = ("ready", None)
            elif kind == "setup":
                hands = None  # lets go of the last simulation's memory first,
                gc.collect()  # now: modules and their hooks hold each other, and with them all that was shared
                _, (fd, *_), _, _ = socket.recv_fds(channel, 1, 1)
                hands = _set_up(content[0], content[1], fd)
                reply = ("ready", None)
            else:
                assert hands is not None
                reply = ("done", hands.do(content))
                if kind == "learn":
                    continue
        except Exception as error:  # the other side raises it
            reply = ("failed", _told(error))
        connection.send(reply)


def _told(error: Exception) -> Exception:
    """The error with the place it happened at, as something the other side can take out of a pickle."""
    place = f"in a worker process:\n{''.join(traceback.format_exception(error))}"
    error.add_note(place)
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # of a class that is not made from its message alone
        error = RuntimeError(f"{type(error).__name__}: {error}")
        error.add_note(place)
    return error


def _set_up(plans: list[CohortPlan], shapes: Any, fd: int) -> Hands:
    try:
        return assemble(plans, SharedMemory(shapes, fd).tensors)
    finally:
        os.close(fd)


def main() -> None:
    """Entry point: the number of an inherited socket is the only argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process decides when to stop
    torch.set_num_threads(1)
    number = int(sys.argv[1])
    channel = socket.socket(fileno=os.dup(number))
    serve(Connection(number), channel)


if __name__ == "__main__":
    main()
