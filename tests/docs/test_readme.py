"""The README's commands and examples run, and its lists are complete."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from consilience.methods import METHODS, settings_of
from tests.docs.readme_commands import SHORT, examples

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_readme_has_the_expected_number_of_examples() -> None:
    assert len(blocks("python")) == 2
    assert len(blocks("console")) == 1


def test_commands_are_known_and_every_short_form_is_used() -> None:
    """`make readme` runs the commands; here their names and options are looked at."""
    commands = [example.text for example in examples(README) if example.language == "command"]
    assert len(commands) > 15
    for command in commands:
        assert re.match(r"(CONSILIENCE_TOKEN=\S+ )?(consilience|make|python) ", command), command
    for start in SHORT:
        assert any(command.startswith(start) for command in commands), start


@pytest.mark.parametrize("number", range(2))
def test_python_examples_run(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(blocks("python")[number], encoding="utf-8")  # one names itself so
    code = compile(blocks("python")[number], f"README example {number}", "exec", dont_inherit=True)
    exec(code, {"__name__": "__main__"})


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", README, flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_links_have_targets() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_methods_page_lists_every_method_with_its_settings() -> None:
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    table = page.split("\n## ")[0]
    rows = dict(re.findall(r"^\| `([\w-]+)` \| .*? \| ([^|]*?) ?\|$", table, flags=re.MULTILINE))
    assert set(rows) == set(METHODS)
    for name, listed in rows.items():
        assert [s for s in listed.split(", ") if s] == list(settings_of(name)), name


def test_continuous_integration_runs_all_checks() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "make check" in script.read_text(encoding="utf-8")
