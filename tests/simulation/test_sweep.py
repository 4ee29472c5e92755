"""The command `sweep`: its output, the CSV file, errors before any run, interruption and resume."""

from __future__ import annotations

import csv
import errno
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consilience.config.config import make_config
from consilience.config.grid import parse_grid
from consilience.errors import ConfigurationError
from consilience.presentation.tables import sweep_table, table_text
from consilience.simulation.records.run_folder import RunFolder
from consilience.simulation.result import best_of
from consilience.simulation.simulate import simulate
from consilience.simulation.sweep_plan import SweepPlan

Said = tuple[int, str, str]
Command = Callable[..., Said]
SMALL = [
    *("--method", "fedproto", "--learners", "2", "--rounds", "2", "--train", "60", "--test", "40"),
    *("--engine", "loop", "--workers", "0"),
]
RATES = ["--set", "lr=0.001,0.02", "--set", "method.kd=0,10"]
PARTS = ["--set", "method.encoding=float32,float16", "--set", "lr=0.001,0.02"]
"""Two settings in each of two parts."""
pytestmark = pytest.mark.usefixtures("one_thread")


def objects(out: str) -> list[dict[str, Any]]:
    """Standard output as JSON, one object per line."""
    found = [json.loads(line) for line in out.splitlines()]
    assert all(isinstance(o, dict) for o in found)
    return found


def table(folder: str) -> list[dict[str, str]]:
    with (Path(folder) / "sweep.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in RunFolder(folder).lines()]


# Axes and settings


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("method.kd=0,0.1,1,10", [0, 0.1, 1, 10]),
        ("method.kd = 0 , 1e-3", [0, 0.001]),
        ("partition=iid,dirichlet(0.5)", ["iid", "dirichlet(0.5)"]),
        ('model="mlp,lenet5","mlp"', ["mlp,lenet5", "mlp"]),
        ("optimizer=adam, sgd,", ["adam", "sgd"]),
        ("deterministic=true,false", [True, False]),
        pytest.param('model="mlp,lenet5",mlp', ["mlp,lenet5", "mlp"]),
    ],
)
def test_grid_axis_values_are_parsed(text: str, values: list[Any]) -> None:
    grid, fixed = parse_grid([text])
    assert list(grid.values()) == [values] and fixed == []
    assert [type(v) for v in next(iter(grid.values()))] == [type(v) for v in values]


@pytest.mark.parametrize(
    "text", ["method.kd=3", 'model="mlp"', 'model="mlp,lenet5"', "partition=dirichlet(0.5)", "lr="]
)
def test_single_value_is_not_an_axis(text: str) -> None:
    assert parse_grid([text, "rounds=1,2"]) == ({"rounds": [1, 2]}, [text])


def test_repeated_axis_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"method\.kd is swept over twice; give all its values at once"):
        parse_grid(["method.kd=0,1", "lr=0.1,0.2", "method.kd=2,3"])


def test_sweep_plan_has_all_combinations_in_few_parts(tmp_path: Path) -> None:
    config = make_config({"method": {"name": "representation-sharing"}})
    grid: dict[str, list[Any]] = {"method.kd": [0, 1], "method.n_avg": [5, 10], "lr": [0.1, 0.2]}
    sweep = SweepPlan(config, grid, tmp_path)
    assert [tuple(s.values()) for s in sweep.settings] == [
        (kd, n_avg, lr) for kd in (0, 1) for n_avg in (5, 10) for lr in (0.1, 0.2)
    ]
    assert sweep.parts == [[0, 1, 4, 5], [2, 3, 6, 7]], "n_avg = 5, then 10"
    assert sweep.separating == ["method.n_avg"]
    assert SweepPlan(config, {k: v for k, v in grid.items() if k != "method.n_avg"}, tmp_path).separating == []


def outcome(mean: float | None, *diverged: str) -> dict[str, Any]:
    return {"accuracy": {"mean": mean}, "diverged": list(diverged)}


def test_best_setting_ignores_diverged_ones() -> None:
    assert best_of([]) is None and best_of([outcome(None), outcome(9.0, "learner 0")]) is None
    outcomes = [outcome(1.0), outcome(9.0, "learner 0"), outcome(None), outcome(3.0), outcome(2.0)]
    assert best_of(outcomes) == outcomes[3]


