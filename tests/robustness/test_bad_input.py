"""Bad input is refused with the fault, the value received and what is allowed, or has a defined behavior."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from consilience.cli.main import main
from consilience.data import Dataset, load
from consilience.errors import ConfigurationError, ConsilienceError, UnknownName
from consilience.exchanges import Prototypes, Weights
from consilience.method import Method, Role
from consilience.models import SplitModel
from consilience.simulation.simulate import simulate

SMALL = ["--learners", "2", "--rounds", "1", "--train", "40", "--test", "20"]


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load("digits", train=60, test=40)


# The command: one line on standard error, exit code 2, no traceback, and nothing left behind

UNKNOWN = {
    "method": (["run", "--method", "fedavgg"], "unknown method 'fedavgg'. Did you mean 'fedavg'?"),
    "method compared": (
        ["compare", "--methods", "fedavg,fedavg-bit"],
        "unknown method 'fedavg-bit'. Did you mean 'fedavg-1bit'?",
    ),
    "method abbreviated": (["run", "--method", "repsharing"], "Did you mean 'representation-sharing'?"),
    "data set": (["run", "--data", "digit"], "unknown data set 'digit'. Did you mean 'digits'?"),
    "data set compared": (["compare", "--data", "mnits"], "unknown data set 'mnits'. Did you mean 'mnist'?"),
    "data set listed": (["methods", "--data", "minst"], "unknown data set 'minst'. Did you mean 'mnist'?"),
    "model": (["run", "--model", "lenet"], "unknown model 'lenet'. Did you mean 'lenet5'?"),
    "model listed": (["methods", "--model", "resnet"], "unknown model 'resnet'. Did you mean 'resnet9'?"),
    "key": (["run", "--set", "learner=3"], "unknown setting 'learner'. Did you mean 'learners'?"),
    "method's key": (
        ["run", "--set", "method.contrst=3"],
        "'contrst' of method 'consilience'. Did you mean 'contrast'?",
    ),
    "key nobody nearly knows": (
        ["run", "--set", "zzz=3"],
        "unknown setting 'zzz'. Known: aggregation, augment, batch_size,",
    ),
    "method's choice": (["run", "--method", "fedavg", "--set", "method.start=same"], "Known: common, different"),
    "encoding": (["run", "--method", "fedavg", "--set", "method.up=float"], "Did you mean 'float32'?"),
    "optimizer": (["run", "--optimizer", "adan"], "unknown optimizer 'adan'. Did you mean 'adam'?"),
    "partition": (["run", "--partition", "dirichlet"], "Did you mean 'dirichlet(ALPHA)'?"),
    "device": (["run", "--device", "quantum"], "unknown device 'quantum'; use cpu, cuda"),
}
REFUSED = {
    "data set without bytes": (["methods", "--data", "diabetes"], "bytes of methods are listed for digits"),
    "no learners": (["run", "--learners", "0"], "learners is 0"),
    "negative learners": (["run", "--learners", "-2"], "learners is -2"),
    "no rounds": (["run", "--rounds", "0"], "rounds is 0"),
    "negative rounds": (["compare", "--rounds", "-1"], "rounds is -1"),
    "more learners than samples": (["run", "--learners", "41", "--train", "40"], "41 learners cannot share 40 samples"),
    "no training samples": (["run", "--train", "0"], "train is 0"),
    "more samples than there are": (["run", "--train", "1001"], "has 1000 training samples, and 1001 are to be used"),
    "no participation": (["run", "--participation", "0"], "participation is 0.0"),
    "too much participation": (["run", "--participation", "1.5"], "participation is 1.5"),
    "too much absence": (["run", "--offline", "1.1"], "offline is 1.1"),
    "no batch": (["run", "--batch-size", "0"], "batch_size is 0"),
    "no step": (["run", "--lr", "0"], "lr is '0'; it must be more than 0"),
    "a step that is no number": (["run", "--lr", "nan"], "lr is 'nan'"),
    "an endless step": (["run", "--lr", "inf"], "lr is 'inf'"),
    "a negative seed": (["run", "--seed", "-1"], "seed is -1"),
    "a seed beyond what integers hold": (["run", "--seed", str(2**63)], f"seed is {2**63}"),
    "a concentration of nothing": (["run", "--partition", "dirichlet(0)"], "ALPHA must be a finite number above 0"),
    "a device torch has, and this has not": (["run", "--device", "meta"], "device 'meta' is not supported"),
    "an engine that is not there": (["run", "--engine", "warp"], "engine is 'warp'"),
    "a method as a word": (["run", "--set", "method=fedavg"], "method is 'fedavg'"),
    "--set without a value": (["run", "--set", "lr"], "write KEY=VALUE"),
    "--set below a number": (["run", "--learners", "2", "--set", "learners.x=1"], "'learners' has no keys of its own"),
    "a method's setting of another kind": (["run", "--set", "method.kd=much"], "kd is 'much'"),
    "a method's setting out of range": (["run", "--set", "method.n_avg=0"], "n_avg is 0"),
    "a part of nothing": (["run", "--method", "fedavg", "--set", "method.part=tail"], "part 'tail' covers nothing"),
    "two parts of a model in one": (
        ["run", "--method", "two-stage", "--model", "encoder18", *SMALL],
        "encoder18 is in one part, and this run needs the output of a model's first part",
    ),
    "one sample without a distance": (["run", "--method", "two-stage", "--batch-size", "1", *SMALL], "batch_size is 1"),
    "a vote of no length": (["run", "--method", "two-stage", "--set", "method.delta=0"], "delta is 0"),
    "a length that changes": (
        ["run", "--method", "two-stage", "--set", "method.delta=ramp(1, 0.1, 5)"],
        "delta is ramp(1, 0.1, 5), and cannot change with the rounds",
    ),
    "two heads without weight": (
        ["run", "--method", "two-stage", "--set", "method.alpha_2=0", "--set", "method.lam=0"],
        "lam is 0",
    ),
    "a part that a cut model has not": (
        ["run", "--method", "fedavg", "--set", "method.part=sever", *SMALL],
        "part 'sever' covers nothing of mlp; its parts are device, server",
    ),
    "a device that is neither": (
        ["run", "--method", "two-stage", "--set", "method.device=1 bit", *SMALL],
        "unknown device '1 bit'. Did you mean '1bit'?",
    ),
    "a layer to watch that is not there": (
        ["run", "--set", "watch=featrues.hidden", *SMALL],
        "unknown layer 'featrues.hidden' of mlp. Did you mean 'features.hidden'?",
    ),
    "a cut to watch in a model in one part": (
        ["run", "--method", "fedavg", "--model", "encoder18", "--set", "watch=cut", *SMALL],
        "use a model in two parts, such as device-cnn for images and device-lstm for text",
    ),
    "an ensemble perhaps": (["run", "--set", "ensemble=maybe"], "it must be 'auto', 'on' or 'off'"),
    "an ensemble of classifiers that nobody teaches": (
        ["run", "--method", "fedavg", "--set", "method.objective=simclr", "--set", "ensemble=on", *SMALL],
        "ensemble is 'on', but not all learners of method 'fedavg' learn from labels",
    ),
    "settings of a method not compared": (
        ["compare", "--methods", "fedavg", "--set", "method.kd=3"],
        "method.kd is set for method 'consilience', which is not compared",
    ),
    "nothing to compare": (["compare", "--methods", " , "], "no method to compare"),
    "images too small for the model": (["run", "--model", "resnet9"], "needs inputs of at least 16x16 pixels"),
    "two models for three": (["run", "--model", "mlp,lenet5", "--learners", "3"], "2 models for 3 learners"),
    "different widths": (
        ["run", "--method", "fedproto", "--model", "mlp,lenet5", *SMALL],
        "learners 0 (mlp, d' = 32) and 1 (lenet5, d' = 84) cannot share 'prototypes'",
    ),
    "different architectures": (
        ["run", "--method", "fedavg", "--model", "mlp,lenet5", *SMALL],
        "Weights travel between equal architectures only",
    ),
    "no such file": (["run", "nowhere.toml"], "nowhere.toml: no such file"),
    "no such run": (["run", "--resume", "nowhere"], "nowhere is not a run folder"),
    "no such comparison": (["compare", "--resume", "nowhere"], "nowhere is not a comparison"),
    "nothing to show": (["show", "nowhere"], "nowhere is not a run folder"),
}


@pytest.mark.parametrize("what", [*UNKNOWN, *REFUSED])
def test_command_refuses_in_one_line(
    what: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, words = (UNKNOWN | REFUSED)[what]
    asked = (
        [*arguments, "--out", "mine"]
        if arguments[0] in ("run", "compare") and "--resume" not in arguments
        else arguments
    )
    with pytest.raises(SystemExit) as ended:
        main(asked)
    out, err = capsys.readouterr()
    assert ended.value.code == 2
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1
    assert words in err
    assert not Path("mine", "config.toml").exists()


def test_refused_comparison_can_be_corrected_and_repeated(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ["compare", "--methods", "independent", *SMALL, "--out", "mine", "--json"]
    for more, code in ((["--model", "lenet"], 2), (["--model", "lenet5"], 0), (["--model", "lenet5"], 2)):
        with pytest.raises(SystemExit) as ended:
            main([*asked, *more])
        assert ended.value.code == code
    refused = (
        "mine already holds a comparison; resume it with consilience compare --resume mine, or choose another folder"
    )
    assert refused in capsys.readouterr().err


def test_a_file_in_the_place_of_the_folder_is_refused_before_the_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("report.html").write_text("mine", encoding="utf-8")
    for command in (["run"], ["compare", "--methods", "independent"]):
        with pytest.raises(SystemExit) as ended:
            main([*command, *SMALL, "--out", "report.html"])
        out, err = capsys.readouterr()
        assert (ended.value.code, out) == (2, "")
        assert err == "error: report.html is a file, and a run is saved in a folder; choose another name\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "--lerners", "3"], "--learners"),
        (["run", "--learners", "many"], "--learners"),
        (["frobnicate"], "frobnicate"),
    ],
)
def test_wrong_option_is_reported_with_the_usage(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    out, err = capsys.readouterr()
    assert ended.value.code == 2 and out == "" and words in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("content", "words", "code"),
    [
        (b"learners = 2\nlerning = 3\n", "unknown setting 'lerning'", 2),
        (b"learners = 'two'\n", "learners is 'two'", 2),
        (b"learners = \n", "mine.toml: not a readable TOML file", 1),
        (b"\xff\xfe\x00", "mine.toml: not a readable TOML file", 1),
        (b"method = 'fedavg'\n", "method is 'fedavg'", 2),
    ],
)
def test_bad_configuration_file_is_named(
    content: bytes, words: str, code: int, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "mine.toml"
    file.write_bytes(content)
    with pytest.raises(SystemExit) as ended:
        main(["run", str(file)])
    assert ended.value.code == code and words in capsys.readouterr().err


# Participation


@pytest.mark.parametrize("participation", [0.01, 1 / 3, 0.4])
def test_empty_participation_draw_keeps_one_learner(participation: float, data: Dataset) -> None:
    result = simulate(
        data=data, method="consilience", learners=3, rounds=4, participation=participation, workers=0, seed=1
    )
    took_part = result.history["participated"][:, 0]  # (rounds, learners)
    assert took_part.sum(axis=1).tolist() == [1, 1, 1, 1]
    assert took_part.any(axis=0).sum() > 1, "not always the same one"
    assert (result.history["bytes.up"][:, 0] > 0).tolist() == took_part.astype(bool).tolist()


# Models


class Plain(nn.Module):
    """A model without the required part names."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


