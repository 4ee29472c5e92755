"""FLESD's table 1: methods without labels by how unlike the learners are, published beside measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from consilience.papers.cells import Cell, Outcome, Scale, Shown
from consilience.papers.flesd.experiment import OBJECTIVE, SIZES, Size, alpha_of, circumstances
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
_EVERYWHERE = "any"  # the alpha of what does not depend on it
_EACH = "flesd, every learner distills"
_SHOWN: Mapping[str, tuple[str, str]] = {
    "centralized": ("centralized", "mean"),
    "independent, worst": ("independent", "worst"),
    "independent, mean": ("independent", "mean"),
    "fedavg": ("fedavg", "mean"),
    "fedprox, best mu": ("fedprox", "mean"),
    "flesd": ("flesd", "mean"),
    "flesd-cc": ("flesd-cc", "mean"),
    "flesd, all distill, mean": (_EACH, "mean"),
    "flesd, all distill, worst": (_EACH, "worst"),
}
"""The lines of the table: whose, and which of its learners."""


def cells(size: Size, scale: Scale) -> list[Cell]:
    """Every method at every alpha; one learner with all data at none."""
    rows: dict[str, tuple[int, dict[str, Any]]] = {
        "independent": (1, {"name": "independent", "objective": OBJECTIVE}),
        "fedavg": (size.averaged, {"name": "fedavg", "objective": OBJECTIVE}),
        **{
            f"fedprox, mu {mu:g}": (size.averaged, {"name": "fedprox", "objective": OBJECTIVE, "mu": mu})
            for mu in size.mus
        },
        "flesd": (2, size.distilled()),
        "flesd-cc": (1, size.distilled("flesd-cc")),
        _EACH: (2, size.distilled(distill="learner")),
    }
    pooled = size.settings(scale, size.alpha, 1, name="centralized", objective=OBJECTIVE)
    return [Cell({"alpha": _EVERYWHERE, "row": "centralized"}, pooled)] + [
        Cell({"alpha": f"{alpha:g}", "row": row}, size.settings(scale, alpha, rounds, **method))
        for alpha in size.alphas
        for row, (rounds, method) in rows.items()
    ]


def told(outcomes: Sequence[Outcome]) -> list[Shown]:
    """The table, by either probe, and its figure."""
    text = (
        f"{circumstances(outcomes[0])} {_epochs(outcomes)} Learner 0's images are the public set of FLESD and are not "
        f"trained on there; the others train on all. {_public(outcomes)} Where all distill, nobody hears weights and "
        f"learners differ: the mean and the worst of them. Accuracy in %, one seed unless a spread is told. Bytes: all "
        f"that travels in the whole run at the first alpha, both ways, the public set included."
    )
    shown = [
        Shown("Accuracy by a linear probe", text, _table(outcomes, "linear"), _drawn(outcomes), "table-linear"),
        Shown(
            "Accuracy by the nearest neighbors",
            "The same models; the paper has the linear probe alone.",
            _table(outcomes, "knn"),
            name="table-knn",
        ),
        Shown("FedProx by mu", "Accuracy by a linear probe, in %.", _by_mu(outcomes), name="mu"),
    ]
    return [section for section in shown if section.table]


def _epochs(outcomes: Sequence[Outcome]) -> str:
    config = RunFolder(outcomes[0].folder).config
    return f"{config.total_epochs} epochs in all, shared by the rounds."


def _public(outcomes: Sequence[Outcome]) -> str:
    """How large the public set was at each alpha."""
    found: dict[str, int] = {}
    for outcome in (o for o in outcomes if o.labels["row"].startswith("flesd")):
        tables = json.loads((outcome.folder / PROVENANCE).read_text(encoding="utf-8"))["class_counts"]
        found.setdefault(alpha_of(float(outcome.labels["alpha"])), sum(next(iter(tables.values()))[0]))
    sizes = ", ".join(f"{images:,} images at {alpha}" for alpha, images in found.items())
    return f"The public set has {sizes}." if sizes else ""


def alphas_of(outcomes: Sequence[Outcome]) -> list[str]:
    """The alphas there are, in the order of the cells; that of what has none where nothing else is there."""
    found = dict.fromkeys(o.labels["alpha"] for o in outcomes if o.labels["alpha"] != _EVERYWHERE)
    return list(found) or [_EVERYWHERE]


def _of(outcomes: Sequence[Outcome], alpha: str, whose: str) -> Outcome | None:
    """What a method came to at an alpha; of several mu the best by the linear probe."""
    found = [o for o in outcomes if o.labels["alpha"] in (alpha, _EVERYWHERE) and o.labels["row"].startswith(whose)]
    if whose != "fedprox":
        found = [o for o in found if o.labels["row"] == whose]
    return max(found, key=lambda o: o.summary["accuracy"]["mean"], default=None)


def _table(outcomes: Sequence[Outcome], probe: str) -> list[dict[str, Any]]:
    lines = []
    alphas = alphas_of(outcomes)
    for row, (whose, which) in _SHOWN.items():
        found = {alpha: _of(outcomes, alpha, whose) for alpha in alphas}
        there = [o for o in found.values() if o is not None and probe in o.summary["probes"]]
        if not there:
            continue
        line: dict[str, Any] = {"method": row, "rounds": there[0].summary["rounds"]}
        for alpha, outcome in found.items():
            name = _EVERYWHERE if alpha == _EVERYWHERE else alpha_of(float(alpha))
            if probe == "linear":
                line[f"{name} published"] = _published(row, alpha)
            line[name] = outcome and _said(outcome.summary["probes"].get(probe), which)
        lines.append(line | {"bytes": round(there[0].summary["bytes_total"])})
    return lines


def _published(row: str, alpha: str) -> float | None:
    known = PUBLISHED_TABLE.get(row, {})
    return next(iter(known.values()), None) if alpha == _EVERYWHERE else known.get(float(alpha))


def _said(reached: Mapping[str, Any] | None, which: str) -> str | None:
    """An accuracy with its spread over seeds; of the worst learner there is none."""
    if reached is None or reached[which] is None:
        return None
    spread = "" if which == "worst" or reached["std_seeds"] is None else f" ± {reached['std_seeds']:.1f}"
    return f"{reached[which]:.1f}{spread}"


def _by_mu(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    lines: dict[str, dict[str, Any]] = {}
    for outcome in (o for o in outcomes if o.labels["row"].startswith("fedprox")):
        row, alpha = outcome.labels["row"], alpha_of(float(outcome.labels["alpha"]))
        lines.setdefault(row, {"method": row})[alpha] = _said(outcome.summary["probes"].get("linear"), "mean")
    return list(lines.values())


def _drawn(outcomes: Sequence[Outcome]) -> Callable[[], Any]:
    """Every line, measured and published, in a panel for each alpha."""
    rows = []
    for alpha in alphas_of(outcomes):
        for row, (whose, which) in _SHOWN.items():
            outcome = _of(outcomes, alpha, whose)
            reached = outcome.summary["probes"].get("linear") if outcome else None
            if not reached or reached[which] is None:
                continue
            about = {"method": row, "panel": alpha if alpha == _EVERYWHERE else alpha_of(float(alpha))}
            spread = 0.0 if which == "worst" else reached["std_seeds"] or 0.0
            rows.append(about | {"kind": "measured", "accuracy": reached[which], "spread": spread})
            if (known := _published(row, alpha)) is not None:
                rows.append(about | {"kind": "published", "accuracy": known, "spread": 0.0})

    def figure() -> Any:
        from consilience.presentation.scatter_charts import levels

        return levels(rows)

    return figure


TABLE1 = SIZES.both("flesd-table1", "FLESD's table 1: learning without labels, published beside measured", cells, told)
