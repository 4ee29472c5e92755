"""Feature maps of a report: from each learner's own model, or a line that states why there is none."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from consilience.data import load
from consilience.errors import ConsilienceError
from consilience.learner.layout import Layout
from consilience.models import build_model
from consilience.report.feature_map import feature_map
from consilience.report.feature_sections import MAX_MAPS
from consilience.simulation.records.run_folder import RunFolder
from consilience.simulation.simulate import simulate

pytest.importorskip("altair")
pytest.importorskip("vl_convert")
from tests.report_tools import TINY, page_of, settings, shown

NET = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, num_classes):
        last = nn.Linear(4 * 4 * 4, 16), nn.Tanh(), nn.Linear(16, num_classes)
        super().__init__(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 4, 3), nn.Flatten(), *last)
"""


@pytest.fixture
def run(tmp_path: Path, one_thread: None) -> Path:
    """A run of two variants and two seeds on custom data; one group has a custom model, the others an MLP."""
    (tmp_path / "net.py").write_text(NET)
    data = load("digits", train=90, test=60)
    np.savez(tmp_path / "own.npz", x=data.inputs, y=data.targets, test_x=data.test_inputs, test_y=data.test_targets)
    simulate(
        data=str(tmp_path / "own.npz"),
        model="mlp",
        width=16,
        method="representation-sharing",
        learners=4,
        rounds=1,
        seeds=2,
        workers=0,
        groups={"odd": {"learners": [1], "model": f"{tmp_path / 'net.py'}:Net"}},
        variants=[{"method.kd": 1}, {"method.kd": 2}],
        out=tmp_path / "run",
    )
    return tmp_path / "run"


def features_by_hand(run: Path, learner: int) -> np.ndarray:
    """A learner's features, from its weights in the first row of its cohort."""
    config, kept = RunFolder(run).config, RunFolder(run).load()
    assert kept is not None
    data = load(config.data.source)
    model = build_model(config.learner_models[learner], data.shape, data.classes, 16)
    layout = Layout({name: tuple(value.shape) for name, value in model.named_parameters()}, channels_last=True)
    flat = torch.from_numpy(kept[0][f"learners.{learner}.parameters"][0])
    for name, value in model.named_parameters():
        value.data = layout.views(flat)[name]
    with torch.no_grad():
        features: np.ndarray = model.features(torch.from_numpy(data.test_inputs)).numpy()
    return features


def test_feature_map_uses_each_learner_s_own_model(run: Path) -> None:
    found = feature_map(run)
    assert found.features.shape == (2, 60, 16)
    for learner in (0, 1):  # each is the first of its cohort, in the first seed and variant
        np.testing.assert_allclose(found.features[learner], features_by_hand(run, learner), atol=1e-5)
    assert len(found.rows) == 120 and {row["learner"] for row in found.rows} == {0, 1}
    classes = [str(c) for c in load(RunFolder(run).config.data.source).test_targets]
    assert [row["class"] for row in found.rows] == 2 * classes
    assert found.text.startswith("Features of 60 test samples at learners 0 and 1, after round 1, seed 0, method.kd=1,")
    assert feature_map(run, samples=20).features.shape[1] == 20


def test_kernels_saved_in_gpu_layout_are_read_correctly(run: Path) -> None:
    before, folder = feature_map(run).features, RunFolder(run)
    config, kept = folder.config, folder.load()
    assert kept is not None
    shapes = {
        name: tuple(p.shape) for name, p in build_model(config.learner_models[1], (1, 8, 8), 10).named_parameters()
    }
    arrays, key = dict(kept[0]), "learners.1.parameters"
    views = Layout(shapes, channels_last=True).views(torch.from_numpy(arrays[key]))
    arrays[key] = Layout(shapes).flat(views).numpy()
    (run / "config.toml").write_text(config.replace(device="cuda").to_toml())
    folder.save(arrays, {k: v for k, v in kept[1].items() if k not in ("file", "sha256", "config")}, 1)
    np.testing.assert_allclose(feature_map(run).features, before, atol=1e-5)


def test_variants_of_a_run_share_one_feature_map(tmp_path: Path, run: Path) -> None:
    page = page_of(tmp_path, run)
    assert [name for name in shown(page) if "features" in name] == ["features"]
    assert "2 runs of representation-sharing" in page and "No map" not in page


def damage(run: Path, how: str) -> None:
    checkpoint, data, model = next(run.glob("*.safetensors")), run.parent / "own.npz", run.parent / "net.py"
    if how == "forgotten":
        RunFolder(run).remove_checkpoints()
    elif how == "torn":
        checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    elif how == "other data":
        np.savez(data, **{**np.load(data), "test_y": np.zeros(60, dtype=np.int64)})
    elif how == "other model":
        model.write_text(f"{NET}# changed")
    else:
        {"gone": checkpoint, "no data": data, "no model": model}[how].unlink()


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("forgotten", "the run&#x27;s folder has no checkpoint"),
        ("torn", "is damaged: its SHA-256 is not the one"),
        ("gone", "is missing, though checkpoint.json names it"),
        ("other data", "the data on this machine is not the one the run was started with"),
        ("no data", "there is no such file or folder"),
        ("other model", "the model on this machine is not the one the run was started with"),
        ("no model", "net.py: no such file"),
    ],
)
def test_page_states_why_there_is_no_feature_map(tmp_path: Path, run: Path, how: str, why: str) -> None:
    damage(run, how)
    page = page_of(tmp_path, run)
    assert not [name for name in shown(page) if "features" in name] and "accuracy" in shown(page)
    (line,) = re.findall(r"<p>(No map: [^<]*)</p>", page)
    assert why in line


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"method": {"name": "centralized"}}, "the run has one learner"),
        ({"learners": 1, "method": {"name": "independent"}}, "the run has one learner"),
        ({"test": 3}, "3 test samples are too few"),
        ({"model": "mlp,wide"}, "features of widths 32 and 48 cannot be embedded together"),
    ],
)
def test_impossible_feature_map_is_refused_with_the_reason(
    tmp_path: Path, one_thread: None, changes: dict[str, Any], why: str
) -> None:
    if "model" in changes:
        (tmp_path / "wide.py").write_text(NET.replace("16", "48"))
        changes = {"model": f"mlp,{tmp_path / 'wide.py'}:Net", "method": {"name": "independent"}}
    simulate(settings(**(TINY | {"rounds": 1} | changes)), out=tmp_path / "run")
    with pytest.raises(ConsilienceError, match=why):
        feature_map(tmp_path / "run")


def test_number_of_feature_maps_per_page_is_limited(tmp_path: Path, run: Path) -> None:
    folders = [tmp_path / f"run-{i}" for i in range(MAX_MAPS + 1)]
    for folder in folders:
        shutil.copytree(run, folder)
    page = page_of(tmp_path, *folders)
    assert len([name for name in shown(page) if "features" in name]) == MAX_MAPS
    assert f"a page has {MAX_MAPS} at most" in page
