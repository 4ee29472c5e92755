"""The README's exchange in a file of its own, as a user would have it."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def write_readme_exchange(folder: Path) -> Path:
    """The file `mine.py` of the README, with the method `spread`."""
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    (code,) = (block for block in blocks if "class Spread(Exchange)" in block)
    file = folder / "mine.py"
    file.write_text(code, encoding="utf-8")
    return file
