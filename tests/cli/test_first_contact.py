"""The command before anything is learned: what it shows, how quickly, and how a shell completes it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = "import sys; sys.argv[0] = 'consilience'; from consilience.cli.main import main; main()"
WITHOUT_TORCH = f"import sys; sys.modules['torch'] = None; sys.modules['numpy'] = None\n{COMMAND}"


def call(*arguments: str, program: str = WITHOUT_TORCH, **environment: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of the command in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "COLUMNS": "100", "TERM": "dumb", **environment},
    )
    return done.returncode, done.stdout, done.stderr


def test_without_arguments_it_names_five_commands_to_begin_with() -> None:
    status, out, _ = call()
    named = [line.split()[1] for line in out.splitlines() if line.startswith("  consilience ")]
    assert status == 0 and named == ["run", "compare", "report", "init", "methods"] and "consilience --help" in out
    helped = call("--help")[1]
    positions = [helped.index(f"─ {heading} ─") for heading in ("To begin", "More with runs", "Over a network")]
    assert positions == sorted(positions)


def test_common_options_come_first_in_the_help() -> None:
    status, out, _ = call("run", "--help")
    words = ["─ Options ─", "--method", "─ Common settings ─", "--data ", "--rounds ", "─ Training settings ─"]
    positions = [out.index(word) for word in [*words, "--weight-decay", "─ Execution settings ─", "--precision"]]
    assert status == 0 and positions == sorted(positions)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "--bogus"], "No such option"),
        (["run", "--rounds", "many"], "--rounds"),
        (["run", "--rounds", "0"], "rounds is 0; it must be 1 or more"),
        (["run", "--method", "fedavgg"], "Did you mean 'fedavg'?"),
        (["run", "--method", "fedavg:kd=3"], "unknown setting 'kd' of method 'fedavg'"),
        (["run", "--set", "kd=3"], "write --set method.kd=VALUE"),
        (["run", "missing.toml"], "no such file"),
        (["run", "--resume", "there", "--rounds", "3"], "give it no others"),
        (["compare", "--methods", "fedavg,fedprx"], "Did you mean 'fedprox'?"),
        (["sweep", "--set", "lr=0.1,0.2", "--learners", "0"], "learners is 0"),
    ],
)
def test_wrong_options_are_refused_before_torch_is_imported(arguments: list[str], said: str) -> None:
    status, out, errors = call(*arguments)
    assert (status, out) == (2, "") and said in errors


def test_a_settings_file_is_written_before_torch_is_imported(tmp_path: Path) -> None:
    status, out, errors = call("init", str(tmp_path / "mine.toml"), "--method", "fedprox")
    assert (status, errors) == (0, "") and "consilience run" in out
    written = (tmp_path / "mine.toml").read_text(encoding="utf-8")
    assert 'name = "fedprox"' in written and "# mu = 0.01" in written


def test_a_shell_completes_commands_options_and_methods(tmp_path: Path) -> None:
    complete = {"_CONSILIENCE_COMPLETE": "complete_bash"}
    assert call(**complete, COMP_WORDS="consilience com", COMP_CWORD="1")[1].split() == ["compare"]
    assert call(**complete, COMP_WORDS="consilience run --batch", COMP_CWORD="2")[1].split() == ["--batch-size"]
    assert "fedprox" in call(**complete, COMP_WORDS="consilience run --method fedp", COMP_CWORD="3")[1].split()
    home = {"HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    status, out, _ = call("--install-completion", "bash", **home)
    assert status == 0 and "completion installed" in out and "consilience" in (tmp_path / ".bashrc").read_text()
