"""Sizes that keep the code readable: files, classes and functions stay small, and a class name means one thing."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "consilience"
LINES, METHODS, ATTRIBUTES, PARAMETERS = 400, 20, 15, 7

ENTRY_POINTS = {
    "cli": "each parameter of a command is one of its options",
    "data/dataset.py: from_arrays": "users name what they give",
    "data/dataset.py: from_torch": "users name what they give",
    "data/dataset.py: streamed": "users name what they give",
    "data/registry.py: load": "users name what they give",
    "methods/builtin.py": "each parameter of a method is one of its settings",
    "peer/array_charter.py: create_array_charter": "what a charter consists of, by name",
    "peer/create_charter.py: create_charter": "what a charter consists of, by name",
    "peer/peer.py: join": "users name what they give",
    "wire/charter.py: build_charter": "what a charter consists of, by name",
    "simulation/advise.py: advise": "users name what they give",
    "simulation/simulate.py: simulate": "users name what they give",
    "simulation/compare.py: compare": "users name what they give",
    "simulation/sweep.py: sweep": "users name what they give",
}
"""Functions that may have more than PARAMETERS parameters, by folder or by file and name, and why."""

RECORDS = {
    "wire/charter.py: Charter": "what a charter consists of, by name",
    "config/groups.py: GroupConfig": "the settings of a group of learners by name",
    "config/settings.py: Settings": "the settings of a run by name, for autocompletion",
    "data/dataset.py: Dataset": "what a data set consists of, by name",
    "data/raw_dataset.py: RawDataset": "what the files of a data set hold, by name",
    "exchanges/observations.py: Observations": "the settings of an exchange by name, and what it is",
    "learner/spec.py: LearnerSpec": "everything that learners of one cohort have in common, by name",
    "exchanges/base.py: View": "what an exchange or an objective may see of its learner, by name",
}
"""Classes that may have more than ATTRIBUTES attributes, and why."""


def parsed() -> Iterator[tuple[str, str, ast.Module]]:
    """Path below the package, text and syntax tree of every source file."""
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text()
        yield path.relative_to(SOURCE).as_posix(), text, ast.parse(text)


def attributes(of: ast.ClassDef) -> set[str]:
    """Names that the class declares, or assigns on self."""
    declared: list[ast.expr] = [node.target for node in of.body if isinstance(node, ast.AnnAssign)]
    declared += [target for node in of.body if isinstance(node, ast.Assign) for target in node.targets]
    names = {target.id for target in declared if isinstance(target, ast.Name)}
    for node in ast.walk(of):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
            names |= {node.attr} if node.value.id == "self" else set()
    return names


def above_limits(path: str, text: str, tree: ast.Module) -> Iterator[str]:
    """What in a file is above a limit."""
    if (lines := len(text.splitlines())) > LINES:
        yield f"{path}: {lines} lines, at most {LINES}"
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            methods = sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body)
            if methods > METHODS:
                yield f"{path}: class {node.name} has {methods} methods, at most {METHODS}"
            count = len(attributes(node))
            if count > ATTRIBUTES and f"{path}: {node.name}" not in RECORDS:
                yield f"{path}: class {node.name} has {count} attributes, at most {ATTRIBUTES}"
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            count = sum(each.arg not in ("self", "cls") for each in given)
            if count > PARAMETERS and not {path.partition("/")[0], path, f"{path}: {node.name}"} & ENTRY_POINTS.keys():
                yield f"{path}: {node.name} has {count} parameters, at most {PARAMETERS}"


def test_nothing_is_above_a_limit() -> None:
    found = [finding for each in parsed() for finding in above_limits(*each)]
    advice = "divide it, or list it as an entry point or record with the reason"
    assert not found, f"{advice}:\n" + "\n".join(found)


def test_no_class_name_stands_for_two_classes() -> None:
    places = defaultdict(list)
    for path, _, tree in parsed():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path)
    twice = {name: paths for name, paths in places.items() if len(paths) > 1}
    assert not twice, "give one of them another name"


@pytest.mark.parametrize("name", [*ENTRY_POINTS, *RECORDS])
def test_exceptions_exist(name: str) -> None:
    path, _, defined = name.partition(": ")
    assert (SOURCE / path).exists(), "it is gone: remove the exception"
    if defined:
        tree = ast.parse((SOURCE / path).read_text())
        names = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef)}
        assert defined in names, "it is gone: remove the exception"
