"""TensorBoard tracking: the values of metrics.jsonl, each step once, one folder per curve."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consilience import simulate
from consilience.cli.terminal import Screen
from consilience.errors import StorageError, UnknownName
from consilience.papers import REPRODUCTIONS, Cell, Reproduction, ResultSection
from consilience.report.tracking import TRACKERS, curve_names, mean_metrics, tracking
from consilience.simulation.records.history import History

pytest.importorskip("tensorboard", reason="install the extra 'track' to watch runs")

Command = Callable[..., tuple[int, str, str]]
Curves = dict[str, dict[int, float]]
SMALL = ["--learners", "2", "--train", "40", "--test", "20", "--rounds", "3", "--workers", "0"]
TRACK = ["--track", "tensorboard"]
LINE = "--track tensorboard needs tensorboard: pip install -e '.[track]'"
pytestmark = pytest.mark.usefixtures("one_thread")


def flat(line: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float | None]]:
    for key, value in line.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def expected(run: Path, seed: int, variant: int = 0) -> Curves:
    """By metric and round: the mean over the learners that have a value, from metrics.jsonl."""
    found: dict[str, dict[int, list[float]]] = {}
    for text in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        round_ = line.pop("round")
        del line["learner"]
        if (line.pop("seed"), line.pop("variant", 0)) != (seed, variant):
            continue
        for name, value in flat(line):
            if value is not None:
                found.setdefault(name, {}).setdefault(round_, []).append(value)
    return {name: {r: float(np.mean(values)) for r, values in curve.items()} for name, curve in found.items()}


def read_events(folder: Path) -> Curves:
    """By metric and round: the values that TensorBoard reads in a folder, in which no round is duplicated."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}, purge_orphaned_data=False)
    events.Reload()
    found: Curves = {}
    for name in events.Tags()["scalars"]:
        steps = [event.step for event in events.Scalars(name)]
        assert steps == sorted(set(steps)), f"{folder}, {name}: {steps}"
        found[name] = {event.step: event.value for event in events.Scalars(name)}
    return found


def assert_same(curves: Curves, wanted: Curves) -> None:
    assert set(curves) == set(wanted)
    for name, curve in wanted.items():
        assert curves[name] == pytest.approx(curve, rel=1e-6), name  # event files have 32 bits


def event_folders(place: Path) -> list[str]:
    """Folders of non-empty event files, by their names under `tensorboard/`."""
    files = [path for path in place.rglob("events.out.tfevents.*") if path.stat().st_size]
    return sorted(str(path.parent.relative_to(place / "tensorboard")) for path in files)


# --- event files


def test_every_value_is_the_mean_over_metrics_lines(command: Command) -> None:
    asked = ["--method", "representation-sharing", *SMALL, "--seeds", "2", "--out", "mine"]
    code, _, err = command("run", *asked, *TRACK)
    assert code == 0 and "watch the curves with: tensorboard --logdir mine/tensorboard" in err
    assert event_folders(Path("mine")) == ["representation-sharing/seed-0", "representation-sharing/seed-1"]
    curves = [read_events(Path("mine/tensorboard/representation-sharing") / f"seed-{seed}") for seed in (0, 1)]
    for seed in (0, 1):
        assert_same(curves[seed], expected(Path("mine"), seed))
    named = {"accuracy", "accuracy_own", "accuracy_train", "bytes.up", "bytes.down"}
    assert named | {"loss.cross_entropy", "loss.prototypes", "participated", "seconds.train"} <= set(curves[0])
    assert list(curves[0]["accuracy"]) == [1, 2, 3] and list(curves[0]["bytes.up"]) == [0, 1, 2, 3]
    assert curves[0]["loss.cross_entropy"] != curves[1]["loss.cross_entropy"], "each seed has its own"


