"""Shakespeare by role: the real file, and damaged files."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pooch
import pytest

from consilience.cli.main import main
from consilience.config.parts import DEFAULT_MODELS
from consilience.data import Dataset, load
from consilience.data.readers import shakespeare
from consilience.data.readers.shakespeare import FILE, LEAST
from consilience.errors import DataError

REAL = Path(os.environ.get("CONSILIENCE_DATA") or Path(__file__).parents[3] / "shared" / "data")

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def _no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CONSILIENCE_DATA", raising=False)


def speech(speaker: str, text: str, play: str = "play") -> str:
    return json.dumps({"play": play, "title": "A Play", "act": 1, "scene": 1, "speaker": speaker, "text": text})


def written(folder: Path, lines: Sequence[str]) -> Path:
    place = folder / "shakespeare"
    place.mkdir()
    (place / FILE).write_bytes(gzip.compress("\n".join(lines).encode() + b"\n"))
    return folder


# --- the plays


@pytest.fixture(scope="module")
def plays() -> Dataset:
    if not (REAL / "shakespeare" / FILE).is_file():
        pytest.skip(f"shakespeare is not in {REAL}; set CONSILIENCE_DATA to the folder that has it")
    return load("shakespeare", directory=REAL)


def test_shakespeare_has_133_roles_and_72_characters(plays: Dataset) -> None:
    assert plays.owners is not None and len(plays.owner_names) == len(np.unique(plays.owners)) == 133
    assert plays.classes == len(plays.alphabet) == 72
    assert plays.alphabet == "".join(sorted(plays.alphabet)) and plays.alphabet[:3] == "\n !"
    assert plays.inputs.shape == (182_216, 80) and plays.test_inputs.shape == (44_794, 80)
    assert plays.inputs.dtype == np.float32 and plays.inputs.nbytes < 100e6 and plays.scaling.kind == "none"
    assert plays.labels[:3] == ("newline", "space", "!") and "HAMLET in hamlet" in plays.owner_names


def test_samples_of_a_role_are_its_own_lines(plays: Dataset) -> None:
    assert plays.owners is not None
    first = int(np.argmax(plays.owners == plays.owner_names.index("HAMLET in hamlet")))
    said = "A little more than kin, and less than kind.\nNot so, my lord; I am too much i' the sun."
    assert plays.text(plays.inputs[first]) == said[:80] and plays.text(plays.targets[first]) == said[80]
    assert plays.text(plays.inputs[first + 1])[:70] == said[10:80]


def test_subset_has_samples_of_all_roles(plays: Dataset) -> None:
    few = load("shakespeare", directory=REAL, train=400, test=200)
    assert few.owners is not None and len(few.targets) == 400 and len(few.test_targets) == 200
    assert len(np.unique(few.owners)) == 133


def test_data_command_shows_text(plays: Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["data", "shakespeare", "--data-dir", str(REAL), "--train", "800", "--partition", "owners"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--learners", "3"])
    assert ended.value.code in (0, None)
    shown = capsys.readouterr()
    assert "800 training and 44,794 test samples of 80 characters by 133 owners, an alphabet of 72" in shown.out
    assert "'In delivering my son from me" in shown.out and "and 60 more characters" in shown.out
    assert " in " in shown.out and "case 7i" in shown.out and "pictures" not in shown.err


def test_run_command_partitions_by_role(plays: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = f"run --data shakespeare --data-dir {REAL} --partition owners --learners 3 --train 400 --test 20 --width 8"
    with pytest.raises(SystemExit) as ended:
        main([*words.split(), *f"--rounds 2 --method fedavg --out {tmp_path / 'run'} --json".split()])
    assert ended.value.code in (0, None)
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["model"] == "lstm" == DEFAULT_MODELS["shakespeare"] and summary["learners"] == 3
    assert len(json.loads((tmp_path / "run" / "data.json").read_text())["owners"]["0"]) == 3


# --- custom files


def test_lines_are_joined_per_role_and_short_roles_left_out(tmp_path: Path) -> None:
    long = "to be or not to be. " * 250  # 5,000 characters
    lines = [
        speech("HAM", long),
        speech("", "nobody? " * 2000),
        speech("OPH", "z" * (LEAST - 1)),
        speech("HAM", long),
        speech("HAM", long, play="other"),
        speech("HAM", long[:-1], play="other"),
    ]
    data = load("shakespeare", directory=written(tmp_path, lines))
    assert data.owner_names == ("HAM in play",)  # one character too short in the other play
    assert data.alphabet == "\n .?bdenortyz" and data.classes == 13  # lines of other roles are part of the alphabet
    # 10,001 characters with the newline between the speeches: 8,001 to train and 2,000 to test.
    assert len(data.targets) == (8001 - 81) // 10 + 1 and len(data.test_targets) == (2000 - 81) // 10 + 1
    assert any("\n" in data.text(each) for each in data.inputs)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"no gzip at all", "not a valid gzip file"),
        (gzip.compress(speech("A", "x" * 9999).encode())[:-9], "ends too early"),
        (gzip.compress(f"{speech('A', 'a')}\nnot json\n".encode()), "line 2: not a JSON object"),
        (gzip.compress(b'{"play": "\xff"}\n'), "line 1: not a JSON object"),
        (gzip.compress(f"{speech('A', 'a')}\n\n{speech('A', 'a')}\n".encode()), "line 2: not a JSON object"),
        (gzip.compress(b"[1, 2]\n"), "line 1: a speech has the keys play, speaker, text, each with text, got list"),
        (gzip.compress(b'{"play": "p", "speaker": "A"}\n'), "line 1: a speech has .* got 'play', 'speaker'"),
        (gzip.compress(b'{"play": "p", "speaker": null, "text": "a"}\n'), "line 1: a speech has the keys"),
        (gzip.compress(speech("A", "a" * 999).encode()), "none of 1 roles speaks 10,000 characters"),
        (gzip.compress(b""), "none of 0 roles speaks"),
    ],
    ids=range(10),  # gzip files contain the time
)
def test_damaged_file_is_named_with_the_line(tmp_path: Path, body: bytes, said: str) -> None:
    path = tmp_path / FILE
    path.write_bytes(body)
    with pytest.raises(DataError, match=said) as caught:
        load("shakespeare", directory=tmp_path)
    assert str(path) in str(caught.value)


def test_oversized_file_is_not_read_completely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shakespeare, "LARGEST", 1000)
    with pytest.raises(DataError, match="more than 1000 bytes"):
        load("shakespeare", directory=written(tmp_path, [speech("A", "a" * 1000)]))


def test_shakespeare_is_never_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooch, "retrieve", lambda *a, **k: pytest.fail("a download was tried"))
    with pytest.raises(DataError, match=f"not downloaded.* shakespeare/{FILE}.*--data-dir or CONSILIENCE_DATA"):
        load("shakespeare")
    with pytest.raises(DataError, match="is at none of") as caught:
        load("shakespeare", directory=tmp_path)
    assert "to download" not in str(caught.value)
