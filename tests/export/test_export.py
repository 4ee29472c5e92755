"""Trained models taken out of runs: plain torch gives the accuracy of the run, and what was changed is refused."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

from consilience import ConsilienceError, Result, load, load_model, simulate
from consilience.errors import CheckpointError, ConfigurationError
from consilience.export import read_card
from consilience.simulation.records.run_lock import lock_folder
from tests.method_tools import OwnNet

Command = Callable[..., tuple[int, str, str]]

NET = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.hidden = nn.Linear(192, 12)
        self.fc = nn.Linear(12, num_classes)
        self.register_buffer("seen", torch.zeros(2, dtype=torch.int64))

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x))).flatten(1)
        return torch.softmax(self.fc(torch.relu(self.hidden(x))), dim=1)
"""
SMALL: dict[str, Any] = {"learners": 2, "rounds": 2, "train": 120, "test": 100, "workers": 0}


class PlainMLP(nn.Module):
    """The built-in mlp in plain torch."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.ModuleDict({"hidden": nn.Linear(64, 64), "linear": nn.Linear(64, 32)})
        self.classifier = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 1, 8, 8) -> (n, 10)."""
        hidden = F.relu(self.features["hidden"](x.flatten(1)))
        logits: Tensor = self.classifier(torch.tanh(self.features["linear"](hidden)))
        return logits


def net_file(folder: Path) -> Path:
    file = folder / "net.py"
    file.write_text(NET)
    return file


def class_in_file(file: Path) -> Any:
    """The class as a user's own program has it, without this library."""
    own: dict[str, Any] = {}
    exec(file.read_text(), own)
    return own["Net"](10)


# --- the accuracy of the run, in plain torch


@pytest.mark.parametrize("engine", ["loop", "stack"])
@pytest.mark.parametrize("kind", ["built-in", "class", "file"])
def test_plain_torch_gives_the_accuracy_of_the_run(kind: str, engine: Any, tmp_path: Path) -> None:
    file = net_file(tmp_path)
    model: Any = {"built-in": "mlp", "class": OwnNet, "file": f"{file}:Net@fc"}[kind]
    result = simulate(model=model, engine=engine, seeds=2, out=tmp_path / "run", **SMALL)
    result.export(tmp_path / "out", seed=1)

    data = load("digits", train=120, test=100)
    inputs, targets = torch.from_numpy(data.test_inputs), torch.from_numpy(data.test_targets)
    for learner in (0, 1):
        weights = load_file(tmp_path / "out" / f"learner-{learner}" / "model.safetensors")
        plain = class_in_file(file) if kind == "file" else OwnNet() if kind == "class" else PlainMLP()
        plain.load_state_dict(weights)
        correct = (plain.eval()(inputs).argmax(1) == targets).sum().item()
        assert 100 * correct / len(targets) == pytest.approx(result.accuracy[1, learner], abs=1e-9)


def test_models_in_memory_in_a_folder_and_loaded_are_the_same(tmp_path: Path) -> None:
    in_memory = simulate(model=OwnNet, **SMALL)
    saved = simulate(model=OwnNet, out=tmp_path / "run", **SMALL)
    loaded = Result.load(tmp_path / "run", model=OwnNet)
    assert list(in_memory.models) == [(0, 0), (0, 1)] and len(loaded.models) == 2
    for key in in_memory.models:
        modules = [result.models[key] for result in (in_memory, saved, loaded)]
        assert all(type(module) is OwnNet and not module.training for module in modules)
        first, *others = [module.state_dict() for module in modules]
        assert all(torch.equal(first[name], other[name]) for other in others for name in first)
    np.testing.assert_array_equal(loaded.accuracy, in_memory.accuracy)
    assert loaded.summary()["accuracy"] == saved.summary()["accuracy"]


def test_a_model_is_a_copy_of_its_own() -> None:
    result = simulate(method="fedavg", model=OwnNet, **SMALL)
    first, second = result.model(0), result.model(1)
    with torch.no_grad():
        next(first.parameters()).zero_()
    assert not torch.equal(next(first.parameters()), next(second.parameters()))
    assert torch.equal(next(second.parameters()), next(result.model(0).parameters()))
    assert all(p.requires_grad and p.grad is None for p in second.parameters())