def outcome_with_ensemble(mean: float | None, together: float | None, *diverged: str) -> dict[str, Any]:
    return outcome(mean, *diverged) | {"ensemble": {"mean": together}}


def test_best_setting_is_by_ensemble_accuracy_if_all_have_it() -> None:
    outcomes = [
        outcome_with_ensemble(3.0, 5.0),
        outcome_with_ensemble(2.0, 7.0),
        outcome_with_ensemble(9.0, 9.0, "learner 0"),
        outcome_with_ensemble(None, None),
    ]
    assert best_of(outcomes) == outcomes[1]
    assert best_of([*outcomes, outcome_with_ensemble(1.0, None)]) == outcomes[0], "one was not asked"
    assert best_of([*outcomes, outcome(1.0)]) == outcomes[0], "one is of a time before anybody was"


# Output


def test_sweep_with_ensemble_accuracy_is_ranked_by_it(command: Command) -> None:
    two_stage = ["--method", "two-stage", "--train", "60", "--test", "40", "--learners", "2", "--rounds", "1"]
    two_stage += ["--watch", "cut", "--workers", "0"]
    found = command("sweep", *two_stage, "--set", "method.delta=0.001,0.01", "--out", "mine")
    assert found[0] == 0
    outcomes = objects(command("show", "mine", "--json")[1])
    for line, outcome in zip(table("mine"), outcomes, strict=True):
        columns = {"accuracy_ensemble": "ensemble", "accuracy_heads": "heads", "dependence": "dependence"}
        for column, key in columns.items():
            assert float(line[column]) == pytest.approx(outcome[key]["mean"])
    best = max(outcomes, key=lambda each: each["ensemble"]["mean"])
    said = (
        f"best: method.delta={best['set']['method.delta']}: {best['ensemble']['mean']:.2f} % ensemble accuracy on "
        f"the test set (ensemble of all learners)"
    )
    assert said in found[2]
    for place, (mean, together) in enumerate([(80.0, 61.1), (70.0, 62.2)]):
        outcomes[place]["accuracy"]["mean"], outcomes[place]["ensemble"]["mean"] = mean, together
    shown = table_text(sweep_table(outcomes))
    assert shown.index("62.2") < shown.index("best") < shown.index("61.1")
    assert "ensemble" in shown and "ranked by ensemble accuracy" in shown
    outcomes[1]["ensemble"] = {"mean": None}
    shown = table_text(sweep_table(outcomes))
    assert shown.index("80.0") < shown.index("61.1") < shown.index("best") < shown.index("70.0")
    assert "ensemble" in shown and "ranked by ensemble accuracy" not in shown
    del outcomes[0]["ensemble"]
    assert "ensemble" not in table_text(sweep_table(outcomes))


def test_sweep_prints_the_table_to_stdout_and_the_best_to_stderr(command: Command) -> None:
    code, out, err = command("sweep", *SMALL, *RATES, "--seeds", "2", "--out", "mine")
    assert code == 0
    assert "fedproto, digits, mlp: 4 settings, 2 learners, 2 rounds, 2 seeds" in " ".join(out.split())
    rows = [line.split() for line in out.splitlines() if line.strip().startswith(("0.001 ", "0.02 "))]
    assert sorted((r[0], r[1]) for r in rows) == [(lr, kd) for lr in ("0.001", "0.02") for kd in ("0", "10")]
    accuracies = [float(r[2]) for r in rows]
    assert accuracies == sorted(accuracies, reverse=True) and accuracies[0] > accuracies[-1], "the best first"
    assert [r[-1] == "best" for r in rows] == [True, False, False, False]
    best = max(objects(command("show", "mine", "--json")[1]), key=lambda o: float(o["accuracy"]["mean"]))
    reached, (lr, kd) = best["accuracy"], best["set"].values()
    assert rows[0][:2] == [str(lr), str(kd)] and accuracies[0] == pytest.approx(reached["mean"], abs=0.05)
    assert err.startswith("digits: 60 samples for 2 learners, iid\n") and err.count("learner 0") == 1
    assert err[err.index("best: ") :] == (
        f"best: lr={lr} method.kd={kd}: {reached['mean']:.2f} % accuracy on the test set "
        f"(±{reached['std_seeds']:.2f} over 2 seeds, ±{reached['std_learners']:.2f} over learners)\n"
        f"warning: settings are ranked by accuracy on the test set: the test set chose the best one, so its accuracy "
        f"is too good; hold out samples to choose by with --validation 0.2\n"
        f"saved in mine; one line for each setting, seed and round in mine/sweep.csv\n"
    )
    assert {p.name for p in Path("mine").iterdir()} == {"sweep.toml", "sweep.csv", "part-1", ".lock"}


