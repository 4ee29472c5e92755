"""The examples run as programs, print nothing to standard error, and print correct numbers."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(600)  # members in several processes, on a machine that may be busy

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
COVERED = (
    "bring_your_own_data",
    "bring_your_own_model",
    "download_only",
    "federated_lora",
    "four_trainers",
    "hugging_face_clinics",
    "lightning_wards",
    "mixed_architectures",
    "new_exchange",
    "numpy_member",
    "sklearn_member",
    "three_peers",
    "two_hospitals",
)
LINES = 150
MARKED = re.compile(r"  # (\d)(?:, .*)?$")
"""A line that a user adds or changes, and its number."""
FEDERATED = {"join", "join_arrays", "peer", "ConsilienceCallback", "ConsilienceTrainer"}
"""Names that code has only where it takes part in a federation."""
WARNS = {"federated_lora": ["-W", "ignore::FutureWarning"]}
"""peft calls what transformers will drop."""


def output(name: str, folder: Path) -> list[str]:
    """The lines that an example prints, run as a program from another folder."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    environment["CONSILIENCE_CACHE"] = str(folder / "cache")
    program = [sys.executable, "-W", "error", *WARNS.get(name, []), str(EXAMPLES / f"{name}.py")]
    result = subprocess.run(program, cwd=folder, env=environment, capture_output=True, text=True, timeout=540)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout.splitlines()


def numbers(line: str) -> list[float]:
    """Every number in a line that stands as a separate word."""
    return [float(found.replace(",", "")) for found in re.findall(r"(?<![\w.])[+-]?[\d,]*\d(?:\.\d+)?(?![\w.])", line)]


def test_every_example_is_covered() -> None:
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == list(COVERED)


