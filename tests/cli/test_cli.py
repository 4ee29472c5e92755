"""The command line: what it prints and saves, and how runs are stopped and resumed."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

import consilience
from consilience.cli.main import app
from consilience.cli.terminal import Screen
from consilience.config.config import KEYS as SETTINGS
from consilience.methods import METHODS
from consilience.simulation.compare import DEFAULT_METHODS
from consilience.simulation.records.run_folder import RunFolder

SMALL = ["--learners", "2", "--rounds", "2", "--train", "40", "--test", "20", "--workers", "0"]
KEYS = {
    "method",
    "data",
    "model",
    "learners",
    "rounds",
    "seeds",
    "engine",
    "device",
    "accuracy",
    "accuracy_own",
    "bytes",
    "message_bytes",
    "bytes_total",
    "seconds",
    "peak_memory_mb",
    "run",
}
Said = tuple[int, str, str]
Command = Callable[..., Said]


def objects(out: str) -> list[dict[str, Any]]:
    """Standard output as JSON, one object per line and nothing else."""
    found = [json.loads(line) for line in out.splitlines()]
    assert all(isinstance(o, dict) for o in found)
    return found


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def arrays(folder: Path) -> dict[str, np.ndarray]:
    checkpoint = RunFolder.open(folder).load()
    assert checkpoint is not None
    return checkpoint[0]


def assert_same_run(a: Path, b: Path) -> None:
    """The same bits, and the same metrics but for the clock."""
    one, other = arrays(a), arrays(b)
    assert set(one) == set(other) and all(np.array_equal(one[k], other[k]) for k in one)
    timeless = [[{**line, "seconds": None} for line in metrics(folder)] for folder in (a, b)]
    assert timeless[0] == timeless[1]


# Output


def assert_complete(summary: dict[str, Any]) -> None:
    assert set(summary) >= KEYS
    for accuracy in (summary["accuracy"], summary["accuracy_own"]):
        assert set(accuracy) >= {"mean", "std_seeds", "std_learners"} and 0 <= accuracy["mean"] <= 100
    assert set(summary["bytes"]) == set(summary["message_bytes"]) == {"up", "down"}
    seconds = summary["seconds"]
    assert set(seconds) == {"total", "train", "represent", "exchange", "evaluate"}
    assert seconds.pop("total") == pytest.approx(sum(seconds.values()))
    assert summary["peak_memory_mb"] > 0


def test_run_prints_exactly_one_json_object(command: Command) -> None:
    code, out, err = command("run", "--method", "fedavg", *SMALL, "--seeds", "2", "--out", "mine", "--json")
    assert code == 0
    (summary,) = objects(out)
    assert_complete(summary)
    expected = {"method": "fedavg", "data": "digits", "model": "mlp", "learners": 2, "rounds": 2, "seeds": 2}
    assert expected.items() <= summary.items()
    assert {"engine": "loop", "device": "cpu", "run": "mine"}.items() <= summary.items()
    assert summary["accuracy"]["std_seeds"] is not None
    full = summary["message_bytes"]
    assert summary["bytes"] == full and summary["bytes_total"] == 2 * 2 * (full["up"] + full["down"])
    assert err == "saved in mine\n", "quiet where nobody watches"


def test_compare_prints_one_json_object_per_method_in_order(command: Command) -> None:
    code, out, err = command("compare", "--methods", "independent, fedavg,independent", *SMALL, "--json", "--out", "c")
    assert code == 0 and err == "saved in c\n"
    summaries = objects(out)
    assert [s["method"] for s in summaries] == ["independent", "independent", "fedavg"]
    for summary in summaries:
        assert_complete(summary)
    assert summaries[0]["accuracy"]["std_seeds"] is None, "one seed has no spread"
    assert [s["run"] for s in summaries] == ["c/independent", "c/independent-batch_order-1", "c/fedavg"]
    assert summaries[2]["control"]["learners"] == summaries[2]["gain_own"]["learners"] == 2


def test_compare_prints_one_table(command: Command) -> None:
    code, out, err = command("compare", "--methods", "independent,consilience", *SMALL, "--seeds", "2")
    assert code == 0
    for heading in ("accuracy", "spread", "learners", "own", "upload", "download", "total", "time"):
        assert heading in out.partition("independent")[0], "above the first row"
    rows, _, said = out.partition("With 2 learners on digits, the default method (consilience) reaches ")
    assert rows.count(" independent ") == 3 and rows.count("consilience") == 1 and "learning alone" in said
    assert "Control: learning alone with another batch order helps" in " ".join(said.split())
    assert "2 learners, 2 rounds, 2 seeds" in out and "{" not in out
    dealt, _, kept = err.partition("saved in ")
    assert dealt.splitlines()[0] == "digits: 40 samples for 2 learners, iid" and dealt.count("learner 1") == 1
    assert dealt.splitlines()[-1].split() == ["learner", "1", *["2"] * 10, "20"], "how data was dealt, once for all"
    assert kept.startswith("runs/") and kept.strip().endswith("-digits-compare")


def test_run_prints_a_table_without_the_json_option(command: Command) -> None:
    code, out, _ = command("run", "--method", "fedavg-1bit", *SMALL)
    assert code == 0 and "fedavg-1bit" in out and "accuracy" in out


def test_methods_lists_uploaded_data_and_bytes(command: Command) -> None:
    code, out, err = command("methods", "--data", "digits", "--json")
    assert code == 0 and err == ""
    rows = {row["method"]: row for row in objects(out)}
    assert list(rows) == list(METHODS)
    for row in rows.values():
        assert row["summary"].endswith(".") and row["leaves"]
    assert rows["independent"]["leaves"] == rows["self-distillation"]["leaves"] == "nothing"
    assert rows["fedavg"]["message_bytes"] == {"up": 26_672, "down": 26_672}
    assert "kd" in rows["consilience"]["settings"]
    assert rows["fedavg"]["model"] == "mlp"


def test_methods_prints_a_table_for_any_model(command: Command) -> None:
    code, out, _ = command("methods", "--model", "resnet9")
    assert code == 0 and "resnet9 on mnist" in out and "9.9 MB" in out
    assert all(name in out for name in METHODS)


def test_version_is_printed(command: Command) -> None:
    assert command("--version") == (0, f"consilience {consilience.__version__}\n", "")


def test_momentum_is_allowed_for_sgd_and_refused_for_adam(command: Command) -> None:
    asked = ("run", *SMALL, "--momentum", "0.9", "--weight-decay", "0.01", "--json")
    code, out, _ = command(*asked, "--optimizer", "sgd", "--out", "a")
    assert code == 0 and "optimizer.velocity" in " ".join(arrays(Path(objects(out)[0]["run"])))
    code, _, err = command(*asked)
    assert code == 2 and "momentum is 0.9, and optimizer 'adam' does not use it; momentum is for sgd" in err


def test_centralized_trains_one_model_of_several(command: Command) -> None:
    code, out, _ = command("compare", *SMALL, "--model", "mlp,lenet5", "--methods", "centralized,independent", "--json")
    assert code == 0 and [o["learners"] for o in objects(out)] == [1, 2]


def test_help_names_the_commands(command: Command) -> None:
    code, out, _ = command("--help")
    assert code == 0 and all(name in out for name in ("init", "data", "run", "compare", "sweep", "methods", "show"))


# Settings: options, --set, files


def test_every_setting_has_an_option_and_every_option_has_help() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name in ("run", "compare", "sweep"):
        options = {o: p for p in commands[name].params for o in p.opts if o.startswith("--")}
        wanted = {f"--{key.replace('_', '-')}" for key in set(SETTINGS) - {"method", "groups", "variants"}}
        assert wanted < set(options)
        assert {"--out", "--resume", "--json", "--set"} < set(options)
        assert ("--methods" if name == "compare" else "--method") in options
        assert all(p.help for p in options.values())


def test_methods_compared_by_default_exist() -> None:
    assert set(DEFAULT_METHODS) <= set(METHODS)
    needed = {"independent", "federated-distillation", "fedavg", "representation-sharing", "consilience"}
    assert needed <= set(DEFAULT_METHODS)


def test_set_option_changes_any_setting_including_those_of_methods(command: Command) -> None:
    given = ["--set", "method.kd=3", "--set", "method.name=fedproto", "--set", "learners=3", "--set", "lr = 0.01"]
    code, out, _ = command("run", *SMALL, *given, "--out", "mine", "--json")
    assert code == 0
    (summary,) = objects(out)
    assert summary["method"] == "fedproto" and summary["settings"] == {"kd": 3}
    assert summary["learners"] == 3, "the last word counts"
    assert RunFolder.open(Path("mine")).config.training.lr == 0.01


def test_options_override_a_file_and_set_overrides_options(command: Command) -> None:
    Path("mine.toml").write_text(
        'learners = 2\nrounds = 3\ntrain = 40\ntest = 20\nworkers = 0\n[method]\nname = "fedprox"\nmu = 0.5\n',
        encoding="utf-8",
    )
    (plain,) = objects(command("run", "mine.toml", "--json")[1])
    assert plain["rounds"] == 3 and plain["method"] == "fedprox" and plain["settings"] == {"mu": 0.5}
    (changed,) = objects(command("run", "mine.toml", "--rounds", "1", "--method", "fedprox", "--json")[1])
    assert changed["rounds"] == 1 and changed["settings"] == {"mu": 0.5}, "the same method keeps its settings"
    (other,) = objects(
        command("run", "mine.toml", "--rounds", "2", "--set", "rounds=1", "--method", "fedavg", "--json")[1]
    )
    assert other["rounds"] == 1 and other["method"] == "fedavg" and other["settings"] == {}


def test_compare_applies_method_settings_to_that_method_only(command: Command) -> None:
    given = ["--set", "method.name=fedprox", "--set", "method.mu=0.5"]
    summaries = objects(command("compare", "--methods", "fedavg,fedprox", *given, *SMALL, "--json")[1])
    assert [s["settings"] for s in summaries] == [{}, {"mu": 0.5}]


def test_method_can_be_compared_with_itself_under_other_settings(command: Command) -> None:
    asked = "fedavg,fedavg:start=different:every=2"
    code, out, _ = command("compare", *SMALL, "--methods", asked, "--out", "pair", "--json")
    first, second = objects(out)
    assert code == 0
    assert (first["method"], first["settings"]) == ("fedavg", {})
    assert (second["method"], second["settings"]) == ("fedavg", {"start": "different", "every": 2})
    assert second["bytes"]["up"] == first["bytes"]["up"] / 2
    assert "fedavg start=different every=2" in command("show", "pair")[1]
    assert command("compare", "--resume", "pair", "--json")[1] == out


def test_resolved_configuration_reproduces_the_run(command: Command) -> None:
    assert command("run", "--method", "consilience", *SMALL, "--seed", "7", "--out", "first")[0] == 0
    resolved = tomllib.loads(Path("first/config.toml").read_text(encoding="utf-8"))
    assert resolved["model"] == "mlp" and resolved["data"] == "digits" and resolved["seed"] == 7
    assert command("run", "first/config.toml", "--out", "second")[0] == 0
    assert_same_run(Path("first"), Path("second"))


# The run folder


def test_run_folder_holds_configuration_data_metrics_and_result(command: Command) -> None:
    method = ["--method", "representation-sharing", "--eval-every", "2"]
    assert command("run", *method, *SMALL, "--out", "mine")[0] == 0
    names = {p.name for p in Path("mine").iterdir()}
    known = {"config.toml", "data.json", "metrics.jsonl", "result.json", "checkpoint.json", "checkpoint-2.safetensors"}
    assert names - {".lock"} == known
    found = json.loads(Path("mine/data.json").read_text())
    assert found["data"]["samples"] == 40 and found["class_counts"] == {"0": [[2] * 10] * 2}
    assert found["case"]["figure"] == "" and found["distances"]["labels"]["measured"] == 0
    lines = metrics(Path("mine"))
    assert [(line["round"], line["learner"]) for line in lines] == [(r, who) for r in range(3) for who in range(2)]
    last = lines[-1]
    assert set(last["loss"]) == {"cross_entropy", "prototypes", "observations"}
    assert set(last["bytes"]) == {"up", "down"} and set(last["seconds"]) == {
        "train",
        "represent",
        "exchange",
        "evaluate",
    }
    assert last["participated"] is True and isinstance(last["bytes"]["up"], int)
    assert 0 <= last["accuracy"] <= 100 and 0 <= last["accuracy_own"] <= 100
    # Theorem 1 for the class mean that training uses: log(C - 1) - C x penalty.
    assert last["mutual_information"] == pytest.approx(np.log(9) - 10 * last["loss"]["observations"])
    assert lines[2]["accuracy"] is None, "round 1 was not tested"
    assert lines[0]["loss"]["cross_entropy"] is None and lines[0]["bytes"]["up"] > 0, "before the first round"


def test_show_a_run_and_a_comparison(command: Command) -> None:
    (summary,) = objects(command("run", "--method", "fedavg", *SMALL, "--out", "mine", "--json")[1])
    code, out, _ = command("show", "mine")
    assert code == 0 and "fedavg" in out and "accuracy over rounds" in out.lower()
    assert objects(command("show", "mine", "--json")[1]) == [summary]
    asked = ("compare", "--methods", "independent,fedavg", *SMALL, "--no-control", "--against", "fedavg")
    both = objects(command(*asked, "--out", "both", "--json")[1])
    assert objects(command("show", "both", "--json")[1]) == both and both[0]["against"]["method"] == "fedavg"
    other = objects(command("show", "both", "--against", "independent", "--json")[1])
    assert other[1]["against"]["method"] == "independent" and "against" not in other[0]
    code, _, err = command("show", "both", "--against", "fedprox")
    assert code == 2 and "'fedprox', which is not among the methods that are compared: independent, fedavg;" in err
    code, _, err = command("show", "mine", "--against", "fedprox")
    assert code == 2 and "mine is not a comparison" in err
    code, out, _ = command("show", "both")
    assert code == 0 and out.count(" independent ") == out.count(" fedavg ") == 3
    assert "Difference to fedavg" in out


def test_show_of_an_unfinished_run_says_how_to_resume(command: Command, interrupt: Callable[..., None]) -> None:
    interrupt("fedavg", 1)
    assert command("run", "--method", "fedavg", *SMALL, "--out", "mine")[0] == 130
    code, out, err = command("show", "mine")
    assert code == 0 and "fedavg" in out
    assert "'fedavg' was stopped after round 1; resume with: consilience run --resume mine" in err
    interrupt("fedavg", 1)
    assert command("run", "--method", "fedavg", *SMALL, "--eval-every", "2", "--out", "untested")[0] == 130
    assert "–" in command("show", "untested")[1]
    Path("untested/metrics.jsonl").unlink()  # as in a run that has not begun its first round
    Path("untested/result.json").unlink()
    code, _, err = command("show", "untested")
    assert code == 0 and "was stopped after round 0; resume with" in err
    interrupt("fedavg", 1)
    assert command("compare", "--methods", "independent,fedavg", *SMALL, "--out", "both")[0] == 130
    code, out, err = command("show", "both")
    assert code == 0 and "independent" in out and "fedavg" in out and "consilience compare --resume both" in err
    (Path("both") / "fedavg" / "result.json").unlink()  # as if it had been killed
    code, out, err = command("show", "both")
    assert code == 0 and "independent" in out
    assert "'fedavg' was stopped after round 1; resume with: consilience compare --resume both" in err


# Stop and resume


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Press Ctrl-C once, in the round callback of a method."""
    wanted: list[tuple[str, int]] = []

    def on_round(self: Screen, method: str, round_: int, *others: Any) -> None:
        if (method, round_) in wanted:
            wanted.remove((method, round_))
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Screen, "on_round", on_round)
    yield lambda method, round_: wanted.append((method, round_))
    assert not wanted, "nothing was interrupted"


