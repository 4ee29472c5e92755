"""The own answer outside a run: plain torch gives accuracy_own, and a folder without one says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from consilience import Dataset, Result, load, load_model, simulate
from consilience.errors import CheckpointError, ConfigurationError
from consilience.export import read_card
from consilience.export.predict import predict_samples
from consilience.task import AnswerKind
from tests.method_tools import OwnNet

Command = Callable[..., tuple[int, str, str]]
BOTH = "fedavg:objective=calibrated:own_head=true"
PRIVATE = "own_answer.safetensors"
INPUTS = torch.from_numpy(load("digits", train=180, test=100).test_inputs)


def skewed_digits() -> Dataset:
    """The first of three learners has few classes from 5 on, the second few below 5, the third has all alike."""
    digits = load("digits", train=180, test=100)
    even, high = np.arange(180) % 2, digits.targets >= 5
    owners = np.where(even, 2, high.astype(np.int64))
    owners[:20] = np.arange(20) % 2  # a few of the other classes
    return replace(digits, owners=owners, owner_names=("low", "high", "all"))


def run(method: str = BOTH, **settings: Any) -> Result:
    common: dict[str, Any] = {
        "partition": "owners",
        "learners": 3,
        "rounds": 2,
        "workers": 0,
        "lr": 0.01,
        "model": OwnNet,
    }
    return simulate(method=method, data=skewed_digits(), **common | settings)


def accuracy_by_shares(logits: Tensor, targets: np.ndarray, own: np.ndarray) -> float:
    """Accuracy in percent with each test class counted by its share of a learner's own samples."""
    correct = logits.argmax(1).numpy() == targets
    by_class = [(own == c).mean() * correct[targets == c].mean() for c in np.unique(targets)]
    return float(100 * sum(by_class) / np.isin(own, targets).mean())


@pytest.mark.parametrize("engine", ["loop", "stack"])
@pytest.mark.parametrize("place", ["memory", "folder"])
def test_plain_torch_gives_the_own_accuracy_of_the_run(place: str, engine: Any, tmp_path: Path) -> None:
    data = skewed_digits()
    result = run(engine=engine, seeds=2, out=tmp_path / "run" if place == "folder" else None)
    result.export(tmp_path / "out", seed=1)
    assert data.owners is not None
    for learner in range(3):
        folder = tmp_path / "out" / f"learner-{learner}"
        net, private = OwnNet(), load_file(folder / PRIVATE)
        net.load_state_dict(load_file(folder / "model.safetensors"))
        features = torch.tanh(net.first(INPUTS.flatten(1)))
        head = features @ private["head.weight"].T + private["head.bias"]
        own = net.last(features) + private["log_shares"] + head
        found = accuracy_by_shares(own, data.test_targets, data.targets[data.owners == learner])
        assert found == pytest.approx(result.history["accuracy_own"][-1, 1, learner], abs=1e-9)
        assert read_card(folder).trained["metrics"]["accuracy_own"] == pytest.approx(found, abs=1e-9)
        for module in (load_model(folder, OwnNet, answer="own"), result.model(learner, 1, answer="own")):
            assert not module.training
            torch.testing.assert_close(module(INPUTS), own)
        assert not torch.allclose(own, load_model(folder, OwnNet)(INPUTS), atol=0.1)


def test_own_answers_in_memory_in_a_folder_and_after_the_best_round(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"validation": 0.3, "rounds": 3}
    in_memory, saved = run(**settings), run(out=tmp_path / "run", **settings)
    loaded = Result.load(tmp_path / "run", model=OwnNet)
    rounds: tuple[Literal["last", "best"], ...] = ("last", "best")
    for round_ in rounds:
        for learner in range(3):
            first, *others = [
                each.model(learner, round=round_, answer="own").state_dict() for each in (in_memory, saved, loaded)
            ]
            assert len(first) == 4 + 3 + 1  # the model's, the class shares, the head's, and the weights of answers
            assert all(torch.equal(first[name], other[name]) for other in others for name in first)


