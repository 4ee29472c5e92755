"""How to install what an optional part needs, in a checkout or elsewhere."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path


def install_command(extra: str) -> str:
    """The command that installs an extra: from the checkout, or by naming its packages.

    The package itself is not named: the index that pip asks may not have it.
    """
    if _in_checkout():
        return f"pip install -e '.[{extra}]'"
    try:
        needed = requires("consilience") or []
    except PackageNotFoundError:
        needed = []
    packages = [text.split(";")[0].strip() for text in needed if re.search(rf"extra == ['\"]{extra}['\"]", text)]
    if not packages:
        return f"install consilience again with its extra {extra!r}"
    return "pip install " + " ".join(f"'{name}'" for name in packages)


def _in_checkout() -> bool:
    root = Path(__file__).parents[2]
    return (root / "pyproject.toml").is_file() and (root / "src" / "consilience") == Path(__file__).parent