def test_learners_with_models_and_roles_of_their_own() -> None:
    data = load("digits", train=120, test=100)
    inputs, targets = torch.from_numpy(data.test_inputs), data.test_targets
    mixed = simulate(method="representation-sharing", model=["mlp", OwnNet, "mlp"], width=12, **SMALL | {"learners": 3})
    assert [type(mixed.model(who)).__name__ for who in range(3)] == ["SplitModel", "OwnNet", "SplitModel"]
    for result in (mixed, simulate(method="two-stage", **SMALL), simulate(method="flesd", public=40, **SMALL)):
        for (_, who), module in result.models.items():
            accuracy = 100 * np.mean(module(inputs).argmax(1).numpy() == targets)
            if result.accuracy_source == "classifier":
                assert accuracy == pytest.approx(result.accuracy[0, who])


def test_variants_have_their_own_models() -> None:
    result = simulate(method="fedprox", variants=[{"method.mu": 0.0}, {"method.mu": 5.0}], **SMALL)
    weights = [next(each.model().parameters()) for each in result.variants]
    assert not torch.equal(*weights)
    with pytest.raises(ConfigurationError, match="2 variants"):
        result.model()


# --- folders


def test_load_model_gives_the_module_and_its_card_tells_about_it(tmp_path: Path) -> None:
    result = simulate(model=f"{net_file(tmp_path)}:Net@fc", **SMALL)
    (folder,) = result.export(tmp_path / "out", learner=1)
    module = load_model(folder)
    assert type(module).__name__ == "Net" and not module.training
    expected = result.model(1).state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in module.state_dict().items())
    card = read_card(folder)
    assert (card.model, card.source, card.feature_width, card.dtype) == ("net.py:Net@fc", "file", 12, "float32")
    assert card.inputs.shape == (1, 8, 8) and card.inputs.class_names == list("0123456789")
    assert card.trained["metrics"]["accuracy"] == result.accuracy[0, 1]
    assert (card.trained["round"], card.trained["method"], card.trained["learner"]) == (2, "consilience", 1)
    result.export(tmp_path / "out", learner=0)  # replaces the first
    assert read_card(folder).trained["learner"] == 0


