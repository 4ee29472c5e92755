"""The run folder after failures: written files stay intact, damaged ones are named, and a run can be resumed."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.numpy import save_file

from consilience.cli.main import main
from consilience.config.config import Config, make_config
from consilience.data import Dataset, load
from consilience.errors import CheckpointError, ConsilienceError, StorageError, TrainingError
from consilience.simulation import run as run_module
from consilience.simulation.engines.loop import worker_pool
from consilience.simulation.records import run_folder as folder_module
from consilience.simulation.records.history import History
from consilience.simulation.records.run_folder import RunFolder
from consilience.simulation.simulate import simulate
from tests.relay_tools import often

ROUNDS = 3


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load("digits", train=40, test=20)


def settings(**others: Any) -> Config:
    small = {"train": 40, "test": 20, "learners": 2, "rounds": ROUNDS, "workers": 0, "method": {"name": "consilience"}}
    return make_config(small | others)


def interrupt(method: str, round_: int, rounds: int, history: History) -> None:
    if round_ == 2:
        signal.raise_signal(signal.SIGINT)


@pytest.fixture(scope="module")
def kept(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run stopped after round 2, and the same run uninterrupted."""
    base = tmp_path_factory.mktemp("runs")
    assert not simulate(settings(), data=data, out=base / "stopped", on_round=interrupt).finished
    assert simulate(settings(), data=data, out=base / "whole").finished
    return base / "stopped", base / "whole"


@pytest.fixture
def stopped(kept: tuple[Path, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(kept[0], tmp_path / "stopped"))


@pytest.fixture
def whole(kept: tuple[Path, Path]) -> Path:
    return kept[1]


@pytest.fixture
def save_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "_SAVE_SECONDS", 0.0)
    monkeypatch.setattr(run_module, "_SAVE_SHARE", 1.0)  # however long it takes


def arrays(folder: Path) -> dict[str, np.ndarray]:
    checkpoint = RunFolder.open(folder).load()
    assert checkpoint is not None
    return checkpoint[0]


def metrics(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{**json.loads(line), "seconds": None} for line in lines]


def assert_same_run(a: Path, b: Path) -> None:
    one, other = arrays(a), arrays(b)
    assert set(one) == set(other) and all(np.array_equal(one[k], other[k]) for k in one)
    assert metrics(a) == metrics(b)


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


# Non-finite losses


def test_non_finite_loss_names_learner_round_and_term(
    data: Dataset, tmp_path: Path, save_every_round: None, capsys: pytest.CaptureFixture[str]
) -> None:
    wild = settings(method={"name": "independent"}, optimizer="sgd", lr=1e38, rounds=5)
    with pytest.raises(TrainingError) as stopped:
        simulate(wild, data=data, out=tmp_path / "wild")
    words = str(stopped.value)
    assert words.startswith("independent: learner 0 (seed 0), round 3: loss term 'cross_entropy' is NaN or infinite")
    assert "smaller learning rate" in words
    kept = arrays(tmp_path / "wild")
    assert all(np.isfinite(v).all() for v in kept.values()), "the last good checkpoint"
    assert json.loads((tmp_path / "wild" / "checkpoint.json").read_text(encoding="utf-8"))["round"] == 2
    assert metrics(tmp_path / "wild")[-1]["round"] == 2
    with pytest.raises(TrainingError, match="round 3"):
        simulate(data=data, resume=tmp_path / "wild")
    with pytest.raises(SystemExit) as ended:
        main(["run", "--resume", str(tmp_path / "wild")])
    assert ended.value.code == 1 and "error: independent: learner 0 (seed 0), round 3" in capsys.readouterr().err


