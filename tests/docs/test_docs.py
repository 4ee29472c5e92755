"""The documentation: its commands and examples run, its links have targets, and it builds without warnings."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from consilience import simulate
from consilience.config.config import KEYS, GroupConfig, field_of_key
from consilience.data.heterogeneity import CASES, heterogeneity_case
from consilience.data.shifts import SHIFTS
from consilience.methods import registry as method_registry
from consilience.models import registry

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
RUNNING = ["index.md", *(page for page in PAGES if page.startswith("guides/"))]
FENCE = re.compile(r'^```(\w+)?(?: title="([^"]+)")?\n(.*?)^```$', flags=re.DOTALL | re.MULTILINE)

pytestmark = pytest.mark.usefixtures("one_thread")


class Block(NamedTuple):
    language: str
    title: str
    body: str


class Command(NamedTuple):
    """A command of a page, and the part of its output that the page shows."""

    command: str
    output: str


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def blocks(name: str) -> list[Block]:
    return [Block(*found) for found in FENCE.findall(page(name))]


def commands(body: str) -> list[Command]:
    """The commands of a console block, each with the lines below it."""
    parts = re.split(r"^\$ ", body.replace(" \\\n", " "), flags=re.MULTILINE)[1:]
    return [Command(*part.split("\n", 1)) for part in parts]


def words(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z][\w-]{2,}", text))


def fewer_rounds(arguments: list[str]) -> list[str]:
    """The same command with at most ten rounds: the numbers in its output are not compared."""
    after = ["", *arguments[:-1]]
    return [str(min(10, int(a))) if before == "--rounds" else a for before, a in zip(after, arguments, strict=True)]


# --- commands and examples


@pytest.mark.parametrize("name", RUNNING)
def test_page_runs_from_top_to_bottom(
    name: str, tmp_path: Path, command: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Write a page's files, run its examples in one namespace, and compare shown output with that of the commands."""
    monkeypatch.setitem(os.environ, "CONSILIENCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(os.environ, "PYTHONPATH", str(ROOT / "src"))  # for programs that an example starts
    monkeypatch.setattr(registry, "MODELS", dict(registry.MODELS))  # undo registrations of examples
    monkeypatch.setattr(method_registry, "METHODS", dict(method_registry.METHODS))
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(name):
        if block.title:
            (tmp_path / block.title).write_text(block.body, encoding="utf-8")
        elif block.language == "python":
            exec(compile(block.body, f"{name}, python", "exec", dont_inherit=True), names)
        elif block.language == "console":
            for line, output in commands(block.body):
                program, *arguments = shlex.split(line)
                assert program == "consilience", line
                one_process = ["--workers", "0"] * (arguments[0] in ("run", "compare") and "--resume" not in arguments)
                code, out, err = command(*fewer_rounds(arguments), *one_process)
                assert (code, bool((out + err).strip())) == (0, True), f"{line}: {err}"
                assert words(output) <= words(out + err), line


def test_every_guide_has_a_command_or_an_example() -> None:
    for name in RUNNING:
        languages = [block.language for block in blocks(name)]
        assert "console" in languages or "python" in languages, name


def test_titles_are_plain_file_names() -> None:
    for name in RUNNING:
        assert all(re.fullmatch(r"[\w-]+\.(py|toml)", block.title) for block in blocks(name) if block.title), name


# --- the site


def test_navigation_lists_every_page_once() -> None:
    _, _, nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")
    assert sorted(re.findall(r"^ +- [\w -]+: (\S+\.md)$", nav, flags=re.MULTILINE)) == PAGES


@pytest.mark.parametrize("name", PAGES)
def test_links_have_targets(name: str) -> None:
    text = FENCE.sub("", page(name))
    for target in re.findall(r"\]\(([^)#:]+)(?:#[\w-]+)?\)", text):
        assert (DOCS / name).parent.joinpath(target).exists(), f"{name}: {target}"
    for target in re.findall(r"`((?:examples|experiments)/[\w./-]+)`", text):
        assert (ROOT / target).exists(), f"{name}: {target}"


def test_site_builds_without_warnings_or_external_resources(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="install the extra 'docs' to build the site")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # the theme warns about a release that is not installed
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    build_result = subprocess.run(build, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
    output = build_result.stdout + build_result.stderr
    assert build_result.returncode == 0, output
    assert "WARNING" not in output and "ERROR" not in output, output
    for html in (tmp_path / "site").rglob("*.html"):
        text = html.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe)[^>]*\ssrc=\"?(\S+)|<link[^>]*\shref=\"?(\S+)", text)
        assert not [url for pair in loaded for url in pair if re.match(r"(https?:)?//", url)], html.name
    reference = (tmp_path / "site" / "reference" / "simulate.html").read_text(encoding="utf-8")
    assert "Simulate a federation and return its result." in reference


# --- lists are complete


def test_settings_page_lists_every_key_with_its_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (?:`([^`]*)`)? ?\|", page("reference/settings.md"), flags=re.MULTILINE)
    keys = [*((key, field_of_key(key)) for key in KEYS), *GroupConfig.model_fields.items()]
    assert [key for key, _ in rows] == [key for key, _ in keys]
    for (key, listed), (_, field) in zip(rows, keys, strict=True):
        if listed:
            assert listed == (str(field.default).lower() if isinstance(field.default, bool) else str(field.default)), (
                key
            )
        else:
            assert field.is_required() or field.default in (None, ()) or field.default_factory is not None, key


def test_documented_nine_cases_match_the_code() -> None:
    text = page("guides/heterogeneity.md")
    row = re.compile(r"^\| (7\w) \|(.*?)\|(.*?)\|(.*?)\|(.*?)\| (.*?) \| (.*?) \|$", flags=re.MULTILINE)
    rows = {figure: (ticks, line) for figure, *ticks, line, _ in row.findall(text)}
    assert list(rows) == list(CASES)
    for figure, (ticks, line) in rows.items():
        given = dict(re.findall(r"--(partition|shift) '?([^'`]+)'?`", line))
        partition, shift = given.get("partition", "iid"), given.get("shift", "none")
        assert (partition, shift) == CASES[figure]
        case = heterogeneity_case(partition, shift)
        flags = [case.inputs, case.labels_given_inputs, case.labels, case.inputs_given_labels]
        assert [tick.strip() == "✓" for tick in ticks] == flags, figure


def test_every_shift_is_documented() -> None:
    listed = re.findall(r"^\| `([a-z-]+)(?:\([\d.]+\))?` \|", page("guides/heterogeneity.md"), flags=re.MULTILINE)
    assert sorted(listed) == sorted(SHIFTS)


def test_every_column_and_file_of_a_run_is_documented(tmp_path: Path) -> None:
    result = simulate(
        method="representation-sharing", learners=2, train=40, test=20, rounds=1, workers=0, out=tmp_path / "run"
    )
    text = page("guides/metrics.md")
    for column in ("round", "seed", "learner", *result.history):
        assert f"`{column}`" in text, column
    for path in (tmp_path / "run").iterdir():
        assert f"`{path.name.replace('-1.', '-3.')}`" in text, path.name  # the page's run has three rounds
    first = json.loads((tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert set(first) == {"round", "seed", "learner", *(key.split(".")[0] for key in result.history)}