def test_missing_values_of_a_round_are_left_out(command: Command) -> None:
    asked = ["--method", "fedavg", *SMALL, "--eval-every", "2", "--participation", "0.5", "--out", "mine"]
    assert command("run", *asked, *TRACK)[0] == 0
    curves = read_events(Path("mine/tensorboard/fedavg/seed-0"))
    assert list(curves["accuracy"]) == [2, 3] and list(curves["loss.cross_entropy"]) == [1, 2, 3]
    assert curves["participated"] == {0: 0.0, 1: 0.5, 2: 0.5, 3: 0.5}
    assert_same(curves, expected(Path("mine"), 0))


def test_means_are_over_learners_with_a_finite_value() -> None:
    history = History((4, 5), learners=3)
    nan = float("nan")
    values = np.array([[1.0, nan, 3.0], [nan, float("inf"), nan]])
    history.records = [{"accuracy": values, "bytes.up": np.arange(6.0).reshape(2, 3)}]
    assert mean_metrics(history, 0, 0) == {"accuracy": 2.0, "bytes.up": 1.0}
    assert mean_metrics(history, 0, 1) == {"bytes.up": 4.0}


def test_tracking_is_off_by_default_and_keeps_json_output(command: Command) -> None:
    assert command("run", "--method", "fedavg", *SMALL, "--out", "plain")[0] == 0
    assert not Path("plain/tensorboard").exists()
    code, out, err = command("run", "--method", "fedavg", *SMALL, "--out", "mine", "--json", *TRACK)
    assert code == 0 and json.loads(out)["run"] == "mine" and err == "saved in mine\n"


def test_rounds_are_readable_during_the_run(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[int]] = []

    def look(self: Screen, method: str, *others: Any) -> None:
        seen.append(list(read_events(tmp_path / "mine/tensorboard/fedavg/seed-0")["bytes.up"]))

    monkeypatch.setattr(Screen, "on_round", look)
    assert command("run", "--method", "fedavg", *SMALL, "--out", "mine", *TRACK)[0] == 0
    assert seen == [[0, 1], [0, 1, 2], [0, 1, 2, 3]]


# --- several runs in a folder


def test_methods_of_a_comparison_have_separate_folders(command: Command) -> None:
    """Also if two are one method with different settings."""
    names = "independent,fedavg,fedavg:up=float16:down=float16"
    assert command("compare", "--methods", names, *SMALL, "--no-control", "--out", "c", *TRACK)[0] == 0
    assert event_folders(Path("c")) == ["fedavg-up-float16-down-float16/seed-0", "fedavg/seed-0", "independent/seed-0"]
    for method in ("independent", "fedavg", "fedavg-up-float16-down-float16"):
        assert_same(read_events(Path("c/tensorboard") / method / "seed-0"), expected(Path("c") / method, 0))


def test_settings_of_a_sweep_have_separate_curves(command: Command) -> None:
    sets = ["--set", "lr=0.001,0.02", "--set", "method.encoding=float32,float16"]
    code, _, err = command("sweep", "--method", "fedproto", *SMALL, "--seeds", "2", *sets, "--out", "s", *TRACK)
    assert code == 0, err
    for part, encoding in (("part-1", "float32"), ("part-2", "float16")):
        for variant, rate in enumerate((0.001, 0.02)):
            for seed in (0, 1):
                curve = Path("s/tensorboard") / part / f"lr={rate},method.encoding={encoding}" / f"seed-{seed}"
                assert_same(read_events(curve), expected(Path("s") / part, seed, variant))
    assert len(event_folders(Path("s"))) == 8


def test_cells_of_a_reproduction_are_tracked(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"train": 40, "test": 20, "learners": 2, "rounds": 2, "workers": 0, "method": {"name": "fedavg"}}
    cells = [Cell({"row": row}, settings | {"lr": rate}) for row, rate in (("slow", 0.001), ("fast", 0.01))]
    told = [ResultSection("Rows", table=[{"a": 1}], name="rows")]
    wanted = Reproduction("tiny", "for tests", lambda scale: cells, lambda outcomes: told)
    monkeypatch.setitem(REPRODUCTIONS, "tiny", wanted)
    code, _, err = command("reproduce", "tiny", "--out", "r", *TRACK)
    assert code == 0, err
    assert event_folders(Path("r")) == sorted(f"{cell.name}/seed-0" for cell in cells)
    for cell in cells:
        assert_same(read_events(Path("r/tensorboard") / cell.name / "seed-0"), expected(Path("r/cells") / cell.name, 0))