@pytest.mark.parametrize("name", COVERED)
def test_example_is_short_and_has_its_command(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert text.count("\n") < LINES
    assert f"\n    python examples/{name}.py\n" in text.split('"""')[1]


def test_an_existing_network_is_split_before_its_classifier(tmp_path: Path) -> None:
    shapes, parameters, independent, together = output("bring_your_own_model", tmp_path)
    assert shapes == "features (5, 48), logits (5, 10)"
    # 8 x 9 + 8, 16 x 72 + 16, 48 x 64 + 48 and 10 x 48 + 10.
    assert parameters == "parameters 4,858, same output as the network: True"
    assert independent.startswith("independent") and together.startswith("representation-sharing")
    # Two channels, each with 10 x 48 features of 4 bytes and 10 counts of 4 bytes, and the header of a message.
    assert numbers(independent)[1] == 0 and 2 * (10 * 48 * 4 + 10 * 4) < numbers(together)[1] < 4400
    assert min(numbers(independent)[0], numbers(together)[0]) > 60  # chance is 10


def test_images_in_a_folder_are_classified(tmp_path: Path) -> None:
    loaded, independent, together, arrays, torch_like = output("bring_your_own_data", tmp_path)
    assert loaded == "shapes: (180, 1, 16, 16) for training, (120, 1, 16, 16) for tests, circle, square, triangle"
    assert min(numbers(independent)[0], numbers(together)[0]) > 60  # chance is 33
    assert arrays.startswith("arrays: (240, 1, 16, 16)") and "60 for tests, scaled by mean" in arrays
    assert torch_like == "torch: (240, 1, 16, 16), the same samples as from arrays: True"
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == []  # no files are left behind


def test_one_bit_for_each_weight_of_adapters_is_a_small_part_of_the_model(tmp_path: Path) -> None:
    pytest.importorskip("peft"), pytest.importorskip("transformers")
    _, bit, floats, model, summary = output("federated_lora", tmp_path)
    assert all(line.endswith("True") for line in (bit, floats, model))  # all members have the same bits
    (trained, sent, before, after), (_, as_floats, *_), (whole, in_full, *_) = map(numbers, (bit, floats, model))
    assert trained == 2 * 2 * (64 * 2 * 2) + 64 * 4 + 4 and whole > 100 * trained
    assert 200 * sent <= in_full and 4 * whole < in_full
    assert 10 * sent < as_floats and 4 * trained < as_floats
    assert before < 40 and after > 55  # chance is 25
    assert summary.startswith(f"one bit is 1/{int(in_full // sent)} of the model in float32")


def test_three_architectures_share_features_of_one_width(tmp_path: Path) -> None:
    _, *rows, mean, bytes_up = output("mixed_architectures", tmp_path)
    assert [row.split()[1] for row in rows] == ["lenet5", "lenet5", "mlp", "mlp", "patches", "patches"]
    table = [numbers(row) for row in rows]
    for _, before, after, gain in table:
        assert gain == pytest.approx(after - before, abs=0.11)
        assert 50 < before < 100 and 50 < after < 100
    assert numbers(mean)[0] == pytest.approx(sum(row[1] for row in table) / 6, abs=0.11)
    assert any(row[3] != 0 for row in table)
    assert numbers(bytes_up)[0] == 2896


def test_a_new_exchange_uploads_little_and_works_between_widths(tmp_path: Path) -> None:
    _, *rows, widths = output("new_exchange", tmp_path)
    found = {row.split()[0]: numbers(row) for row in rows}
    assert list(found) == ["independent", "self-distillation", "class-similarity", "representation-sharing"]
    assert [row[2] for row in found.values()][:2] == [0, 0]
    # 100 cosines and 100 counts of 4 bytes, and the header of a message.
    assert 800 < found["class-similarity"][2] < 1000 < found["representation-sharing"][2]
    assert found["class-similarity"][0] != found["independent"][0]
    assert all(row[0] > 60 for row in found.values())
    assert re.findall(r"with (\d+)", widths) == ["16", "32", "64"]


def test_download_only_sends_nothing_and_upload_only_trains_as_if_independent(tmp_path: Path) -> None:
    _, newcomers, archives, partners = output("download_only", tmp_path)
    before, after, up, down = numbers(newcomers)
    assert (up, before != after) == (0, True) and down > 0
    before, after, up, down = numbers(archives)
    assert (before, down) == (after, 0) and up > 0
    before, after, up, down = numbers(partners)
    assert up == down > 0 and before != after


def test_two_hospitals_keep_training_while_the_relay_is_down(tmp_path: Path) -> None:
    killed, *between, _, north, south = output("two_hospitals", tmp_path)
    assert killed.endswith("the relay is killed; both hospitals keep training")
    assert between[0].endswith("the relay is started again")
    back = {line.split(",")[0]: numbers(line)[-1] for line in between[1:] if "uploads again" in line}
    assert sorted(back) == ["north", "south"]
    assert min(back.values()) >= 5  # rounds of each hospital without the relay
    for row, name in ((north, "north"), (south, "south")):
        *_, alone, together, gain, up = numbers(row)
        assert row.split()[0] == name and alone > 60 and together > 60  # chance is 10
        assert gain == pytest.approx(together - alone, abs=0.11)
        # Two channels of 10 x 64 features and 10 counts, 4 bytes each, and the header of a message; 20 rounds at least.
        assert 20 * 5.28 < up < 60 * 6
        assert gain > -10  # how much it is depends on how the processes interleave


def test_three_peers_learn_together_without_a_relay(tmp_path: Path) -> None:
    _, *rows = output("three_peers", tmp_path)
    assert [row.split()[0] for row in rows] == ["north", "south", "west"]
    for row in rows:
        *_, alone, together, gain, sent = numbers(row)
        assert alone > 50 and together > 50 and gain == pytest.approx(together - alone, abs=0.11)  # chance is 10
        assert gain > -5
        # To each of two others: two channels of 10 x 64 features and 10 counts, 4 bytes each, and the head of messages.
        assert 2 * 5.28 < sent < 2 * 6


@pytest.mark.parametrize(("name", "least"), [("numpy_member", 75), ("sklearn_member", 80)])
def test_wards_without_torch_learn_digits_that_they_lack(tmp_path: Path, name: str, least: float) -> None:
    _, _, *rows = output(name, tmp_path)
    assert [row.split()[0] for row in rows] == ["north", "south", "west"]
    for row, digits in zip(rows, (3, 3, 4), strict=True):
        alone, together, *_, lacking_alone, lacking_together = numbers(row.split(" to ")[1])[1:]
        assert 10 * digits - 4 < alone < 10 * digits + 2 and lacking_alone == 0  # at best all of its own digits
        assert together > least and lacking_together > least


def federated_statements(function: str) -> list[str]:
    """The numbers behind all statements of a function in which something of a federation is named."""
    text = (EXAMPLES / "four_trainers.py").read_text(encoding="utf-8")
    (found,) = (each for each in ast.parse(text).body if isinstance(each, ast.FunctionDef) and each.name == function)
    simple = [each for each in ast.walk(found) if isinstance(each, ast.Assign | ast.AugAssign | ast.Expr)]
    named = [each for each in simple if {n.id for n in ast.walk(each) if isinstance(n, ast.Name)} & FEDERATED]
    marks = [MARKED.search(text.splitlines()[(each.end_lineno or 0) - 1]) for each in named]
    assert None not in marks  # no such statement without a number
    return sorted(mark[1] for mark in marks if mark)


def test_four_trainers_change_three_lines_and_learn_from_each_other(tmp_path: Path) -> None:
    pytest.importorskip("lightning"), pytest.importorskip("transformers")
    members = ["lightning_module", "hugging_face", "plain_torch", "scikit_learn"]
    assert [federated_statements(name) for name in members] == [list("12"), list("12"), list("123"), list("123")]
    _, *rows = output("four_trainers", tmp_path)
    assert [row.split()[0] for row in rows] == members
    gains = []
    for row in rows:
        alone, together, gain, sent = numbers(row)
        assert alone > 25 and together > 25 and gain == pytest.approx(together - alone, abs=0.11)  # chance is 10
        assert gain > -10  # how much it is depends on how the processes interleave
        # Ten classes, each with ten logits and a count, of 4 bytes each: in 10 rounds or 40, fewer if one was refused.
        assert 4 * 0.44 < sent < 50
        gains.append(gain)
    assert sum(gains) > 0


@pytest.mark.parametrize(
    ("name", "needs", "members", "least"),
    [
        # 40 epochs, of two channels of 10 x 64 features and 10 counts, 4 bytes each; fewer if an upload was refused.
        ("lightning_wards", "lightning", ["north", "south"], 10 * 5.28),
        # 20 epochs, of two channels of 4 x 32 features and 4 counts.
        ("hugging_face_clinics", "transformers", ["east", "west"], 5 * 1.05),
    ],
)
def test_two_members_with_trainers_of_others_learn_together(
    name: str, needs: str, members: list[str], least: float, tmp_path: Path
) -> None:
    pytest.importorskip(needs)
    _, *rows = output(name, tmp_path)
    assert [row.split()[0] for row in rows] == members
    for row in rows:
        *_, alone, together, gain, sent = numbers(row)
        assert alone > 40 and together > 40 and gain == pytest.approx(together - alone, abs=0.11)  # chance: 10 and 25
        assert gain > -10 and least < sent < 10 * least  # how much it is depends on how the processes interleave
