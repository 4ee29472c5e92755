"""The README's exchange in a file: usable in every command and worker process; a wrong file is refused by name."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import consilience
from consilience import Method, Prototypes, Role, simulate
from consilience.config.config import make_config
from consilience.config.overrides import parse_method
from consilience.errors import ConfigurationError
from consilience.methods import build_method, settings_of
from consilience.simulation.engines.loop.worker_pool import portable
from consilience.simulation.setup.inputs import load_data
from consilience.simulation.setup.setup import build_setup
from consilience.user_code import load_module
from tests.conftest import Command
from tests.method_tools import write_readme_exchange

SMALL: dict[str, Any] = {"learners": 3, "train": 90, "test": 60, "rounds": 3, "workers": 0, "engine": "loop"}
OPTIONS = [text for key, value in SMALL.items() for text in (f"--{key}", str(value))]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    return write_readme_exchange(tmp_path)


def by_hand(mine: Path, weight: float = 1.0) -> Method:
    """The same method without a file: composed of the exchanges."""
    made = load_module(mine).Spread(weight=weight)
    return Method("by hand", {"learner": Role(exchanges=(Prototypes(weight=10.0), made))})


def losses(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


# --- wherever a method is named


def test_comparison_equals_the_exchanges_used_directly(command: Command, mine: Path) -> None:
    names = "fedavg,mine.py:spread,mine.py:spread:weight=3"
    code, out, _ = command("compare", "--methods", names, *OPTIONS, "--out", "both")
    assert code == 0 and "mine.py:spread weight=3" in out
    for folder, weight in (("mine.py-spread", 1.0), ("mine.py-spread-weight-3", 3.0)):
        result = simulate(method=by_hand(mine, weight), out=f"alone-{weight}", **SMALL)
        assert losses(Path("both") / folder) == losses(Path(f"alone-{weight}"))
        assert result.summary()["method"] == "by hand"
    assert f'name = "{mine}:spread"' in Path("both/mine.py-spread/config.toml").read_text()
    assert losses(Path("both/mine.py-spread")) != losses(Path("both/mine.py-spread-weight-3"))


def test_sweep_over_a_weight_is_one_run_and_equals_separate_runs(command: Command, mine: Path) -> None:
    code, out, err = command(
        "sweep", "--method", "mine.py:spread", "--set", "method.weight=1,2,3", *OPTIONS, "--out", "s"
    )
    assert code == 0 and "method.weight" in out and "cannot differ within a run" not in err
    assert sorted(path.name for path in Path("s").glob("part-*")) == ["part-1"]
    swept = [json.loads(line) for line in Path("s/part-1/metrics.jsonl").read_text().splitlines()]
    for number, weight in enumerate((1.0, 2.0, 3.0)):
        simulate(method=by_hand(mine, weight), out=f"alone-{number}", **SMALL)
        assert [line["loss"] for line in swept if line["variant"] == number] == losses(Path(f"alone-{number}"))


def test_group_can_have_its_own_weight_or_schedule(mine: Path, tmp_path: Path) -> None:
    groups = {"a": {"learners": 0, "method": {"weight": 3}}}
    result = simulate(method=f"{mine}:spread", groups=groups, **SMALL)
    for who, weight in ((0, 3.0), (1, 1.0)):
        alone = simulate(method=by_hand(mine, weight), **SMALL)
        first = result.history["loss.cross_entropy"][:1, 0, who]  # before the others' weights matter
        np.testing.assert_array_equal(first, alone.history["loss.cross_entropy"][:1, 0, who])
    ramp = {"a": {"learners": 0, "method": {"weight": "ramp(3, 3, 2)"}}}
    same = simulate(method=f"{mine}:spread", groups=ramp, **SMALL)
    np.testing.assert_array_equal(same.history["accuracy"], result.history["accuracy"])


def test_worker_processes_load_the_file_themselves(mine: Path) -> None:
    name = f"{mine}:spread"
    alone, shared = (simulate(method=name, **SMALL | {"workers": workers}) for workers in (0, 2))
    np.testing.assert_array_equal(alone.history["accuracy"], shared.history["accuracy"])
    config = make_config({"method": parse_method(name), **SMALL, "model": "mlp"})
    plans = list(build_setup(config, build_method(name), load_data(config), ["mlp"]).cohorts.plans)
    assert portable(plans)
    mine.write_text(mine.read_text() + "\n# changed\n")
    assert not portable(plans)  # a worker would run another file than this process did


def test_loop_equals_stack_for_a_method_from_a_file(mine: Path) -> None:
    settings = SMALL | {"precision": "float64"}
    loop, stack = (simulate(method=f"{mine}:spread", **settings | {"engine": engine}) for engine in ("loop", "stack"))
    np.testing.assert_allclose(loop.history["loss.spread"], stack.history["loss.spread"], rtol=1e-9)


def test_run_resumes_from_any_folder_with_the_same_file_only(
    command: Command,
    mine: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    interrupt_after: Callable[[int], None],
) -> None:
    assert command("run", "--method", "mine.py:spread:weight=3", *OPTIONS, "--out", "whole")[0] == 0
    interrupt_after(2)
    code, _, err = command("run", "--method", "mine.py:spread:weight=3", *OPTIONS, "--out", "run")
    assert code == 130 and "after round 2" in err
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    text = mine.read_text()
    mine.write_text(text.replace(".square()", ".abs()"))
    code, _, err = command("run", "--resume", "../run")
    assert code == 1 and "its method file is not the one given" in err
    mine.write_text(text)
    assert command("run", "--resume", "../run")[0] == 0
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")


def test_methods_init_and_report_accept_a_method_from_a_file(command: Command, mine: Path) -> None:
    code, out, _ = command("methods", "mine.py:spread:weight=3", "--data", "digits", "--json")
    (row,) = [json.loads(line) for line in out.splitlines()]
    assert (code, row["method"], row["settings"]) == (0, "mine.py:spread", {"kd": 10.0, "weight": 3})
    assert row["summary"] == "Mean features and mean squares of each class, distilled."
    assert "the mean square of each feature" in row["leaves"]
    code, _, _ = command("init", "own.toml", "--method", "mine.py:spread:weight=3")
    assert code == 0 and f'name = "{mine}:spread"' in (written := Path("own.toml").read_text())
    assert "\nweight = 3\n" in written and "\n# kd = 10.0\n" in written
    assert command("run", "own.toml", *OPTIONS, "--out", "run")[0] == 0
    assert command("report", "run", "--out", "page.html")[0] == 0
    assert "mine.py:spread" in Path("page.html").read_text()
    code, _, err = command("run", "--method", "mine.py:spread", "--set", "weight=3", *OPTIONS)
    assert code == 2 and "write --set method.weight=VALUE" in err


def test_loading_a_file_does_not_change_sys_path_or_modules(mine: Path) -> None:
    before = list(sys.path)
    build_method(f"{mine}:spread")
    assert sys.path == before and "mine" not in sys.modules


# --- kinds of objects in a file

KINDS = """
from dataclasses import dataclass, field
from consilience import Contribution, Exchange, Method, Prototypes, Role, Schedule, schema

