"""Leakage of a run's data: measurements, saved files, the report page, and errors."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from consilience.cli import leakage_runs as command_module
from consilience.errors import CheckpointError, ConfigurationError, DataError, TrainingError, UnknownName
from consilience.functional.distance_correlation import distance_correlation
from consilience.leakage.class_means import SampleGroup, group_samples, membership_leakage
from consilience.leakage.examined_learner import (
    ExaminedSamples,
    default_layers,
    evenly_spaced,
    examine_learner,
    resolve_layers,
)
from consilience.leakage.image_grids import select_columns
from consilience.leakage.measure import OnProgress, measure_leakage
from consilience.leakage.results import FILE, LeakageResult, LearnerStatistics, read_leakage, write_leakage
from consilience.leakage.settings import LeakageSettings
from consilience.simulation.records.checkpoint import Checkpoint
from consilience.simulation.records.export import SavedRun, read_saved_run
from consilience.simulation.records.run_folder import RunFolder
from consilience.simulation.simulate import simulate

Command = Callable[..., tuple[int, str, str]]
QUICK = LeakageSettings(learners=2, epochs=3)
SMALL: dict[str, Any] = {"learners": 3, "rounds": 2, "train": 240, "test": 200, "workers": 0}

pytestmark = pytest.mark.usefixtures("one_thread")


def no_progress(what: str, done: int, all_: int) -> None:
    """A progress callback that does nothing."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on digits that saves its models."""
    folder = tmp_path_factory.mktemp("runs") / "digits"
    simulate(method="fedproto", out=folder, **SMALL)
    return folder


@pytest.fixture(scope="module")
def measured(run: Path) -> tuple[LeakageResult, dict[str, bytes]]:
    """The leakage of two layers of the run."""
    settings = LeakageSettings(layers=("features.hidden", "features"), learners=2, epochs=30)
    return measure_leakage(read_saved_run(run), settings, no_progress)


def examined_samples(features: Any, targets: Any) -> ExaminedSamples:
    values = torch.tensor(features, dtype=torch.float32)
    return ExaminedSamples(values, None, np.array(targets), {"features": values})


# --- outputs of layers


def test_outputs_of_the_features_layer_equal_the_features(run: Path) -> None:
    kept = read_saved_run(run)
    inputs, _ = kept.samples(1)
    outputs = kept.outputs(1, inputs, ["features", "features.hidden", "classifier"])
    assert np.array_equal(outputs["features"], kept.features(1, inputs))
    assert {name: seen.shape for name, seen in outputs.items()} == {
        "features": (80, 32),
        "features.hidden": (80, 64),
        "classifier": (80, 10),
    }


def test_outputs_of_a_hidden_layer_equal_its_forward_pass(run: Path) -> None:
    kept = read_saved_run(run)
    inputs, _ = kept.samples(0)
    layer = kept.learner(0).model.get_submodule("features.hidden")
    with torch.no_grad():
        wanted = layer(torch.from_numpy(inputs).flatten(1)).numpy()
    assert np.allclose(kept.outputs(0, inputs, ["features.hidden"])["features.hidden"], wanted, atol=1e-5)


def test_saved_run_returns_the_samples_of_each_learner(run: Path) -> None:
    kept = read_saved_run(run)
    parts = [kept.samples(who)[0] for who in range(3)]
    assert sum(map(len, parts)) == 240
    assert np.array_equal(kept.local_datasets.inputs[np.sort(kept.local_datasets.parts[2])], parts[2])


def test_test_samples_have_the_shift_of_the_learner(tmp_path: Path) -> None:
    simulate(method="independent", out=tmp_path / "turned", shift="rotate(180)", **SMALL)
    kept = read_saved_run(tmp_path / "turned")
    first, last = kept.tests(0)[0], kept.tests(2)[0]
    turned = first[:, :, ::-1, ::-1]
    assert np.abs(first - turned).mean() > 0.1
    assert np.abs(last - turned).mean() < 0.01 * np.abs(first - turned).mean()


def test_unknown_layer_is_refused_with_the_nearest_name(run: Path) -> None:
    kept = read_saved_run(run)
    with pytest.raises(UnknownName, match=r"Did you mean 'features.hidden'\?"):
        kept.outputs(0, kept.samples(0)[0], ["features.hiden"])
    with pytest.raises(UnknownName, match=r"unknown layer 'feature' of mlp. Did you mean 'features'\?"):
        resolve_layers(kept, 0, ["feature"])
    assert resolve_layers(kept, 0, ["cut", "features"]) == {"cut": "features.hidden", "features": "features"}


