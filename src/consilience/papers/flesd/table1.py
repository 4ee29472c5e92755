"""FLESD's table 1: methods without labels by heterogeneity, published and measured (Shi et al. 2021)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from consilience.papers.cells import Cell, Outcome, ResultSection, Scale
from consilience.papers.flesd.experiment import FEDAVG, OBJECTIVE, FlesdSize, alpha_label, flesd_setup
from consilience.papers.flesd.outcomes import (
    BySeed,
    by_seed,
    flesd_cell,
    format_mean,
    format_paired,
    group_outcomes,
    total_bytes,
)
from consilience.papers.flesd.seeds import LEAST_SHARE
from consilience.papers.sizes import Experiment

PUBLISHED_TABLE: Mapping[str, Mapping[float, float]] = {
    "centralized": {100: 86.3, 1: 86.3, 0.01: 86.3},
    "independent, worst": {100: 62.9, 1: 66.5, 0.01: 60.4},
    "fedavg": {100: 75.6, 1: 75.2, 0.01: 69.9},
    "fedprox": {100: 71.3, 1: 72.3, 0.01: 67.5},
    "flesd": {100: 75.8, 1: 76.2, 0.01: 69.6},
    "flesd-cc": {100: 73.2, 1: 74.4, 0.01: 66.2},
}
"""Table 1 of Shi et al. 2021, its columns of CIFAR-10, by alpha, in percent; the first row is one number there, and
that of FedProx is the best of four mu."""
_ANY_ALPHA = "any"  # the label of runs that do not depend on alpha
_ALL_DISTILL = "flesd, every learner distills"
_LINES: Mapping[str, tuple[str, str]] = {
    "centralized": ("centralized", "mean"),
    "independent, worst": ("independent", "worst"),
    "independent, mean": ("independent", "mean"),
    "fedavg": ("fedavg", "mean"),
    "fedprox": ("fedprox", "mean"),
    "flesd": ("flesd", "mean"),
    "flesd-cc": ("flesd-cc", "mean"),
    "flesd, all distill, mean": (_ALL_DISTILL, "mean"),
    "flesd, all distill, worst": (_ALL_DISTILL, "worst"),
}
"""The lines of the table: the row of the cell, and whether its mean or its worst learner is shown."""


def _cells(size: FlesdSize, scale: Scale) -> list[Cell]:
    """Every method at every alpha with every seed; the centralized one with the first seed."""
    table = size.table
    rows: dict[str, tuple[int, dict[str, Any]]] = {
        "independent": (1, {"name": "independent", "objective": OBJECTIVE}),
        "fedavg": (table.fedavg_rounds, FEDAVG),
        **{
            f"fedprox, mu {mu:g}": (table.fedavg_rounds, {"name": "fedprox", "objective": OBJECTIVE, "mu": mu})
            for mu in table.fedprox_mus
        },
        "flesd": (2, size.flesd()),
        "flesd-cc": (1, size.flesd("flesd-cc")),
        **({_ALL_DISTILL: (2, size.flesd(distill="learner"))} if table.all_distill else {}),
    }
    seeds = size.seeds_for(scale, table.seeds)
    pooled = size.settings(scale, size.alpha, 1, seeds[0], name="centralized", objective=OBJECTIVE)
    return [flesd_cell({"alpha": _ANY_ALPHA, "row": "centralized", "seed": seeds[0]}, pooled)] + [
        flesd_cell(
            {"alpha": f"{alpha:g}", "row": row, "seed": seed}, size.settings(scale, alpha, rounds, seed, **method)
        )
        for alpha in size.alphas
        for row, (rounds, method) in rows.items()
        for seed in seeds
    ]


def _sections(outcomes: Sequence[Outcome]) -> list[ResultSection]:
    """The table with either probe and its figure, differences by seed, FedProx by mu, and what the seeds give."""
    text = (
        f"{flesd_setup(outcomes[0])} {outcomes[0].config.training.total_epochs} epochs in total, shared by the rounds. "
        f"Learner 0's images are the public set of FLESD, which does not train on them; the other methods train on "
        f"all. Where all learners distill, no weights are downloaded and learners differ: mean and worst learner. "
        f"Accuracy in %, mean and standard deviation over seeds. FedProx: {_mus_text(outcomes)}. Bytes: of the whole "
        f"run at the first alpha, both ways, with the public set."
    )
    sections = [
        ResultSection(
            "Accuracy of a linear probe", text, _table(outcomes, "linear"), _figure(outcomes), "table-linear"
        ),
        ResultSection(
            "FLESD against the worst learner and FedAvg",
            "Differences of the linear probe in points, paired by seed, with 95 % intervals over seeds. Above the "
            "worst learner: in how many seeds.",
            _differences(outcomes),
            name="differences",
        ),
        ResultSection(
            "Accuracy of the nearest neighbors",
            "The same models; the paper has the linear probe only.",
            _table(outcomes, "knn"),
            name="table-knn",
        ),
        ResultSection("FedProx by mu", "Accuracy of a linear probe, in %.", _by_mu(outcomes), name="mu"),
        ResultSection(
            "Images of learners by seed",
            f"The seeds are the first with which every learner has at least one image in {LEAST_SHARE} at every alpha. "
            f"The rule uses sizes alone, no accuracy.",
            _seeds_table(outcomes),
            name="seeds",
        ),
    ]
    return [section for section in sections if section.table]


def _alphas(outcomes: Sequence[Outcome]) -> list[str]:
    """The alphas of the outcomes, in the order of the cells; "any" if no outcome depends on alpha."""
    found = dict.fromkeys(o.labels["alpha"] for o in outcomes if o.labels["alpha"] != _ANY_ALPHA)
    return list(found) or [_ANY_ALPHA]


def _runs(outcomes: Sequence[Outcome], alpha: str, row: str) -> list[Outcome]:
    """The runs of a row at an alpha, one per seed; of FedProx those of the best mu by the linear probe."""
    here = [o for o in outcomes if o.labels["alpha"] in (alpha, _ANY_ALPHA)]
    found = group_outcomes([o for o in here if o.labels["row"].split(", mu ")[0] == row], "row")
    return max(found.values(), key=lambda some: fmean(by_seed(some).values() or [0.0]), default=[])


def _table(outcomes: Sequence[Outcome], probe: str) -> list[dict[str, Any]]:
    lines = []
    alphas = _alphas(outcomes)
    for title, (row, which) in _LINES.items():
        found = {alpha: _runs(outcomes, alpha, row) for alpha in alphas}
        there = [some for some in found.values() if by_seed(some, which, probe)]
        if not there:
            continue
        line: dict[str, Any] = {"method": title, "rounds": there[0][0].summary["rounds"]}
        for alpha, some in found.items():
            column = _column(alpha)
            if probe == "linear":
                line[f"{column} published"] = _published(title, alpha)
            line[column] = format_mean(by_seed(some, which, probe))
        lines.append(line | {"seeds": max(map(len, there)), "bytes": round(total_bytes(there[0]))})
    return lines


def _column(alpha: str) -> str:
    return alpha if alpha == _ANY_ALPHA else alpha_label(float(alpha))


def _published(title: str, alpha: str) -> float | None:
    known = PUBLISHED_TABLE.get(title, {})
    return next(iter(known.values()), None) if alpha == _ANY_ALPHA else known.get(float(alpha))


def _differences(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """FLESD and FLESD-cc against the worst independent learner, the mean one, and FedAvg, by alpha."""
    lines = []
    for row in ("flesd", "flesd-cc"):
        for alpha in (each for each in _alphas(outcomes) if each != _ANY_ALPHA):
            ours = by_seed(_runs(outcomes, alpha, row))
            alone = _runs(outcomes, alpha, "independent")
            others = {
                "the worst learner": by_seed(alone, "worst"),
                "the mean learner": by_seed(alone),
                "fedavg": by_seed(_runs(outcomes, alpha, "fedavg")),
            }
            if not ours or not any(others.values()):
                continue
            line: dict[str, Any] = {"method": row, "data": alpha_label(float(alpha))}
            line["above the worst learner"] = _count_above(ours, others["the worst learner"])
            lines.append(line | {f"to {name}": format_paired(ours, theirs) for name, theirs in others.items()})
    return lines


def _count_above(ours: BySeed, theirs: BySeed) -> str | None:
    common = ours.keys() & theirs.keys()
    return f"{sum(ours[seed] > theirs[seed] for seed in common)} of {len(common)}" if common else None


def _mus_text(outcomes: Sequence[Outcome]) -> str:
    mus = list(dict.fromkeys(row.split()[-1] for o in outcomes if (row := o.labels["row"]).startswith("fedprox")))
    if len(mus) == 1:
        return f"mu {mus[0]} alone, and the best of four where published"
    return f"the best of mu {', '.join(mus)} by this probe, as published" if mus else "not run"


def _by_mu(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    lines: dict[str, dict[str, Any]] = {}
    prox = [o for o in outcomes if o.labels["row"].startswith("fedprox")]
    for (row, alpha), some in group_outcomes(prox, "row", "alpha").items():
        lines.setdefault(row, {"method": row})[alpha_label(float(alpha))] = format_mean(by_seed(some))
    return list(lines.values())


def _seeds_table(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """The public set and the smallest learner of each seed and alpha."""
    lines = []
    split = [o for o in outcomes if o.labels["alpha"] != _ANY_ALPHA]
    for (seed, alpha), some in group_outcomes(split, "seed", "alpha").items():
        counts = some[0].records["class_counts"]  # (learners, classes)
        public = counts[0]
        lines.append(
            {
                "seed": seed,
                "data": alpha_label(float(alpha)),
                "smallest learner": min(map(sum, counts)),
                "public set": sum(public),
                "its classes": sum(count > 0 for count in public),
            }
        )
    return sorted(lines, key=lambda line: line["seed"])


def _figure(outcomes: Sequence[Outcome]) -> Callable[[], Any]:
    """The measured and published accuracy of every line, one panel per alpha."""
    rows = []
    for alpha in _alphas(outcomes):
        for title, (row, which) in _LINES.items():
            if not (reached := by_seed(_runs(outcomes, alpha, row), which)):
                continue
            about = {"method": title, "panel": _column(alpha)}
            spread = stdev(reached.values()) if len(reached) > 1 else 0.0
            rows.append(about | {"kind": "measured", "accuracy": fmean(reached.values()), "spread": spread})
            if (known := _published(title, alpha)) is not None:
                rows.append(about | {"kind": "published", "accuracy": known, "spread": 0.0})

    def figure() -> Any:
        from consilience.presentation.scatter_charts import levels

        return levels(rows)

    return figure


TABLE1 = Experiment(
    "flesd-table1", "FLESD's table 1: learning without labels, published and measured", _cells, _sections
)
