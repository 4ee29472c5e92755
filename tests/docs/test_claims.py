"""docs/claims.md: each line has a verdict, a command that exists and links with targets; summaries count the lines."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
import typer

from consilience.cli.main import app
from consilience.config.overrides import parse_method, split_list, split_setting
from consilience.methods import build_method
from consilience.papers import REPRODUCTIONS, Scale
from consilience.papers.cells import select_cells

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGE = (DOCS / "claims.md").read_text(encoding="utf-8")
RESULTS = (DOCS / "results.md").read_text(encoding="utf-8")
HEADER = "| paper and place | claim | command | what we see | verdict |"
VERDICTS = ("reproduced", "partly", "not reproduced", "not run")
PAPERS = {"Representation sharing": "thesis", "FLESD": "FLESD", "Two-stage learning": "two-stage"}
"""The sections with claims, and how their lines and the summary name the paper."""
PLANNED: frozenset[str] = frozenset()
"""Commands that claims name before they can be run. One that exists must be removed from here."""
NONE = "none"  # of a claim that no command tests
LEAST = 40


class Claim(NamedTuple):
    place: str
    claim: str
    command: str
    seen: str
    verdict: str

    @property
    def commands(self) -> list[str]:
        return re.findall(r"`([^`]+)`", self.command)


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def lines_of(title: str) -> list[list[str]]:
    """The cells of every line of a section's table, without its header."""
    rows = [line for line in section(title).splitlines() if line.startswith("|")]
    assert rows[0] == HEADER and set(rows[1]) <= set("|-"), title
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


CLAIMS = {title: [Claim(*cells) for cells in lines_of(title) if len(cells) == len(Claim._fields)] for title in PAPERS}
ALL = [claim for found in CLAIMS.values() for claim in found]


def slug(heading: str) -> str:
    """The anchor of a heading, as the site writes it."""
    plain = re.sub(r"[^\w\s-]", "", heading).strip().lower()
    return re.sub(r"[-\s]+", "-", plain)


def anchors(page: str) -> set[str]:
    without_code = re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE)
    return {slug(found) for found in re.findall(r"^#+ (.+)$", without_code, flags=re.MULTILINE)}


def check_links(text: str) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)#?([\w-]*)\)", text):
        page = DOCS / target if target else DOCS / "claims.md"
        assert page.exists(), target
        if anchor:
            assert anchor in anchors(page.read_text(encoding="utf-8")), f"{target}#{anchor}"


def check_command(text: str) -> None:
    """Raise if a program, test, reproduction, option, cell or method of a command does not exist."""
    program, *arguments = shlex.split(text)
    if program == "pytest":
        assert arguments, text
        for argument in arguments:
            file, _, name = argument.partition("::")
            assert (ROOT / file).is_file(), f"no file {file}"
            assert not name or f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), f"no test {argument}"
    elif program == "python":
        assert (ROOT / arguments[0]).is_file(), f"no file {arguments[0]}"
    else:
        commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
        assert program in commands, f"no command {program}"
        given = commands[program].make_context(program, arguments).params
        check_reproduction(given) if program == "reproduce" else check_methods(program, given)


def check_reproduction(given: dict[str, object]) -> None:
    name, only = given["name"], given["only"] or []
    assert isinstance(name, str) and isinstance(only, list) and name in REPRODUCTIONS, f"no reproduction {name}"
    assert select_cells(REPRODUCTIONS[name], Scale(only=[split_setting(text) for text in only])) or not only
    if given["saved"]:
        assert (ROOT / str(given["out"]) / "cells.jsonl").is_file(), f"no cells in {given['out']}"


def check_methods(program: str, given: dict[str, object]) -> None:
    named = given.get("methods") or given.get("method") or ""
    assert isinstance(named, str)
    for text in split_list(named):
        settings = parse_method(text)
        build_method(settings.pop("name"), settings)


# --- lines


def test_there_are_enough_claims_of_every_paper() -> None:
    assert len(ALL) >= LEAST
    assert all(len(found) >= 20 for found in CLAIMS.values()), {title: len(found) for title, found in CLAIMS.items()}