ODD = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = nn.LSTM(8, 12, batch_first=True)
        self.spare = nn.Linear(3, 3)
        self.columns = nn.LSTM(8, 4)
        self.fc = nn.Linear(12 + 32, 10)

    def forward(self, x):
        seen, _ = self.rows(x[:, 0])
        other, _ = self.columns(x[:, 0].transpose(0, 1))
        return self.fc(torch.cat([seen[:, -1], other.transpose(0, 1).flatten(1)], 1))
"""


def test_layers_without_one_output_per_sample_are_handled(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(ODD)
    small = SMALL | {"rounds": 1, "learners": 2}
    simulate(method="independent", model=f"{tmp_path / 'net.py'}:Net", out=tmp_path / "odd", **small)
    kept = read_saved_run(tmp_path / "odd")
    assert default_layers(kept, [0, 1]) == ("features",)
    with pytest.raises(ConfigurationError, match=r"Net, the model of learner 0, has no cut; choose one of its layers"):
        resolve_layers(kept, 0, ["cut"])
    inputs, _ = kept.samples(0)
    assert kept.outputs(0, inputs, ["features.model.rows"])["features.model.rows"].shape == (120, 8, 12)
    with pytest.raises(ConfigurationError, match=r"'features.model.spare' .* is not reached"):
        kept.outputs(0, inputs, ["features.model.spare"])
    with pytest.raises(ConfigurationError, match=r"gives \(8, 120, 4\) for 120 samples"):
        kept.outputs(0, inputs, ["features.model.columns"])


# --- membership in means


def test_sample_groups_are_disjoint_and_nested_by_size() -> None:
    targets = np.array([0] * 7 + [1] * 3 + [2])
    pairs = group_samples(targets, 2, seed=5, who=0)
    assert [group.label for group in pairs] == [0, 0, 0, 1]
    places = np.concatenate([group.indices for group in pairs])
    assert len(np.unique(places)) == 8 and all((targets[group.indices] == group.label).all() for group in pairs)
    (five,) = group_samples(targets, 5, seed=5, who=0)
    assert set(pairs[0].indices) < set(five.indices)
    assert [len(group.indices) for group in group_samples(targets, None, seed=5, who=0)] == [7, 3], (
        "one sample is no mean"
    )
    assert len(group_samples(np.zeros(50, dtype=int), 1, seed=5, who=0)) == 10
    assert not np.array_equal(group_samples(targets, 5, 6, 0)[0].indices, five.indices)


def test_membership_in_a_mean_of_one_sample_is_always_inferred() -> None:
    own = examined_samples([[0.0, 1.0], [2.0, 0.0]], [0, 1])
    tests = examined_samples([[0.0, 2.0], [3.0, 0.0]], [0, 1])
    told = membership_leakage(own, tests, group_samples(own.targets, 1, 0, 0), seed=0, who=0)
    assert told is not None and (told[0].auc, told[0].advantage) == (1.0, 1.0)


def test_membership_of_a_mean_by_hand() -> None:
    """Samples at 0 and 4, whose mean is 2; test samples at 1 and 5, 1 and 3 away from it.

    Both members are 2 away: nearer than one of the two others, so AUC is 1/2, and the best threshold, 2, covers all
    members and half of the others.
    """
    own, tests = examined_samples([[0.0], [4.0]], [0, 0]), examined_samples([[1.0], [5.0]], [0, 0])
    told = membership_leakage(own, tests, [SampleGroup(0, np.array([0, 1]))], seed=0, who=0)
    assert told is not None and told[0].auc == 0.5 and told[0].advantage == 0.5


def test_class_differences_are_no_membership_leakage() -> None:
    """Members are mostly of a narrow class, tests mostly of a wide one: distances alone would suggest a leak."""
    generator = np.random.default_rng(0)
    own_targets, test_targets = np.array([0] * 90 + [1] * 10), np.array([0] * 100 + [1] * 900)
    own, tests = (
        examined_samples(generator.normal(size=(len(t), 4)) * np.where(t == 0, 0.1, 10.0)[:, None], t)
        for t in (own_targets, test_targets)
    )
    told = membership_leakage(own, tests, group_samples(own_targets, None, 0, 0), seed=0, who=0)
    assert told is not None and abs(told[0].auc - 0.5) < 0.1
    assert 0 < told[1] < 0.2, "chance alone seems to give something"


def test_rare_class_counts_by_its_share() -> None:
    """Few test samples of one class, few members of the other: both count in proportion to their members."""
    generator = np.random.default_rng(0)
    own, tests = (
        examined_samples(generator.normal(size=(sum(sizes), 32)), np.repeat([0, 1], sizes))
        for sizes in ((1000, 4), (5, 200))
    )
    groups = group_samples(own.targets, None, 0, 0)
    both, often, rare = (
        membership_leakage(own, tests, some, seed=0, who=0) for some in (groups, groups[:1], groups[1:])
    )
    assert both is not None and often is not None and rare is not None
    assert rare[0].auc > 0.8 > often[0].auc
    for one, of_often, of_rare in (
        (both[0].auc, often[0].auc, rare[0].auc),
        (both[0].advantage, often[0].advantage, rare[0].advantage),
        (both[1], often[1], rare[1]),
    ):
        assert one == pytest.approx((1000 * of_often + 4 * of_rare) / 1004) and one != of_often


def test_means_of_one_class_are_evaluated_together() -> None:
    """Two means of class 0 as above, AUC 1/2; of class 1 the test sample is the mean itself: AUC 0."""
    own = examined_samples([[0.0], [4.0], [0.0], [4.0], [0.0], [2.0]], [0, 0, 0, 0, 1, 1])
    tests = examined_samples([[1.0], [5.0], [1.0]], [0, 0, 1])
    groups = [SampleGroup(0, np.array([0, 1])), SampleGroup(0, np.array([2, 3])), SampleGroup(1, np.array([4, 5]))]
    told = membership_leakage(own, tests, groups, seed=0, who=0)
    assert told is not None and told[0].auc == pytest.approx((4 * 0.5 + 2 * 0) / 6)


def test_membership_is_none_without_test_samples_of_the_class() -> None:
    own, tests = examined_samples([[0.0], [4.0]], [0, 0]), examined_samples([[1.0]], [1])
    assert membership_leakage(own, tests, group_samples(own.targets, None, 0, 0), seed=0, who=0) is None


def test_means_of_classes_without_test_samples_are_skipped(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    targets, test_targets = np.arange(120) % 3, np.arange(40) % 2
    inputs, test_inputs = (generator.normal(size=(len(t), 6)) + t[:, None] for t in (targets, test_targets))
    np.savez(tmp_path / "table.npz", x=inputs, y=targets, test_x=test_inputs, test_y=test_targets)
    data = str(tmp_path / "table.npz")
    simulate(method="independent", data=data, learners=2, rounds=1, workers=0, out=tmp_path / "run")
    kept = read_saved_run(tmp_path / "run")
    assert all(set(kept.samples(who)[1].tolist()) == {0, 1, 2} for who in (0, 1))
    whole = measure_leakage(kept, QUICK, no_progress)[0].class_means[-1]
    assert whole.samples_per_mean is None and whole.membership is not None and whole.means == 4, (
        "two classes of two learners"
    )


def test_never_shared_samples_are_in_no_mean(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    targets, share = np.arange(120) % 3, np.arange(120) < 90
    inputs = generator.normal(size=(120, 6)) + targets[:, None]
    np.savez(tmp_path / "table.npz", x=inputs, y=targets, shareable=share, test_x=inputs[:60], test_y=targets[:60])
    never_share = {"careful": {"learners": [0], "never_share": [2]}}
    simulate(
        method="representation-sharing",
        data=str(tmp_path / "table.npz"),
        learners=2,
        rounds=1,
        workers=0,
        groups=never_share,
        out=tmp_path / "run",
    )
    kept = read_saved_run(tmp_path / "run")
    for who in (0, 1):
        seen, marks = examine_learner(kept, who, [], None, "cpu"), kept.may_share(who)
        part = np.sort(kept.local_datasets.parts[who])
        assert np.array_equal(marks, share[part] & ((targets[part] != 2) | (who == 1))) and not marks.all()
        for n_avg in (1, 5, None):
            groups = group_samples(seen.own.targets, n_avg, 0, who, seen.shared)
            assert {group.label for group in groups} == ({0, 1} if who == 0 else {0, 1, 2})
            assert all(marks[group.indices].all() for group in groups)
    whole = measure_leakage(kept, QUICK, no_progress)[0].class_means[-1]
    assert whole.samples_per_mean is None and whole.means == 5, "two classes of one learner and three of the other"


# --- leakage of a run


def test_result_equals_the_underlying_functions(run: Path, measured: tuple[LeakageResult, dict[str, bytes]]) -> None:
    kept, (leakage, _) = read_saved_run(run), measured
    tests, _ = kept.tests(0)
    wanted = distance_correlation(torch.from_numpy(tests), torch.from_numpy(kept.features(0, tests)))
    hidden, features = leakage.layers
    assert (hidden.name, features.name, features.output_size, features.test_samples.samples) == (
        "features.hidden",
        "features",
        32,
        200,
    )
    assert features.test_samples.correlation.by_learner[0] == pytest.approx(float(wanted), abs=1e-5)
    assert leakage.learners == (0, 1) and leakage.round == 2 and leakage.auxiliary_samples == 100
    assert len(features.own_samples.correlation.by_learner) == 2 and features.own_samples.samples == 80


def test_layer_near_the_input_leaks_more(measured: tuple[LeakageResult, dict[str, bytes]]) -> None:
    hidden, features = measured[0].layers
    assert hidden.reconstruction is not None and features.reconstruction is not None
    assert mean(hidden.test_samples.corrected) > mean(features.test_samples.corrected) > 0
    assert mean(hidden.reconstruction.ssim) > mean(hidden.reconstruction.baseline_ssim) + 0.05
    assert hidden.reconstruction.samples == 80


def mean(value: LearnerStatistics) -> float:
    assert value.mean is not None
    return value.mean


def test_larger_means_leak_less_membership(measured: tuple[LeakageResult, dict[str, bytes]]) -> None:
    shared = {each.samples_per_mean: each for each in measured[0].class_means}
    assert list(shared) == [1, 2, 5, None], "no class has 10 samples of 80"
    members = {n_avg: each.membership for n_avg, each in shared.items()}
    assert all(each is not None for each in members.values())
    aucs = [mean(each.auc) for each in members.values() if each is not None]
    assert aucs[0] == 1.0 and aucs == sorted(aucs, reverse=True) and aucs[-1] >= 0.5


def test_results_are_deterministic_and_keep_the_global_random_state(run: Path) -> None:
    before = torch.random.get_rng_state()
    one, other = (measure_leakage(read_saved_run(run), QUICK, no_progress) for _ in range(2))
    assert one == other
    assert torch.equal(before, torch.random.get_rng_state())


def test_pictures_have_a_column_for_each_class(
    measured: tuple[LeakageResult, dict[str, bytes]], tmp_path: Path
) -> None:
    leakage, pictures = measured
    assert set(pictures) == set(leakage.pictures.values()) == {"layers.png", "means.png"}
    for name, content in pictures.items():
        (tmp_path / name).write_bytes(content)
        with Image.open(tmp_path / name) as picture:
            assert picture.format == "PNG" and picture.width > 10 * 48 and picture.height >= 3 * 48


def test_picture_columns_start_with_one_sample_per_class() -> None:
    assert select_columns(np.array([1, 1, 0, 1, 2]), most=4).tolist() == [2, 0, 1, 4]
    assert select_columns(np.array([3, 3, 3]), most=10).tolist() == [0, 1, 2]


def test_evenly_spaced_includes_first_and_last() -> None:
    assert evenly_spaced(3, 5).tolist() == [0, 1, 2]
    assert evenly_spaced(9, 3).tolist() == [0, 4, 8]


# --- data of other kinds


def test_tables_have_all_results_except_pictures(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    targets = np.arange(160) % 4
    inputs = generator.normal(size=(160, 6)) + targets[:, None]
    np.savez(tmp_path / "table.npz", x=inputs, y=targets)
    simulate(
        method="independent", data=str(tmp_path / "table.npz"), learners=2, rounds=2, workers=0, out=tmp_path / "run"
    )
    leakage, pictures = measure_leakage(read_saved_run(tmp_path / "run"), QUICK, no_progress)
    (layer,) = leakage.layers
    assert layer.reconstruction is None and pictures == {} and leakage.pictures == {}
    assert 0 < mean(layer.test_samples.correlation) <= 1
    assert all(each.reconstruction is None and each.membership is not None for each in leakage.class_means)


def test_images_are_scaled_to_0_to_1(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    images, targets = generator.normal(size=(80, 1, 8, 8)) * 7, np.arange(80) % 2
    np.savez(tmp_path / "images.npz", x=images, y=targets)
    small: dict[str, Any] = {"learners": 2, "rounds": 1, "workers": 0}
    simulate(method="independent", data=str(tmp_path / "images.npz"), out=tmp_path / "run", **small)
    seen = examine_learner(read_saved_run(tmp_path / "run"), 0, [], None, "cpu")
    assert seen.own.images is not None and seen.tests.images is not None
    both = torch.cat([seen.own.images, seen.tests.images])
    assert float(both.min()) == 0.0 and float(both.max()) == 1.0


def test_centralized_learner_has_all_samples(tmp_path: Path) -> None:
    simulate(method="centralized", out=tmp_path / "run", **SMALL)
    kept = read_saved_run(tmp_path / "run")
    assert len(kept.samples(0)[1]) == 240
    leakage, _ = measure_leakage(kept, QUICK, no_progress)
    assert leakage.learners == (0,) and leakage.layers[0].own_samples.samples == 240
    assert leakage.layers[0].own_samples.correlation.std_learners is None, "one learner has no spread"


# --- saved files


def test_saved_leakage_is_read_back(measured: tuple[LeakageResult, dict[str, bytes]], tmp_path: Path) -> None:
    leakage, pictures = measured
    write_leakage(tmp_path, leakage, pictures)
    assert read_leakage(tmp_path) == leakage
    assert sorted(path.name for path in (tmp_path / "leakage").iterdir()) == sorted(pictures)
    assert read_leakage(tmp_path / "leakage") is None


def test_damaged_file_is_refused_with_its_name(
    measured: tuple[LeakageResult, dict[str, bytes]], tmp_path: Path
) -> None:
    write_leakage(tmp_path, *measured)
    whole = json.loads((tmp_path / FILE).read_text())
    for damaged in ("{", "[]", json.dumps(whole | {"round": "two"}), json.dumps({"round": 2})):
        (tmp_path / FILE).write_text(damaged)
        with pytest.raises(CheckpointError, match=r"leakage.json is damaged: .*consilience leakage"):
            read_leakage(tmp_path)


def test_file_of_an_old_layout_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(json.dumps({"round": 2, "auxiliary": 100, "shared": [], "layers": []}))
    with pytest.raises(CheckpointError, match=r"the layout of an earlier version; measure again with: consilience"):
        read_leakage(tmp_path)


def test_learners_without_a_value_are_left_out_of_the_mean() -> None:
    assert LearnerStatistics.of([1.0, 3.0]) == LearnerStatistics(2.0, 1.0, (1.0, 3.0))
    assert LearnerStatistics.of([1.0, None, float("nan")]) == LearnerStatistics(1.0, None, (1.0, None, None))
    assert LearnerStatistics.of([]) == LearnerStatistics(None, None, ())


# --- errors


def test_run_without_checkpoint_is_refused_with_its_name(run: Path, tmp_path: Path, command: Command) -> None:
    simulate(method="independent", out=tmp_path / "forgotten", **SMALL)
    RunFolder.open(tmp_path / "forgotten").remove_checkpoints()
    code, out, err = command("leakage", str(run), str(tmp_path / "forgotten"), "--epochs", "1")
    assert (code, out) == (1, "") and "forgotten: the run's folder has no checkpoint" in err
    assert not (run / FILE).exists(), "before anything is worked on"


def test_invalid_options_are_refused_before_measuring(run: Path, command: Command) -> None:
    code, out, err = command("leakage", str(run), "--layer", "features.hiden")
    assert (code, out) == (2, "") and "Did you mean 'features.hidden'?" in err
    code, _, err = command("leakage", str(run), "--device", "abacus")
    assert code == 2 and "abacus" in err
    code, _, err = command("leakage", str(run), "--auxiliary", "201")
    assert code == 2 and "auxiliary is 201; there are 200 test samples" in err
    code, _, err = command("leakage", str(run), "--out", ".")
    assert code == 2 and "is a folder" in err
    assert not (run / FILE).exists()


def test_non_finite_features_are_refused(run: Path) -> None:
    kept = read_saved_run(run)
    arrays = {k: v * np.nan if "parameters" in k else v for k, v in kept.checkpoint.arrays.items()}
    broken = SavedRun(kept.config, Checkpoint(arrays, kept.checkpoint.numbers))
    with pytest.raises(TrainingError, match=r"outputs of layer 'features.hidden' of learner 0 are NaN or infinite"):
        measure_leakage(broken, QUICK, no_progress)


def test_learners_with_too_few_samples_are_skipped(tmp_path: Path) -> None:
    small = SMALL | {"train": 12, "learners": 3, "rounds": 1, "partition": "shares(0.17,0.66,0.17)"}
    simulate(method="independent", out=tmp_path / "run", **small)
    kept = read_saved_run(tmp_path / "run")
    sizes = [len(kept.samples(who)[1]) for who in range(3)]
    assert min(sizes) < 4 <= max(sizes), "as the test needs it"
    leakage, _ = measure_leakage(kept, QUICK, no_progress)
    assert [sizes[who] >= 4 for who in leakage.learners] == [True] * sum(size >= 4 for size in sizes)
    simulate(method="independent", out=tmp_path / "tiny", **small | {"train": 6, "partition": "iid"})
    with pytest.raises(DataError, match="no learner of the run has 4 training samples"):
        measure_leakage(read_saved_run(tmp_path / "tiny"), QUICK, no_progress)


# --- the command, and the page


def copy_run(run: Path, to: Path) -> Path:
    to.mkdir()
    for file in run.iterdir():
        if file.is_file():
            (to / file.name).write_bytes(file.read_bytes())
    return to


def documented_headings() -> set[str]:
    """The words of the table headings shown in the documentation."""
    page = (Path(__file__).parents[2] / "docs" / "leakage.md").read_text(encoding="utf-8")
    shown = page.partition("```text\n")[2].partition("```")[0]
    return set(re.findall(r"[A-Za-z]+", shown)) - {"cut"}


def test_command_prints_saves_and_draws(run: Path, tmp_path: Path, command: Command) -> None:
    pytest.importorskip("altair")
    pytest.importorskip("vl_convert")
    mine = copy_run(run, tmp_path / "mine")
    options = ("--epochs", "2", "--learners", "1", "--layer", "features", "--layer", "features.hidden")
    code, out, err = command("leakage", "mine", *options, "--out", "page.html")
    assert code == 0, err
    for word in ("Leakage of layer outputs", "Leakage of class means", "Membership inference", "features.hidden"):
        assert word in out
    assert documented_headings() <= set(out.split()), "the page shows what is printed"
    assert err.splitlines() == [
        "saved in mine/leakage.json, with pictures in mine/leakage",
        "the page is page.html",
    ]
    page = (tmp_path / "page.html").read_text()
    for heading in (
        "Leakage",
        "Images reconstructed from layer outputs",
        "Images reconstructed from class means",
        "Membership inference",
    ):
        assert f"<h3>{heading}</h3>" in page
    assert len(re.findall(r'<img src="data:image/png;base64,[A-Za-z0-9+/=]+" alt="fedproto, learner 0">', page)) == 2
    (mine / "leakage" / "means.png").unlink()
    assert command("report", "mine", "--out", "page.html")[0] == 0, "a picture that is gone is left out"
    (mine / FILE).write_text("{")
    assert command("report", "mine", "--out", "page.html")[0] == 0
    assert "leakage.json is damaged" in (tmp_path / "page.html").read_text()


def test_json_is_one_object_per_run(run: Path, tmp_path: Path, command: Command) -> None:
    copy_run(run, tmp_path / "a"), copy_run(run, tmp_path / "b")
    code, out, _ = command("leakage", "a", "b", "--epochs", "1", "--learners", "1", "--json")
    assert code == 0
    one, other = (json.loads(line) for line in out.splitlines())
    assert (one.pop("run"), other.pop("run")) == ("a", "b")
    assert one == other == json.loads((tmp_path / "a" / FILE).read_text())


def test_ctrl_c_keeps_finished_results(
    run: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_run(run, tmp_path / "a"), copy_run(run, tmp_path / "b")
    done: list[SavedRun] = []

    def interrupt_second_run(kept: SavedRun, settings: LeakageSettings, step: OnProgress) -> Any:
        if done:
            raise KeyboardInterrupt
        done.append(kept)
        return measure_leakage(kept, settings, step)

    monkeypatch.setattr(command_module, "measure_leakage", interrupt_second_run)
    code, _, err = command("leakage", "a", "b", "--epochs", "1", "--learners", "1")
    assert code == 130 and "stopped" in err
    assert read_leakage(tmp_path / "a") is not None
    assert not list((tmp_path / "b").glob("leakage*"))
