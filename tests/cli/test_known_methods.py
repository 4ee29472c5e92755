"""What the command line knows of methods without torch is what the methods themselves declare."""

from __future__ import annotations

from pathlib import Path

import pytest

from consilience.cli.known_methods import complete_method, known_method, refuse_unknown_method
from consilience.config.built_in_methods import BUILT_IN, KnownMethod
from consilience.errors import UnknownName
from consilience.methods import build_method, settings_as_text
from consilience.methods.builtin import BUILT_IN as NAMES
from consilience.methods.task_kinds import kinds_of


def test_summaries_and_settings_are_those_of_the_methods() -> None:
    declared = {
        name: KnownMethod((built := build_method(name)).summary, settings_as_text(name), kinds_of(built))
        for name in NAMES
    }
    assert declared == BUILT_IN, "write what the methods declare into config/built_in_methods.py"
    assert list(BUILT_IN) == list(NAMES)
    assert all(list(BUILT_IN[name].settings) == list(declared[name].settings) for name in NAMES)


def test_a_method_of_a_file_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from consilience import Logits\ndef mine(kd=2.0):\n    'Mine.'\n    return Logits(weight=kd)\n")
    assert known_method(f"{file}:mine") == KnownMethod("Mine.", {"kd": 2.0})
    refuse_unknown_method(f"{file}:mine", ["anything"])  # a file's own settings are checked when it is loaded


def test_unknown_names_and_settings_are_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'fedavg'"):
        refuse_unknown_method("fedavgg")
    with pytest.raises(UnknownName, match="unknown setting 'mo' of method 'fedprox'"):
        refuse_unknown_method("fedprox", ["mo"])


def test_completion_offers_methods_that_begin_alike() -> None:
    assert complete_method("fedp") == ["fedprox", "fedproto"]