def test_sweep_with_validation_is_ranked_by_it_and_says_so(command: Command) -> None:
    code, out, err = command("sweep", *SMALL, *RATES, "--validation", "0.3", "--out", "mine")
    assert code == 0 and "Settings are ranked by validation accuracy." in " ".join(out.split())
    found = objects(command("show", "mine", "--json")[1])
    assert {o["ranked_by"] for o in found} == {"accuracy_validation"} and sorted(o["rank"] for o in found) == [
        1,
        2,
        3,
        4,
    ]
    by_rank = [o["accuracy_validation"]["mean"] for o in sorted(found, key=lambda o: int(o["rank"]))]
    assert by_rank == sorted(by_rank, reverse=True)
    best = next(o for o in found if o["rank"] == 1)
    assert f"% validation accuracy (±{best['accuracy_validation']['std_learners']:.2f} over learners)" in err
    assert "warning" not in err
    lines = {(line["lr"], line["method.kd"]): (line["rank"], line["ranked_by"]) for line in table("mine")}
    assert lines == {
        (str(o["set"]["lr"]), str(o["set"]["method.kd"])): (str(o["rank"]), "accuracy_validation") for o in found
    }
    outcomes = [
        outcome(9.0) | {"accuracy_validation": {"mean": 1.0}},
        outcome(8.0) | {"accuracy_validation": {"mean": 2}},
    ]
    assert best_of(outcomes) == outcomes[1]
    assert best_of([*outcomes, outcome(8.5)]) == outcomes[0], "one has no validation samples"


def test_sweep_json_is_one_object_per_setting(command: Command) -> None:
    code, out, err = command("sweep", *SMALL, *RATES, "--out", "mine", "--json")
    found = objects(out)
    assert code == 0 and err.startswith("best: ") and err.count("\n") == 3
    assert [o["set"] for o in found] == [{"lr": lr, "method.kd": kd} for lr in (0.001, 0.02) for kd in (0, 10)]
    assert [o["settings"] for o in found] == [{"kd": o["set"]["method.kd"]} for o in found]
    assert all(o["finished"] and o["rounds"] == 2 and o["diverged"] == [] for o in found)
    assert objects(command("show", "mine", "--json")[1]) == found


def test_setting_equals_a_separate_run(command: Command) -> None:
    exact = [*SMALL, "--precision", "float64", "--seeds", "2", "--json"]
    last = objects(command("sweep", *exact, *RATES, "--out", "mine")[1])[-1]
    (alone,) = objects(command("run", *exact, "--lr", "0.02", "--set", "method.kd=10", "--out", "alone")[1])
    assert last["accuracy"] == alone["accuracy"] and last["accuracy_own"] == alone["accuracy_own"]
    for key in ("bytes", "message_bytes", "bytes_total", "settings", "seeds", "learners"):
        assert last[key] == alone[key]


def test_long_table_is_truncated_but_not_the_csv_file(command: Command) -> None:
    rates = [f"{i / 1000}" for i in range(1, 23)]
    code, out, _ = command("sweep", *SMALL, "--set", f"lr={','.join(rates)}", "--out", "mine")
    assert code == 0 and "2 more are in the tidy file." in " ".join(out.split())
    assert sum(line.strip().startswith("0.0") for line in out.splitlines()) == 20
    assert {line["lr"] for line in table("mine")} == set(rates)


