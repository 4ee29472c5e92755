"""The commands of a federation without a relay: keys, a charter, and members as processes, one of which is killed."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from consilience.wire.charter import read_charter
from tests.cli.test_join import write_digits
from tests.conftest import Command
from tests.direct_tools import NAMES, Wards
from tests.relay_tools import SOURCE

ROUNDS = 4


def keys(command: Command) -> list[str]:
    """Keys of three members in the current folder, and the options of a charter with them."""
    options = []
    for name in NAMES:
        code, printed, _ = command("key", f"{name}.key")
        assert code == 0
        options += ["--member", f"{name}={printed.strip()}"]
    return options


def test_a_key_is_made_once_and_only_its_owner_can_read_it(command: Command, tmp_path: Path) -> None:
    code, made, _ = command("key", "north.key")
    assert code == 0 and made.startswith("ed25519:")
    assert stat.S_IMODE((tmp_path / "north.key").stat().st_mode) == 0o600
    assert made.strip() not in (tmp_path / "north.key").read_text()
    assert command("key", "north.key", "--show")[:2] == (0, made)
    code, _, told = command("key", "north.key")
    assert code == 2 and "is there already; a key is never replaced" in told


def test_the_charter_lists_the_members(command: Command, tmp_path: Path) -> None:
    (tmp_path / "west.pub").write_text("ed25519:" + "A" * 43 + "=\n")
    options = [*keys(command)[:4], "--member", "west=west.pub", "--expire", "5"]
    code, _, told = command("federation", "fedproto", "--model", "mlp", "--name", "wards", *options)
    charter = read_charter((tmp_path / "federation.toml").read_text())
    assert code == 0 and charter.fingerprint[:16] in told
    assert [member.name for member in charter.members] == list(NAMES) and charter.rules.expire == 5
    assert charter.members[2].key == "ed25519:" + "A" * 43 + "="
    code, _, told = command("relay", "create", "federation.toml")
    assert code == 2 and "it is for a federation without a relay" in told


def test_charters_that_cannot_work_are_refused(command: Command) -> None:
    options = keys(command)

    def refusal(method: str, *more: str) -> str:
        code, _, told = command("federation", method, "--model", "mlp", *more)
        assert code == 2
        return told

    told = refusal("fedavg", *options)
    assert "representation-sharing, fedproto or federated-distillation" in told and "'weights'" in told
    assert "members 'north' and 'east' have one key" in refusal(
        "fedproto", *options, "--member", f"east={options[1][6:]}"
    )
    assert "two members are named 'north'" in refusal("fedproto", *options, *options[:1], f"north={options[3][6:]}")
    assert "a federation without a relay has 2 or more" in refusal("fedproto", *options[:2])
    assert "write NAME=KEY" in refusal("fedproto", "--member", "north")
    assert "nowhere.pub cannot be read" in refusal("fedproto", "--member", "north=nowhere.pub")
    assert "is not a public key" in refusal("fedproto", "--member", "north=ed25519:abc")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ([], "give the relay's address"),
        (["https://relay.example"], "give the token from your invitation"),
        (
            ["https://relay.example", "--token", "x", "--charter", "f.toml"],
            "is a relay, and --charter is for members without one",
        ),
        (["--charter", "f.toml", "--key", "k"], "without a relay, --peers or --listen is needed too"),
        (["--charter", "f.toml", "--key", "k", "--peers", "tls/a:1", "--relay-key", "x"], "--relay-key is for a relay"),
        (["--charter", "f.toml", "--key", "k", "--peers", "tls/a:1"], "f.toml: cannot be read"),
    ],
)
def test_a_mixture_of_both_ways_is_refused(
    command: Command, options: list[str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CONSILIENCE_TOKEN", raising=False)
    code, _, told = command("join", *options)
    assert code == 2 and why in told


def join(wards: Wards, name: str, data: Path) -> subprocess.Popen[str]:
    """A member as a process, which prints a line of JSON for each round."""
    program = [sys.executable, "-m", "consilience", "join", *wards.options(name), f"--out=out/{name}", "--json"]
    settings = [f"--data={data}", "--model=mlp", f"--rounds={ROUNDS}", "--epochs=5", "--wait=60"]
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*program, *settings],
        cwd=wards.folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_members_train_without_a_relay_and_one_is_killed(command: Command, tmp_path: Path) -> None:
    files = write_digits(tmp_path, "abc", 150, 300)
    wards = Wards(tmp_path / "wards")
    members = [option for name, key in wards.keys.items() for option in ("--member", f"{name}={key}")]
    out = wards.folder / "federation.toml"
    given = ("--data", str(files[0]), "--model", "mlp", "--out", str(out))
    assert command("federation", "representation-sharing", *given, *members)[0] == 0
    processes = {name: join(wards, name, file) for name, file in zip(NAMES, files, strict=True)}
    try:
        west = processes["west"]
        assert west.stdout is not None
        assert json.loads(west.stdout.readline())["round"] == 1
        west.send_signal(signal.SIGKILL)
        west.communicate()
        time.sleep(0.5)
        processes["west"] = join(wards, "west", files[2])
        told = {name: process.communicate(timeout=120) for name, process in processes.items()}
    finally:
        for process in processes.values():
            process.kill()
            process.communicate()
    for name, (_, errors) in told.items():
        assert processes[name].returncode == 0, errors
        assert (wards.folder / "out" / name / "model" / "model.json").exists()
        lines = [json.loads(line) for line in (wards.folder / "out" / name / "metrics.jsonl").read_text().splitlines()]
        assert [line["round"] for line in lines] == list(range(1, ROUNDS + 1))
        assert all(line["members"] == dict.fromkeys(NAMES, line["round"]) for line in lines), lines  # all in step
        assert lines[-1]["accuracy"] > 60  # chance is 10