def test_names_of_curves_are_unique(tmp_path: Path) -> None:
    history = History((3,), learners=1, variants=2)
    assert curve_names("my/own", history, tmp_path) == ["my-own/variant-0/seed-3", "my-own/variant-1/seed-3"]
    history.folder = tmp_path / "part-1"
    history.folder.mkdir()
    text = '[[variants]]\n"method.a" = "x y"\n[[variants]]\n"method.a" = "x/y"\n'
    (history.folder / "config.toml").write_text(text, encoding="utf-8")
    assert curve_names("own", history, tmp_path) == [
        "part-1/1-method.a=x-y/seed-3",
        "part-1/2-method.a=x-y/seed-3",
    ]


# --- interruption and resume


def test_resumed_run_has_each_round_once(command: Command, interrupt_after: Callable[[int], None]) -> None:
    interrupt_after(2)
    assert command("run", "--method", "fedavg", *SMALL, "--seeds", "2", "--out", "mine", *TRACK)[0] == 130
    assert list(read_events(Path("mine/tensorboard/fedavg/seed-1"))["accuracy"]) == [1, 2]
    assert command("run", "--resume", "mine", *TRACK)[0] == 0
    assert event_folders(Path("mine")) == ["fedavg/seed-0", "fedavg/seed-1"], "one file each"
    for seed in (0, 1):
        assert_same(read_events(Path(f"mine/tensorboard/fedavg/seed-{seed}")), expected(Path("mine"), seed))


def test_rounds_after_the_last_checkpoint_are_not_duplicated(command: Command, tmp_path: Path) -> None:
    """An interrupted run has written more rounds than its checkpoint, and perhaps half of another."""

    def crash(method: str, round_: int, *others: Any) -> None:
        if round_ == 2:
            raise RuntimeError("out of power")

    tracked: Callable[..., AbstractContextManager[Any]] = tracking("tensorboard")
    settings: dict[str, Any] = {"learners": 2, "train": 40, "test": 20, "rounds": 3, "workers": 0}
    folder = tmp_path / "mine"
    with pytest.raises(RuntimeError, match="out of power"), tracked(folder, crash) as on_round:
        simulate(method="fedavg", out=folder, on_round=on_round, **settings)
    assert json.loads((folder / "checkpoint.json").read_text())["file"] == "checkpoint-0.safetensors"
    (events,) = (folder / "tensorboard/fedavg/seed-0").iterdir()
    assert list(read_events(events.parent)["accuracy"]) == [1, 2]
    events.write_bytes(events.read_bytes()[:-5])  # truncated
    assert command("run", "--resume", str(folder), *TRACK)[0] == 0
    assert_same(read_events(events.parent), expected(folder, 0))


