"""The commands of a real federation: write a charter, create a federation at a relay, train members as processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import consilience
from consilience import load
from consilience.cli.member_data import load_member_data
from consilience.config.config import make_config
from consilience.errors import ConfigurationError
from consilience.export import read_card
from consilience.models import build_model
from consilience.wire.charter import read_charter
from tests.conftest import Command
from tests.method_tools import write_readme_exchange
from tests.relay_tools import SOURCE, RelayProcess, serve, serving


def write_digits(folder: Path, owners: str, samples: int, tests: int) -> list[Path]:
    """The digits of some data owners, a file for each, and their common test set."""
    data = load("digits")
    mean, std = data.scaling.of_pixels
    images, test_images = (np.clip(inputs * std + mean, 0, 1) for inputs in (data.inputs, data.test_inputs))
    files = []
    for i, owner in enumerate(owners):
        own = slice(samples * i, samples * (i + 1))
        arrays: dict[str, Any] = {"images": images[own], "labels": data.targets[own]}
        arrays |= {"test_images": test_images[:tests], "test_labels": data.test_targets[:tests]}
        files.append(folder / f"{owner}.npz")
        np.savez(files[-1], allow_pickle=False, **arrays)
    return files


@pytest.fixture
def digits(tmp_path: Path) -> list[Path]:
    """The digits of two data owners, and their common test set."""
    return write_digits(tmp_path, "ab", 120, 200)


def create_federation(command: Command, method: str, members: tuple[str, ...]) -> list[str]:
    """Create a federation in relay.db; the tokens of its members."""
    assert command("federation", method, "--model", "mlp")[0] == 0
    assert command("relay", "create", "federation.toml")[0] == 0
    return [command("relay", "invite", member)[1].strip() for member in members]


# --- a charter


def test_federation_command_writes_charter_and_start_values(command: Command, tmp_path: Path) -> None:
    code, out, err = command("federation", "representation-sharing:kd=3", "--name", "wards", "--out", "new/wards.toml")
    assert (code, out) == (0, "")
    assert (
        "new/wards.toml written; create the federation at the relay with: consilience relay create new/wards.toml"
        in err
    )
    charter = read_charter((tmp_path / "new" / "wards.toml").read_text())
    assert charter.name == "wards" and charter.method == {"name": "representation-sharing", "kd": 3}
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["wards.toml"]
    code, _, err = command("federation", "consilience", "--seed", "4", "--set", "method.kd=ramp(0,5,10)")
    assert code == 0 and "federation.toml and federation.safetensors written" in err
    charter = read_charter((tmp_path / "federation.toml").read_text())
    assert charter.name == "digits" and charter.seed == 4 and charter.channel_settings["weights"].kind == "moving"


def test_members_scale_by_the_charter(
    command: Command, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    values = np.arange(40.0)
    for name, shift in (("creator", 0.0), ("member", 1000.0)):
        lines = [f"{v + shift},{v * v},{'oak' if v % 2 else 'elm'}" for v in values]
        (tmp_path / f"{name}.csv").write_text("\n".join(["size,weight,kind", *lines]))
    assert command("federation", "fedproto", "--data", "creator.csv", "--label", "kind")[0] == 0
    charter = read_charter((tmp_path / "federation.toml").read_text())
    creator = load("creator.csv", label="kind")
    assert charter.scaling is not None and charter.scaling.mean == creator.scaling.mean
    assert (charter.labels, charter.columns) == (("elm", "oak"), ("size", "weight"))
    config = make_config({"data": "member.csv", "label": "kind"})
    data = load_member_data(charter, config)
    assert data.scaling == creator.scaling and data.inputs[:, 0].mean() > 50  # 1000 above the creator's
    assert not caplog.records
    alone = load_member_data(charter.model_copy(update={"scaling": None}), config)
    assert alone.inputs[:, 0].mean() == pytest.approx(0, abs=1e-5)
    assert "fixes no scaling, so your inputs are scaled by your own samples" in caplog.text
    with pytest.raises(ConfigurationError, match="has the class 'elm', and federation 'creator' has ash, oak"):
        load_member_data(charter.model_copy(update={"labels": ("ash", "oak")}), config)
    more = charter.model_copy(update={"labels": ("ash", "oak", "elm"), "classes": 3})
    some = load_member_data(more, config)  # it has no ash
    assert some.labels == more.labels and some.classes == 3
    assert np.array_equal(some.targets, 2 - data.targets) and np.array_equal(some.test_targets, 2 - data.test_targets)
    other = charter.model_copy(update={"columns": ("weight", "size")})
    with pytest.raises(ConfigurationError, match="columns size, weight, and federation 'creator' has weight, size"):
        load_member_data(other, config)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["independent"], "'independent' shares nothing, so it needs no federation"),
        (["self-distillation"], "'self-distillation' shares nothing"),
        (["centralized"], "'centralized' shares nothing"),
        (["fedavgg"], "Did you mean 'fedavg'?"),
        (["fedavg:mu=1"], "unknown setting 'mu'"),
        (["fedavg", "--name", "Wards 7"], "lower-case letters, digits and dashes"),
        (["fedavg", "--model", "mlp,lenet5"], "cannot share 'weights'"),
        (["fedavg", "--data", "nothing.npz"], "nothing.npz"),
    ],
)
def test_invalid_federations_are_refused(command: Command, tmp_path: Path, arguments: list[str], said: str) -> None:
    code, out, err = command("federation", *arguments)
    assert code != 0 and out == "" and said in err
    assert not list(tmp_path.glob("federation.*"))


# --- a relay's store


def test_relay_commands_fill_and_show_a_store(command: Command) -> None:
    assert command("relay", "status")[0] != 0  # there is no store yet
    command("federation", "consilience")
    code, out, _ = command("relay", "create", "federation.toml")
    assert code == 0 and "digits is created in relay.db; invite its members with:" in out
    _, out, _ = command("relay", "create", "federation.toml", "--store", "other.db")
    assert "invite its members with: consilience relay invite MEMBER --store other.db\n" in out
    assert out.endswith(f"check with --relay-key: {command('relay', 'key', '--store', 'other.db')[1]}")
    code, out, err = command("relay", "invite", "ward-a")
    assert code == 0 and out.startswith("cs1_1_") and len(out.strip()) == 49 and "shown only once" in err
    assert command("relay", "invite", "ward-b")[0] == 0
    code, _, err = command("relay", "revoke", "ward-b")
    assert code == 0 and "has been revoked" in err
    code, out, _ = command("relay", "status")
    assert code == 0 and "digits (consilience): 0 uploads, 0 bytes; versions: weights 0" in out
    assert [line.split() for line in out.splitlines()[1:]] == [
        ["0", "ward-a", "invited", "round", "0", "never", "seen"],
        ["1", "ward-b", "revoked", "round", "0", "never", "seen"],
    ]
    (told,) = json.loads(command("relay", "status", "--json")[1])
    assert told["federation"] == "digits" and [m["state"] for m in told["members"]] == ["invited", "revoked"]


def test_invalid_relay_commands_are_refused(command: Command, tmp_path: Path) -> None:
    for what in (["invite", "a"], ["revoke", "a"], ["status"], ["serve", "--port", "0"]):
        code, out, err = command("relay", *what, "--store", "none.db")
        assert code != 0 and out == "" and "none.db" in err and not (tmp_path / "none.db").exists()
    command("federation", "fedavg")
    start = tmp_path / "federation.safetensors"
    whole, text = start.read_bytes(), (tmp_path / "federation.toml").read_text()
    for damage, said in (
        (None, "federation.safetensors: cannot be read"),
        (whole[:-1], "federation.safetensors"),
        (whole[:-1] + bytes([whole[-1] ^ 1]), "is not the one in the charter"),
    ):
        start.unlink(missing_ok=True)
        if damage is not None:
            start.write_bytes(damage)
        code, _, err = command("relay", "create", "federation.toml")
        assert code == 2 and said in err
    start.write_bytes(whole)
    for damaged in (text.replace("classes = 10", "classes = 1"), text[: len(text) // 2] + "[[", ""):
        (tmp_path / "broken.toml").write_text(damaged)
        (tmp_path / "broken.safetensors").write_bytes(whole)
        code, _, err = command("relay", "create", "broken.toml")
        assert code == 2 and "broken.toml" in err
    assert command("relay", "create", "missing.toml")[0] == 2
    assert command("relay", "create", "federation.toml")[0] == 0
    code, _, err = command("relay", "create", "federation.toml")
    assert code == 2 and "already has a federation 'digits'" in err
    assert command("relay", "invite", "ward-a")[0] == 0
    for what, said in (
        (["invite", "ward-a"], "'ward-a' was invited before"),
        (["invite", "Ward A"], "lower-case letters"),
        (["invite", "b", "--federation", "digit"], "Did you mean 'digits'?"),
        (["revoke", "ward-z"], "Did you mean 'ward-a'?"),
        (["serve", "--tls-cert", "a.pem"], "go together"),
    ):
        code, out, err = command("relay", *what)
        assert code == 2 and out == "" and said in err


# --- members


class MemberProcess:
    """A member as a process, as a user starts it; its output goes to files."""

    def __init__(self, url: str, token: str, data: Path, out: Path, rounds: int, *more: str) -> None:
        self.out, self.log = out, out.with_suffix(".log")
        command = [sys.executable, "-m", "consilience", "join", url, "--data", str(data), "--model", "mlp"]
        command += ["--rounds", str(rounds), "--out", str(out), *more]
        environment = os.environ | {"PYTHONPATH": str(SOURCE), "CONSILIENCE_TOKEN": token, "OMP_NUM_THREADS": "1"}
        with self.log.open("a") as said:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True, env=environment)

    def lines(self) -> Iterator[dict[str, Any]]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            yield json.loads(line)

    def end(self) -> tuple[int, str]:
        """Its exit code and its standard error."""
        assert self.process.stdout is not None
        try:
            code = self.process.wait(timeout=60)
        finally:
            self.process.kill()
            self.process.stdout.close()
        return code, self.log.read_text()

    def kept(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.out / "metrics.jsonl").read_text().splitlines()]


@contextmanager
def running_members(*members: MemberProcess) -> Iterator[tuple[MemberProcess, ...]]:
    try:
        yield members
    finally:
        for member in members:
            member.process.kill()
            member.process.wait()
            assert member.process.stdout is not None
            member.process.stdout.close()


def test_two_members_train_together_and_one_resumes(command: Command, tmp_path: Path, digits: list[Path]) -> None:
    tokens = create_federation(command, "consilience", ("ward-a", "ward-b"))
    with serving(tmp_path / "relay.db") as running:
        both = [
            MemberProcess(running.url, token, data, tmp_path / name, 4, "--wait", "30")
            for token, data, name in zip(tokens, digits, ("a", "b"), strict=True)
        ]
        with running_members(*both):
            said = [member.end() for member in both]
            for (code, text), member in zip(said, both, strict=True):
                assert code == 0, text
                assert "in digits (consilience), 120 samples" in text and "round    4/4  accuracy" in text
                kept = member.kept()
                assert [line["round"] for line in kept] == [1, 2, 3, 4]
                assert all(line["acknowledged"] and line["bytes"]["up"] > 0 for line in kept)
                assert all(set(line["received"]) == {"prototypes", "observations", "weights"} for line in kept)
        states = [load_file(tmp_path / name / "model" / "model.safetensors") for name in "ab"]
        for state in states:
            build_model("mlp", (1, 8, 8), 10).load_state_dict(state)
        assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])  # the common weights, bit for bit
        code, out, err = command("predict", "a/model", "digits")  # saved as `consilience export` does
        assert code == 0 and len(out.splitlines()) == 798 and "of 797 labels predicted" in err
        (told,) = json.loads(command("relay", "status", "--json")[1])
        assert told["versions"] == {"weights": 4} and [m["round"] for m in told["members"]] == [4, 4]
        again = ["join", running.url, "--token", tokens[0], "--data", str(digits[0]), "--model", "mlp", "--out", "a"]
        code, out, err = command(*again, "--rounds", "6", "--wait", "0.1", "--json")
        assert code == 0 and err == ""
        assert [json.loads(line)["round"] for line in out.splitlines()] == [5, 6]
        assert [line["round"] for line in both[0].kept()] == [1, 2, 3, 4, 5, 6]
        code, _, err = command(*again, "--rounds", "6", "--lr", "0.5")
        assert code == 1 and "was started with another lr" in err
        with (tmp_path / "a" / "metrics.jsonl").open("a") as file:
            file.write('{"round": 7, "acc')  # killed while it wrote
        (tmp_path / "a" / "model" / "model.safetensors").unlink()
        code, _, err = command(*again, "--rounds", "6")
        assert code == 0 and "resumed after round 6" in err and len(both[0].kept()) == 6
        assert (tmp_path / "a" / "model" / "model.safetensors").exists()


def test_a_member_reports_and_saves_both_answers_and_its_head_survives_a_restart(
    command: Command, tmp_path: Path, digits: list[Path]
) -> None:
    (token,) = create_federation(command, "fedavg:objective=calibrated:own_head=true", ("ward-a",))
    with serving(tmp_path / "relay.db") as running:
        join = ["join", running.url, "--token", token, "--data", str(digits[0]), "--model", "mlp", "--out", "a"]
        code, _, err = command(*join, "--rounds", "2", "--wait", "0.1")
        assert code == 0 and re.search(r"round    2/2  accuracy +[\d.]+ %, own +[\d.]+ %", err)
        lines = [json.loads(line) for line in (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()]
        assert all(0 < line["accuracy_own"] <= 100 for line in lines)
        saved = load_file(tmp_path / "a" / "model" / "own_answer.safetensors")
        assert saved["head.weight"].abs().sum() > 0
        metrics = read_card(tmp_path / "a" / "model").trained["metrics"]
        assert metrics["accuracy_own"] == pytest.approx(lines[-1]["accuracy_own"], abs=1e-3)
        assert command(*join, "--rounds", "2")[0] == 0  # resumes, and has nothing left to do
        again = load_file(tmp_path / "a" / "model" / "own_answer.safetensors")
        assert all(torch.equal(again[name], tensor) for name, tensor in saved.items())
    code, _, err = command("predict", "a/model", "digits")
    assert code == 0 and "answer: own, for data like the learner's own" in err


def test_a_member_that_holds_out_samples_has_a_model_of_its_own(
    command: Command, tmp_path: Path, digits: list[Path]
) -> None:
    (token,) = create_federation(command, "consilience", ("ward-a",))
    with serving(tmp_path / "relay.db") as running:
        join = ["join", running.url, "--token", token, "--data", str(digits[0]), "--model", "mlp", "--out", "a"]
        code, _, err = command(*join, "--rounds", "2", "--wait", "0.1", "--validation", "0.2")
        assert code == 0, err
        saved = load_file(tmp_path / "a" / "model" / "own_answer.safetensors")
        assert saved["answer_weights"].sum().item() == pytest.approx(1)
        assert {"own_model.features.hidden.weight", "head.weight", "log_shares"} <= saved.keys()
        code, _, err = command(*join, "--rounds", "3", "--wait", "0.1", "--validation", "0.2")
        assert code == 0 and "resumed after round 2" in err
    code, _, err = command("predict", "a/model", "digits")
    assert code == 0 and "answer: own, for data like the learner's own" in err


def test_member_trains_on_without_its_relay_and_can_be_resumed(
    command: Command, tmp_path: Path, digits: list[Path]
) -> None:
    (token,) = create_federation(command, "representation-sharing", ("ward-a",))
    running: RelayProcess = serve(tmp_path / "relay.db")
    with running_members(MemberProcess(running.url, token, digits[0], tmp_path / "a", 100000, "--json")) as (member,):
        try:
            lines = member.lines()
            assert next(lines)["acknowledged"]
        finally:
            running.kill()
        alone = next(line for line in lines if not line["acknowledged"])
        assert alone["received"] == [] and alone["bytes"] == {"up": 0, "down": 0}
        member.process.send_signal(signal.SIGINT)
        rest = list(lines)
        code, text = member.end()
        assert code == 130 and "run the same command to resume" in text and "Traceback" not in text
    assert "resume with: the `consilience join` command that started it" in command("show", "a")[2]
    last = rest[-1]["round"] if rest else alone["round"]
    assert [line["round"] for line in member.kept()] == list(range(1, last + 1))
    build_model("mlp", (1, 8, 8), 10).load_state_dict(load_file(tmp_path / "a" / "model" / "model.safetensors"))
    join = ["join", running.url, "--token", token, "--data", str(digits[0]), "--model", "mlp"]
    code, out, _ = command(*join, "--out", "a", "--rounds", str(last + 1), "--json")  # still without the relay
    assert code == 0 and json.loads(out)["round"] == last + 1
    code, out, err = command(*join, "--out", "new", "--rounds", "2")
    assert code == 1 and out == "" and "cannot be reached" in err and not (tmp_path / "new").exists()
    with serving(tmp_path / "relay.db", running.port):
        code, out, _ = command(*join, "--out", "a", "--rounds", str(last + 2), "--json")
        assert code == 0 and json.loads(out)["acknowledged"]
        code, out, err = command(*join, "--out", "new", "--rounds", "2", "--json")  # a lost folder
        played = [json.loads(line) for line in out.splitlines()]
        assert code == 0 and [line["round"] for line in played] == [1, 2]
        assert all(line["acknowledged"] for line in played)
        (told,) = json.loads(command("relay", "status", "--json")[1])
        assert told["members"][0]["round"] == last + 4


# --- a method from a file


def test_charter_names_a_method_file_and_members_use_their_own_copy(
    command: Command, tmp_path: Path, digits: list[Path]
) -> None:
    write_readme_exchange(tmp_path)
    tokens = create_federation(command, "mine.py:spread:weight=3", ("a", "b"))
    charter = read_charter((tmp_path / "federation.toml").read_text())
    assert charter.method == {"name": "mine.py:spread", "weight": 3}
    copy = tmp_path / "copy" / "same.py"
    copy.parent.mkdir()
    (tmp_path / "mine.py").rename(copy)
    text = copy.read_text()
    (copy.parent / "without.py").write_text(text.replace("(Prototypes(weight=kd), Spread", "(Spread"))
    (copy.parent / "more.py").write_text(text.replace("(Prototypes(", "(Prototypes(name='third'), Prototypes("))
    (copy.parent / "wide.py").write_text(text.replace("(task.classes, task.width)", "(task.classes, 2)"))
    with serving(tmp_path / "relay.db") as running:
        join = ["join", running.url, "--token", tokens[0], "--data", str(digits[0]), "--rounds", "1"]
        for more, said in (
            ([], "uses the method 'mine.py:spread', which is in a file; ask its creator"),
            (["--method", "fedavg"], "uses the method 'mine.py:spread', and not 'fedavg'"),
            (["--method", "copy/same.py:spred"], "Did you mean 'spread'?"),
            (["--method", "copy/none.py:spread"], "none.py: no such file"),
            (["--method", "copy/same.py:spread:weight=2"], "its settings are those in the charter"),
            (["--method", "copy/without.py:spread"], "unknown exchange 'prototypes' of method"),
            (["--method", "copy/more.py:spread"], "unknown exchange 'third' of federation 'digits'"),
            (["--method", "copy/wide.py:spread"], "wide.py:spread': your model 'mlp' cannot share 'spread' in"),
        ):
            code, out, err = command(*join, *more, "--out", "refused")
            assert (code, out) == (2, "") and said in err, more
        code, out, _ = command(*join, "--method", "copy/same.py:spread", "--out", "a", "--json")
        assert code == 0 and json.loads(out)["acknowledged"]
        assert f'name = "{copy}:spread"' in (tmp_path / "a" / "config.toml").read_text()
        peer = consilience.join(running.url, tokens[1], folder=tmp_path / "b", method=f"{copy}:spread")
        assert [(e.name, e.weight) for e in peer.exchanges] == [("prototypes", 10.0), ("spread", 3)]
        peer.close()


def test_three_commands_join_a_federation_with_a_method_from_a_file(
    command: Command, tmp_path: Path, digits: list[Path]
) -> None:
    write_readme_exchange(tmp_path)
    tokens = create_federation(command, "mine.py:spread", ("a", "b", "c"))
    with serving(tmp_path / "relay.db") as running:
        started = []
        for number, token in enumerate(tokens):
            arguments = ["join", running.url, "--token", token, "--data", str(digits[number % 2]), "--rounds", "3"]
            arguments += ["--method", "mine.py:spread", "--out", f"member-{number}", "--json"]
            program = [sys.executable, "-m", "consilience", *arguments]
            environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
            started.append(subprocess.Popen(program, env=environment, stdout=subprocess.PIPE, text=True))
        for process in started:
            lines = [json.loads(line) for line in process.communicate(timeout=180)[0].splitlines()]
            assert process.returncode == 0 and [line["round"] for line in lines] == [1, 2, 3]
            assert all(line["acknowledged"] for line in lines) and lines[-1]["loss"]["spread"] > 0
