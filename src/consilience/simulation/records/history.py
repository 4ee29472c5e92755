"""The metrics of a run so far: by round, federation and learner, as arrays and as lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from consilience.errors import CheckpointError, UnknownName
from consilience.simulation.records.round_record import PHASES, Record

VALIDATION = "accuracy_validation"
"""The metric by which the best round of a run is chosen."""
_WHOLE = (["bytes"], ["confusion"])  # metrics that are whole numbers


class History:
    """Records by round; round 0 is what happened before the first."""

    def __init__(self, seeds: tuple[int, ...], learners: int, variants: int = 1) -> None:
        self.seeds, self.learners, self.variants = seeds, learners, variants
        self.records: list[Record] = []
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.folder: Path | None = None  # where the run is saved

    def add(self, record: Record) -> None:
        """Add the next round."""
        self.records.append({k: v for k, v in record.items() if not k.startswith("wall.")})
        for phase in PHASES:
            self.seconds[phase] += float(record[f"wall.{phase}"])

    @property
    def rounds(self) -> int:
        """Rounds that were run."""
        return max(len(self.records) - 1, 0)

    def __getitem__(self, metric: str) -> np.ndarray:
        """A metric over rounds 1, 2, ...: (rounds, federations, learners)."""
        if metric not in self.keys():
            raise UnknownName("metric", metric, [key for key in self.keys() if not key.startswith("confusion.")])
        return np.stack([r[metric] for r in self.records[1:]])

    def keys(self) -> tuple[str, ...]:
        """The names of the recorded metrics."""
        return tuple(self.records[0]) if self.records else ()

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __repr__(self) -> str:
        """How much there is, and of what, without the numbers."""
        seeds, variants = len(self.seeds), f"{self.variants} variants, " if self.variants > 1 else ""
        what = f"{self.rounds} rounds, {variants}{seeds} seeds, {self.learners} learners"
        names = dict.fromkeys("confusion" if key.startswith("confusion.") else key for key in self.keys())
        return f"History({what}: {', '.join(names)})"

    def total(self, metric: str) -> np.ndarray:
        """A metric summed over all rounds, the one before the first included: (federations, learners)."""
        summed: np.ndarray = np.sum([r[metric] for r in self.records], axis=0)
        return summed

    def last(self, metric: str) -> np.ndarray:
        """A metric at the last round that has it, (federations, learners); NaN if none has."""
        for record in reversed(self.records):
            if not np.isnan(record[metric]).all():
                return record[metric]
        return np.full((self.variants * len(self.seeds), self.learners), np.nan)

    def best_rounds(self, metric: str) -> np.ndarray:
        """The first round with the highest mean of a metric over learners, (federations,); 0 where none has it."""
        means = np.full((len(self.records), self.variants * len(self.seeds)), -np.inf)
        for round_, record in enumerate(self.records):
            known = ~np.isnan(record[metric])  # (federations, learners)
            total = np.where(known, record[metric], 0.0).sum(1)
            np.divide(total, known.sum(1), out=means[round_], where=known.any(1))
        best: np.ndarray = means.argmax(0)
        return best

    def of(self, variant: int) -> History:
        """The history of one of several variants."""
        own = History(self.seeds, self.learners)
        mine = slice(variant * len(self.seeds), (variant + 1) * len(self.seeds))
        own.records = [{key: values[mine] for key, values in record.items()} for record in self.records]
        own.seconds = {phase: seconds / self.variants for phase, seconds in self.seconds.items()}
        return own

    def columns(self) -> dict[str, np.ndarray]:
        """All rounds as columns of one table, a row per round, federation and learner, as `metrics.jsonl` has them."""
        shape = (len(self.records), self.variants, len(self.seeds), self.learners)
        places = np.broadcast_arrays(*np.ix_(*map(range, shape)))
        names = dict(zip(("round", "variant", "seed", "learner"), (p.reshape(-1) for p in places), strict=True))
        names["seed"] = np.asarray(self.seeds)[names["seed"]]
        if self.variants == 1:
            del names["variant"]
        return names | {key: np.stack([r[key] for r in self.records]).reshape(-1) for key in self.keys()}

    # -- lines of JSON -------------------------------------------------------------------------------------------------

    def lines(self, round_: int) -> Iterator[str]:
        """A round as lines of JSON, one per learner."""
        record = self.records[round_]
        for f, (variant, seed) in enumerate(product(range(self.variants), self.seeds)):
            for learner in range(self.learners):
                line: dict[str, Any] = {"round": round_, "variant": variant, "seed": seed, "learner": learner}
                if self.variants == 1:
                    del line["variant"]
                for key, values in record.items():
                    _nest(line, key, float(values[f, learner]))
                if "confusion" in line:
                    line["confusion"] = [list(row.values()) for row in line["confusion"].values()]
                yield json.dumps(line)

    def read(self, lines: Iterable[str], rounds: int, where: str) -> None:
        """Read rounds 0 to `rounds` from lines; later rounds and an incomplete last line are left out."""
        blank: list[dict[str, np.ndarray]] = [{} for _ in range(rounds + 1)]
        shape = (self.variants * len(self.seeds), self.learners)
        seen: set[tuple[int, int, int]] = set()
        columns: set[str] = set()
        for text in lines:
            try:
                line = json.loads(text)
                round_, f, learner = line.pop("round"), self.seeds.index(line.pop("seed")), line.pop("learner")
                if self.variants > 1:
                    f += range(self.variants)[line.pop("variant")] * len(self.seeds)
                if not (0 <= round_ <= rounds and 0 <= learner < self.learners):
                    continue
                flat = dict(_flatten(line))
                if set(flat) != (columns := columns or set(flat)):
                    continue
                for key, value in flat.items():
                    column = blank[round_].setdefault(key, np.full(shape, np.nan))
                    column[f, learner] = np.nan if value is None else value
            except (ValueError, KeyError, AttributeError, TypeError, IndexError):
                continue
            seen.add((round_, f, learner))
        expected = (rounds + 1) * shape[0] * shape[1]
        if len(seen) != expected:
            raise CheckpointError(
                f"{where}: {len(seen)} complete lines for rounds 0 to {rounds}, expected {expected}; "
                f"the file was damaged or belongs to another run"
            )
        self.records = [dict(r) for r in blank]


def _nest(line: dict[str, Any], key: str, value: float) -> None:
    """Put `a.b` under `a`. NaN and infinity, which JSON does not have, become null; bytes and counts are integers."""
    *folders, name = key.split(".")
    for folder in folders:
        line = line.setdefault(folder, {})
    if key == "participated":
        line[name] = bool(value)
    else:
        line[name] = None if not np.isfinite(value) else int(value) if folders[:1] in _WHOLE else value


def _flatten(line: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, float | None]]:
    for key, value in line.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        elif isinstance(value, list):  # a confusion matrix
            yield from _flatten(dict(enumerate(value)), f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
