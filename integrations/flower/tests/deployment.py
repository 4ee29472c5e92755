"""A Flower deployment on loopback: a SuperLink and SuperNodes as processes, and `flwr run` against them."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

EXAMPLE = Path(__file__).parents[1] / "example"
BIN = Path(sys.executable).parent
_COLORS = re.compile(r"\x1b\[[0-9;]*m")


def _free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


def await_true(condition: Callable[[], bool], seconds: float, what: Callable[[], str]) -> None:
    """Wait until a condition is true, at most for these seconds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what()
        time.sleep(0.2)


@dataclass
class Deployment:
    """A SuperLink and its nodes; everything it writes is in `folder`."""

    folder: Path
    environment: Mapping[str, str]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    port: int = field(default_factory=_free_port)

    @property
    def app(self) -> Path:
        return self.folder / "app"

    def log(self, name: str) -> str:
        return _COLORS.sub("", (self.folder / f"{name}.log").read_text(errors="replace"))

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes[name] = process
        return process

    def start_link(self) -> None:
        command = ("flower-superlink", "--insecure", "--disable-runtime-dependency-installation")
        process = self.start("superlink", *command, "--host", "127.0.0.1", "--port", str(self.port))

        def answers() -> bool:
            assert process.poll() is None, self.log("superlink")
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0):
                return True
            return False

        await_true(answers, 120.0, lambda: self.log("superlink"))

    def start_node(self, name: str, config: Mapping[str, str | int]) -> None:
        link = ("--superlink", f"127.0.0.1:{self.port}", "--host", "127.0.0.1", "--port", str(_free_port()))
        written = " ".join(f"{k}={v}" if isinstance(v, int) else f"{k}='{v}'" for k, v in config.items())
        self.start(name, "flower-supernode", "--insecure", *link, "--node-config", written)

    def start_run(self, **settings: str | int | bool) -> subprocess.Popen[bytes]:
        """`flwr run`, which shows the run's log in `run.log` until the run has ended."""
        content = "".join(f"consilience-{key} = {_toml(value)}\n" for key, value in settings.items())
        (self.folder / "run.toml").write_text(content)
        return self.start(
            "run", "flwr", "run", str(self.app), "local", "--stream", "--run-config", str(self.folder / "run.toml")
        )

    def run(self, seconds: float, **settings: str | int | bool) -> str:
        """A whole run; what it shows."""
        process = self.start_run(**settings)
        await_true(lambda: process.poll() is not None, seconds, lambda: self.log("run"))
        return self.log("run")

    def stop(self, name: str, with_signal: signal.Signals = signal.SIGTERM) -> None:
        """End a process and those that it has started, some of which are in sessions of their own."""
        process = self.processes.pop(name)
        family = _family(process.pid) if process.poll() is None else []
        for each in family if with_signal == signal.SIGKILL else family[:1]:
            os.kill(each.pid, with_signal)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=20)
        known = {(each.pid, each.started) for each in family}
        for each in (each for each in _running() if (each.pid, each.started) in known):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGKILL)
        process.wait()


class _Process(NamedTuple):
    """A process; the time of its start tells it from a later one with its number."""

    pid: int
    parent: int
    started: str


def _running() -> list[_Process]:
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,lstart="], capture_output=True, text=True, check=True).stdout
    return [_Process(int(pid), int(parent), started) for pid, parent, started in map(_split, listed.splitlines())]


def _split(line: str) -> list[str]:
    return line.split(None, 2)


def _family(pid: int) -> list[_Process]:
    """A process, those that it has started, and those that they have."""
    running = _running()
    found, newest = list[_Process](), [each for each in running if each.pid == pid]
    while newest:
        found += newest
        parents = {each.pid for each in newest}
        newest = [each for each in running if each.parent in parents]
    return found


def _toml(value: str | int | bool) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else f'"{value}"'


@contextlib.contextmanager
def deployment(folder: Path) -> Iterator[Deployment]:
    """A SuperLink with the example app, to which nodes can be added; all processes end with it."""
    home = folder / "flwr"
    home.mkdir()
    more = {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    made = Deployment(folder, os.environ | more)
    shutil.copytree(EXAMPLE, made.app, ignore=shutil.ignore_patterns("__pycache__"))
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "local"\n\n[superlink.local]\naddress = "127.0.0.1:{made.port}"\ninsecure = true\n'
    )
    try:
        made.start_link()
        yield made
    finally:
        for name in reversed(list(made.processes)):
            made.stop(name)
