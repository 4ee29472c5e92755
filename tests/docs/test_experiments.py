"""The configurations in experiments/ can be run, and their comments are true."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from consilience.config.config import Config, read_config
from consilience.config.schedules import Schedule, scheduled
from consilience.data.heterogeneity import CASES
from consilience.data.local_datasets import make_local_datasets
from consilience.models import model_size
from consilience.simulation.setup.inputs import load_data
from consilience.simulation.simulate import check_run

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
REAL = Path(os.environ.get("CONSILIENCE_DATA") or Path(__file__).parents[3] / "shared" / "data")
FILES = sorted(EXPERIMENTS.rglob("*.toml"))
FIGURES = sorted(path.stem for path in (EXPERIMENTS / "heterogeneity").glob("*.toml"))

pytestmark = pytest.mark.usefixtures("one_thread")


def experiment(name: str) -> Config:
    return read_config(EXPERIMENTS / f"{name}.toml")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_experiment_is_valid(path: Path) -> None:
    config = read_config(path)
    if config.data.source != "digits":
        if not (REAL / config.data.source / "train-images-idx3-ubyte.gz").is_file():
            pytest.skip(f"{config.data.source} is not in {REAL}; set CONSILIENCE_DATA to the folder that has it")
        config = config.replace(data_dir=str(REAL))
    check_run(config)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_experiment_has_its_command(path: Path) -> None:
    """With its path from the root of the repository."""
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# ")
    named = re.findall(r"^#   consilience (?:run|compare) (experiments/\S+\.toml)", text, flags=re.MULTILINE)
    assert set(named) == {path.relative_to(EXPERIMENTS.parent).as_posix()}


# --- the nine cases


def test_each_of_the_nine_cases_has_a_file() -> None:
    assert sorted(CASES) == FIGURES


@pytest.mark.parametrize("figure", FIGURES)
def test_case_file_has_its_partition_and_shift(figure: str) -> None:
    config = experiment(f"heterogeneity/{figure}")
    assert (config.federation.partition, config.federation.shift) == CASES[figure]
    local = make_local_datasets(
        load_data(config),
        config.federation.learners,
        partition=config.federation.partition,
        shift=config.federation.shift,
        seed=config.federation.seed,
    )
    assert local.case.figure == figure


@pytest.mark.parametrize("figure", FIGURES)
def test_case_file_comment_states_what_differs(figure: str) -> None:
    text = (EXPERIMENTS / "heterogeneity" / f"{figure}.toml").read_text(encoding="utf-8")
    comment = " ".join(text.split("# Example:")[0].replace("#", " ").split())
    assert f"Case {figure} of the nine" in comment
    differ, _, same = comment.split(":")[-1].partition("differ")
    config = experiment(f"heterogeneity/{figure}")
    case = make_local_datasets(
        load_data(config), 4, partition=config.federation.partition, shift=config.federation.shift, seed=0
    ).case
    flags = {
        "p(x)": case.inputs,
        "p(y|x)": case.labels_given_inputs,
        "p(y)": case.labels,
        "p(x|y)": case.inputs_given_labels,
    }
    assert {symbol: symbol in differ for symbol in flags} == flags
    assert {symbol: symbol not in same for symbol in flags} == flags
    assert f"--partition '{config.federation.partition}' --shift '{config.federation.shift}'" in text


# --- the other files


def test_published_setting_file_has_the_published_values() -> None:
    config = experiment("mnist")
    assert (
        config.data.source,
        config.data.train,
        config.data.test,
        config.federation.learners,
        config.training.rounds,
    ) == ("mnist", 1200, None, 10, 100)
    assert (config.model.name, config.training.batch_size, config.training.epochs, config.training.lr) == (
        "lenet5",
        32,
        1,
        1e-3,
    )
    assert config.method.settings == {"kd": 10, "contrast": 1, "n_avg": 10}


def test_mixed_architectures_have_one_width() -> None:
    config = experiment("mixed-architectures")
    assert config.model.width == 64
    members = config.groups_by_learner()
    models = [members.get(who) for who in range(config.federation.learners)]
    assert [found[1].model for found in models if found] == ["lenet5"] * 2 + ["mlp"] * 2 + ["resnet9"] * 2
    text = (EXPERIMENTS / "mixed-architectures.toml").read_text(encoding="utf-8")
    for model in ("lenet5", "mlp", "resnet9"):
        assert f"{model_size(model, (1, 28, 28), 10, config.model.width)['parameters']:,} parameters" in text


def test_learner_settings_show_every_kind_of_setting() -> None:
    config = experiment("learner-settings")
    groups = config.groups.values()
    assert isinstance(scheduled(config.training.lr), Schedule)
    assert isinstance(scheduled(config.method.settings["kd"]), Schedule)
    assert any(group.method for group in groups) and any(group.epochs for group in groups)
    assert [group.uploads for group in groups].count(False) == [group.downloads for group in groups].count(False) == 1
    assert any(group.never_share for group in groups) and any(group.exchanges for group in groups)