def test_open_viewer_reads_the_rounds_of_a_resumed_run(
    command: Command, interrupt_after: Callable[[int], None]
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    interrupt_after(2)
    assert command("run", "--method", "fedavg", *SMALL, "--out", "mine", *TRACK)[0] == 130
    (first,) = Path("mine/tensorboard/fedavg/seed-0").iterdir()
    first = first.rename(
        first.with_name("events.out.tfevents.0000000001.then")
    )  # files are read in the order of their times
    viewer = EventAccumulator(str(first.parent))
    viewer.Reload()
    assert [event.step for event in viewer.Scalars("accuracy")] == [1, 2]
    assert command("run", "--resume", "mine", *TRACK)[0] == 0
    viewer.Reload()
    assert [event.step for event in viewer.Scalars("accuracy")] == [1, 2, 3]


def test_run_tracked_only_on_resume_has_its_first_rounds(
    command: Command, interrupt_after: Callable[[int], None]
) -> None:
    interrupt_after(1)
    assert command("run", "--method", "fedavg", *SMALL, "--out", "mine")[0] == 130
    assert command("run", "--resume", "mine", *TRACK)[0] == 0
    curves = read_events(Path("mine/tensorboard/fedavg/seed-0"))
    assert list(curves["accuracy"]) == [1, 2, 3]
    assert_same(curves, expected(Path("mine"), 0))


def test_resumed_comparison_leaves_finished_curves_unchanged(
    command: Command, interrupt_after: Callable[[int], None]
) -> None:
    interrupt_after(4)  # round 1 of the second method
    asked = ["--methods", "independent,fedavg", *SMALL, "--out", "c"]
    assert command("compare", *asked, *TRACK)[0] == 130
    (done,) = Path("c/tensorboard/independent/seed-0").iterdir()
    before = done.read_bytes()
    assert command("compare", "--resume", "c", *TRACK)[0] == 0
    assert done.read_bytes() == before
    assert_same(read_events(Path("c/tensorboard/fedavg/seed-0")), expected(Path("c/fedavg"), 0))


# --- errors


@pytest.mark.parametrize("asked", ["run", "compare", "sweep", "reproduce"])
def test_missing_tensorboard_is_refused_before_any_run(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    more = {"sweep": ["--set", "lr=0.1,0.2"], "reproduce": ["thesis-communication"]}.get(asked, [])
    assert command(asked, *more, "--out", "mine", *TRACK) == (2, "", f"error: {LINE}\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("asked", ["run", "compare", "sweep", "reproduce"])
def test_unknown_tracker_is_refused_with_the_nearest_name(command: Command, tmp_path: Path, asked: str) -> None:
    code, out, err = command(asked, "--out", "mine", "--track", "tensorbord")
    assert (code, out) == (2, "") and "unknown tracker 'tensorbord'. Did you mean 'tensorboard'?" in err
    assert not list(tmp_path.iterdir())


def test_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text("in the way")
    history = History((0,), learners=1)
    history.records = [{"accuracy": np.ones((1, 1))}]
    tracked = tracking("tensorboard")(tmp_path, lambda *others: None)
    with pytest.raises(StorageError, match=r"cannot write .*tensorboard"), tracked as on_round:
        on_round("fedavg", 1, 2, history)
    assert (tmp_path / "tensorboard").read_text() == "in the way"


# --- custom trackers


class Notes:
    """A tracker that records its calls."""

    def __init__(self, folder: Path) -> None:
        self.noted: list[Any] = [folder]

    def start(self, curves: Any) -> None:
        self.noted.append(list(curves))

    def add(self, curve: str, round_: int, values: Mapping[str, float]) -> None:
        self.noted.append((curve, round_, values["accuracy"]))

    def flush(self) -> None:
        self.noted.append("show")

    def close(self) -> None:
        self.noted.append("close")


def test_custom_tracker_is_registered_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Notes] = []

    def notes(folder: Path) -> Notes:
        made.append(Notes(folder))
        return made[-1]

    monkeypatch.setitem(TRACKERS, "notes", lambda: notes)
    first, second = History((7,), learners=1), History((7,), learners=1)
    others: list[int] = []
    with tracking("notes")(tmp_path, lambda *told: others.append(told[1])) as on_round:
        for round_, history in ((1, first), (2, first), (1, second)):
            history.records = [{"accuracy": np.full((1, 1), float(r))} for r in range(round_ + 1)]
            on_round("own", round_, 2, history)
    name = "own/seed-7"
    anew: list[Any] = [[name], (name, 0, 0.0), (name, 1, 1.0), "show"]
    assert made[0].noted == [tmp_path, *anew, (name, 2, 2.0), "show", *anew, "close"]
    assert others == [1, 2, 1]
    with pytest.raises(UnknownName):
        tracking("note")
