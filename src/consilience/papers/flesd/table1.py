"""FLESD's table 1: methods without labels by heterogeneity, published and measured (Shi et al. 2021)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from consilience.papers.cells import Cell, Outcome, ResultSection, Scale
from consilience.papers.flesd.experiment import FEDAVG, OBJECTIVE, FlesdSize, alpha_label, flesd_setup
from consilience.papers.sizes import Experiment
from consilience.simulation.records.run_folder import PROVENANCE, RunFolder

PUBLISHED_TABLE: Mapping[str, Mapping[float, float]] = {
    "centralized": {100: 86.3, 1: 86.3, 0.01: 86.3},
    "independent, worst": {100: 62.9, 1: 66.5, 0.01: 60.4},
    "fedavg": {100: 75.6, 1: 75.2, 0.01: 69.9},
    "fedprox, best mu": {100: 71.3, 1: 72.3, 0.01: 67.5},
    "flesd": {100: 75.8, 1: 76.2, 0.01: 69.6},
    "flesd-cc": {100: 73.2, 1: 74.4, 0.01: 66.2},
}
"""Table 1 of Shi et al. 2021, its columns of CIFAR-10, by alpha, in percent; the first row is one number there."""
_ANY_ALPHA = "any"  # the label of runs that do not depend on alpha
_ALL_DISTILL = "flesd, every learner distills"
_LINES: Mapping[str, tuple[str, str]] = {
    "centralized": ("centralized", "mean"),
    "independent, worst": ("independent", "worst"),
    "independent, mean": ("independent", "mean"),
    "fedavg": ("fedavg", "mean"),
    "fedprox, best mu": ("fedprox", "mean"),
    "flesd": ("flesd", "mean"),
    "flesd-cc": ("flesd-cc", "mean"),
    "flesd, all distill, mean": (_ALL_DISTILL, "mean"),
    "flesd, all distill, worst": (_ALL_DISTILL, "worst"),
}
"""The lines of the table: the row of the cell, and whether its mean or its worst learner is shown."""


def _cells(size: FlesdSize, scale: Scale) -> list[Cell]:
    """Every method at every alpha; the centralized one once."""
    rows: dict[str, tuple[int, dict[str, Any]]] = {
        "independent": (1, {"name": "independent", "objective": OBJECTIVE}),
        "fedavg": (size.fedavg_rounds, FEDAVG),
        **{
            f"fedprox, mu {mu:g}": (size.fedavg_rounds, {"name": "fedprox", "objective": OBJECTIVE, "mu": mu})
            for mu in size.fedprox_mus
        },
        "flesd": (2, size.flesd()),
        "flesd-cc": (1, size.flesd("flesd-cc")),
        _ALL_DISTILL: (2, size.flesd(distill="learner")),
    }
    pooled = size.settings(scale, size.alpha, 1, name="centralized", objective=OBJECTIVE)
    return [Cell({"alpha": _ANY_ALPHA, "row": "centralized"}, pooled)] + [
        Cell({"alpha": f"{alpha:g}", "row": row}, size.settings(scale, alpha, rounds, **method))
        for alpha in size.alphas
        for row, (rounds, method) in rows.items()
    ]


def _sections(outcomes: Sequence[Outcome]) -> list[ResultSection]:
    """The table with either probe, and its figure."""
    text = (
        f"{flesd_setup(outcomes[0])} {_epochs_text(outcomes)} Learner 0's images are the public set of FLESD, which "
        f"does not train on them; the other methods train on all. {_public_text(outcomes)} Where all learners distill, "
        f"no weights are downloaded and learners differ: mean and worst learner. Accuracy in %, one seed unless a "
        f"spread is given. Bytes: of the whole run at the first alpha, both ways, with the public set."
    )
    sections = [
        ResultSection(
            "Accuracy of a linear probe", text, _table(outcomes, "linear"), _figure(outcomes), "table-linear"
        ),
        ResultSection(
            "Accuracy of the nearest neighbors",
            "The same models; the paper has the linear probe only.",
            _table(outcomes, "knn"),
            name="table-knn",
        ),
        ResultSection("FedProx by mu", "Accuracy of a linear probe, in %.", _by_mu(outcomes), name="mu"),
    ]
    return [section for section in sections if section.table]


def _epochs_text(outcomes: Sequence[Outcome]) -> str:
    config = RunFolder(outcomes[0].folder).config
    return f"{config.training.total_epochs} epochs in total, shared by the rounds."


def _public_text(outcomes: Sequence[Outcome]) -> str:
    """The size of the public set at each alpha."""
    found: dict[str, int] = {}
    for outcome in (o for o in outcomes if o.labels["row"].startswith("flesd")):
        tables = json.loads((outcome.folder / PROVENANCE).read_text(encoding="utf-8"))["class_counts"]
        found.setdefault(alpha_label(float(outcome.labels["alpha"])), sum(next(iter(tables.values()))[0]))
    sizes = ", ".join(f"{images:,} images at {alpha}" for alpha, images in found.items())
    return f"The public set has {sizes}." if sizes else ""


def _alphas(outcomes: Sequence[Outcome]) -> list[str]:
    """The alphas of the outcomes, in the order of the cells; "any" if no outcome depends on alpha."""
    found = dict.fromkeys(o.labels["alpha"] for o in outcomes if o.labels["alpha"] != _ANY_ALPHA)
    return list(found) or [_ANY_ALPHA]


def _outcome(outcomes: Sequence[Outcome], alpha: str, row: str) -> Outcome | None:
    """The outcome of a row at an alpha; of FedProx the best mu by the linear probe."""
    found = [o for o in outcomes if o.labels["alpha"] in (alpha, _ANY_ALPHA) and o.labels["row"].startswith(row)]
    if row != "fedprox":
        found = [o for o in found if o.labels["row"] == row]
    return max(found, key=lambda o: o.summary["accuracy"]["mean"], default=None)


def _table(outcomes: Sequence[Outcome], probe: str) -> list[dict[str, Any]]:
    lines = []
    alphas = _alphas(outcomes)
    for title, (row, which) in _LINES.items():
        found = {alpha: _outcome(outcomes, alpha, row) for alpha in alphas}
        there = [o for o in found.values() if o is not None and probe in o.summary["probes"]]
        if not there:
            continue
        line: dict[str, Any] = {"method": title, "rounds": there[0].summary["rounds"]}
        for alpha, outcome in found.items():
            column = _ANY_ALPHA if alpha == _ANY_ALPHA else alpha_label(float(alpha))
            if probe == "linear":
                line[f"{column} published"] = _published(title, alpha)
            line[column] = outcome and _format(outcome.summary["probes"].get(probe), which)
        lines.append(line | {"bytes": round(there[0].summary["bytes_total"])})
    return lines


def _published(title: str, alpha: str) -> float | None:
    known = PUBLISHED_TABLE.get(title, {})
    return next(iter(known.values()), None) if alpha == _ANY_ALPHA else known.get(float(alpha))


def _format(reached: Mapping[str, Any] | None, which: str) -> str | None:
    """An accuracy with its standard deviation over seeds; the worst learner's has none."""
    if reached is None or reached[which] is None:
        return None
    spread = "" if which == "worst" or reached["std_seeds"] is None else f" ± {reached['std_seeds']:.1f}"
    return f"{reached[which]:.1f}{spread}"