@pytest.mark.parametrize("workers", [0, 2])
def test_non_finite_loss_names_the_right_learner_and_seed(
    data: Dataset, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Learner 2's samples are too large for single precision; the second seed assigns them to learner 0."""
    inputs = data.inputs.copy()
    inputs[30:] = 3e38

    def split(targets: np.ndarray, *others: Any, **more: Any) -> list[np.ndarray]:
        return [np.arange(0, 15), np.arange(15, 30), np.arange(30, 40)]

    monkeypatch.setattr("consilience.data.local_datasets.partition_samples", split)
    with pytest.raises(TrainingError, match=r"learner 2 \(seed 4\), round 1: loss term 'cross_entropy'"):
        simulate(settings(learners=3, seed=4, seeds=2, workers=workers), data=replace(data, inputs=inputs))


def test_non_finite_penalty_is_named(data: Dataset) -> None:
    wild = settings(method={"name": "federated-distillation"}, optimizer="sgd", lr=1e15, batch_size=8)
    with pytest.raises(TrainingError, match=r"learner 0 \(seed 0\), round 1: loss term 'logits' is NaN or infinite"):
        simulate(wild, data=data)


@pytest.mark.parametrize("method", ["independent", "fedavg", "representation-sharing"])
def test_non_finite_parameters_stop_the_run_before_they_are_saved(
    method: str, data: Dataset, tmp_path: Path, save_every_round: None
) -> None:
    """The step after the last loss may make them non-finite: they reach no channel and no checkpoint."""
    wild = settings(method={"name": method}, optimizer="sgd", lr=1e300)
    with pytest.raises(TrainingError, match=r"learner 0 .*, round 1: a parameter is NaN or infinite after training"):
        simulate(wild, data=data, out=tmp_path / "wild")
    assert all(np.isfinite(v).all() for v in arrays(tmp_path / "wild").values())


# Damaged checkpoints


def flip(file: Path, place: float) -> None:
    content = bytearray(file.read_bytes())
    content[int(len(content) * place)] ^= 0x10
    file.write_bytes(content)


def cut(file: Path, share: float) -> None:
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * share)])


def change(file: Path, /, **numbers: Any) -> None:
    content = json.loads(file.read_text(encoding="utf-8")) | numbers
    file.write_text(json.dumps({k: v for k, v in content.items() if v is not None}), encoding="utf-8")


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


STATE, POINTER, CONFIG, METRICS = "checkpoint-2.safetensors", "checkpoint.json", "config.toml", "metrics.jsonl"
DAMAGES: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "a flipped bit in the header": (STATE, lambda f: flip(f, 0.0001)),
    "a flipped bit in the middle": (STATE, lambda f: flip(f, 0.5)),
    "a flipped bit at the end": (STATE, lambda f: flip(f, 0.99999)),
    "half a file": (STATE, lambda f: cut(f, 0.5)),
    "an empty file": (STATE, lambda f: cut(f, 0)),
    "a missing file": (STATE, Path.unlink),
    "half a pointer": (POINTER, lambda f: cut(f, 0.5)),
    "an empty pointer": (POINTER, lambda f: cut(f, 0)),
    "a pointer of another kind": (POINTER, lambda f: f.write_text("[1, 2]", encoding="utf-8")),
    "a pointer that is no text": (POINTER, lambda f: f.write_bytes(b"\xff\xfe\x00")),
    "a number changed": (POINTER, lambda f: change(f, round=1)),
    "a number left out": (POINTER, lambda f: change(f, versions=None)),
    "another file named": (POINTER, lambda f: change(f, file="config.toml")),
    "half a configuration": (CONFIG, lambda f: cut(f, 0.8)),
    "a configuration that is no TOML": (CONFIG, lambda f: f.write_text("learners = [", encoding="utf-8")),
    "a configuration that is no text": (CONFIG, lambda f: f.write_bytes(b"\xff\xfe\x00")),
    "another learning rate": (CONFIG, lambda f: edit(f, "lr = 0.001", "lr = 0.002")),
    "another number of learners": (CONFIG, lambda f: edit(f, "learners = 2", "learners = 3")),
    "another method": (CONFIG, lambda f: edit(f, '"consilience"', '"fedavg"')),
    "missing metrics": (METRICS, Path.unlink),
    "a line of metrics lost": (METRICS, lambda f: cut(f, 0.5)),
    "a line of metrics damaged": (METRICS, lambda f: edit(f, '{"round": 1, "seed": 0, "learner": 1,', '{"round": 1,')),
    "a name in the metrics damaged": (METRICS, lambda f: flip(f, 0.02)),
    "metrics of another learner": (METRICS, lambda f: edit(f, '"learner": 1', '"learner": 7')),
    "metrics of another kind": (METRICS, lambda f: edit(f, '"round": 1', '"round": "one"')),
}


