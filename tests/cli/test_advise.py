"""`consilience advise`: three sentences, the numbers as JSON, settings from a file, and errors of one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

Command = Callable[..., tuple[int, str, str]]
SHORT = ("--train", "60", "--learners", "2", "--rounds", "1", "--epochs", "1", "--seeds", "3")

pytestmark = pytest.mark.usefixtures("one_thread")


def test_it_says_three_sentences(command: Command, tmp_path: Path) -> None:
    code, out, errors = command("advise", "digits", "--model", "mlp", *SHORT, "--out", str(tmp_path / "out"))
    lines = out.splitlines()
    assert code == 0 and len(lines) == 3 and all(line.endswith(".") for line in lines)
    assert (
        "working together" in lines[0]
        and " of 2 learners" in lines[1]
        and "the trial had 1 round and 3 seeds" in lines[2]
    )
    assert "a trial with 7 methods, 3 seeds and 1 round" in errors and "saved in" in errors
    saved = json.loads((tmp_path / "out" / "advice.json").read_text(encoding="utf-8"))
    assert saved["sentences"] == lines
    again = command("advise", str(tmp_path / "out" / "trial.toml"), "--json")
    assert again[0] == 0 and json.loads(again[1]) == saved


def test_the_numbers_are_printed_where_asked_for(command: Command) -> None:
    out = command("advise", *SHORT, "--table", "--bytes-per-round", "10000")[1]
    assert "fedavg-1bit" in out and "by chance" in out and "FedAvg needs 53.3 kB and was not run." in out


def test_settings_of_the_method_are_given_as_for_other_commands(command: Command, tmp_path: Path) -> None:
    code, _, errors = command("advise", *SHORT, "--set", "method.kd=3", "--out", str(tmp_path / "out"))
    assert code == 0, errors
    assert "kd = 3" in (tmp_path / "out" / "trial.toml").read_text(encoding="utf-8")


def test_a_file_has_settings_and_options_override_them(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("train = 60\nlearners = 2\nrounds = 2\nepochs = 1\nseeds = 3\n", encoding="utf-8")
    numbers = json.loads(command("advise", str(file), "--rounds", "1", "--json")[1])
    assert (numbers["trial"]["rounds"], numbers["trial"]["seeds"], numbers["trial"]["samples"]) == (1, 3, 60)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--learners", "1"], "working together needs two or more: give --learners"),
        (["--bytes-per-round", "100"], "bytes per learner and round; allow"),
        (["--method", "fedavgg"], "Did you mean 'fedavg'?"),
        (["--learners", "20"], "needs 5 or more of each learner"),
        (["--seeds", "2"], "needs 3 or more: use 8, or leave seeds out"),
    ],
)
def test_errors_name_the_way_out(command: Command, arguments: list[str], said: str) -> None:
    code, out, errors = command("advise", *SHORT, *arguments)
    assert (code, out) == (2, "") and said in errors


def test_data_without_labels_is_refused(command: Command, tmp_path: Path) -> None:
    np.savez(tmp_path / "ward.npz", x=np.zeros((20, 3)))
    code, _, errors = command("advise", str(tmp_path / "ward.npz"))
    assert code == 1 and "no array is called 'labels' or 'y'" in errors and "Save images (or x, or x.NAME" in errors
    assert "and labels (or y)" in errors
