"""FLESD's figure 4 and equation 11: how often to communicate, and the bytes of a message (Shi et al. 2021)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from consilience.papers.cells import Cell, Outcome, ResultSection, Scale
from consilience.papers.flesd.equation11 import equation11_sections
from consilience.papers.flesd.experiment import FEDAVG, FlesdSize, alpha_label, flesd_setup
from consilience.papers.flesd.outcomes import (
    by_seed,
    flesd_cell,
    format_mean,
    group_outcomes,
    means_by_round,
    total_bytes,
)
from consilience.papers.sizes import Experiment

_TOTAL_FIXED, _LOCAL_FIXED, _TWO_ROUNDS = "total epochs fixed", "local epochs fixed", "two rounds"


def _cells(size: FlesdSize, scale: Scale) -> list[Cell]:
    """Rounds that share the total epochs; rounds with the same epochs each; two rounds with more and more epochs."""
    methods, schemes = {"flesd": size.flesd(), "fedavg": FEDAVG}, size.communication
    cells = []

    def add(scheme: str, row: str, alpha: float, rounds: int, epochs: int, **others: Any) -> None:
        labels = {"scheme": scheme, "alpha": f"{alpha:g}", "row": row, "rounds": rounds, "epochs": epochs}
        for seed in size.seeds_for(scale):
            settings = size.settings(scale, alpha, rounds, seed, **methods[row]) | {"total_epochs": rounds * epochs}
            cells.append(flesd_cell(labels | {"seed": seed}, settings | others))

    for alpha in size.alphas:  # the search for the best number of rounds at each alpha, as published
        for row in methods:
            for rounds in schemes.rounds:
                add(_TOTAL_FIXED, row, alpha, rounds, size.total_epochs // rounds)
    for row in methods:  # one run, tested after every round, contains the runs of fewer rounds
        add(_LOCAL_FIXED, row, size.alpha, schemes.fixed_rounds, schemes.fixed_epochs, eval_every=1)
    for alpha in size.alphas:
        for row in methods:
            for epochs in schemes.local_epochs:
                add(_TWO_ROUNDS, row, alpha, 2, epochs)
    return cells


def _sections(outcomes: Sequence[Outcome]) -> list[ResultSection]:
    """The best number of rounds, a section for each of the three schemes, and the bytes of messages."""
    setup = flesd_setup(outcomes[0]) if outcomes else ""
    total = [o for o in outcomes if o.labels["scheme"] == _TOTAL_FIXED]
    sections = [_search_section(total, setup)]
    for (alpha,), some in group_outcomes(total, "alpha").items():
        sections.append(_total_fixed_section(some, alpha))
    sections += [
        _local_fixed_section([o for o in outcomes if o.labels["scheme"] == _LOCAL_FIXED]),
        _two_rounds_section([o for o in outcomes if o.labels["scheme"] == _TWO_ROUNDS]),
    ]
    return [*(section for section in sections if section.table), *equation11_sections()]


def _search_section(outcomes: Sequence[Outcome], setup: str) -> ResultSection:
    """For each alpha and method the number of rounds with the best accuracy, and the bytes it costs."""
    table = []
    for (alpha, method), some in group_outcomes(outcomes, "alpha", "row").items():
        runs = group_outcomes(some, "rounds")
        (best,), found = max(runs.items(), key=lambda item: fmean(by_seed(item[1]).values()))
        table.append(
            {
                "data": alpha_label(float(alpha)),
                "method": method,
                "searched": ", ".join(f"{rounds}" for (rounds,) in runs),
                "best": f"T = {best}",
                "accuracy": format_mean(by_seed(found)),
                "bytes": round(total_bytes(found)),
                "bytes, public set each round": round(total_bytes(found, each_round=True)),
            }
        )
    epochs = ", ".join(dict.fromkeys(f"{o.labels['rounds'] * o.labels['epochs']}" for o in outcomes))
    text = (
        f"{setup} {epochs} epochs in total, shared by T rounds. The T with the best accuracy of a linear probe on the "
        f"test set, chosen for each alpha and method as published. Published: T = 2 "
        f"for FLESD and T = 10 for FedAvg. Bytes of the whole run, of all learners and both ways, with the public set "
        f"sent once, or again in every round to learners that do not keep it."
    )
    return ResultSection("The best number of rounds by alpha", text, table, name="searched-rounds")


def _total_fixed_section(outcomes: Sequence[Outcome], alpha: str) -> ResultSection:
    """Figure 4, left, at one alpha."""
    lines: dict[int, dict[str, Any]] = {}
    rows = []
    for (method, rounds), found in group_outcomes(outcomes, "row", "rounds").items():
        line = lines.setdefault(rounds, {"rounds": f"T = {rounds}"})
        line[method] = format_mean(by_seed(found))
        line[f"{method}, bytes"] = round(total_bytes(found))
        rows.append({"method": method, "rounds": rounds, "accuracy": fmean(by_seed(found).values())})
    text = (
        f"{alpha_label(float(alpha))}. Accuracy of a linear probe in %, the mean over learners. Published for "
        f"CIFAR-100: 2 rounds of FLESD and 10 of FedAvg are best."
    )
    table = [lines[key] for key in sorted(lines)]
    name = f"total-epochs-fixed-{alpha}".replace(".", "-")
    return ResultSection(
        f"The same epochs in more or fewer rounds, {alpha_label(float(alpha))}",
        text,
        table,
        curves_figure(rows, "rounds"),
        name,
    )


def _local_fixed_section(outcomes: Sequence[Outcome]) -> ResultSection:
    """Figure 4, middle: one run of each method, tested after every round."""
    lines: dict[int, dict[str, Any]] = {}
    rows = []
    for (method,), found in group_outcomes(outcomes, "row").items():
        totals = [fmean(each) for each in zip(*(o.records["bytes"]["after_round"] for o in found), strict=True)]
        for round_, accuracy in means_by_round(found, "accuracy_linear").items():
            line = lines.setdefault(round_, {"rounds": f"T = {round_}"})
            line[method] = f"{accuracy:.1f}"
            line[f"{method}, bytes so far"] = round(totals[round_])
            rows.append({"method": method, "rounds": round_, "accuracy": accuracy})
    epochs = ", ".join(dict.fromkeys(f"{o.labels['epochs']}" for o in outcomes))
    alphas = ", ".join(dict.fromkeys(alpha_label(float(o.labels["alpha"])) for o in outcomes))
    text = (
        f"{alphas}, {epochs} epochs per round. Accuracy of a linear probe in %, the mean over learners. Published for "
        f"CIFAR-100, 100 epochs each: FLESD needs few rounds to be at its best, and FedAvg does well with many epochs."
    )
    table = [lines[key] for key in sorted(lines)]
    return ResultSection(
        "More rounds with the same epochs each", text, table, curves_figure(rows, "rounds"), "local-epochs-fixed"
    )


def _two_rounds_section(outcomes: Sequence[Outcome]) -> ResultSection:
    """Figure 4, right: both methods at every alpha."""
    x = "epochs in a round"
    lines: dict[int, dict[str, Any]] = {}
    rows = []
    for (alpha, method, epochs), found in group_outcomes(outcomes, "alpha", "row", "epochs").items():
        title = f"{method}, {alpha_label(float(alpha))}"
        lines.setdefault(epochs, {x: f"E = {epochs}"})[title] = format_mean(by_seed(found))
        rows.append({"method": title, x: epochs, "accuracy": fmean(by_seed(found).values())})
    text = (
        "Two rounds of either method. Accuracy of a linear probe in %, the mean over learners. Published for "
        "CIFAR-100: FLESD gets better with more local epochs; FedAvg gets worse with them, except at alpha 100."
    )
    table = [lines[key] for key in sorted(lines)]
    return ResultSection("Two rounds with more and more epochs", text, table, curves_figure(rows, x), "two-rounds")


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