def test_sweep_creates_its_own_folder(command: Command) -> None:
    code, _, err = command("sweep", *SMALL, "--set", "lr=0.001,0.02")
    (folder,) = Path("runs").iterdir()
    assert code == 0 and folder.name.endswith("-digits-sweep-fedproto") and f"saved in {folder};" in err


# The CSV file


def test_csv_file_has_means_over_learners(command: Command) -> None:
    assert command("sweep", *SMALL, *RATES, "--seeds", "2", "--out", "mine")[0] == 0
    lines = table("mine")
    assert list(lines[0]) == [
        *("lr", "method.kd", "seed", "round", "accuracy", "accuracy_own", "bytes.up", "bytes.down"),
        *("loss.cross_entropy", "loss.prototypes", "accuracy_std_learners", "rank", "ranked_by"),
    ]
    where = [(line["lr"], line["method.kd"], line["seed"], line["round"]) for line in lines]
    assert where == [(lr, kd, s, r) for lr in ("0.001", "0.02") for kd in ("0", "10") for s in "01" for r in "12"]
    learners: dict[tuple[int, int, int], list[dict[str, Any]]] = {}
    for each in metrics(Path("mine/part-1")):
        learners.setdefault((each["variant"], each["seed"], each["round"]), []).append(each)
    for i, line in enumerate(lines):
        both = learners[i // 4, int(line["seed"]), int(line["round"])]
        assert len(both) == 2
        for name in ("accuracy", "accuracy_own"):
            assert float(line[name]) == pytest.approx(np.mean([one[name] for one in both]))
        assert float(line["accuracy_std_learners"]) == pytest.approx(np.std([one["accuracy"] for one in both]))
        assert float(line["bytes.up"]) == both[0]["bytes"]["up"] > 0
        for term in ("cross_entropy", "prototypes"):
            assert float(line[f"loss.{term}"]) == pytest.approx(np.mean([one["loss"][term] for one in both]))


def test_csv_file_has_empty_cells_for_missing_measurements(command: Command) -> None:
    """Round 1 is not tested, and one of two learners participates."""
    less = ["--eval-every", "2", "--participation", "0.5"]
    assert command("sweep", *SMALL, *less, "--set", "lr=0.001,0.02", "--out", "mine")[0] == 0
    lines = table("mine")
    assert [line["accuracy"] == "" for line in lines] == [True, False] * 2
    for line in lines:
        variant, round_ = ["0.001", "0.02"].index(line["lr"]), int(line["round"])
        both = [m for m in metrics(Path("mine/part-1")) if (m["variant"], m["round"]) == (variant, round_)]
        (loss,) = [m["loss"]["cross_entropy"] for m in both if m["participated"]]
        assert float(line["loss.cross_entropy"]) == loss


# Settings that change more than weights


def test_settings_that_need_separate_runs_are_reported(command: Command) -> None:
    code, out, err = command("sweep", *SMALL, *PARTS, "--out", "mine", "--json")
    assert code == 0
    assert err.startswith("method.encoding cannot differ within a run: 2 runs, one after the other\nbest: ")
    found = objects(out)
    settings = [(o["set"]["method.encoding"], o["set"]["lr"]) for o in found]
    assert settings == [(e, lr) for e in ("float32", "float16") for lr in (0.001, 0.02)]
    assert [o["run"] for o in found] == ["mine/part-1"] * 2 + ["mine/part-2"] * 2
    assert [o["message_bytes"]["up"] for o in found] == [1456, 1456, 808, 808], "sixteen bits a number weigh half"
    assert [(line["method.encoding"], line["bytes.up"]) for line in table("mine")] == (
        [("float32", "1456.0")] * 4 + [("float16", "808.0")] * 4
    )


def test_interleaved_parts_are_returned_in_the_order_of_settings(command: Command) -> None:
    out = command("sweep", *SMALL, *PARTS[2:], *PARTS[:2], "--out", "mine", "--json")[1]
    found = [(o["set"]["lr"], o["set"]["method.encoding"], o["message_bytes"]["up"]) for o in objects(out)]
    assert found == [(lr, e, b) for lr in (0.001, 0.02) for e, b in (("float32", 1456), ("float16", 808))]


def test_axis_of_words_combines_with_learning_rates(command: Command) -> None:
    given = ["--set", "partition=iid,dirichlet(0.5)", "--set", "lr=0.001,0.02", "--set", 'model="mlp"']
    code, out, err = command("sweep", *SMALL, *given, "--out", "mine", "--json")
    assert code == 0 and err.startswith("partition cannot differ within a run: 2 runs")
    assert [o["set"]["partition"] for o in objects(out)] == ["iid", "iid", "dirichlet(0.5)", "dirichlet(0.5)"]
    dealt = [RunFolder(Path(f"mine/part-{i}")).config for i in (1, 2)]
    assert [(c.federation.partition, c.model.name) for c in dealt] == [("iid", "mlp"), ("dirichlet(0.5)", "mlp")]


@pytest.mark.parametrize("given", ["partition=iid,dirichlet(0.5)", "learners=2,3", "model=mlp,lenet5"])
def test_part_may_have_one_setting(given: str, command: Command) -> None:
    code, out, _ = command("sweep", *SMALL, "--set", given, "--out", "mine", "--json")
    assert code == 0 and len(objects(out)) == 2 and len(table("mine")) == 2 * 2


def test_repeated_value_does_not_force_separate_runs(command: Command) -> None:
    err = command("sweep", *SMALL, "--set", "lr=0.01,0.01,0.02", "--out", "mine")[2]
    assert "cannot differ" not in err


# Diverging settings


# Squared distances of unbounded logits overflow on any processor.
UNBOUNDED = [word.replace("fedproto", "federated-distillation") for word in SMALL]


def test_diverging_setting_is_reported_and_never_best(command: Command) -> None:
    wild = ["--precision", "float64", "--optimizer", "sgd", "--set", "method.kd=1e300,1"]
    code, out, err = command("sweep", *UNBOUNDED, *wild, "--out", "mine")
    assert code == 0 and "\nbest: method.kd=1: " in err
    rows = [line.split() for line in out.splitlines() if line.strip().startswith("1")]
    assert [(r[0], r[-1]) for r in rows] == [("1", "best"), ("1e+300", "diverged")]
    outcomes = objects(command("show", "mine", "--json")[1])
    assert outcomes[1]["diverged"] == []
    # The first or the second round, by how the processor rounds.
    assert re.search(r"\(seed 0, method\.kd=1e\+300\), round [12]: ", outcomes[0]["diverged"][0])
    assert [line["method.kd"] for line in table("mine")] == ["1e+300"] * 2 + ["1"] * 2
    assert table("mine")[1]["loss.logits"] == "" and float(table("mine")[3]["loss.logits"]) > 0
    outcomes[0]["accuracy"]["mean"] = 99.0  # a diverged model may be accurate by chance
    shown = table_text(sweep_table(outcomes))
    assert shown.index("best") < shown.index("99.0") < shown.index("diverged")


def test_sweep_fails_if_every_setting_diverges(command: Command) -> None:
    wild = ["--precision", "float64", "--optimizer", "sgd", "--set", "method.kd=1e300,1e301"]
    code, out, err = command("sweep", *UNBOUNDED, *wild, "--out", "mine")
    assert code == 1 and out.count("diverged") == 2
    assert "error: every setting diverged to NaN or infinite values, first learner 0 (seed 0, method.kd=1e+300)" in err


# Errors


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "nothing to sweep over; give a setting several values, such as --set method.kd=0,1,10"),
        (["method.kd=1", 'model="mlp,mlp"'], "nothing to sweep over"),
        (["lr=0.1,0.2", "lr=0.3,0.4"], "lr is swept over twice"),
        (["lr=0.1,0.2", "lr=0.3"], "lr is swept over and set as well"),
        (["seed=0,1"], "run several seeds with --seeds"),
        (["lr=0.1,0.1"], "lr has only one value"),
        (["method.kdd=0,1"], "unknown setting 'kdd' of method 'fedproto'. Did you mean 'kd'?"),
        (["lr=0.1,0.2", "round=1,2"], "unknown setting 'round'. Did you mean 'rounds'?"),
        (["lr=0.1,0.2", "method.kdd=1"], "unknown setting 'kdd' of method 'fedproto'. Did you mean 'kd'?"),
        (["method.name=fedproto,fedprotto"], "unknown method 'fedprotto'. Did you mean 'fedproto'?"),
        (["method.kd=1,much"], "kd is 'much'; it must be a number"),
        (["method.kd=1,-1"], "kd is -1; it must be a finite number, 0 or more"),
        (["lr=0.1,0"], "lr is 0; it must be more than 0"),
        (["rounds=1,1.5"], "rounds is 1.5; it must be a whole number"),
        (["method.kd"], "'method.kd' is not a setting; write KEY=VALUE"),
        (["=0,1"], "'=0,1' is not a setting"),
        (["lr.kd=0,1"], "'lr.kd': 'lr' has no keys of its own"),
        pytest.param(["model=mlp,lenet6", "lr=0.1,0.2"], "unknown model 'lenet6'"),
        pytest.param(["partition=iid,dirichle", "lr=0.1,0.2"], "unknown partition"),
        pytest.param(["optimizer=adam,sdg", "lr=0.1,0.2"], "unknown optimizer"),
    ],
)
def test_invalid_sweep_is_refused_before_any_run(given: list[str], words: str, command: Command) -> None:
    sets = [part for text in given for part in ("--set", text)]
    code, out, err = command("sweep", *SMALL, *sets, "--out", "mine")
    assert code == 2 and out == "" and words in err and err.splitlines()[-1].startswith("error: ")
    assert list(Path().iterdir()) == [], "nothing is left behind"


