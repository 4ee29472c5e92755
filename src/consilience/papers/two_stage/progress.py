"""The progress of a run of two-stage learning, or of a method it is compared with: accuracy and bytes by round."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from consilience.papers.cells import Outcome
from consilience.papers.metrics_by_round import metric_lines


@dataclass(frozen=True)
class Progress:
    """accuracy: of each seed after the tested rounds; bytes and values: all until then and until the last round, both
    ways, the mean over seeds.

    initial_bytes: of the initial weights in float32, if they were sent to every device instead of drawn from a seed.
    heads, own: the last accuracy of the mean logits of devices' own heads, and of each learner on its own classes.
    """

    accuracy: Mapping[int, tuple[float, ...]]
    bytes: Mapping[int, float]
    values: Mapping[int, float]
    initial_bytes: float = 0.0
    heads: float | None = None
    own: float | None = None

    @property
    def final(self) -> float | None:
        """The accuracy after the last tested round, the mean over seeds."""
        return fmean(self.accuracy[max(self.accuracy)]) if self.accuracy else None

    @property
    def spread(self) -> float | None:
        """The standard deviation of the final accuracy over seeds, if there are several."""
        last = self.accuracy[max(self.accuracy)] if self.accuracy else ()
        return stdev(last) if len(last) > 1 else None

    def reached(self, level: float) -> int | None:
        """The first tested round with at least this accuracy, on average over seeds."""
        return next((round_ for round_, found in self.accuracy.items() if fmean(found) >= level), None)

    def before(self, round_: int) -> float | None:
        """The last accuracy that was tested before a round."""
        tested = [each for each in self.accuracy if each < round_]
        return fmean(self.accuracy[max(tested)]) if tested else None

    def curve(self) -> list[dict[str, Any]]:
        """Accuracy by round as rows of a chart, with the standard deviation over seeds if there are several."""
        return [
            {"round": round_, "accuracy": fmean(found)}
            | ({"low": fmean(found) - stdev(found), "high": fmean(found) + stdev(found)} if len(found) > 1 else {})
            for round_, found in self.accuracy.items()
        ]


def progress_of(outcome: Outcome) -> Progress:
    """The progress of a run, from its record."""
    found = outcome.records["progress"]
    accuracy = {int(round_): tuple(values) for round_, values in found["accuracy"]}
    moved = {what: {int(round_): float(total) for round_, total in found[what]} for what in ("bytes", "values")}
    return Progress(accuracy, moved["bytes"], moved["values"], found["initial_bytes"], found["heads"], found["own"])


def record_progress(outcome: Outcome) -> dict[str, Any]:
    """A record of the progress: accuracy, bytes and values by evaluated round, and the last accuracies of others.

    The accuracy is that of the mean logits of all learners if the run evaluated them.

    Else it is that of the newest common model, which the learners have that took part in the round; others have older
    ones.
    """
    newest: dict[tuple[int, int], float] = {}
    moved: dict[str, dict[int, float]] = {"bytes": defaultdict(float), "values": defaultdict(float)}
    others: dict[str, dict[int, list[float]]] = {"accuracy_heads": {}, "accuracy_own": {}}
    seeds, learners, shared = set(), set(), 0.0
    for line in metric_lines(outcome):
        at = line["round"], line["seed"]
        seeds.add(line["seed"])
        learners.add(line["learner"])
        shared = max(shared, line["values"]["up"])
        for what, by_round in moved.items():
            by_round[line["round"]] += line[what]["up"] + line[what]["down"]
        for what, found in others.items():
            if line.get(what) is not None:
                found.setdefault(line["round"], []).append(line[what])
        if (ensemble := line.get("accuracy_ensemble")) is not None:
            newest[at] = ensemble
        elif "accuracy_ensemble" not in line and line["participated"] and line["accuracy"] is not None:
            newest[at] = max(newest.get(at, 0.0), line["accuracy"])
    rounds = sorted({round_ for round_, _ in newest})
    accuracy = {r: tuple(one for (round_, _), one in newest.items() if round_ == r) for r in rounds}
    cumulative = {what: _cumulative(by_round, len(seeds)) for what, by_round in moved.items()}
    heads, own = (fmean(found[max(found)]) if found else None for found in others.values())
    kept = {
        what: [(r, round(total, 2)) for r, total in sums.items() if r in accuracy or r == max(sums)]
        for what, sums in cumulative.items()
    }
    return {
        "accuracy": [(r, [round(one, 4) for one in found]) for r, found in accuracy.items()],
        **kept,
        "initial_bytes": 4 * shared * len(learners),
        "heads": None if heads is None else round(heads, 4),
        "own": None if own is None else round(own, 4),
    }


def format_percent(found: float | None, spread: float | None = None) -> str | None:
    """An accuracy with its standard deviation over seeds, if there is one."""
    return None if found is None else f"{found:.2f}" + (f" ± {spread:.2f}" if spread is not None else "")


def _cumulative(by_round: Mapping[int, float], seeds: int) -> dict[int, float]:
    total, found = 0.0, {}
    for round_ in sorted(by_round):
        total += by_round[round_] / seeds
        found[round_] = total
    return found
