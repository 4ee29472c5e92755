"""FLESD's figure 2: independent learners with and without labels, by heterogeneity (Shi et al. 2021)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from consilience.papers.cells import Cell, Outcome, ResultSection, Scale
from consilience.papers.flesd.experiment import OBJECTIVE, FlesdSize, alpha_label, flesd_setup
from consilience.papers.flesd.outcomes import flesd_cell
from consilience.papers.metrics_by_round import recorded_by_round
from consilience.papers.sizes import Experiment

PUBLISHED_DROPS: Mapping[str, tuple[float, float]] = {
    "with labels": (73.0, 18.5),
    "with labels, by a linear probe": (73.5, 38.6),
    "without labels, by a linear probe": (72.8, 66.7),
}
"""Section 3 of Shi et al. 2021: the mean over six learners at alpha 100 and at alpha 0.01, in percent."""
_MEASURED: Mapping[str, tuple[str, str]] = {
    "with labels": ("supervised", "accuracy"),
    "with labels, by a linear probe": ("supervised", "accuracy_linear"),
    "without labels, by a linear probe": ("simclr", "accuracy_linear"),
}
"""Our measurements: the row of the cell, and the metric."""


def _cells(size: FlesdSize, scale: Scale) -> list[Cell]:
    """Independent learners at every alpha, trained with labels and with SimCLR."""
    training = size.supervised
    supervised = {
        "total_epochs": training.epochs,
        "batch_size": training.batch_size,
        "weight_decay": 0.0,
        "probe": "linear",
    }
    found = []
    for alpha in size.alphas:
        for seed in size.seeds_for(scale):
            labels = {"alpha": f"{alpha:g}", "seed": seed}
            own = size.settings(scale, alpha, 1, seed, name="independent")
            found.append(flesd_cell(labels | {"row": "supervised"}, own | supervised))
            contrasted = {"method": {"name": "independent", "objective": OBJECTIVE}}
            found.append(flesd_cell(labels | {"row": "simclr"}, own | contrasted))
    return found


def _sections(outcomes: Sequence[Outcome]) -> list[ResultSection]:
    """The mean over learners by alpha and the change from the first to the last; and the accuracy of every learner."""
    rows = [row for outcome in outcomes for row in _learners(outcome)]
    training = {o.labels["row"]: o.config.training for o in outcomes}
    trained = "; ".join(f"{row}: {t.epochs} epochs in batches of {t.batch_size}" for row, t in training.items())
    text = (
        f"{flesd_setup(outcomes[0], batches=False)} {trained}. The mean over learners in %, on the test set. The "
        f"probe is trained with all labels on frozen features. Published: only alpha 100 and 0.01."
    )
    return [
        ResultSection(
            "Independent learners, with and without labels", text, _means_table(rows), _figure(rows), "alone"
        ),
        ResultSection(
            "Accuracy per learner",
            "Accuracy in %, and the learner's images and classes.",
            _learners_table(rows),
            name="learners",
        ),
    ]


def _learners(outcome: Outcome) -> list[dict[str, Any]]:
    """The accuracy of each learner, with its images and classes."""
    counts, last = outcome.records["class_counts"], outcome.config.training.rounds
    return [
        {
            "alpha": outcome.labels["alpha"],
            "seed": outcome.labels["seed"],
            "method": method,
            "learner": learner,
            "accuracy": accuracy,
            "samples": sum(counts[learner]),
            "classes": sum(count > 0 for count in counts[learner]),
        }
        for method, (row, metric) in _MEASURED.items()
        if row == outcome.labels["row"]
        for learner, accuracy in enumerate(recorded_by_round(outcome, metric)[last])
    ]


def _means_table(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    lines = []
    alphas = list(dict.fromkeys(row["alpha"] for row in rows))
    for method in dict.fromkeys(row["method"] for row in rows):
        reached = {
            alpha: fmean(row["accuracy"] for row in rows if (row["method"], row["alpha"]) == (method, alpha))
            for alpha in alphas
            if any((row["method"], row["alpha"]) == (method, alpha) for row in rows)
        }
        line: dict[str, Any] = {"training": method}
        line |= {alpha_label(float(alpha)): f"{mean:.1f}" for alpha, mean in reached.items()}
        if len(reached) > 1:
            first, *_, last = reached.values()
            line["change"] = f"{last - first:+.1f}"
        before, after = PUBLISHED_DROPS[method]
        lines.append(line | {"published": f"{before} to {after}", "published change": f"{after - before:+.1f}"})
    return lines


def _learners_table(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    lines: dict[tuple[str, int, int], dict[str, Any]] = {}
    for row in rows:
        about = {
            "data": alpha_label(float(row["alpha"])),
            "seed": row["seed"],
            "learner": row["learner"],
            "images": row["samples"],
            "classes": row["classes"],
        }
        line = lines.setdefault((row["alpha"], row["seed"], row["learner"]), about)
        line[row["method"]] = f"{row['accuracy']:.1f}"
    return list(lines.values())


def _figure(rows: Sequence[Mapping[str, Any]]) -> Callable[[], Any]:
    drawn = [{**row, "panel": row["method"], "data": alpha_label(float(row["alpha"]))} for row in rows]

    def figure() -> Any:
        from consilience.presentation.scatter_charts import learner_accuracies

        return learner_accuracies(drawn, by="data")

    return figure


FIGURE2 = Experiment(
    "flesd-robustness", "FLESD's figure 2: independent learners, with and without labels, by alpha", _cells, _sections
)