def test_onnx_gives_the_same_logits(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    result = simulate(model=OwnNet, **SMALL)
    result.export(tmp_path / "out", learner=0, onnx=True)
    session = runtime.InferenceSession(tmp_path / "out" / "model.onnx")
    for samples in (1, 7):  # any number of them
        inputs = np.random.default_rng(0).normal(size=(samples, 1, 8, 8)).astype(np.float32)
        (found,) = session.run(["logits"], {"inputs": inputs})
        np.testing.assert_allclose(found, result.model()(torch.from_numpy(inputs)).detach(), rtol=1e-4, atol=1e-5)


def test_an_export_replaces_all_files_of_an_earlier_one(tmp_path: Path) -> None:
    result = simulate(**SMALL)
    (folder,) = result.export(tmp_path / "model", learner=0)
    for name in ("model.onnx", "own_answer.onnx"):
        (folder / name).write_bytes(b"of other weights")
    result.export(folder, learner=1)
    names = ["model.json", "model.safetensors", "own_answer.safetensors"]
    assert sorted(file.name for file in folder.iterdir()) == names


def test_models_of_a_run_that_was_resumed_and_killed_are_those_of_its_checkpoint(tmp_path: Path) -> None:
    def stop(method: str, round_: int, rounds: int, history: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    assert not simulate(out=tmp_path / "run", on_round=stop, **SMALL).finished
    stopped = (tmp_path / "run" / "result.json").read_bytes()
    whole = simulate(resume=tmp_path / "run")
    (tmp_path / "run" / "result.json").write_bytes(stopped)  # as if killed before it ended
    result = Result.load(tmp_path / "run")
    assert result.history.rounds == 2 and np.array_equal(result.accuracy, whole.accuracy)
    (folder,) = result.export(tmp_path / "out", learner=1)
    assert read_card(folder).trained["round"] == 2
    (tmp_path / "run" / "result.json").unlink()
    with pytest.raises(
        CheckpointError, match="no result yet, it is stopped, round 2 of 2; finish it with: consilience"
    ):
        Result.load(tmp_path / "run")
    (tmp_path / "run" / "model").mkdir()
    (tmp_path / "run" / "model" / "model.json").touch()
    with pytest.raises(ConfigurationError, match=r"is a member's folder; its model is exported in .*/run/model"):
        Result.load(tmp_path / "run")
    (tmp_path / "run" / "model" / "model.json").unlink()
    with lock_folder(tmp_path / "run"), pytest.raises(CheckpointError, match=r"it is running, .* wait until"):
        Result.load(tmp_path / "run")


def test_what_cannot_be_exported_or_loaded_is_refused(tmp_path: Path) -> None:
    simulate(out=tmp_path / "none", keep_models=False, **SMALL)
    with pytest.raises(ConfigurationError, match="none has no models: it was run with keep_models=False"):
        Result.load(tmp_path / "none").export(tmp_path / "out")
    result = simulate(model=OwnNet, out=tmp_path / "run", **SMALL)
    with pytest.raises(ConfigurationError, match=r"there is no learner 7; the run has learners 0 to 1"):
        result.model(7)
    with pytest.raises(ConfigurationError, match=r"there is no seed 3; the run has 0"):
        result.model(seed=3)
    with pytest.raises(ConfigurationError, match=r"no validation split.*validation=0\.1"):
        result.model(round="best")
    with pytest.raises(ConfigurationError, match=r"'OwnNet'.*Result.load\(folder, model=OwnNet\)"):
        Result.load(tmp_path / "run").model()
    (folder,) = result.export(tmp_path / "out", learner=0)
    with pytest.raises(ConfigurationError, match=r"'OwnNet'.*load_model\(folder, model=OwnNet\)"):
        load_model(folder)
    assert isinstance(load_model(folder, OwnNet), OwnNet)
    with pytest.raises(CheckpointError, match="do not fit model"):
        load_model(folder, lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(ConfigurationError, match="is not empty and holds no exported model"):
        result.export(tmp_path / "mine", learner=0)
    with pytest.raises(ConfigurationError, match="not an exported model"):
        load_model(tmp_path)


def test_changed_files_are_refused(tmp_path: Path) -> None:
    file = net_file(tmp_path)
    result = simulate(model=f"{file}:Net", out=tmp_path / "run", **SMALL)
    (folder,) = result.export(tmp_path / "out", learner=0)
    file.write_text(NET.replace("relu", "tanh"))
    for each in (result, Result.load(tmp_path / "run")):
        with pytest.raises(CheckpointError, match=r"net.py has changed since the model was trained"):
            each.model()
    load_model(folder)  # has its own copy
    (folder / "net.py").write_text(NET + "\n")
    with pytest.raises(CheckpointError, match=r"net.py has changed since the model was exported"):
        load_model(folder)
    (folder / "net.py").write_text(NET)
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=r"model\.safetensors has changed"):
        load_model(folder)
    card = json.loads((folder / "model.json").read_text())
    for content in ("{", json.dumps(card | {"format": 9}), json.dumps({"format": 1})):
        (folder / "model.json").write_text(content)
        with pytest.raises(ConsilienceError, match=r"model.json (is damaged|cannot be read|has format 9)"):
            load_model(folder)


# --- commands


def test_export_and_predict_on_the_command_line(command: Command, tmp_path: Path) -> None:
    simulate(out=tmp_path / "run", **SMALL | {"test": None})
    code, out, err = command("export", "run", "--out", "models")
    assert (code, out.split()) == (0, ["models/learner-0", "models/learner-1"]) and "consilience predict" in err
    code, out, err = command("predict", "models/learner-1", "digits", "--answer", "common")
    rows = list(csv.DictReader(io.StringIO(out)))
    accuracy = Result.load("run").accuracy[0, 1]
    assert list(rows[0]) == ["sample", "predicted", "probability", "label"] and len(rows) == 797
    assert 100 * np.mean([row["predicted"] == row["label"] for row in rows]) == pytest.approx(accuracy)
    assert f"{accuracy:.2f} % of 797 labels" in err

    np.savez("new.npz", x=np.zeros((3, 8, 8)))
    code, out, err = command("predict", "models/learner-1", "new.npz", "--out", "found.csv")
    lines = Path("found.csv").read_text().splitlines()
    assert code == 0 and len(lines) == 4 and lines[0] == "sample,predicted,probability"
    code, _, err = command("predict", "models/learner-1", "nowhere")
    assert code == 1 and "there is no such file or folder" in err
    np.savez("wide.npz", x=np.zeros((3, 9, 9)))
    code, _, err = command("predict", "models/learner-1", "wide.npz")
    assert code == 1 and "the model takes (1, 8, 8)" in err
    code, _, err = command("export", "models", "--out", "again")
    assert code == 2 and "is not a run folder" in err


def test_predict_reads_tables_and_folders_of_images(command: Command, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    kinds = generator.integers(0, 2, 80)
    sizes = generator.normal(1000 * kinds, 50)
    rows = [
        f"{i},{size},{3 + i % 5},{'wren' if kind else 'robin'}"
        for i, (size, kind) in enumerate(zip(sizes, kinds, strict=True))
    ]
    Path("birds.csv").write_text("\n".join(["id,weight,age,kind", *rows]) + "\n")
    run = ["run", "--data", "birds.csv", "--label", "kind", "--drop", "id", "--learners", "2", "--rounds", "3"]
    assert command(*run, "--epochs", "20", "--workers", "0", "--out", "tables")[0] == 0
    command("export", "tables", "--learner", "0", "--out", "table")
    Path("new.csv").write_text("age,weight\n4,0\n4,1000\n")  # columns are found by name
    _, out, _ = command("predict", "table", "new.csv")
    assert [line.split(",")[:2] for line in out.splitlines()[1:]] == [["0", "robin"], ["1", "wren"]]
    _, out, err = command("predict", "table", "birds.csv")  # the label has the name it was trained with
    assert out.splitlines()[0].endswith(",label") and "100.00 % of 80 labels predicted" in err
    Path("less.csv").write_text("weight\n1\n")
    code, _, err = command("predict", "table", "less.csv")
    assert code == 1 and "there is no column 'age'" in err
    Path("empty.csv").write_text("age,weight\n,1\n")
    code, _, err = command("predict", "table", "empty.csv")
    assert code == 1 and "column 'age', row 1 is empty" in err and "--drop" not in err

    for name, dark in (("night", 20), ("day", 200)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(12):
            pixels = generator.integers(dark, dark + 40, (8, 8, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{i}.png")
    run = ["run", "--data", "photos", "--model", "mlp", "--learners", "2", "--rounds", "3", "--epochs", "20"]
    assert command(*run, "--workers", "0", "--out", "images")[0] == 0
    command("export", "images", "--learner", "1", "--out", "image")
    Image.fromarray(np.full((16, 16, 3), 230, dtype=np.uint8)).save("photos/unlabeled.png")  # resized
    _, out, err = command("predict", "image", "photos")
    rows = out.splitlines()
    assert (
        rows[1].startswith("day/0.png,day,") and rows[-1].split(",")[::3] == ["unlabeled.png", ""] and len(rows) == 26
    )
    assert rows[-1].split(",")[1] == "day" and "25 samples, 100.00 % of 24 labels" in err
    code, _, err = command("predict", "table", "photos")
    assert code == 1 and "the model takes inputs of the kind 'table'" in err
    code, _, err = command("predict", "image", "new.csv")
    assert code == 1 and "new.csv is a table, and the model takes inputs of the kind 'image'" in err


def test_pixels_of_another_range_are_refused(command: Command, tmp_path: Path) -> None:
    (folder,) = simulate(**SMALL).export(tmp_path / "model", learner=0)  # digits have pixels from 0 to 16
    np.savez("bytes.npz", x=np.full((2, 8, 8), 255, dtype=np.uint8))
    code, _, err = command("predict", str(folder), "bytes.npz")
    assert code == 1 and "inputs go up to 255, and the model was trained on values from 0 to 16" in err


def test_export_of_a_sweep_s_run_needs_its_variant(command: Command) -> None:
    small = ["--learners", "2", "--rounds", "1", "--train", "60", "--test", "40"]
    command("sweep", "--method", "fedprox", "--set", "method.mu=0,5", *small, "--out", "many")
    (run,) = (str(config.parent) for config in Path("many").rglob("config.toml"))
    code, _, err = command("export", "many", "--out", "models")
    assert code == 2 and f"many is a sweep; name one of its runs: {run}" in err
    code, _, err = command("export", run, "--learner", "0", "--out", "models")
    assert code == 2 and "2 variants, numbered from 0" in err
    assert command("export", run, "--learner", "0", "--variant", "1", "--out", "models")[0] == 0
    assert read_card(Path("models")).trained["settings"] == {"mu": 5}
    code, _, err = command("export", run, "--variant", "2", "--out", "models")
    assert code == 2 and "there is no variant 2; the run has 2 of them" in err


def test_export_of_a_comparison_names_its_runs(command: Command) -> None:
    small = ["--learners", "2", "--rounds", "1", "--train", "60", "--test", "40"]
    command("compare", "--methods", "independent,fedavg", *small, "--out", "both")
    code, _, err = command("export", "both", "--out", "models")
    assert code == 2 and "both is a comparison; name one of its runs: both/fedavg, both/independent" in err
    assert command("export", "both/fedavg", "--learner", "1", "--out", "models")[0] == 0
    assert isinstance(load_model("models"), nn.Module)