def _by_mu(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    lines: dict[str, dict[str, Any]] = {}
    for outcome in (o for o in outcomes if o.labels["row"].startswith("fedprox")):
        row, alpha = outcome.labels["row"], alpha_label(float(outcome.labels["alpha"]))
        lines.setdefault(row, {"method": row})[alpha] = _format(outcome.summary["probes"].get("linear"), "mean")
    return list(lines.values())


def _figure(outcomes: Sequence[Outcome]) -> Callable[[], Any]:
    """The measured and published accuracy of every line, one panel per alpha."""
    rows = []
    for alpha in _alphas(outcomes):
        for title, (row, which) in _LINES.items():
            outcome = _outcome(outcomes, alpha, row)
            reached = outcome.summary["probes"].get("linear") if outcome else None
            if not reached or reached[which] is None:
                continue
            about = {"method": title, "panel": alpha if alpha == _ANY_ALPHA else alpha_label(float(alpha))}
            spread = 0.0 if which == "worst" else reached["std_seeds"] or 0.0
            rows.append(about | {"kind": "measured", "accuracy": reached[which], "spread": spread})
            if (known := _published(title, alpha)) is not None:
                rows.append(about | {"kind": "published", "accuracy": known, "spread": 0.0})

    def figure() -> Any:
        from consilience.presentation.scatter_charts import levels

        return levels(rows)

    return figure


TABLE1 = Experiment(
    "flesd-table1", "FLESD's table 1: learning without labels, published and measured", _cells, _sections
)
