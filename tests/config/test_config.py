"""The configuration: flat settings grouped in parts, typed for editors, written as one flat table."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest

from consilience import Settings
from consilience.config.config import KEYS, PARTS, Config, field_of_key, make_config
from consilience.errors import CheckpointError, ConfigurationError, UnknownName
from consilience.simulation.compare import read_comparison
from consilience.simulation.records.run_folder import RunFolder
from consilience.simulation.sweep_plan import read_sweep

CHANGED = {
    "data": "mnist",
    "data_dir": "/data",
    "train": 100,
    "learners": 3,
    "partition": "dirichlet(0.5)",
    "model": "mlp",
    "width": 8,
    "rounds": 4,
    "total_epochs": 8,
    "lr": "cosine(0.01, 0.001, 4)",
    "eval_every": 2,
    "engine": "loop",
    "method": {"name": "fedproto", "kd": 3},
    "groups": {"late": {"learners": "1-2", "joins": 2}},
    "variants": [{"method.kd": 1}, {"method.kd": 2}],
}


def test_every_key_belongs_to_one_part_of_at_most_15() -> None:
    keys = [key for part in PARTS.values() for key in part.keys()]  # noqa: SIM118
    assert len(keys) == len(set(keys)) == len(KEYS) - 3
    assert all(len(part.model_fields) <= 15 and part.heading for part in PARTS.values())
    assert all(field_of_key(key).description for key in KEYS)


def test_typed_settings_are_the_keys_of_the_configuration() -> None:
    typed = get_type_hints(Settings)
    assert set(typed) == set(KEYS) - {"data", "model", "method"}
    for key, kind in typed.items():
        if key not in ("lr", "metrics", "groups", "variants"):  # accept other spellings too
            assert kind == field_of_key(key).annotation, key


def test_settings_round_trip_as_a_flat_table() -> None:
    config = make_config(CHANGED)
    assert (config.data.source, config.model.name, config.evaluation.every) == ("mnist", "mlp", 2)
    assert (config.training.rounds, config.training.epochs) == (4, 2)
    flat = tomllib.loads(config.to_toml())
    assert make_config(flat) == config == make_config(config.settings())
    assert flat["learners"] == 3 and flat["method"] == {"name": "fedproto", "kd": 3}
    assert not set(flat) & (set(PARTS) - {"data", "model"})
    assert config.variant(1).method.settings == {"kd": 2} and not config.variant(1).variants


def test_replace_changes_settings_without_validation() -> None:
    config = make_config({}).replace(rounds=0, model="mlp", groups={})
    assert (config.training.rounds, config.model.name, config.training.epochs) == (0, "mlp", 1)
    assert config.data is make_config({}).data or config.data == make_config({}).data


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"rounds": 0}, "rounds is 0; it must be 1 or more"),
        ({"data": 3}, "data is 3; it must be a word"),
        ({"eval_every": "x", "learners": 0}, "learners is 0; it must be 1 or more; eval_every is 'x'; it must be a w"),
        ({"groups": {"a": {"learners": 0, "lr": -1}}}, "groups.a.lr is -1; "),
        ({"method": "fedavg"}, "method is 'fedavg'; it must be a table: write method.name = \"fedavg\", and"),
    ],
)
def test_invalid_value_is_reported_by_its_key(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make_config(settings)
    assert said in str(refused.value)


COUNTS = [key for key in KEYS if field_of_key(key).annotation in (int, int | None)]


@pytest.mark.parametrize("key", COUNTS)
@pytest.mark.parametrize("given", [1.5, 2.0, True, "2", [2]])
def test_count_that_is_no_whole_number_is_refused(key: str, given: object) -> None:
    """Whatever it counts, and whether it is given in Python or in a file."""
    with pytest.raises(ConfigurationError) as refused:
        make_config({key: given})
    assert f"{key} is {given!r}; it must be a whole number" in str(refused.value)


@pytest.mark.parametrize("key", ["epochs", "batch_size"])
@pytest.mark.parametrize("given", [1.5, 2.0, True, "2"])
def test_count_of_a_group_that_is_no_whole_number_is_refused(key: str, given: object) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make_config({"groups": {"late": {"learners": 1, key: given}}})
    assert f"groups.late.{key} is {given!r}; it must be a whole number" in str(refused.value)


def test_counts_are_those_that_a_run_has() -> None:
    """So that the test above leaves none out by another spelling of its type."""
    assert {"rounds", "epochs", "total_epochs", "batch_size", "eval_every", "partners_every", "workers"} < set(COUNTS)


def test_count_may_be_an_integer_of_numpy() -> None:
    config = make_config({"rounds": np.int64(2), "total_epochs": np.int32(8)})
    assert (config.training.rounds, config.training.epochs) == (2, 4)
    assert tomllib.loads(config.to_toml())["rounds"] == 2


@pytest.mark.parametrize(("key", "nearest"), [("roundz", "rounds"), ("optimiser", "optimizer"), ("training", "train")])
def test_unknown_key_is_refused_with_the_nearest_known_one(key: str, nearest: str) -> None:
    with pytest.raises(UnknownName) as refused:
        make_config({key: 1})
    assert refused.value.nearest == nearest


def test_default_configuration_equals_that_of_no_settings() -> None:
    assert Config() == make_config({})


def test_run_folder_of_an_older_layout_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('optimiser = "adam"\n', encoding="utf-8")
    with pytest.raises(
        CheckpointError, match="the layout of another version of consilience, with the setting 'optimiser'"
    ):
        RunFolder.open(tmp_path).config  # noqa: B018


@pytest.mark.parametrize(("kind", "read"), [("comparison", read_comparison), ("sweep", read_sweep)])
def test_comparison_or_sweep_of_an_older_layout_is_refused(
    tmp_path: Path, kind: str, read: Callable[[Path], object]
) -> None:
    (tmp_path / f"{kind}.toml").write_text('methods = []\n[grid]\n[config]\noptimiser = "adam"\n', encoding="utf-8")
    with pytest.raises(CheckpointError, match=f"layout of another version.*'optimiser'; start the {kind} again"):
        read(tmp_path)
