"""Imports from a file's own folder, while it is at work: as if it were a script, and no longer.

Two folders may each hold a `layers.py`, and both be used in one federation: every folder keeps its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

_siblings: dict[Path, dict[str, ModuleType]] = {}
"""What was imported from each folder, by module name."""


@contextmanager
def beside(file: Path) -> Iterator[None]:
    """For a while, what lies in the file's folder can be imported; other folders' modules are out of its way."""
    folder = file.parent
    away = {name for other, held in _siblings.items() if other != folder for name in held}
    hidden = {name: sys.modules.pop(name) for name in away & set(sys.modules)}
    sys.modules.update(_siblings.get(folder, {}))
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        if str(folder) in sys.path:
            sys.path.remove(str(folder))
        _siblings.setdefault(folder, {}).update(_imported(folder, set(sys.modules) - before))
        sys.modules.update(hidden)


def _imported(folder: Path, names: set[str]) -> dict[str, ModuleType]:
    """Those of the modules that lie in a folder; not those far below it, as in an environment kept there."""
    found = {}
    for name in names:
        top = name.partition(".")[0]
        file = getattr(sys.modules.get(top), "__file__", None)
        if file is not None and Path(file) in (folder / f"{top}.py", folder / top / "__init__.py"):
            found[name] = sys.modules[name]
    return found
