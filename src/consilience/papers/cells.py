"""A published result as cells: each is one run, kept in a folder of its own, and never run twice."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from consilience.config.config import Config, make_config
from consilience.errors import CheckpointError, UnknownName
from consilience.methods import settings_of
from consilience.report.section import Picture
from consilience.simulation.records.run_folder import RunFolder
from consilience.simulation.simulate import OnRound, begin_or_go_on

Labels = Mapping[str, Any]


@dataclass(frozen=True)
class Scale:
    """How large a reproduction is to be: as published, or a short version for two cores."""

    quick: bool = False
    seeds: int | None = None
    device: str = "cpu"
    data_dir: str | None = None
    only: Sequence[tuple[str, str]] = ()
    """Which cells: those that have these labels, and of a label that is named twice either."""
    precision: str = "auto"

    def settings(self, seeds: int) -> dict[str, Any]:
        """What every cell has in common; seeds: how many it has as published."""
        seeds = self.seeds or (1 if self.quick else seeds)
        own = {"device": self.device, "precision": self.precision, "seeds": seeds}
        return own | ({"data_dir": self.data_dir} if self.data_dir else {})


@dataclass(frozen=True)
class Cell:
    """One run: what it is in the table or figure, and its settings."""

    labels: Labels
    settings: Mapping[str, Any]
    keep_models: bool = False
    """Whether somebody will look at what the learners have become."""

    @property
    def config(self) -> Config:
        """The settings, checked."""
        return make_config(self.settings)

    @property
    def name(self) -> str:
        """A folder's name: what it is, and a mark of the settings, so that other settings are another cell.

        The method's own are marked whole: what was run under another default is another cell too.
        """
        words = re.sub(r"[^\w.+-]+", "-", "-".join(str(value) for value in self.labels.values()))
        config = self.config
        lasting = config.model_dump(mode="json", exclude={"data_dir", "device", "workers", "engine"})
        usual = {key: str(value) for key, value in settings_of(config.method.name).items()}
        lasting["method"] = {**usual, **lasting["method"]}
        mark = hashlib.sha256(json.dumps(lasting, sort_keys=True).encode()).hexdigest()[:8]
        return f"{words}-{mark}"


@dataclass(frozen=True)
class Outcome:
    """What a cell came to."""

    labels: Labels
    summary: Mapping[str, Any]
    folder: Path


@dataclass(frozen=True)
class Reproduction:
    """A table or figure by name: its cells, and what is to be shown of them.

    told: from the outcomes, in the order of the cells, the sections of a page, as plain values.
    """

    name: str
    summary: str
    cells: Callable[[Scale], list[Cell]]
    told: Callable[[Sequence[Outcome]], list[Shown]]


@dataclass(frozen=True)
class Shown:
    """A section of what a reproduction shows: a table, a figure, pictures, and words."""

    heading: str
    text: str = ""
    table: list[dict[str, Any]] = field(default_factory=list)
    figure: Callable[[], Any] | None = None
    name: str = ""
    pictures: Sequence[Picture] = ()


def chosen(wanted: Reproduction, scale: Scale) -> list[Cell]:
    """The cells asked for; refuses labels that no cell has."""
    cells = wanted.cells(scale)
    asked: dict[str, set[str]] = {}
    for key, value in scale.only:
        known = {str(cell.labels[key]) for cell in cells if key in cell.labels}
        if not known:
            raise UnknownName("label", key, {label for cell in cells for label in cell.labels}, of=wanted.name)
        if value not in known:
            raise UnknownName(key, value, known, of=wanted.name)
        asked.setdefault(key, set()).add(value)
    return [cell for cell in cells if all(str(cell.labels.get(key)) in values for key, values in asked.items())]


def play(
    cells: Sequence[Cell], folder: Path, on_round: OnRound | None = None, kept: bool = False
) -> Iterator[tuple[Cell, Outcome | None]]:
    """Run what is not there yet, cell by cell; no outcome where a cell was stopped, and the work ends with it.

    kept: run nothing, and give what is there.
    """
    result = None
    for cell in cells:
        if result is not None:
            result.heed()
        place = folder / "cells" / cell.name
        done = _done(place) if kept else RunFolder(place).result
        if kept or (done is not None and done["finished"]):
            yield cell, Outcome(cell.labels, done, place) if done else None
            continue
        result = begin_or_go_on(place, cell.config, on_round, cell.keep_models)
        yield cell, Outcome(cell.labels, result.summary(), place) if result.finished else None
        if not result.finished:
            return


def _done(place: Path) -> dict[str, Any] | None:
    """What a cell came to, where it has come to its end and nothing is damaged."""
    try:
        found = RunFolder(place).result
    except CheckpointError:
        return None
    return found if found is not None and found.get("finished") and "accuracy" in found else None
