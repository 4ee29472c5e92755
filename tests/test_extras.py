"""Advice on how to install an extra."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from consilience import extras

EXTRAS = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_in_a_checkout_the_extra_is_installed_from_it() -> None:
    assert extras.install_command("relay") == "pip install -e '.[relay]'"


def test_elsewhere_the_packages_of_the_extra_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "_in_checkout", lambda: False)
    command = extras.install_command("report")
    assert command.startswith("pip install '") and "consilience" not in command
    assert command.count("'") == 2 * len(EXTRAS["report"])
    assert all(requirement.split(">")[0] in command for requirement in EXTRAS["report"])
    assert "install consilience again with its extra 'unheard-of'" in extras.install_command("unheard-of")
