"""Figure 3 of the thesis: the gain over independent learning by the weights of both penalties (Berdoz 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from consilience.papers.cells import Cell, Outcome, Reproduction, ResultSection, Scale
from consilience.papers.thesis.published import TASKS

WEIGHTS = (0, 0.1, 0.5, 1, 2, 4, 8, 10)
_QUICK = {"rounds": 15, "test": 2000}


def _cells(scale: Scale) -> list[Cell]:
    """All 64 settings as federations of one run; the quick version has nine."""
    weights = (0, 1, 10) if scale.quick else WEIGHTS
    variants = [{"method.kd": kd, "method.contrast": contrast} for kd in weights for contrast in weights]
    settings = {**TASKS["MNIST"], **scale.settings(1), "learners": 5, "method": {"name": "representation-sharing"}}
    settings |= _QUICK if scale.quick else {}
    settings |= {"eval_every": settings["rounds"], "variants": variants}
    return [Cell({"what": "ablation"}, settings)]


def _sections(outcomes: Sequence[Outcome]) -> list[ResultSection]:
    """The gain over independent learning, which has both weights at 0."""
    (outcome,) = outcomes
    each = outcome.summary["variants"]
    independent = next(v for v in each if not any(v["set"].values()))["accuracy"]["mean"]
    rows: list[dict[str, Any]] = [
        {
            "kd": v["set"]["method.kd"],
            "contrast": v["set"]["method.contrast"],
            "accuracy": round(v["accuracy"]["mean"], 2),
            "gain": round(v["accuracy"]["mean"] - independent, 2),
        }
        for v in each
    ]
    best = max(rows, key=lambda row: float(row["accuracy"]))

    def figure() -> Any:
        from consilience.presentation.charts import heatmap

        return heatmap(rows, x="contrast", y="kd", value="gain")

    text = (
        f"MNIST, LeNet5, five learners with 240 images each, {outcome.summary['rounds']} rounds. Independent learning, "
        f"kd = 0 and contrast = 0, reaches {independent:.2f} %; the best is kd = {best['kd']:g}, contrast = "
        f"{best['contrast']:g} with {best['accuracy']:.2f} %."
    )
    return [ResultSection("Gain over independent learning, in points", text, rows, figure, "ablation")]


FIGURE3 = Reproduction(
    "thesis-ablation", "Figure 3: the weights of both penalties, as gains over independent learning", _cells, _sections
)
