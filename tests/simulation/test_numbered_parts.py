"""Parts named by a number, as modules of nn.Sequential are: in Python, in text and in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from consilience import build_method, simulate
from consilience.cli.options import gather_config
from consilience.config.config import read_config
from consilience.errors import ConfigurationError
from consilience.models import split
from consilience.models.split import network_names
from consilience.task import Task

SIZE: dict[str, Any] = {"data": "digits", "train": 40, "test": 20, "learners": 2, "rounds": 1, "workers": 0}


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10))


def same_layers(**settings: Any) -> list[str]:
    """The weights that both learners have the same values of after a round."""
    found = simulate(model=network, **SIZE, **settings)
    one, other = (found.model(learner=who).state_dict() for who in (0, 1))
    return [name for name in one if torch.equal(one[name], other[name])]


@pytest.mark.parametrize("method", ["fedavg:part=3", 'fedavg:part="3"', "fedavg:part=classifier"])
def test_text_names_the_last_layer(method: str) -> None:
    assert same_layers(method=method) == ["3.weight", "3.bias"]


def test_a_file_and_an_option_name_a_layer_by_its_number(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('[method]\nname = "fedavg"\npart = 1\n')
    assert same_layers(config=read_config(file)) == ["1.weight", "1.bias"]
    assert same_layers(config=gather_config(None, ["method.part=1"], {}, "fedavg")) == ["1.weight", "1.bias"]


def test_a_setting_that_is_a_word_may_be_an_integer() -> None:
    assert build_method("fedprox", {"part": 12}).exchanges == build_method("fedprox", {"part": "12"}).exchanges
    with pytest.raises(ConfigurationError, match=r"part is True; it must be a word, such as its default 'trained'$"):
        build_method("fedavg", {"part": True})


def test_a_fraction_is_not_taken_for_a_name() -> None:
    """0.10 is read as 0.1, which is another module of a network in a network."""
    with pytest.raises(ConfigurationError, match=r"part is 0.1; it must be a word.* quotes, part = \"0.1\", and in a"):
        build_method("fedavg", {"part": 0.10})


def test_names_of_a_network_in_a_network() -> None:
    inner = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Tanh())
    model = split(nn.Sequential(inner, nn.Linear(8, 10)))
    parameters = {name: tuple(p.shape) for name, p in model.named_parameters()}
    buffers = {name: tuple(b.shape) for name, b in model.named_buffers()}
    task = Task(10, 8, parameters=parameters, buffers=buffers, network_names=network_names(model))

    def covered(part: str) -> list[str]:
        return task.covered(part, (*parameters, *buffers))

    assert covered("0.1") == ["features.model.0.1.weight", "features.model.0.1.bias"]
    assert covered("1") == covered("classifier") == ["classifier.weight", "classifier.bias"]
    assert covered("1.bias") == ["classifier.bias"]
    assert covered("0") == covered("features") == [n for n in task.network_names if n.startswith("features.")]
    assert "features.model.0.2.running_mean" in covered("0.2") and "features.model.0.2.weight" in covered("0.2")


def test_names_in_the_split_model_come_first() -> None:
    """A network may call a part of it as the split model calls another."""
    net = nn.Sequential()
    net.add_module("classifier", nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8)))
    net.add_module("last", nn.Linear(8, 10))
    model = split(net)
    task = Task(
        10,
        8,
        parameters={name: tuple(p.shape) for name, p in model.named_parameters()},
        buffers={name: tuple(b.shape) for name, b in model.named_buffers()},
        network_names=network_names(model),
    )
    assert task.covered("classifier", task.parameters) == ["classifier.weight", "classifier.bias"]
    assert task.covered("classifier", task.buffers) == []
    assert task.covered("last", task.parameters) == ["classifier.weight", "classifier.bias"]