def test_interrupted_comparison_resumes_where_it_stopped(command: Command, interrupt: Callable[..., None]) -> None:
    asked = ["compare", "--methods", "independent,fedavg,fedproto", *SMALL, "--json", "--no-control"]
    whole = objects(command(*asked, "--out", "whole")[1])
    interrupt("fedavg", 1)
    code, out, err = command(*asked, "--out", "parts")
    assert code == 130
    assert [(s["method"], s["finished"], s["rounds"]) for s in objects(out)] == [
        ("independent", True, 2),
        ("fedavg", False, 1),
    ]
    assert "stopped in 'fedavg'" in err and "consilience compare --resume parts" in err
    code, out, _ = command("compare", "--resume", "parts", "--json")
    assert code == 0
    parts = objects(out)
    assert [s["method"] for s in parts] == ["independent", "fedavg", "fedproto"]
    for one, other in zip(whole, parts, strict=True):
        assert one["accuracy"] == other["accuracy"] and one["bytes_total"] == other["bytes_total"]
        assert_same_run(Path(one["run"]), Path(other["run"]))


def test_interrupt_in_the_last_round_of_a_method_stops_the_comparison(
    command: Command, interrupt: Callable[..., None]
) -> None:
    """The method finishes and the comparison stops after it; after the last method, the comparison is finished."""
    asked = ["compare", "--methods", "independent,fedavg", *SMALL, "--json"]
    interrupt("independent", 2)
    code, out, err = command(*asked, "--out", "parts")
    assert code == 130 and [(s["method"], s["finished"]) for s in objects(out)] == [("independent", True)]
    assert "consilience compare --resume parts" in err
    interrupt("fedavg", 2)
    code, out, _ = command("compare", "--resume", "parts", "--json")
    assert code == 0 and [s["method"] for s in objects(out)] == ["independent", "independent", "fedavg"]