class Crooked(nn.Module):
    """A classifier that is not linear."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Flatten(), nn.Linear(64, 8))
        self.classifier = nn.Sequential(nn.ReLU(), nn.Linear(8, 10))


@pytest.mark.parametrize(
    ("build", "words"), [(Plain, "Plain is not a split model: it needs modules"), (Crooked, "classifier = Sequential")]
)
@pytest.mark.parametrize("method", ["independent", "representation-sharing"])
def test_model_without_a_linear_classifier_is_refused(
    build: type[nn.Module], words: str, method: str, data: Dataset
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        simulate(data=data, model=build, method=method, learners=2, rounds=1)


def perceptron(width: int = 8, hidden: int = 8, classes: int = 10) -> SplitModel:
    layers = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, width), nn.Tanh())
    return SplitModel(layers, nn.Linear(width, classes), bound=1.0)


def narrow() -> SplitModel:
    return perceptron(width=6)


def wide() -> SplitModel:
    return perceptron(width=9)


def bigger() -> SplitModel:
    return perceptron(width=6, hidden=20)


def of_nine() -> SplitModel:
    return perceptron(classes=9)


def test_model_for_another_number_of_classes_is_refused(data: Dataset) -> None:
    with pytest.raises(ConfigurationError, match="model 'of_nine' predicts 9 classes, the data has 10"):
        simulate(data=data, model=of_nine, method="independent", learners=2, rounds=1)


@pytest.mark.parametrize("method", ["fedproto", "representation-sharing", "consilience"])
def test_different_widths_cannot_share_prototypes(method: str, data: Dataset) -> None:
    with pytest.raises(ConfigurationError) as refused:
        simulate(data=data, model=[narrow, wide], method=method, learners=2, rounds=1)
    for words in ("learners 0 (narrow, d' = 6) and 1 (wide, d' = 9)", "'prototypes'", "share logits instead"):
        assert words in str(refused.value)


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fedavg-1bit", "consilience"])
def test_different_architectures_cannot_share_weights(method: str, data: Dataset) -> None:
    with pytest.raises(ConfigurationError) as refused:
        simulate(data=data, model=[narrow, bigger], method=method, learners=2, rounds=1)
    for words in ("narrow", "bigger", "'weights'", "Weights travel between equal architectures only"):
        assert words in str(refused.value)


@pytest.mark.parametrize("method", ["independent", "federated-distillation"])
def test_different_widths_can_run_methods_that_share_no_features(method: str, data: Dataset) -> None:
    result = simulate(data=data, model=[narrow, wide], method=method, learners=2, rounds=2, workers=0)
    assert np.isfinite(result.accuracy).all() and result.accuracy.shape == (1, 2)


def test_different_architectures_of_one_width_can_share_prototypes(data: Dataset) -> None:
    result = simulate(data=data, model=[narrow, bigger], method="fedproto", learners=2, rounds=2, workers=0)
    assert np.isfinite(result.history["loss.prototypes"]).all()


def test_equal_classifiers_can_be_shared_over_different_features(data: Dataset) -> None:
    method = Method("heads", {"learner": Role(exchanges=(Weights(part="classifier"),))})
    result = simulate(data=data, model=[narrow, bigger], method=method, learners=2, rounds=2, workers=0)
    assert (result.history["bytes.up"] > 0).all()


def test_duplicate_exchange_name_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="holds 'prototypes' twice"):
        Role(exchanges=(Prototypes(), Prototypes(weight=1.0)))


# BatchNorm, which needs two samples


def normed() -> SplitModel:
    layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Tanh())
    return SplitModel(layers, nn.Linear(8, 10), bound=1.0)


def split(sizes: list[int]) -> Callable[..., list[np.ndarray]]:
    """A partition into pieces of these sizes."""
    return lambda targets, *others, **more: np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])


def test_learner_with_one_sample_cannot_use_batchnorm(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consilience.data.local_datasets.partition_samples", split([30, 29, 1]))
    with pytest.raises(ConfigurationError, match="learner 2 has one sample, and BatchNorm in model 'normed' needs two"):
        simulate(data=data, model=normed, method="fedavg", learners=3, rounds=1)
    result = simulate(data=data, method="consilience", learners=3, rounds=2, workers=0)
    assert np.isfinite(result.history["loss.cross_entropy"]).all(), "without BatchNorm one sample will do"


@pytest.mark.parametrize("sizes", [[30, 28, 2], [20, 20, 20]])
@pytest.mark.parametrize("batch_size", [2, 19])
def test_no_batch_of_one_reaches_batchnorm(
    sizes: list[int], batch_size: int, data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consilience.data.local_datasets.partition_samples", split(sizes))
    result = simulate(
        data=data, model=normed, method="consilience", learners=3, rounds=2, batch_size=batch_size, workers=0
    )
    assert np.isfinite(result.history["loss.cross_entropy"]).all()


def test_batches_of_one_are_refused_under_batchnorm(data: Dataset) -> None:
    with pytest.raises(ConfigurationError, match="batch_size is 1, and BatchNorm in model 'normed' needs at least 2"):
        simulate(data=data, model=normed, method="fedavg", learners=3, rounds=1, batch_size=1)


def test_learners_with_one_sample_each_share_no_representations(data: Dataset) -> None:
    """Every learner has one sample, whose features would be the class mean: none is uploaded."""
    result = simulate(data=data, method="representation-sharing", learners=60, rounds=2, workers=0)
    assert (result.history["loss.prototypes"] == 0).all() and (result.history["loss.observations"] == 0).all()
    with pytest.raises(ConfigurationError, match="61 learners cannot share 60 samples"):
        simulate(data=data, method="representation-sharing", learners=61, rounds=2)


# The Python API


@pytest.mark.parametrize(
    ("settings", "nearest"),
    [
        ({"lerners": 3}, "learners"),
        ({"method": "fedpro"}, "fedprox"),
        ({"data": "digit"}, "digits"),
        ({"model": "lenet"}, "lenet5"),
        ({"optimizer": "sdg"}, "sgd"),
    ],
)
def test_unknown_names_carry_the_nearest_known_one(settings: dict[str, Any], nearest: str) -> None:
    with pytest.raises(UnknownName) as refused:
        simulate(**settings)
    assert refused.value.nearest == nearest and isinstance(refused.value, ConsilienceError)


def test_run_is_resumed_with_its_own_settings_only(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="give it no others"):
        simulate(resume=tmp_path, rounds=3)


def test_non_finite_inputs_are_refused_before_training(data: Dataset) -> None:
    spoiled = data.inputs.copy()
    spoiled[7, 0, 3, 3] = np.nan
    with pytest.raises(ConsilienceError, match="must be finite, got 1 values that are not"):
        replace(data, inputs=spoiled)


def test_number_of_threads_is_restored_after_an_error(data: Dataset) -> None:
    before = torch.get_num_threads()
    with pytest.raises(ConsilienceError):
        simulate(data=data, method="independent", learners=2, rounds=3, optimizer="sgd", lr=1e300, workers=0)
    assert torch.get_num_threads() == before
