"""Custom data, models and settings on the command line: from image files to a table, and error messages."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from consilience.config.config import KEYS, GroupConfig, field_of_key, make_config, read_config
from consilience.data.heterogeneity import CASES

Command = Callable[..., tuple[int, str, str]]

NET = """
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.hidden = nn.Linear(8 * 8 * 8, 24)
        self.fc = nn.Linear(24, num_classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv(x)), 2).flatten(1)
        return F.log_softmax(self.fc(F.relu(self.hidden(x))), dim=1)
"""


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("CONSILIENCE_CACHE", str(tmp_path_factory.mktemp("cache")))


def draw(folder: Path, images: int = 50, size: int = 16) -> Path:
    """Writes images of horizontal bars, vertical bars, squares and background, with colors and noise."""
    generator = np.random.default_rng(0)
    for kind in ("across", "down", "nothing", "square"):
        (folder / kind).mkdir(parents=True)
        for i in range(images):
            pixels = generator.integers(0, 60, (size, size, 3))
            at, color = generator.integers(2, size - 6), generator.integers(140, 255, 3)
            if kind == "across":
                pixels[at : at + 3] = color
            elif kind == "down":
                pixels[:, at : at + 3] = color
            elif kind == "square":
                pixels[at : at + 5, at : at + 5] = color
            Image.fromarray(pixels.astype(np.uint8)).save(folder / kind / f"{i}.png")
    return folder


def test_custom_images_and_model_are_compared_in_three_commands(command: Command) -> None:
    draw(Path("pictures"))
    Path("net.py").write_text(NET, encoding="utf-8")
    code, out, err = command("data", "pictures", "--out", "grid.png")
    assert code == 0, err
    assert "160 training and 40 test samples of 3 x 16 x 16" in out and "across" in out
    with Image.open("grid.png") as grid:
        assert grid.width > 4 * 48 and grid.height >= 4 * 48
    asked = ["--data", "pictures", "--model", "net.py:Net@fc", "--learners", "4", "--rounds", "25"]
    code, out, _ = command("init", "mine.toml", *asked)
    assert code == 0 and "consilience run mine.toml" in out
    code, out, err = command("compare", "mine.toml", "--methods", "independent,representation-sharing,fedavg", "--json")
    assert code == 0, err
    summaries = {s["method"]: s for s in map(json.loads, out.splitlines())}
    assert list(summaries) == ["independent", "representation-sharing", "fedavg"]
    for summary in summaries.values():
        assert summary["accuracy"]["mean"] > 40  # chance is 25
        assert summary["model"].endswith("net.py:Net@fc") and summary["data"].endswith("pictures")
    weights = 3 * 8 * 9 + 8 + 512 * 24 + 24 + 24 * 4 + 4
    assert 4 * weights < summaries["fedavg"]["message_bytes"]["up"] < 4 * weights + 1500
    assert summaries["representation-sharing"]["message_bytes"]["up"] < 2000
    config = read_config(Path(summaries["fedavg"]["run"]) / "config.toml")
    assert Path(config.data.source).is_absolute() and Path(config.model_name.partition(":")[0]).is_absolute()


def test_saved_configuration_reproduces_the_run(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    draw(Path("pictures"), images=10)
    Path("net.py").write_text(NET, encoding="utf-8")
    asked = [
        "--data",
        "pictures",
        "--model",
        "net.py:Net@fc",
        "--learners",
        "2",
        "--rounds",
        "2",
        "--method",
        "fedproto",
    ]
    terms = [
        "--set",
        "groups.quiet.learners=1",
        "--set",
        "groups.quiet.uploads=false",
        "--set",
        "method.kd=ramp(0, 4, 2)",
    ]
    assert command("run", *asked, *terms, "--shift", "rotate(30)", "--out", "first")[0] == 0
    again = Path("elsewhere").absolute()
    again.mkdir()
    resolved = Path("first/config.toml").absolute()
    monkeypatch.chdir(again)
    assert command("run", str(resolved), "--out", "second")[0] == 0
    lines = [
        path.read_text().splitlines() for path in (resolved.parent / "metrics.jsonl", Path("second/metrics.jsonl"))
    ]
    first, second = ([drop_times(json.loads(line)) for line in each] for each in lines)
    assert first == second and len(first) == 6
    assert resolved.read_text() == Path("second/config.toml").read_text()


def drop_times(line: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key != "seconds"}


def test_resume_refuses_changed_model_code(command: Command) -> None:
    Path("net.py").write_text(NET.replace("Conv2d(3", "Conv2d(1").replace("8 * 8 * 8", "8 * 4 * 4"), encoding="utf-8")
    asked = ["run", "--model", "net.py:Net@fc", "--train", "40", "--test", "20", "--learners", "2", "--rounds", "1"]
    assert command(*asked, "--out", "mine")[0] == 0
    Path("net.py").write_text(Path("net.py").read_text() + "# changed\n", encoding="utf-8")
    code, _, err = command("run", "--resume", "mine")
    assert code == 1 and "its model is not the one given" in err


# --- init


def test_init_file_explains_every_key_and_keeps_defaults(command: Command) -> None:
    assert command("init")[0] == 0
    text = Path("experiment.toml").read_text(encoding="utf-8")
    assert read_config(Path("experiment.toml")) == make_config({})
    for name, field in ({key: field_of_key(key) for key in KEYS} | GroupConfig.model_fields).items():
        if name != "variants":
            assert f"{name} = " in text or f"[{name}" in text or f".{name}]" in text, name
            assert name in ("method", "groups") or str(field.description).split()[0] in text
    assert max(map(len, text.splitlines())) <= 120


def test_commented_settings_of_the_init_file_are_valid(command: Command) -> None:
    """The file with all commented settings enabled is a valid configuration."""
    assert command("init", "--learners", "3")[0] == 0
    lines = Path("experiment.toml").read_text(encoding="utf-8").splitlines()
    offered = [line.removeprefix("# ") if re.match(r"# (\w+ = |\[)", line) else line for line in lines]
    told = "\n".join(line for line in offered if not line.startswith("model = ..."))
    told = told.replace('private = "none"', 'private = "upload"')  # a budget without a mechanism is refused
    found = tomllib.loads(told)
    assert found["groups"]["clinic"]["never_share"] == [3] and found["groups"]["clinic"]["method"] == {"kd": 3}
    assert found["method"]["kd"] == 0.3 and found["width"] == 64
    Path("all.toml").write_text(told, encoding="utf-8")
    assert read_config(Path("all.toml")).groups["clinic"].learners == "1-2"


def test_init_writes_given_settings_and_does_not_overwrite_files(command: Command) -> None:
    asked = [
        "--method",
        "representation-sharing:kd=3",
        "--partition",
        "dirichlet(0.3)",
        "--set",
        "groups.a.learners=0-1",
    ]
    assert command("init", "mine.toml", *asked, "--set", "groups.a.method.kd=1")[0] == 0
    config = read_config(Path("mine.toml"))
    assert config.method.settings == {"kd": 3} and config.federation.partition == "dirichlet(0.3)"
    assert config.groups["a"].method == {"kd": 1} and config.groups["a"].learners == "0-1"
    code, _, err = command("init", "mine.toml")
    assert code == 2 and "mine.toml already exists" in err
    assert command("init", "mine.toml", "--force")[0] == 0
    assert read_config(Path("mine.toml")) == make_config({})
    code, _, err = command("init", "other.toml", "--method", "fedavgg")
    assert code == 2 and "Did you mean 'fedavg'" in err and not Path("other.toml").exists()


# --- data


def test_data_command_shows_classes_and_partition(command: Command) -> None:
    code, out, _ = command("data", "digits", "--train", "100", "--learners", "4", "--partition", "dirichlet(0.3)")
    assert code == 0 and "100 training and 797 test samples of 1 x 8 x 8" in out
    assert "learners differ in p(x) and p(y) but not in p(y|x) and p(x|y): case 7e of the nine kinds" in out
    assert "by chance alone" in out


@pytest.mark.parametrize("figure", list(CASES))
def test_data_command_reports_each_of_the_nine_cases(figure: str, command: Command) -> None:
    partition, shift = CASES[figure]
    asked = ["--learners", "4", "--partition", partition, "--shift", shift, "--json", "--out", "grid.png"]
    code, out, _ = command("data", "digits", *asked)
    found = json.loads(out)
    assert code == 0 and found["case"]["figure"] == figure and Path("grid.png").stat().st_size > 1000
    for distance in found["distances"].values():
        if distance["differs"]:
            assert distance["measured"] > max(0.05, 1.5 * distance["by_chance"])
        else:
            assert distance["measured"] < 0.05 + 1.5 * distance["by_chance"]


def test_data_command_reports_that_a_table_has_no_pictures(command: Command) -> None:
    np.savez("table.npz", x=np.random.default_rng(0).normal(size=(60, 5)), y=np.arange(60) % 3)
    code, out, err = command("data", "table.npz")
    assert code == 0 and "48 training and 12 test samples of 5" in out and "cannot be shown as pictures" in err
    code, out, err = command("run", "--data", "table.npz", "--learners", "2", "--rounds", "2", "--json")
    assert code == 0 and json.loads(out)["model"] == "mlp"
    assert "table-consilience" in json.loads(out)["run"]


# --- invalid input: one line that names the file or key, and no partial output


def mixed_sizes(folder: Path) -> None:
    Image.new("RGB", (9, 9)).save(draw(folder, 3) / "down" / "odd.png")


def mixed_modes(folder: Path) -> None:
    Image.new("L", (16, 16)).save(draw(folder, 3) / "down" / "gray.png")


def unreadable(folder: Path) -> None:
    (draw(folder, 3) / "down" / "broken.png").write_bytes(b"no picture at all")


def truncated(folder: Path) -> None:
    whole = draw(folder, 3) / "down" / "1.png"
    whole.write_bytes(whole.read_bytes()[:200])


def one_class(folder: Path) -> None:
    (folder / "only").mkdir(parents=True)
    Image.new("RGB", (16, 16)).save(folder / "only" / "1.png")


def extra_test_class(folder: Path) -> None:
    draw(folder / "train", 3)
    (folder / "test" / "new").mkdir(parents=True)
    Image.new("RGB", (16, 16)).save(folder / "test" / "new" / "1.png")


FOLDERS: dict[str, tuple[Callable[[Path], None], str]] = {
    "images of mixed sizes": (mixed_sizes, "odd.png"),
    "images of mixed modes": (mixed_modes, "gray.png"),
    "an unreadable file": (unreadable, "broken.png"),
    "a truncated file": (truncated, "1.png"),
    "a folder with one class": (one_class, "only"),
    "more classes at test than in training": (extra_test_class, "new"),
}


@pytest.mark.parametrize("what", list(FOLDERS))
def test_invalid_image_folder_is_refused(what: str, command: Command) -> None:
    make, named = FOLDERS[what]
    make(Path("pictures"))
    assert_refused(command("compare", "--data", "pictures", "--methods", "independent,fedavg", "--out", "mine"), named)


def assert_refused(said: tuple[int, str, str], *named: str) -> None:
    code, out, err = said
    assert code in (1, 2) and out == "" and err.startswith("error: ") and err.count("\n") == 1
    for word in named:
        assert word in err
    kept = Path("mine")
    assert not kept.exists() or not list(kept.glob("*/config.toml")) + list(kept.glob("config.toml"))


ARRAYS: dict[str, tuple[dict[str, Any], str]] = {
    "labels missing": ({"x": np.zeros((4, 2))}, "y"),
    "labels with gaps": ({"x": np.eye(6), "y": np.array([0, 1, 3, 0, 1, 3])}, "2"),
    "labels too few": ({"x": np.eye(6), "y": np.array([0, 1])}, "6"),
    "non-finite values": ({"x": np.full((6, 2), np.nan), "y": np.arange(6) % 2}, "finite"),
    "more classes at test": (
        {"x": np.eye(6), "y": np.arange(6) % 2, "test_x": np.eye(6), "test_y": np.arange(6) % 3},
        "2",
    ),
}


@pytest.mark.parametrize("what", list(ARRAYS))
def test_invalid_arrays_are_refused(what: str, command: Command) -> None:
    arrays, named = ARRAYS[what]
    np.savez("mine.npz", **arrays)
    assert_refused(command("run", "--data", "mine.npz", "--out", "mine"), "mine.npz", named)


FILES = {
    "fails to import": ("import nothing_of_that_name\n", "net.py:Net", "nothing_of_that_name"),
    "no such function": (NET, "net.py:Nett", "Did you mean 'Net'"),
    "no such layer": (NET, "net.py:Net@fcc", "Did you mean 'fc'"),
    "not a linear layer": (NET, "net.py:Net@conv", "conv"),
    "no such file": (NET, "nett.py:Net", "nett.py"),
    "has an unknown argument": ("def build(depth): ...\n", "net.py:build", "depth"),
    "fails when called": ("def build(): raise ValueError('not today')\n", "net.py:build", "not today"),
    "uses an unknown attribute": (NET.replace("F.relu(self.conv(x))", "self.rellu(x)"), "net.py:Net", "rellu"),
    "fails only in training": (
        NET.replace("        x = F.max", "        assert not self.training, 'never'\n        x = F.max"),
        "net.py:Net",
        "never",
    ),
    "returns no model": ("def build(): return 3\n", "net.py:build", "must return a torch.nn.Module"),
}


@pytest.mark.parametrize("what", list(FILES))
def test_invalid_model_file_is_refused(what: str, command: Command) -> None:
    text, model, named = FILES[what]
    Path("net.py").write_text(text, encoding="utf-8")
    assert_refused(command("run", "--model", model, "--out", "mine"), named, model.partition(":")[0])


SETTINGS: dict[str, tuple[list[str], str]] = {
    "shares that sum to 0": (["--partition", "shares(0, 0, 0, 0, 0)"], "partition"),
    "too few shares": (["--partition", "shares(1, 2)"], "partition"),
    "more shards than samples": (["--partition", "shards(900)"], "partition"),
    "a schedule beyond the run": (["--set", "method.kd=ramp(0, 10, 500)"], "ramp(0, 10, 500)"),
    "a negative schedule": (["--set", "method.kd=ramp(-1, 10, 5)"], "kd"),
    "a schedule without rounds": (["--set", "method.kd=ramp(0, 10, 0)"], "kd"),
    "a learning rate schedule beyond the run": (["--lr", "cosine(0.01, 0, 900)"], "lr"),
    "an unknown shift": (["--shift", "rotat(30)"], "Did you mean 'rotate'"),
    "a shift out of range": (["--shift", "swap(1.5)"], "shift"),
    "an unknown key of a group": (["--set", "groups.a.learners=0", "--set", "groups.a.kd=1"], "group 'a'"),
    "a group without learners": (["--set", "groups.a.uploads=false"], "groups.a.learners"),
    "an image size without a folder": (["--data", "digits", "--image-size", "8"], "image_size"),
    "an unknown key": (["--set", "lerners=3"], "Did you mean 'learners'"),
}


@pytest.mark.parametrize("what", list(SETTINGS))
def test_invalid_settings_are_refused(what: str, command: Command) -> None:
    asked, named = SETTINGS[what]
    assert_refused(command("run", *asked, "--out", "mine"), named)


def test_method_setting_without_prefix_is_refused_with_a_hint(command: Command) -> None:
    assert_refused(command("run", "--set", "kd=3", "--out", "mine"), "write --set method.kd=VALUE")


def test_compare_refuses_invalid_settings_before_any_run(command: Command) -> None:
    private = ["--set", "groups.a.learners=0", "--set", "groups.a.never_share=[3]"]
    asked = ["compare", "--methods", "independent,fedavg", "--rounds", "1", "--out", "mine"]
    for more, named in (
        (private, "'weights' shares"),
        (["--data", "nothere/"], "nothere"),
        (["--model", "x.py:y"], "x.py"),
    ):
        assert_refused(command(*asked, *more), named)
        assert not Path("mine").exists()


def test_uploads_of_a_group_apply_to_every_compared_method(command: Command) -> None:
    terms = [
        "--set",
        "groups.a.learners=0",
        "--set",
        "groups.a.uploads=['prototypes']",
        "--set",
        "groups.a.method.kd=1",
    ]
    asked = ["--set", "method.name=representation-sharing"]
    methods = "representation-sharing,fedavg,consilience"
    code, out, err = command(
        "compare", *asked, *terms, "--methods", methods, "--rounds", "2", "--train", "50", "--json"
    )
    assert code == 0, err
    up = {s["method"]: s["groups"]["a"]["bytes"]["up"] for s in map(json.loads, out.splitlines())}
    others = {s["method"]: s["message_bytes"]["up"] for s in map(json.loads, out.splitlines())}
    assert up["fedavg"] == 0 and 0 < up["consilience"] < others["consilience"]
    assert 0 < up["representation-sharing"] < others["representation-sharing"]


def test_refused_engine_leaves_no_folder(command: Command) -> None:
    Path("net.py").write_text(
        "from torch import nn\n"
        "def build(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.5), nn.Linear(8, 10))\n"
    )
    asked = ["run", "--model", "net.py:build", "--train", "40", "--learners", "2", "--rounds", "1", "--out", "mine"]
    code, _, err = command(*asked, "--engine", "stack")
    assert code == 2 and "dropout" in err and not Path("mine").exists()
    assert command(*asked, "--engine", "loop")[0] == 0


def test_output_files_that_cannot_be_written_are_refused(command: Command) -> None:
    assert_refused(command("data", "digits", "--out", "grid.xyz"), "--out is 'grid.xyz'", ".png")
    np.savez("table.npz", x=np.random.default_rng(0).normal(size=(60, 5)), y=np.arange(60) % 3)
    code, _, err = command("data", "table.npz", "--out", "grid.png")
    assert code == 2 and "no pictures to write" in err
    code, _, err = command("init", "no/such/folder.toml")
    assert code == 1 and "no/such/folder.toml" in err and "checkpoint" not in err


def test_classes_without_training_samples_are_reported(command: Command) -> None:
    y = np.repeat(np.arange(4), 25)
    np.savez(
        "sorted.npz",
        x=np.random.default_rng(0).normal(size=(100, 5)),
        y=y,
        test_x=np.eye(20, 5),
        test_y=np.arange(20) % 4,
    )
    code, _, err = command("run", "--data", "sorted.npz", "--train", "40", "--learners", "2", "--rounds", "1")
    assert code == 0 and "2 classes, the first 2, of the test set: no learner has training samples" in err


def test_resume_refuses_data_changed_in_one_value(command: Command) -> None:
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(60, 7)), np.arange(60) % 3
    np.savez("mine.npz", x=x, y=y)
    assert command("run", "--data", "mine.npz", "--learners", "2", "--rounds", "1", "--out", "mine")[0] == 0
    x[5, 3] += 1e-3
    np.savez("mine.npz", x=x, y=y)
    code, _, err = command("run", "--resume", "mine")
    assert code == 1 and "its data is not the one given" in err
