"""A published result consists of cells: each is one run in a folder of its own, and is never run twice."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from consilience.config.config import Config, make_config
from consilience.errors import UnknownName
from consilience.methods import settings_of
from consilience.report.section import Picture

Labels = Mapping[str, Any]
_ADDED = {
    "aggregation": "mean",
    "clip_norm": None,
    "clip_ratio": None,
    "weight_cap": None,
    "classes": None,
    "reachable": "all",
    "partners": "everybody",
    "partners_from": 1,
    "partners_every": 0,
    "choose": "random",
    "topology": "relay",
    "topology_every": 0,
    "gossip_steps": 1,
    "lost": 0.0,
    "private": "none",
    "epsilon": None,
    "delta": 1e-5,
    "private_clip": 1.0,
    "private_uploads": None,
    "kind": "auto",
}
"""Settings that were added after the first results were published, with their defaults."""
_ADDED_TO_GROUPS = ("attack", "partners", "sample_epsilons")
"""The same of groups: settings that are None unless they are given."""
_ADDED_TO_METHODS = {
    "weighting": "samples",
    "min_count": "2",
    "inner": "round",
    "batches": "0",
    "calibrated": "False",
    "means": "global",
    "dimensions": "1.0",
    "subspace": "first",
}
"""The same of methods: settings of any method that were added later, with their defaults as text."""
_FORMERLY = {"part": {"trained": "*"}}
"""Values of methods' settings that had another name when the first results were published, by setting."""


@dataclass(frozen=True)
class Scale:
    """How large a reproduction is: as published, or a quick version for two cores."""

    quick: bool = False
    seeds: int | None = None
    device: str = "cpu"
    data_dir: str | None = None
    only: Sequence[tuple[str, str]] = ()
    """Run only the cells with these labels; a label that is named twice accepts either value."""
    precision: str = "auto"
    cluster: str | None = None

    def settings(self, seeds: int) -> dict[str, Any]:
        """The settings that all cells share; seeds: the number of seeds as published."""
        seeds = self.seeds or (1 if self.quick else seeds)
        common = {"device": self.device, "precision": self.precision, "seeds": seeds}
        given = {"data_dir": self.data_dir, "cluster": self.cluster}
        return common | {key: value for key, value in given.items() if value}


@dataclass(frozen=True)
class Cell:
    """One run: its labels in the table or figure, and its settings."""

    labels: Labels
    settings: Mapping[str, Any]
    keep_models: bool = False
    """Whether the checkpoint with the trained models stays in the folder."""
    reads_folder: bool = False
    """Whether sections read files of the run folder, such as its metrics by round."""
    records: Mapping[str, Callable[[Outcome], Any]] = field(default_factory=dict)
    """What sections need of the run folder, by name: each function is called once when the run has finished, and what
    it returns (anything that JSON can hold) is kept in the line of `cells.jsonl` and is `Outcome.records[name]`."""

    @property
    def needs_folder(self) -> bool:
        """Whether sections need the run folder; for other cells the line in `cells.jsonl` is enough."""
        return self.reads_folder or (self.keep_models and not self.records)

    @property
    def config(self) -> Config:
        """The validated settings."""
        return make_config(self.settings)

    @property
    def name(self) -> str:
        """The folder's name: the labels and the fingerprint of the settings."""
        words = re.sub(r"[^\w.+-]+", "-", "-".join(str(value) for value in self.labels.values()))
        return f"{words}-{self.fingerprint}"

    @property
    def fingerprint(self) -> str:
        """Eight hexadecimal digits of a hash of the settings: other settings are another cell.

        It includes the defaults of the method: a run under another default is another cell too.
        """
        config = self.config
        passing = {"data_dir", "device", "workers", "engine", "cluster"}
        lasting = {k: v for k, v in config.settings(exclude_none=False).items() if k not in passing}
        lasting = _without_new_defaults(lasting)
        defaults = {key: str(value) for key, value in settings_of(config.method.name).items()}
        method = {k: _FORMERLY.get(k, {}).get(v, v) for k, v in {**defaults, **lasting["method"]}.items()}
        lasting["method"] = {k: v for k, v in method.items() if str(v) != _ADDED_TO_METHODS.get(k)}
        return hashlib.sha256(json.dumps(lasting, sort_keys=True).encode()).hexdigest()[:8]


def _without_new_defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without those that were added after cells were published and are at their defaults: names stay."""
    found = {k: v for k, v in settings.items() if k not in _ADDED or v != _ADDED[k]}
    groups = found["groups"].items()
    return found | {
        "groups": {k: {key: v for key, v in group.items() if key not in _ADDED_TO_GROUPS or v} for k, group in groups}
    }


@dataclass(frozen=True)
class Outcome:
    """The result of a finished cell.

    folder: of the run; it may be missing unless the cell needs it. records: see `Cell.records`. settings: of the cell.
    """

    labels: Labels
    summary: Mapping[str, Any]
    folder: Path
    records: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> Config:
        """The validated settings, known without the run folder."""
        return make_config(self.settings)


@dataclass(frozen=True)
class ResultSection:
    """A section of the results of a reproduction: a table, a figure, pictures and text."""

    heading: str
    text: str = ""
    table: list[dict[str, Any]] = field(default_factory=list)
    figure: Callable[[], Any] | None = None
    name: str = ""
    pictures: Sequence[Picture] = ()


@dataclass(frozen=True)
class Reproduction:
    """A table or figure by name: its cells, and the sections that show their outcomes."""

    name: str
    summary: str
    cells: Callable[[Scale], list[Cell]]
    sections: Callable[[Sequence[Outcome]], list[ResultSection]]
    """Called with the outcomes in the order of the cells."""


def select_cells(reproduction: Reproduction, scale: Scale) -> list[Cell]:
    """The cells that `scale.only` asks for; a label that no cell has is an error."""
    cells = reproduction.cells(scale)
    wanted: dict[str, set[str]] = {}
    for key, value in scale.only:
        known = {str(cell.labels[key]) for cell in cells if key in cell.labels}
        if not known:
            raise UnknownName("label", key, {label for cell in cells for label in cell.labels}, of=reproduction.name)
        if value not in known:
            raise UnknownName(key, value, known, of=reproduction.name)
        wanted.setdefault(key, set()).add(value)
    return [cell for cell in cells if all(str(cell.labels.get(key)) in values for key, values in wanted.items())]
