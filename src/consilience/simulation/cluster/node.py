"""What a process on a machine of a cluster needs beside its work: the machine's name, and log messages to send back."""

from __future__ import annotations

import logging
import platform

LogLine = tuple[int, str]
"""A level and a message."""


def node_name() -> str:
    """The machine that this process is on: its name, and the beginning of its number in the cluster."""
    import ray

    return f"{platform.node()} (node {ray.get_runtime_context().get_node_id()[:8]})"


class KeptLog(logging.Handler):
    """Keeps log messages until they are sent to the program that started the run, which knows whose they are."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[LogLine] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message."""
        self.lines.append((record.levelno, record.getMessage()))

    def take(self) -> list[LogLine]:
        """The messages so far, which are then forgotten."""
        taken, self.lines = self.lines, []
        return taken


def keep_log() -> KeptLog:
    """Keep all that consilience logs in this process from now on."""
    kept, log = KeptLog(), logging.getLogger("consilience")
    log.handlers, log.propagate = [kept], False
    log.setLevel(logging.INFO)
    return kept
