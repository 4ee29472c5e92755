"""FLESD between three commands: one member has the public set, one names its copy, one gets it from the relay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from consilience.wire.charter import read_charter
from tests.cli.test_join import MemberProcess, running_members, write_digits
from tests.conftest import Command
from tests.relay_tools import serving

METHOD = "flesd:distill_epochs=2:distill_batch=32:queue=32"


@pytest.fixture
def digits(tmp_path: Path) -> list[Path]:
    """The digits of three data owners, and their common test set."""
    return write_digits(tmp_path, "abc", 60, 100)


def create(command: Command, *more: str) -> list[str]:
    """The tokens of three members."""
    code, _, err = command("federation", METHOD, "--data", "a.npz", "--model", "mlp", "--learners", "3", *more)
    assert code == 0, err
    assert command("relay", "create", "federation.toml")[0] == 0
    return [command("relay", "invite", member)[1].strip() for member in "abc"]


def test_three_commands(command: Command, tmp_path: Path, digits: list[Path]) -> None:
    tokens = create(command)
    charter = read_charter((tmp_path / "federation.toml").read_text())
    assert charter.public_set is not None and charter.public_set.samples == 60
    own = [(), ("--public", str(digits[0])), ()]
    with serving(tmp_path / "relay.db") as relay:
        members = [
            MemberProcess(relay.url, token, data, tmp_path / name, 2, "--wait", "60", *more)
            for token, data, name, more in zip(tokens, digits, ("ma", "mb", "mc"), own, strict=True)
        ]
        with running_members(*members):
            said = [member.end() for member in members]
    assert [code for code, _ in said] == [0, 0, 0], "\n".join(text for _, text in said)
    assert "the public set is at the relay now" in said[0][1]
    assert "the public set was downloaded" in said[2][1] and "public set" not in said[1][1]
    for member, received in zip(members, (["similarity", "weights"], ["weights"], ["weights"]), strict=True):
        assert [(line["round"], sorted(line["received"])) for line in member.kept()] == [(1, received), (2, received)]
        assert all(line["acknowledged"] and 0 <= line["accuracy"] <= 100 for line in member.kept())
    states = [load_file(tmp_path / name / "model" / "model.safetensors") for name in ("ma", "mb", "mc")]
    features = [key for key in states[0] if key.startswith("features.")]
    assert features and all(torch.equal(states[0][key], state[key]) for key in features for state in states[1:])


def test_another_public_set_is_refused(command: Command, tmp_path: Path, digits: list[Path]) -> None:
    tokens = create(command, "--public", "b.npz")
    with serving(tmp_path / "relay.db") as relay:

        def join(member: int, data: str, *more: str) -> tuple[int, str]:
            arguments = ["join", relay.url, "--token", tokens[member], "--data", data, "--model", "mlp"]
            code, _, err = command(*arguments, "--out", f"m{member}", "--wait", "0.1", *more)
            return code, err

        code, err = join(0, "a.npz")
        assert code == 2 and "your data has 60 training samples that are not the public set of federation 'a'" in err
        code, err = join(1, "a.npz", "--public", "c.npz")
        assert code == 2 and "--public has 60 training samples that are not the public set" in err
        code, err = join(1, "a.npz")
        assert code == 2 and "did not come within 0.1 s: its host, member 0, has not uploaded it" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([METHOD], "say how many members the federation will have, such as --learners 3"),
        ([METHOD, "--learners", "1"], "needs at least two learners"),
        ([METHOD, "--learners", "3", "--public", "digits", "--data", "tiny.npz"], "of one shape"),
        (["fedavg", "--public", "digits"], "method 'fedavg' has no public set; leave --public out"),
    ],
)
def test_invalid_federations_are_refused(command: Command, tmp_path: Path, arguments: list[str], said: str) -> None:
    images = np.arange(20 * 16, dtype=np.uint8).reshape(20, 4, 4)
    np.savez(tmp_path / "tiny.npz", images=images, labels=np.arange(20) % 2)
    code, _, err = command("federation", *arguments)
    assert code == 2 and said in err


def test_samples_never_to_be_shared_are_no_public_set(command: Command, tmp_path: Path, digits: list[Path]) -> None:
    with np.load(digits[0]) as arrays:
        marked = {**arrays, "shareable": np.arange(60) > 4}
    np.savez(tmp_path / "marked.npz", allow_pickle=False, **marked)
    code, _, err = command("federation", METHOD, "--data", "marked.npz", "--model", "mlp", "--learners", "3")
    assert code == 2 and "5 samples of the public set are marked never to be shared" in err