@dataclass(frozen=True)
class Own(Exchange):
    \"\"\"An exchange of my own.\"\"\"
    name: str = "own"
    weight: int = 1
    share: float = 0.5
    varies = ("weight",)
    def describe_upload(self): return "a number"
    def channel(self, task): return schema.Mean(self.name, {"x": schema.Tensor((1,))})
    def contribute(self, state, view, received): return Contribution({"x": view.samples[None]}, view.samples)

instance = Own(weight=4)
method = Method("whatever", {"learner": Role(exchanges=(instance,))}, summary="Put together.")
def one(weight=2): return Own(weight=weight)
def role(flag: bool = True): return Role(exchanges=(Own(), Prototypes()) if flag else ())
def whole(): return method
def needs(weight): return Own(weight=weight)
def wrong(): return 3
def raises(): raise KeyError("ah")
def negative(): return Prototypes(weight=-1)
number = 3
class Other: pass
"""


@pytest.fixture
def kinds(tmp_path: Path) -> str:
    file = tmp_path / "kinds.py"
    file.write_text(KINDS)
    return str(file)


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ("Own", [1]),
        ("Own:weight=2.5", [2.5]),
        ("Own:weight=ramp(0, 1, 2)", [consilience.Schedule("ramp", 0, 1, 2)]),
        ("instance", [4]),
        ("instance:weight=5", [5]),
        ("method", [4]),
        ("whole", [4]),
        ("one:weight=3", [3]),
        ("role", [1, 10.0]),
        ("role:flag=false", []),
        ("needs:weight=7", [7]),
    ],
)
def test_file_may_define_exchanges_roles_methods_or_functions(kinds: str, text: str, weights: list[Any]) -> None:
    table = parse_method(f"{kinds}:{text}")
    name = table.pop("name")
    made = build_method(name, table)
    assert [e.weight for e in made.exchanges] == weights
    assert made.name == f"kinds.py:{text.split(':')[0]}" and made.source == name == f"{kinds}:{text.split(':')[0]}"
    assert build_method(made.source, made.settings) == made


def test_fields_of_an_exchange_except_name_are_settings(kinds: str) -> None:
    assert settings_of(f"{kinds}:Own") == {"weight": 1, "share": 0.5}
    assert settings_of(f"{kinds}:instance") == {"weight": 4, "share": 0.5}
    assert settings_of(f"{kinds}:method") == {}


# --- refusals


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kinds.py:Onw", r"unknown method 'Onw' of .*kinds.py. Did you mean 'Own'\?"),
        ("kinds.py", r"kinds.py names a file and no method in it; write path/to/file.py:NAME.*It has: Own, one"),
        ("kinds.py:number", "kinds.py: number: it is of type int, and a method is a Method, an Exchange"),
        ("kinds.py:Other", "kinds.py: Other: it is the class Other, and a method is"),
        ("kinds.py:wrong", r"kinds.py:wrong': what it returns is not a method: it is of type int"),
        ("kinds.py:raises", r"kinds.py: raises failed \(line \d+\): KeyError: 'ah'"),
        ("kinds.py:negative", r"kinds.py: negative failed \(line \d+\): kd is -1; it must be"),
        ("kinds.py:needs", r"kinds.py:needs' needs its setting 'weight'"),
        ("kinds.py:one:wieght=3", r"unknown setting 'wieght' of method '.*kinds.py:one'. Did you mean 'weight'\?"),
        ("kinds.py:one:weight=much", r"kinds.py:one': weight is 'much'; it must be a whole number"),
        ("kinds.py:Own:weight=much", r"kinds.py:Own': weight is 'much'; it must be a number"),
        ("kinds.py:role:flag=3", r"kinds.py:role': flag is 3; it must be true or false"),
        ("kinds.py:Own:share=ramp(0, 1, 2)", r"share is ramp\(0, 1, 2\), and only weight may change with the rounds"),
        ("kinds.py:method:weight=3", r"kinds.py:method' is a Method object, which has no settings"),
        ("broken.py:x", r"broken.py: cannot be imported \(line 2\): ZeroDivisionError"),
        ("nowhere.py:x", r"nowhere.py: no such file; write path/to/file.py:NAME"),
        ("kinds.txt:Own", r"'Own' is not a setting"),
    ],
)
def test_wrong_file_is_refused_by_name(
    kinds: str, text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text("import torch\n1 / 0\n")
    with pytest.raises(ConfigurationError, match=said):
        simulate(method=text, **SMALL)


def test_comparison_of_two_files_with_one_name_is_refused(command: Command, mine: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    write_readme_exchange(tmp_path / "other")
    code, _, err = command("compare", "--methods", "mine.py:spread,other/mine.py:spread", *OPTIONS)
    assert code == 2 and "two methods would have the folder 'mine.py-spread'" in err
