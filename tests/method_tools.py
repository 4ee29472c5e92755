"""Methods and models for tests: the README's exchange in a file, an objective that uses every hook, a network."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from consilience.exchanges import View
from consilience.objectives import Objective
from consilience.task import Task

README = Path(__file__).parents[1] / "README.md"


def write_readme_exchange(folder: Path) -> Path:
    """The file `mine.py` of the README, with the method `spread`."""
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    (code,) = (block for block in blocks if "class Spread(Exchange)" in block)
    file = folder / "mine.py"
    file.write_text(code, encoding="utf-8")
    return file


@dataclass(frozen=True)
class Dimmed(Objective):
    """Shows the model dimmed inputs, and lets a head of its own guess from a hidden layer how dim they are."""

    name: ClassVar[str] = "dimmed"
    layers: tuple[str, ...] = ("features.hidden",)

    @property
    def batch_draws(self) -> int:
        return 1

    def modules(self, task: Task) -> dict[str, nn.Module]:
        return {"head": nn.Linear(64, 1)}

    def prepare(self, task: Task, inputs: Tensor, draws: Tensor) -> Tensor:
        return inputs * draws[0].view(-1, 1, 1, 1)

    def loss(self, view: View) -> Tensor:
        guess = view.modules["head"](view.outputs["features.hidden"])[:, 0]
        return (guess - view.draws[0]).square().mean() + F.cross_entropy(view.logits, view.targets)


class OwnNet(nn.Module):
    """A user's own class: two layers with names of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 12), nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 1, 8, 8) -> (n, 10)."""
        logits: Tensor = self.last(torch.tanh(self.first(x.flatten(1))))
        return logits