@pytest.mark.parametrize("damage", list(DAMAGES))
def test_damaged_run_is_named_and_refused(
    damage: str, stopped: Path, data: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    name, spoil = DAMAGES[damage]
    spoil(stopped / name)
    before = contents(stopped)
    with pytest.raises(ConsilienceError) as refused:
        simulate(data=data, resume=stopped)
    assert str(stopped / name) in str(refused.value)
    assert contents(stopped) == before, "nothing is touched, so that it can be looked at"
    with pytest.raises(SystemExit) as ended:
        main(["run", "--resume", str(stopped)])
    err = capsys.readouterr().err
    assert ended.value.code in (1, 2) and err.startswith("error: ") and name in err and err.count("\n") == 1


def test_checkpoint_of_another_run_is_refused(stopped: Path, data: Dataset, tmp_path: Path) -> None:
    simulate(settings(seed=1), data=data, out=tmp_path / "other", on_round=interrupt)
    for name in (STATE, POINTER):
        shutil.copy(tmp_path / "other" / name, stopped / name)
    with pytest.raises(CheckpointError, match=r"config\.toml has changed since the run started"):
        simulate(data=data, resume=stopped)


def test_resuming_with_another_model_or_data_is_refused(stopped: Path, data: Dataset) -> None:
    with pytest.raises(CheckpointError, match="is of another run"):
        simulate(data=data, model="lenet5", resume=stopped)


def test_intact_run_is_resumed(stopped: Path, whole: Path, data: Dataset) -> None:
    assert simulate(data=data, resume=stopped).finished
    assert_same_run(stopped, whole)


@pytest.mark.parametrize("tail", [b'{"round": 3, "seed": 0, "lear', b"\xff\xfe", b"\n\n", b'{"round": 3}\n{"round": '])
def test_incomplete_last_line_of_metrics_is_ignored(tail: bytes, stopped: Path, whole: Path, data: Dataset) -> None:
    with (stopped / METRICS).open("ab") as file:
        file.write(tail)
    assert simulate(data=data, resume=stopped).finished
    assert_same_run(stopped, whole)


def test_rounds_beyond_the_checkpoint_are_run_again(stopped: Path, whole: Path, data: Dataset) -> None:
    later = [line for line in (whole / METRICS).read_text(encoding="utf-8").splitlines() if '"round": 3' in line]
    with (stopped / METRICS).open("a", encoding="utf-8") as file:
        file.write(later[0] + "\n")
    assert simulate(data=data, resume=stopped).finished
    assert_same_run(stopped, whole)


def test_damaged_result_is_named(stopped: Path, data: Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    simulate(data=data, resume=stopped)
    for name in ("result.json", METRICS):
        sound = (stopped / name).read_bytes()
        cut(stopped / name, 0.5)
        with pytest.raises(SystemExit) as ended:
            main(["show", str(stopped)])
        assert ended.value.code == 1 and f"{stopped / name} is damaged" in capsys.readouterr().err
        (stopped / name).write_bytes(sound)


# Disks that are full, folders that cannot be written


def test_path_that_is_not_a_folder_is_reported(data: Dataset, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    with pytest.raises(StorageError, match=r"cannot write .*file/run: Not a directory"):
        simulate(settings(), data=data, out=tmp_path / "file" / "run")
    assert (tmp_path / "file").read_text(encoding="utf-8") == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_folder_is_reported(stopped: Path, data: Dataset, tmp_path: Path) -> None:
    stopped.chmod(0o555)
    try:
        with pytest.raises(StorageError, match="Permission denied"):
            simulate(settings(), data=data, out=stopped / "new")
        before = contents(stopped)
        with pytest.raises(StorageError, match="Permission denied"):
            simulate(data=data, resume=stopped)
        assert contents(stopped) == before
    finally:
        stopped.chmod(0o755)


def test_read_only_disk_is_reported(
    stopped: Path, whole: Path, data: Dataset, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(self: Path, *others: Any, **named: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))

    before = contents(stopped)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", refuse)
        patch.setattr(Path, "mkdir", refuse)
        with pytest.raises(StorageError, match="Read-only file system"):
            simulate(data=data, resume=stopped)
        with pytest.raises(StorageError, match=r"cannot write .*new: Read-only file system"):
            simulate(settings(), data=data, out=stopped / "new")
        with pytest.raises(SystemExit) as ended:
            main(["compare", "--methods", "fedavg", "--out", str(stopped / "new")])
        assert ended.value.code == 1 and "Read-only file system" in capsys.readouterr().err
    assert contents(stopped) == before
    assert simulate(data=data, resume=stopped).finished
    assert_same_run(stopped, whole)


class FullDisk:
    """A disk that is full at the `at`-th write; 0 only counts."""

    def __init__(self, at: int) -> None:
        self.at, self.count = at, 0

    def due(self) -> bool:
        self.count += 1
        return self.count == self.at

    def refuse(self) -> None:
        if self.due():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def fill(patch: pytest.MonkeyPatch, disk: FullDisk) -> None:
    """Direct all writes of the folder to this disk; a failing write has written half of its bytes."""
    write_bytes, replaced, fsync, opened = Path.write_bytes, Path.replace, os.fsync, Path.open

    def write(self: Path, content: bytes) -> int:
        if disk.due():
            write_bytes(self, content[: len(content) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write_bytes(self, content)

    def save(tensors: Any, file: Path) -> None:
        save_file(tensors, file)
        if disk.due():
            cut(file, 0.5)
            raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    class Half:
        def __init__(self, file: Any) -> None:
            self.file = file

        def __enter__(self) -> Half:
            return self

        def __exit__(self, *error: object) -> None:
            self.file.close()

        def writelines(self, lines: Iterable[str]) -> None:
            text = "".join(lines)
            full = disk.due()
            self.file.write(text[: len(text) // 2] if full else text)
            if full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def open_(self: Path, mode: str = "r", *others: Any, **named: Any) -> Any:
        file = opened(self, mode, *others, **named)
        return Half(file) if mode == "a" else file

    def sync(number: int) -> None:
        disk.refuse()
        fsync(number)

    def move(self: Path, target: Path) -> Path:
        disk.refuse()
        return replaced(self, target)

    for thing, name, new in (
        (Path, "write_bytes", write),
        (Path, "replace", move),
        (Path, "open", open_),
        (os, "fsync", sync),
        (folder_module, "save_file", save),
    ):
        patch.setattr(thing, name, new)


def test_full_disk_at_any_write_loses_nothing(
    whole: Path, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save_every_round: None
) -> None:
    """Whichever write fails, the run reports it and resumes from its last checkpoint to the same bits."""
    counting = FullDisk(at=0)
    with monkeypatch.context() as patch:
        fill(patch, counting)
        assert simulate(settings(), data=data, out=tmp_path / "counted").finished
    assert_same_run(tmp_path / "counted", whole)
    assert counting.count > 20
    for moment in range(1, counting.count + 1, often(3, 1)):
        run = tmp_path / str(moment)
        with monkeypatch.context() as patch:
            fill(patch, FullDisk(moment))
            with pytest.raises(StorageError, match=r"cannot write .*No space left on device"):
                simulate(settings(), data=data, out=run)
        begun = (run / CONFIG).exists()
        result = simulate(data=data, resume=run) if begun else simulate(settings(), data=data, out=run)
        assert result.finished
        assert_same_run(run, whole)
        shutil.rmtree(run)


def test_file_size_limit_is_reported_by_the_command(tmp_path: Path, data: Dataset) -> None:
    """The operating system refuses the checkpoint's bytes half-way."""
    room = 20_000  # bytes in any file: enough for settings and metrics, not for a checkpoint
    asked = ["run", "--method", "consilience", "--learners", "2", "--train", "40", "--test", "20", "--workers", "0"]
    program = f"""
import resource
from consilience.cli.main import main
resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {room}))
main({[*asked, "--rounds", str(ROUNDS), "--out", "mine"]})
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1 and done.stdout == ""
    assert "\nerror: cannot write mine/checkpoint-0.safetensors" in done.stderr and done.stderr.count("\nerror") == 1
    assert {p.name for p in (tmp_path / "mine").iterdir()} == {CONFIG, METRICS, "data.json", ".lock"}, (
        "no half checkpoint is left"
    )
    assert simulate(data=data, resume=tmp_path / "mine").finished


def test_missing_space_for_shared_memory_is_reported(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*others: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    threads = torch.get_num_threads()
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", refuse)
        with pytest.raises(StorageError, match="MiB of shared memory: No space left on device"):
            simulate(settings(workers=2), data=data)
    assert torch.get_num_threads() == threads


# Worker processes that terminate early


def test_killed_worker_is_reported_and_the_run_can_be_resumed(data: Dataset, whole: Path, tmp_path: Path) -> None:
    def kill(method: str, round_: int, rounds: int, history: History) -> None:
        if round_ == 1:
            worker_pool._pools[2].workers[1].process.kill()

    with pytest.raises(ConsilienceError, match=r"worker process \d+ ended with exit code -9"):
        simulate(settings(workers=2), data=data, out=tmp_path / "killed", on_round=kill)
    assert 2 not in worker_pool._pools, "what is left of the team is sent home"
    assert simulate(settings(workers=2), data=data).finished, "the next one gets a new team"
    assert simulate(data=data, resume=tmp_path / "killed").finished
    assert np.array_equal(arrays(tmp_path / "killed")["learners.0.parameters"], arrays(whole)["learners.0.parameters"])


def test_worker_that_died_between_runs_is_replaced(data: Dataset) -> None:
    simulate(settings(workers=2), data=data)
    dead = worker_pool._pools[2].workers[0].process
    dead.kill()
    dead.wait()
    assert simulate(settings(workers=2), data=data).finished
    assert dead.pid not in [w.process.pid for w in worker_pool._pools[2].workers]