def test_configuration_with_variants_is_refused(command: Command) -> None:
    assert command("sweep", *SMALL, "--set", "lr=0.001,0.02", "--out", "mine")[0] == 0
    code, _, err = command("sweep", "mine/part-1/config.toml", "--set", "method.kd=0,1", "--out", "other")
    assert code == 2 and "already has variants" in err and not Path("other").exists()


def test_folder_that_holds_a_sweep_is_refused(command: Command) -> None:
    assert command("sweep", *SMALL, "--set", "lr=0.001,0.02", "--out", "mine")[0] == 0
    before = {p: p.read_bytes() for p in Path("mine").rglob("*") if p.is_file()}
    code, _, err = command("sweep", *SMALL, "--set", "lr=0.5,0.6", "--out", "mine")
    assert code == 2 and "already holds a sweep; resume it with consilience sweep --resume mine, or choose" in err
    assert {p: p.read_bytes() for p in Path("mine").rglob("*") if p.is_file()} == before


def test_resume_refuses_folders_of_other_commands(command: Command) -> None:
    assert command("sweep", *SMALL, "--set", "lr=0.001,0.02", "--out", "mine")[0] == 0
    code, _, err = command("run", "--resume", "mine")
    assert code == 2 and err == "error: mine is not a run folder: it is a sweep: consilience sweep --resume mine\n"
    code, _, err = command("compare", "--resume", "mine")
    assert code == 2 and "mine is not a comparison" in err
    code, _, err = command("sweep", "--resume", "mine/part-1")
    assert code == 2 and err == "error: mine/part-1 is not a sweep: it is a run: consilience run --resume mine/part-1\n"
    code, _, err = command("sweep", "--resume", "mine", "--set", "lr=1,2")
    assert code == 2 and "--resume takes its settings from the run's folder" in err