@pytest.mark.parametrize("title", PAPERS)
def test_every_line_has_five_cells_and_a_known_verdict(title: str) -> None:
    for cells in lines_of(title):
        assert len(cells) == len(Claim._fields) and all(cells), cells
        assert cells[-1] in VERDICTS, cells
        assert cells[0].startswith(PAPERS[title]), cells


def test_no_claim_has_two_lines() -> None:
    twice = [found for found, count in Counter((claim.place, claim.claim) for claim in ALL).items() if count > 1]
    assert not twice


def test_commands_exist() -> None:
    for claim in ALL:
        for command in claim.commands:
            if command not in PLANNED:
                check_command(command)


def test_only_what_was_not_run_has_no_command() -> None:
    for claim in ALL:
        assert bool(claim.commands) != (claim.command == NONE), claim
        assert claim.commands or claim.verdict == "not run", claim


def test_planned_commands_are_used_do_not_exist_yet_and_have_no_verdict() -> None:
    for command in PLANNED:
        using = [claim for claim in ALL if command in claim.commands]
        assert using and all(claim.verdict == "not run" for claim in using), command
        with pytest.raises(Exception, match=r"no |unknown|No such"):
            check_command(command)


def test_a_verdict_names_its_evidence() -> None:
    """A link to the numbers, or a test; one seed is not enough for the first verdict."""
    for claim in ALL:
        if claim.verdict != "not run":
            assert "](" in claim.seen or any(c.startswith("pytest ") for c in claim.commands), claim
        if claim.verdict == "reproduced":
            assert not re.search(r"\bone seed\b|\b1 seed\b", claim.seen), claim


def test_links_have_anchors() -> None:
    check_links(PAGE)
    check_links(RESULTS.split("\n## ")[0])


def test_commands_of_runs_for_this_page_exist() -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    commands = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    assert commands
    for command in commands:
        program, _, rest = command.partition(" ")
        assert program == "consilience", command
        check_command(rest)


# --- summaries


def test_summary_counts_the_lines() -> None:
    table = section("Summary")
    rows = {row[0]: row[1:] for row in re.findall(r"^\| ([\w-]+) \|" + r" (\d+) \|" * 5 + "$", table, re.MULTILINE)}
    counted = {}
    for title, paper in PAPERS.items():
        verdicts = Counter(claim.verdict for claim in CLAIMS[title])
        counted[paper] = [verdicts[verdict] for verdict in VERDICTS]
    counted["all"] = [sum(column) for column in zip(*counted.values(), strict=True)]
    assert {paper: [int(n) for n in row] for paper, row in rows.items()} == {
        paper: [*row, sum(row)] for paper, row in counted.items()
    }


def test_results_page_repeats_the_counts() -> None:
    top = RESULTS.split("\n## ")[0]
    found = re.search(
        r"Of (\d+) \[claims\]\(claims\.md\) of the three papers, (\d+) are reproduced, (\d+) partly and (\d+) not; "
        r"(\d+) were not run\.",
        " ".join(top.split()),
    )
    assert found is not None
    verdicts = Counter(claim.verdict for claim in ALL)
    assert [int(n) for n in found.groups()] == [len(ALL), *(verdicts[verdict] for verdict in VERDICTS)]


# --- the checks themselves can fail


@pytest.mark.parametrize(
    "command",
    [
        "reproduce no-such-table",
        "reproduce thesis-table1 --no-such-option",
        "reproduce thesis-table1 --only task=no-such-task",
        "reproduce thesis-table1 --saved --out benchmarks/results/no-such-folder",
        "compare --methods no-such-method",
        "run --method fedavg:no_such_setting=1",
        "no-such-command",
        "pytest tests/no_such_file.py",
        "pytest tests/docs/test_claims.py::test_no_such_name",
        "python benchmarks/no_such_file.py",
    ],
)
def test_commands_that_do_not_exist_are_found(command: str) -> None:
    with pytest.raises(Exception, match=r"no |unknown|No such"):
        check_command(command)


@pytest.mark.parametrize("link", ["[x](no-such-page.md)", "[x](results.md#no-such-heading)", "[x](#no-such-heading)"])
def test_links_without_targets_are_found(link: str) -> None:
    with pytest.raises(AssertionError):
        check_links(link)
