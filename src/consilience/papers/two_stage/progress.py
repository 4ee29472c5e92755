"""How a run of two-stage learning or of what it is compared with went: how good it was after each round, and what had
traveled until then."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from consilience.papers.cells import Outcome
from consilience.simulation.records.run_folder import RunFolder


@dataclass(frozen=True)
class Course:
    """accuracy: of each seed after the rounds that were tested; bytes and values: all so far, both ways, of a seed.

    first: bytes of the common values at the start, in float32, if they were sent to everybody and not made of a seed.
    heads, own: accuracy when last tested, by the mean logits of devices' own heads, and of each learner on its classes.
    """

    accuracy: Mapping[int, tuple[float, ...]]
    bytes: Mapping[int, float]
    values: Mapping[int, float]
    first: float = 0.0
    heads: float | None = None
    own: float | None = None

    @property
    def final(self) -> float | None:
        """What it came to, the mean over seeds."""
        return fmean(self.accuracy[max(self.accuracy)]) if self.accuracy else None

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds of what it came to, where there are several."""
        last = self.accuracy[max(self.accuracy)] if self.accuracy else ()
        return stdev(last) if len(last) > 1 else None

    def reached(self, level: float) -> int | None:
        """The first tested round after which it was as good as that, on average over seeds."""
        return next((round_ for round_, found in self.accuracy.items() if fmean(found) >= level), None)

    def before(self, round_: int) -> float | None:
        """How good it was when last tested before a round."""
        tested = [each for each in self.accuracy if each < round_]
        return fmean(self.accuracy[max(tested)]) if tested else None

    def curve(self) -> list[dict[str, Any]]:
        """Accuracy by round as rows of a chart, with the spread over seeds where there are several."""
        return [
            {"round": round_, "accuracy": fmean(found)}
            | ({"low": fmean(found) - stdev(found), "high": fmean(found) + stdev(found)} if len(found) > 1 else {})
            for round_, found in self.accuracy.items()
        ]


def course_of(outcome: Outcome) -> Course:
    """The course of a run. Its accuracy is that of everybody's mean logits where they were asked together.

    Else it is that of the newest common model, which those have who took part in the round: others hold older ones.
    """
    newest: dict[tuple[int, int], float] = {}
    moved: dict[str, dict[int, float]] = {"bytes": defaultdict(float), "values": defaultdict(float)}
    asides: dict[str, dict[int, list[float]]] = {"accuracy_heads": {}, "accuracy_local": {}}
    seeds, learners, shared = set(), set(), 0.0
    for text in RunFolder(outcome.folder).lines():
        line = json.loads(text)
        at = line["round"], line["seed"]
        seeds.add(line["seed"])
        learners.add(line["learner"])
        shared = max(shared, line["values"]["up"])
        for what, by_round in moved.items():
            by_round[line["round"]] += line[what]["up"] + line[what]["down"]
        for what, found in asides.items():
            if line.get(what) is not None:
                found.setdefault(line["round"], []).append(line[what])
        if (asked := line.get("accuracy_ensemble")) is not None:
            newest[at] = asked
        elif "accuracy_ensemble" not in line and line["participated"] and line["accuracy"] is not None:
            newest[at] = max(newest.get(at, 0.0), line["accuracy"])
    rounds = sorted({round_ for round_, _ in newest})
    accuracy = {r: tuple(one for (round_, _), one in newest.items() if round_ == r) for r in rounds}
    so_far = {what: _so_far(by_round, len(seeds)) for what, by_round in moved.items()}
    heads, own = (fmean(found[max(found)]) if found else None for found in asides.values())
    return Course(accuracy, so_far["bytes"], so_far["values"], 4 * shared * len(learners), heads, own)


def percent(found: float | None, spread: float | None = None) -> str | None:
    """An accuracy as tables have it, with its spread over seeds where there is one."""
    return None if found is None else f"{found:.2f}" + (f" ± {spread:.2f}" if spread is not None else "")


def some_of(tested: Iterable[int], wanted: Iterable[float]) -> list[int]:
    """Of the rounds that were tested those that are wanted, or the next after each; and the last."""
    rounds = sorted(tested)
    firsts = (next((r for r in rounds if r >= each), None) for each in wanted)
    return sorted({r for r in firsts if r is not None} | set(rounds[-1:]))


def _so_far(by_round: Mapping[int, float], seeds: int) -> dict[int, float]:
    total, found = 0.0, {}
    for round_ in sorted(by_round):
        total += by_round[round_] / seeds
        found[round_] = total
    return found