# Interruption and resume


def test_interrupted_sweep_resumes_and_keeps_finished_parts(
    command: Command, interrupt_after: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = objects(command("sweep", *SMALL, *PARTS, "--seeds", "2", "--out", "whole", "--json")[1])
    interrupt_after(3)  # round 1 of the second part
    code, out, err = command("sweep", *SMALL, *PARTS, "--seeds", "2", "--out", "parts", "--json")
    assert code == 130 and out == "" and err.endswith("stopped; resume with: consilience sweep --resume parts\n")
    assert len(table("parts")) == 2 * 2 * 2, "the tidy file has the finished part"
    before = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in Path("parts/part-1").iterdir()}
    asked: list[dict[str, Any]] = []

    def record_simulate(*given: Any, **named: Any) -> Any:
        asked.append({k: v for k, v in named.items() if k != "on_round" and v is not None})
        return simulate(*given, **named)

    monkeypatch.setattr("consilience.simulation.planned_run.simulate", record_simulate)
    code, out, _ = command("sweep", "--resume", "parts", "--json")
    assert code == 0 and asked == [{"resume": Path("parts/part-2"), "keep_models": True}]
    assert {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in Path("parts/part-1").iterdir()} == before
    assert Path("parts/sweep.csv").read_bytes() == Path("whole/sweep.csv").read_bytes()
    for one, other in zip(whole, objects(out), strict=True):
        assert {k: one[k] for k in ("set", "accuracy", "bytes")} == {k: other[k] for k in ("set", "accuracy", "bytes")}
    assert command("sweep", "--resume", "parts", "--json")[1] == out and len(asked) == 1, "a finished one is shown"


