"""FLESD's figure 4 and equation 11: how often to communicate, and the bytes of a message (Shi et al. 2021)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from consilience.papers.cells import Cell, Outcome, ResultSection, Scale
from consilience.papers.flesd.equation11 import equation11_sections
from consilience.papers.flesd.experiment import FEDAVG, FlesdSize, alpha_label, flesd_setup
from consilience.papers.metrics_by_round import values_by_round
from consilience.papers.sizes import Experiment
from consilience.simulation.records.run_folder import RunFolder

_TOTAL_FIXED, _LOCAL_FIXED, _TWO_ROUNDS = "total epochs fixed", "local epochs fixed", "two rounds"


def _cells(size: FlesdSize, scale: Scale) -> list[Cell]:
    """Rounds that share the total epochs; rounds with the same epochs each; two rounds with more and more epochs."""
    methods, schemes = {"flesd": size.flesd(), "fedavg": FEDAVG}, size.communication
    cells = [
        Cell(
            {"scheme": _TOTAL_FIXED, "row": row, "rounds": rounds},
            size.settings(scale, size.alpha, rounds, **method),
        )
        for row, method in methods.items()
        for rounds in schemes.rounds
    ]
    rounds = schemes.fixed_rounds
    for row, method in methods.items():  # one run, tested after every round, contains the runs of fewer rounds
        settings = size.settings(scale, size.alpha, rounds, **method)
        settings |= {"total_epochs": rounds * schemes.fixed_epochs, "eval_every": 1}
        cells.append(Cell({"scheme": _LOCAL_FIXED, "row": row, "rounds": rounds}, settings))
    for alpha in size.alphas:
        for epochs in schemes.local_epochs:
            settings = size.settings(scale, alpha, 2, **size.flesd()) | {"total_epochs": 2 * epochs}
            cells.append(Cell({"scheme": _TWO_ROUNDS, "row": alpha_label(alpha), "epochs": epochs}, settings))
    return cells


def _sections(outcomes: Sequence[Outcome]) -> list[ResultSection]:
    """A section for each of the three schemes, and the bytes of messages, which need no training."""
    setup = flesd_setup(outcomes[0]) if outcomes else ""
    total = _epochs(outcomes, _TOTAL_FIXED, "total_epochs", "in total")
    local = _epochs(outcomes, _LOCAL_FIXED, "epochs", "per round")
    sections = [
        _scheme_section(
            outcomes,
            _TOTAL_FIXED,
            "The same epochs in more or fewer rounds",
            f"{setup} {total} Published for CIFAR-100: 2 rounds of FLESD and 10 of FedAvg are best.",
            "rounds",
        ),
        _scheme_section(
            outcomes,
            _LOCAL_FIXED,
            "More rounds with the same epochs each",
            f"{local} Published for CIFAR-100, 100 epochs each: FLESD needs few rounds to be at its best.",
            "rounds",
        ),
        _scheme_section(
            outcomes,
            _TWO_ROUNDS,
            "Two rounds with more and more epochs",
            "FLESD. Published for CIFAR-100: more local epochs are better.",
            "epochs in a round",
        ),
    ]
    return [*(section for section in sections if section.table), *equation11_sections()]


def _epochs(outcomes: Sequence[Outcome], scheme: str, setting: str, unit: str) -> str:
    configs = (RunFolder(o.folder).config for o in outcomes if o.labels["scheme"] == scheme)
    return "".join(f"{epochs} epochs {unit}." for epochs in {getattr(config.training, setting) for config in configs})


def _scheme_section(outcomes: Sequence[Outcome], scheme: str, heading: str, text: str, x: str) -> ResultSection:
    """Accuracy of a linear probe over `x`, as a table and as curves."""
    selected = [o for o in outcomes if o.labels["scheme"] == scheme]
    rows = [row for o in selected for row in (_every_round(o) if scheme == _LOCAL_FIXED else [_last_round(o, x)])]
    letter = "T" if x == "rounds" else "E"
    lines: dict[int, dict[str, Any]] = {}
    for row in rows:
        lines.setdefault(row[x], {x: f"{letter} = {row[x]}"})[row["method"]] = f"{row['accuracy']:.1f}"
    text = f"{text} Accuracy of a linear probe in %, the mean over learners.".strip()
    table = [lines[key] for key in sorted(lines)]
    return ResultSection(heading, text, table, curves_figure(rows, x), scheme.replace(" ", "-"))


def _last_round(outcome: Outcome, x: str) -> dict[str, Any]:
    """The accuracy after the last round."""
    where = outcome.labels["epochs" if x.startswith("epochs") else x]
    return {"method": outcome.labels["row"], x: where, "accuracy": outcome.summary["probes"]["linear"]["mean"]}


def _every_round(outcome: Outcome) -> list[dict[str, Any]]:
    """The accuracy after every round."""
    return [
        {"method": outcome.labels["row"], "rounds": round_, "accuracy": fmean(values)}
        for round_, values in values_by_round(outcome, "accuracy_linear").items()
    ]


def curves_figure(
    rows: Sequence[Mapping[str, Any]], x: str, y: str = "accuracy", title: str = "accuracy, %"
) -> Callable[[], Any]:
    """Curves of y over x, one per method, drawn when the page is written."""

    def figure() -> Any:
        from consilience.presentation.charts import curves

        return curves(rows, y=y, title=title, x=x)

    return figure


FIGURE4 = Experiment(
    "flesd-communication",
    "FLESD's figure 4 and equation 11: how often to communicate, and bytes of messages",
    _cells,
    _sections,
)
