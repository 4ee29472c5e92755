"""Inputs of several fields on the command line: shown, simulated, exported, predicted, and in a real federation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from consilience import load_model
from consilience.export import read_card
from consilience.wire.charter import read_charter
from tests.conftest import Command
from tests.relay_tools import serving
from tests.simulation.test_field_inputs import token_arrays

NET = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, num_classes, width=8):
        super().__init__()
        self.embedding, self.fc = nn.Embedding(12, width), nn.Linear(width + 1, num_classes)

    def forward(self, input_ids, attention_mask, age):
        mean = (self.embedding(input_ids) * attention_mask[..., None]).sum(1)
        return self.fc(torch.tanh(torch.cat([mean, age[:, None]], 1)))
"""


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """The samples of two members, whose ages differ, and the file of their model."""
    (tmp_path / "net.py").write_text(NET)
    fields, targets = token_arrays(160)
    fields["age"] = np.random.default_rng(0).normal(40, 10, 160)
    found = []
    for name, own in (("a", slice(80)), ("b", slice(80, None))):
        found.append(tmp_path / f"{name}.npz")
        inputs: dict[str, Any] = {f"x.{key}": values[own] for key, values in fields.items()}
        np.savez(found[-1], y=targets[own], **inputs)
    return found


def test_a_file_with_fields_is_shown_run_exported_and_predicted(command: Command, files: list[Path]) -> None:
    code, out, _ = command("data", "a.npz")
    assert code == 0
    assert "64 training and 16 test samples of input_ids (6 integer), attention_mask (6 bool), age (one float)" in out
    assert "age: each column scaled by its mean" in out
    run = ["run", "--data", "a.npz", "--model", "net.py:Net@fc", "--learners", "2", "--rounds", "2", "--out", "r"]
    assert command(*run)[0] == 0
    assert command("export", "r", "--learner", "1", "--out", "m", "--onnx")[0] == 0
    onnx = pytest.importorskip("onnxruntime").InferenceSession("m/model.onnx")
    assert [each.name for each in onnx.get_inputs()] == ["input_ids", "attention_mask", "age"]
    code, out, err = command("predict", "m", "b.npz", "--answer", "common")
    assert code == 0 and len(out.splitlines()) == 81 and "80 samples" in err
    assert read_card(Path("m")).inputs.kind == "fields"
    with np.load("b.npz") as arrays:
        age = arrays["x.age"]
        np.savez("c.npz", **{"x.input_ids": arrays["x.input_ids"], "x.age": age})
        fields = {name: arrays[f"x.{name}"][:5] for name in ("input_ids", "attention_mask")}
    code, _, err = command("predict", "m", "c.npz")
    assert code == 1 and "inputs are input_ids (6 integer), age (one float), and the model takes input_ids" in err
    scaling = read_card(Path("m")).inputs.scaling["fields"][2]["scaling"]
    scaled = ((age[:5] - scaling["mean"][0]) / scaling["std"][0]).astype(np.float32)
    loaded = load_model("m")(**{k: torch.from_numpy(v) for k, v in (fields | {"age": scaled}).items()})
    (given,) = onnx.run(None, fields | {"age": scaled})
    np.testing.assert_allclose(given, loaded.detach(), atol=1e-5)
    predicted = [line.split(",")[1] for line in out.splitlines()[1:6]]
    assert predicted == [str(int(each)) for each in loaded.argmax(1)]


def test_members_with_fields_scale_by_the_charter_and_train(command: Command, files: list[Path]) -> None:
    made = ["federation", "consilience", "--data", "a.npz", "--model", "net.py:Net@fc", "--name", "wards"]
    assert command(*made)[0] == 0
    charter = read_charter(Path("federation.toml").read_text())
    assert charter.scaling is not None
    assert [(each.name, each.size, each.scaling.kind) for each in charter.scaling.fields] == [
        ("input_ids", 6, "none"),
        ("attention_mask", 6, "none"),
        ("age", 1, "columns"),
    ]
    assert command("relay", "create", "federation.toml")[0] == 0
    token = command("relay", "invite", "ward-b")[1].strip()
    with serving(Path("relay.db").absolute()) as running:
        join = ["join", running.url, "--token", token, "--model", "net.py:Net@fc", "--out", "b", "--wait", "0.1"]
        code, out, err = command(*join, "--data", "b.npz", "--rounds", "2", "--json")
        assert code == 0, err
        assert [json.loads(line)["round"] for line in out.splitlines()] == [1, 2]
        card = read_card(Path("b/model"))
        assert card.inputs.scaling["fields"][2]["scaling"]["mean"] == list(charter.scaling.fields[2].scaling.mean)
        code, _, err = command(*join, "--data", "digits", "--rounds", "2")
        assert code == 1 and "its inputs are one array, and the scaling to use is of input_ids (6)" in err
