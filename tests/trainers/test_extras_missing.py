"""Where lightning or transformers is not installed."""

from __future__ import annotations

import importlib
import sys

import pytest

from consilience.errors import ConfigurationError


@pytest.mark.parametrize("name", ["lightning", "transformers"])
def test_without_the_extra_the_message_says_how_to_install_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for loaded in [each for each in sys.modules if each.split(".")[0] == name]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, name, None)  # importing it fails
    monkeypatch.delitem(sys.modules, f"consilience.{name}", raising=False)
    with pytest.raises(ConfigurationError, match=rf"^Consilience\w+ needs {name}: pip install .*\[{name}\]"):
        importlib.import_module(f"consilience.{name}")