def test_ctrl_c_outside_the_rounds_prints_the_resume_command(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def press_ctrl_c(*others: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("consilience.simulation.simulate.open_engine", press_ctrl_c)
        code, out, err = command("sweep", *SMALL, "--set", "lr=0.001,0.02", "--out", "mine", "--json")
    assert code == 130 and out == "" and err == "stopped; resume with: consilience sweep --resume mine\n"
    code, out, _ = command("sweep", "--resume", "mine", "--json")
    assert code == 0 and [o["finished"] for o in objects(out)] == [True, True]


def test_truncated_line_of_an_interrupted_part_is_skipped(
    command: Command, interrupt_after: Callable[[int], None]
) -> None:
    interrupt_after(3)
    assert command("sweep", *SMALL, *PARTS, "--out", "mine")[0] == 130
    with Path("mine/part-2/metrics.jsonl").open("ab") as file:
        file.write(b'{"round": 2, "var')  # as after a kill
    assert command("sweep", "--resume", "mine")[0] == 0


# Show


def test_show_prints_the_same_as_the_sweep(command: Command) -> None:
    _, out, err = command("sweep", *SMALL, *PARTS, "--out", "mine")
    assert command("show", "mine") == (0, out, err[err.index("best: ") :]), "but for what is said on the way"


def test_show_lists_finished_settings_of_an_unfinished_sweep(
    command: Command, interrupt_after: Callable[[int], None]
) -> None:
    interrupt_after(3)
    assert command("sweep", *SMALL, *PARTS, "--out", "mine")[0] == 130
    found = objects(command("show", "mine", "--json")[1])
    assert [(o["set"]["method.encoding"], o["finished"]) for o in found][:2] == [("float32", True)] * 2
    (Path("mine/part-1") / "result.json").unlink()
    (Path("mine/part-2") / "result.json").unlink()
    code, out, err = command("show", "mine")
    assert code == 0 and out == ""
    assert err == "0 of 4 settings are finished; resume with: consilience sweep --resume mine\n"


def test_show_prints_the_resume_command_of_an_unfinished_sweep(
    command: Command, interrupt_after: Callable[[int], None]
) -> None:
    interrupt_after(3)
    assert command("sweep", *SMALL, *PARTS, "--out", "mine")[0] == 130
    code, _, err = command("show", "mine")
    assert code == 0 and "resume with: consilience sweep --resume mine" in err


# Damaged files


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[grid",
        b"[grid]\nlr = [0.1, 0.2]\n",
        b"[config]\nrounds = 2\n",
        b"config = 3\n[grid]\n",
        b"\xff\xfe",
        pytest.param(b"grid = 3\n[config]\n"),
        pytest.param(b"[grid]\nlr = 3\n[config]\n"),
    ],
)
def test_damaged_sweep_plan_is_named(content: bytes, command: Command) -> None:
    Path("mine").mkdir()
    Path("mine/sweep.toml").write_bytes(content)
    for asked in (["sweep", "--resume", "mine"], ["show", "mine"]):
        code, out, err = command(*asked)
        assert code == 1 and out == "" and err.startswith("error: mine/sweep.toml is damaged: ")
        assert err.count("\n") == 1
    assert [p.name for p in Path("mine").iterdir()] == ["sweep.toml"]


def test_changed_sweep_plan_is_refused(command: Command) -> None:
    assert command("sweep", *SMALL, "--set", "lr=0.001,0.02", "--out", "mine")[0] == 0
    plan = Path("mine/sweep.toml")
    plan.write_text(plan.read_text(encoding="utf-8").replace("0.02", "0.5"), encoding="utf-8")
    code, _, err = command("sweep", "--resume", "mine")
    assert code != 0 and "mine" in err and {line["lr"] for line in table("mine")} == {"0.001", "0.02"}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("metrics.jsonl", b"\xff\xfe\n"),
        ("metrics.jsonl", b'{"round": 1, "var'),
        ("metrics.jsonl", b"[1, 2]\n"),
        ("result.json", b""),
        ("result.json", b"\xff\xfe"),
        ("result.json", b'{"finished": tr'),
        pytest.param("metrics.jsonl", b""),
        pytest.param("result.json", b"[1, 2]"),
    ],
)
def test_damaged_file_of_a_part_is_named(name: str, content: bytes, command: Command) -> None:
    assert command("sweep", *SMALL, "--set", "lr=0.001,0.02", "--out", "mine")[0] == 0
    (Path("mine/part-1") / name).write_bytes(content)
    code, out, err = command("sweep", "--resume", "mine")
    assert code == 1 and out == "" and err.startswith(f"error: mine/part-1/{name} is damaged")


