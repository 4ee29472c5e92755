"""A Flower deployment on loopback: a SuperLink and SuperNodes as processes, and `flwr run` against them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "example"
BIN = Path(sys.executable).parent


def _free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


def _await_port(port: int, process: subprocess.Popen[bytes], log: Path, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        if process.poll() is not None:
            break
        time.sleep(0.1)
    raise AssertionError(f"nothing answers on port {port}:\n{log.read_text()}")


@dataclass
class Deployment:
    """A SuperLink and its nodes; everything it writes is in `folder`."""

    folder: Path
    app: Path
    environment: Mapping[str, str]
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    port: int = field(default_factory=_free_port)

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def start_link(self) -> None:
        where = ("--host", "127.0.0.1", "--port", str(self.port))
        process = self.start(
            "superlink", "flower-superlink", "--insecure", "--disable-runtime-dependency-installation", *where
        )
        _await_port(self.port, process, self.folder / "superlink.log")

    def start_node(self, name: str, config: str) -> None:
        link = ("--superlink", f"127.0.0.1:{self.port}", "--port", str(_free_port()))
        self.start(name, "flower-supernode", "--insecure", *link, "--node-config", config)

    def run(self, *settings: str, seconds: float = 300.0) -> str:
        """`flwr run` until the run has ended; what it shows, without colors."""
        command = [str(BIN / "flwr"), "run", str(self.app), "local", "--stream"]
        command += [part for each in settings for part in ("--run-config", each)]
        done = subprocess.run(
            command,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
            check=False,
        )
        return done.stdout.decode(errors="replace")

    def stop(self) -> None:
        for process in reversed(self.processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@contextlib.contextmanager
def deployment(folder: Path, nodes: Sequence[str]) -> Iterator[Deployment]:
    """A SuperLink, and a SuperNode for each node configuration."""
    app = folder / "app"
    shutil.copytree(EXAMPLE, app, ignore=shutil.ignore_patterns("__pycache__"))
    home = folder / "flwr"
    home.mkdir()
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    more = {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "PATH": path,
        "NO_COLOR": "1",
        "OMP_NUM_THREADS": "1",
    }
    made = Deployment(folder, app, os.environ | more)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "local"\n\n[superlink.local]\naddress = "127.0.0.1:{made.port}"\ninsecure = true\n'
    )
    try:
        made.start_link()
        for number, config in enumerate(nodes):
            made.start_node(f"node-{number}", config)
        yield made
    finally:
        made.stop()
