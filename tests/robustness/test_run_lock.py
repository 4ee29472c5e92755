"""The lock of a run folder: a run in progress is shown as such, has one writer, and a dead owner is noticed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from consilience import simulate
from consilience.errors import ConfigurationError
from consilience.simulation.records.run_folder import RunFolder
from consilience.simulation.records.run_lock import lock_folder, read_owner, run_status
from tests.conftest import Command

SMALL = ["--learners", "2", "--train", "40", "--test", "20", "--workers", "0", "--eval-every", "50"]
ROUNDS = 3000


@pytest.fixture
def running(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A run of many rounds in a process of its own, in `live`, past its first rounds."""
    program = [sys.executable, "-m", "consilience.cli.main", "run", "--method", "fedavg", *SMALL]
    process = subprocess.Popen(
        [*program, "--rounds", str(ROUNDS), "--out", "live"],
        cwd=tmp_path,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src"), "OMP_NUM_THREADS": "1"},
    )
    for _ in range(1200):
        metrics = tmp_path / "live" / "metrics.jsonl"
        if metrics.exists() and metrics.read_bytes().count(b"\n") > 10:
            break
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    yield process
    if process.poll() is None:
        process.kill()
    process.communicate()


def test_run_in_progress_is_shown_and_has_one_writer(running: subprocess.Popen[str], command: Command) -> None:
    live = Path("live")
    for _ in range(3):
        code, out, err = command("show", "live")
        assert code == 0 and "fedavg" in out and "resume" not in err
        assert "'fedavg' is running, round " in err and f" of {ROUNDS} (process {running.pid} on " in err
        code, _, err = command("run", "--resume", "live")
        assert code == 2 and f"live is being written by process {running.pid} on " in err
    assert running.poll() is None
    running.send_signal(signal.SIGINT)  # ends after its round
    assert running.wait(timeout=60) == 130
    status = run_status(RunFolder.open(live))
    assert status.state == "stopped" and 0 < status.round < ROUNDS
    lines = [json.loads(line) for line in (live / "metrics.jsonl").read_text().splitlines()]
    expected = [(round_, learner) for round_ in range(status.round + 1) for learner in range(2)]
    assert [(line["round"], line["learner"]) for line in lines] == expected


def test_folder_of_a_killed_process_is_free_again(running: subprocess.Popen[str], command: Command) -> None:
    running.kill()
    running.wait(timeout=60)
    code, _, err = command("show", "live")
    assert code == 0 and "was stopped after round" in err and "resume with: consilience run --resume live" in err
    assert read_owner(Path("live")) is None


def test_comparison_and_sweep_have_one_writer(command: Command) -> None:
    small = [*SMALL, "--rounds", "1"]
    assert command("compare", "--methods", "independent,fedavg", *small, "--out", "both")[0] == 0
    assert command("sweep", "--method", "fedproto", "--set", "method.kd=0,1", *small, "--out", "swept")[0] == 0
    for kind, folder in (("compare", "both"), ("sweep", "swept")):
        with lock_folder(Path(folder)):
            code, _, err = command(kind, "--resume", folder)
            assert code == 2 and f"{folder} is being written by process {os.getpid()} on " in err
        assert command(kind, "--resume", folder)[0] == 0


def test_second_run_in_the_same_process_is_refused(tmp_path: Path) -> None:
    def resume_again(*_: object) -> None:
        with pytest.raises(ConfigurationError, match="is being written by process"):
            simulate(resume=tmp_path / "run")

    settings = {"learners": 2, "rounds": 1, "train": 40, "test": 20, "workers": 0}
    assert simulate(method="fedavg", out=tmp_path / "run", on_round=resume_again, **settings).finished  # type: ignore[arg-type]


def test_owner_without_a_name_is_another_process(tmp_path: Path) -> None:
    with lock_folder(tmp_path):
        (tmp_path / ".lock").write_bytes(b"")
        assert read_owner(tmp_path) == "another process"
    assert read_owner(tmp_path) is None