@pytest.mark.parametrize(("asked", "words"), [("run", "--method"), ("compare", "--methods")])
def test_ctrl_c_outside_the_rounds_says_how_to_resume(
    asked: str, words: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While processes start or between two methods: no round has to finish first, and nothing is lost."""

    def pressed(*others: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("consilience.simulation.simulate.open_engine", pressed)
        code, out, err = command(asked, words, "fedavg", *SMALL, "--out", "mine", "--json")
    assert code == 130 and out == "" and err == f"stopped; resume with: consilience {asked} --resume mine\n"
    code, out, _ = command(asked, "--resume", "mine", "--json")
    assert code == 0 and objects(out)[0]["finished"]
    with monkeypatch.context() as patch:
        patch.setattr("consilience.simulation.setup.inputs.load", pressed)
        code, _, err = command("run", *SMALL, "--out", "other")
    assert code == 130 and err == "" and not Path("other").exists()


def test_resuming_a_finished_run_changes_nothing(command: Command) -> None:
    (first,) = objects(command("run", "--method", "fedavg-1bit", *SMALL, "--out", "mine", "--json")[1])
    code, out, _ = command("run", "--resume", "mine", "--json")
    assert code == 0 and objects(out) == [first]


def test_resume_refuses_other_settings(command: Command) -> None:
    assert command("run", "--method", "fedavg", *SMALL, "--out", "mine")[0] == 0
    for other in (["--rounds", "9"], ["--method", "fedavg"], ["--set", "lr=1"], ["--out", "other"], ["x.toml"]):
        code, _, err = command("run", *other, "--resume", "mine")
        assert code == 2 and "--resume takes its settings from the run's folder" in err
    code, _, err = command("compare", "--methods", "fedavg", "--resume", "mine")
    assert code == 2 and "--resume takes its settings" in err


def python(*arguments: str, **how: Any) -> subprocess.Popen[str]:
    """The command in a separate process."""
    paths = os.pathsep.join(p for p in sys.path if p)
    return subprocess.Popen(
        [sys.executable, "-m", "consilience", *arguments],
        env=os.environ | {"PYTHONPATH": paths, "TERM": "xterm"},
        stdout=subprocess.PIPE,
        text=True,
        **how,
    )


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.005)


def test_ctrl_c_stops_after_the_round_and_the_resumed_run_is_identical(command: Command) -> None:
    long = ["--learners", "2", "--train", "40", "--test", "20", "--rounds", "150", "--eval-every", "50"]
    asked = ["run", "--method", "consilience", *long, "--workers", "0", "--json"]
    with python(*asked, "--out", "parts", stderr=subprocess.PIPE) as process:
        file = Path("parts/metrics.jsonl")
        wait_for(lambda: file.exists() and len(file.read_bytes().splitlines()) > 2)  # round 1 is running or finished
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    (summary,) = objects(out)
    assert not summary["finished"] and 1 <= summary["rounds"] < 150
    assert f"stopped after round {summary['rounds']}" in err and "consilience run --resume parts" in err
    assert "Traceback" not in err
    code, out, _ = command("run", "--resume", "parts", "--json")
    assert code == 0 and objects(out)[0]["rounds"] == 150
    assert command(*asked, "--out", "whole")[0] == 0
    assert_same_run(Path("whole"), Path("parts"))


def test_progress_is_shown_on_a_terminal_and_json_stays_clean(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    asked = ["run", "--method", "fedavg", *SMALL, "--json", "--out", str(tmp_path / "mine")]
    with python(*asked, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # reading fails after the program has closed the terminal
            while some := os.read(ours, 4096):
                shown += some
        out, _ = process.communicate(timeout=60)
    os.close(ours)
    assert process.returncode == 0 and len(objects(out)) == 1
    assert b"fedavg" in shown and b"2/2" in shown


def test_unknown_method_in_a_separate_process_is_refused(tmp_path: Path) -> None:
    with python("run", "--method", "fedavgg", stderr=subprocess.PIPE, cwd=tmp_path) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 2 and out == ""
    assert err.startswith("error: unknown method 'fedavgg'. Did you mean 'fedavg'?") and err.count("\n") == 1
    assert not list(tmp_path.iterdir()), "nothing is left behind"