# Full disks and folders that cannot be written


def test_output_path_below_a_file_is_reported(command: Command) -> None:
    Path("file").write_text("mine", encoding="utf-8")
    code, out, err = command("sweep", *SMALL, *RATES, "--out", "file/sweep")
    assert code == 1 and out == "" and err.startswith("error: cannot write file/sweep: Not a directory")
    assert Path("file").read_text(encoding="utf-8") == "mine"


def test_read_only_disk_is_reported(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *others: Any, **named: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", refuse)
        code, out, err = command("sweep", *SMALL, *RATES, "--out", "mine")
    assert code == 1 and out == "" and err.startswith("error: cannot write mine: Read-only file system")
    assert not Path("mine").exists()


@pytest.mark.parametrize("name", ["sweep.toml", "sweep.csv"])
def test_full_disk_is_reported_and_the_sweep_resumes_later(
    name: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bytes = Path.write_bytes

    def fail_with_full_disk(self: Path, content: bytes) -> int:
        if not self.name.startswith(name):
            return write_bytes(self, content)
        write_bytes(self, content[: len(content) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    asked = ["sweep", *SMALL, "--set", "lr=0.001,0.02", "--out", "mine"]
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", fail_with_full_disk)
        code, out, err = command(*asked)
    assert code == 1 and out == "" and "error: cannot write mine" in err and "No space left on device" in err
    assert not (Path("mine") / name).exists(), "half a file never has its name"
    code, _, _ = command("sweep", "--resume", "mine") if name == "sweep.csv" else command(*asked)
    assert code == 0 and len(table("mine")) == 2 * 2


def test_table_title_omits_swept_settings(command: Command) -> None:
    code, out, _ = command("sweep", *SMALL, "--set", "learners=2,3", "--out", "mine")
    assert code == 0 and "fedproto, digits, mlp: 2 settings, 2 rounds, 1 seed" in " ".join(out.split())


def test_show_of_a_part_lists_all_its_settings(command: Command) -> None:
    assert command("sweep", *SMALL, "--set", "method.kd=0,5", "--out", "mine")[0] == 0
    code, out, _ = command("show", "mine/part-1")
    curves = out.partition("Accuracy over rounds")[2]
    assert code == 0 and "2 settings" in out
    assert [f"fedproto kd={kd}" in curves for kd in (0, 5)] == [True, True]


def test_compare_refuses_a_configuration_with_variants(command: Command) -> None:
    assert command("sweep", *SMALL, "--set", "method.kd=0,5", "--out", "mine")[0] == 0
    code, _, err = command("compare", "mine/part-1/config.toml", "--methods", "fedproto", "--out", "other")
    assert code == 2 and "the configuration has variants" in err and not Path("other").exists()