@pytest.mark.parametrize(
    ("method", "private"),
    [
        ("fedavg:objective=calibrated", {"log_shares"}),
        ("independent:own_head=true", {"head.weight", "head.bias"}),
        ("consilience:objective=calibrated:own_head=true", {"log_shares", "head.weight", "head.bias"}),
    ],
)
def test_the_file_holds_what_the_method_has(method: str, private: set[str], tmp_path: Path) -> None:
    result = run(method, rounds=1)
    (folder,) = result.export(tmp_path / "out", learner=1)
    assert load_file(folder / PRIVATE).keys() == private
    own = load_model(folder, OwnNet, answer="own")(INPUTS)
    assert torch.equal(own, result.model(1, answer="own")(INPUTS))


def test_what_has_no_own_answer_is_refused(tmp_path: Path) -> None:
    plain, both = run("fedavg", rounds=1, model="mlp"), run(rounds=1, model="mlp")
    both.export(tmp_path / "out", learner=0)
    assert (tmp_path / "out" / PRIVATE).exists()
    (folder,) = plain.export(tmp_path / "out", learner=0)  # replaces the first, own answer and all
    assert not (folder / PRIVATE).exists() and not read_card(folder).own_answer_sha256
    with pytest.raises(ConfigurationError, match=r"model of .*out has no own answer.*objective=calibrated or own_head"):
        load_model(folder, answer="own")
    with pytest.raises(ConfigurationError, match="learner 0 has no own answer"):
        plain.model(answer="own")
    wrong: Any = "mine"
    with pytest.raises(ConfigurationError, match="answer is 'mine'; it must be 'common' or 'own'"):
        load_model(folder, answer=wrong)
    with pytest.raises(ConfigurationError, match="answer is 'mine'; it must be 'common' or 'own'"):
        plain.model(answer=wrong)


def test_a_changed_own_answer_is_refused_and_a_missing_one_leaves_the_common(tmp_path: Path) -> None:
    (folder,) = run(rounds=1, model="mlp").export(tmp_path / "out", learner=0)
    content = (folder / PRIVATE).read_bytes()
    (folder / PRIVATE).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=r"own_answer\.safetensors has changed since it was written"):
        load_model(folder, answer="own")
    (folder / PRIVATE).unlink()
    with pytest.raises(ConfigurationError, match=r"own_answer\.safetensors is not there.*use the common answer"):
        predict_samples(folder, "digits", answer="own")
    assert predict_samples(folder, "digits").answer == "common"
    load_model(folder)


def test_predict_uses_the_own_answer_unless_told_otherwise(command: Command, tmp_path: Path) -> None:
    result = run(rounds=1, model="mlp", out=tmp_path / "run")
    out_folder = str(tmp_path / "out")
    command("export", str(tmp_path / "run"), "--learner", "0", "--out", out_folder)
    predicted = {}
    for answer, options in {"own": [], "common": ["--answer", "common"]}.items():
        code, out, err = command("predict", out_folder, "digits", *options)
        assert code == 0 and f"answer: {answer}, for " in err
        predicted[answer] = [int(line.split(",")[1]) for line in out.splitlines()[1:]]
    inputs = torch.from_numpy(load("digits", train=180).test_inputs)  # scaled as the run's
    assert predicted["common"] == result.model(0)(inputs).argmax(1).tolist()
    assert predicted["own"] == result.model(0, answer="own")(inputs).argmax(1).tolist()
    assert predicted["own"] != predicted["common"]
    code, _, err = command("predict", out_folder, "digits", "--answer", "mine")
    assert code != 0 and "answer is 'mine'; it must be 'common' or 'own'" in err


def test_onnx_has_both_answers(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    result = run(rounds=1)
    (folder,) = result.export(tmp_path / "out", learner=2, onnx=True)
    files: dict[AnswerKind, str] = {"common": "model.onnx", "own": "own_answer.onnx"}
    for answer, file in files.items():
        (found,) = runtime.InferenceSession(folder / file).run(["logits"], {"inputs": INPUTS.numpy()})
        expected = result.model(2, answer=answer)(INPUTS).detach()
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
