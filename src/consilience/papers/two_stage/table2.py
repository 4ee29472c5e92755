"""Two-stage learning's table 2: accuracy, rounds and bytes (Ma et al. 2020)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from consilience.papers.cells import Cell, Outcome, ResultSection, Scale
from consilience.papers.sizes import Experiment
from consilience.papers.two_stage.experiment import (
    BATCH,
    COMPARED,
    FEDAVG,
    RECORDS,
    ROWS,
    TWO_STAGE,
    TwoStageSize,
    two_stage_setup,
)
from consilience.papers.two_stage.progress import Progress, format_percent, progress_of
from consilience.presentation.tables import format_bytes

PUBLISHED_TABLE: Mapping[str, Mapping[str, tuple[float, int, float]]] = {
    "mnist": {
        "two-stage": (97.93, 437, 4.526e9),
        "fedavg": (98.21, 689, 2.292e10),
        "fedprox": (98.31, 651, 2.166e10),
    },
    "cifar10": {
        "two-stage": (81.46, 191, 3.258e8),
        "fedavg": (81.95, 279, 2.559e9),
        "fedprox": (82.14, 253, 2.321e9),
    },
    "shakespeare": {
        "two-stage": (60.97, 744, 1.694e9),
        "fedavg": (61.52, 936, 1.703e10),
        "fedprox": (61.28, 962, 1.750e10),
    },
}
"""Table 2 of Ma et al. 2020: accuracy in percent, rounds, and transmitted values; means of 50 runs."""
DIFFERENCES = (
    "Differences from the paper: its runs end when they have converged; here all runs of a data set have the same "
    "number of rounds. CIFAR-10 has at most 20,000 images instead of 50,000, without augmentation. Shakespeare has at "
    "most 133 roles instead of 132. The paper gives neither learning rates nor alpha_1, alpha_2 and lambda; its "
    "devices train with signs of gradients too, here with Adam. The sizes of the shared parts on MNIST and CIFAR-10, "
    "and of the whole network on CIFAR-10, are those that the paper's own totals imply (two-stage-table1)."
)
CATCH_UP = (
    "A device that was absent downloads what it missed before it trains again: with weights, all of them. These bytes "
    "are counted here, and not in the paper."
)
TRANSMITTED = (
    f"Values are transmitted numbers of any number of bits, as the paper counts them; bytes are whole messages as "
    f"encoded. Upload and download of all devices in the whole run. {CATCH_UP} The initial weights come "
    f"from the seed and are not sent; the last column adds them, sent to every device once in float32."
)
ACCURACY = (
    "Accuracy in % on the test set: for two-stage, of the mean of all devices' logits, each device's private part "
    "followed by the newest shared part, as published; for fedavg and fedprox, of the newest common model. two-stage "
    "and two-stage-batch are two readings of the paper: the shared part moves once per round by the sign of the mean "
    "gradient (equation 9), or before every batch by the last vote, which is of last batches (Algorithm 1); the "
    "published numbers are beside both. Three rows are not in the paper. two-stage-calibrated adds the log of the "
    "device's class shares to the logits in both losses. two-stage-1bit also uploads the devices' part, with one bit "
    "per weight, and is evaluated by its newest common model. independent is a control: the same devices with the "
    "same model upload nothing, and their logits are averaged as well; the difference to two-stage is the effect of "
    "the exchange."
)
READINGS = (
    "Two more accuracies the paper may mean: own heads, of the mean of the logits of all devices' own small heads; own "
    "classes, of each learner's own model on test samples of its own classes."
)
Row = dict[str, Any]


def _cells(size: TwoStageSize, scale: Scale) -> list[Cell]:
    """Every method on every data set."""
    return [
        Cell({"data": data, "row": row}, task.settings(scale, row), records=RECORDS)
        for data, task in size.tasks.items()
        for row in ROWS
    ]


def _sections(outcomes: Sequence[Outcome]) -> list[ResultSection]:
    """Published and measured results, and the rounds and bytes until all reach the level of the worst of them."""
    progress = progress_by_data(outcomes)
    text = f"{ACCURACY} {READINGS}\n\n{two_stage_setup(outcomes)}\n\n{DIFFERENCES}"
    level = (
        "The level of a data set is the lowest final accuracy of two-stage-1bit, fedavg and fedprox, so that each of "
        "them reaches it. Shown: the first tested round with this accuracy, and the values and bytes until then. Other "
        "rows that never reach it have none."
    )
    return [
        ResultSection("Table 2: accuracy and rounds", text, _accuracy_table(progress), name="table2"),
        ResultSection(
            "Table 2: transmitted values and bytes", TRANSMITTED, _transmitted_table(progress), name="transmitted"
        ),
        ResultSection(
            "Rounds and bytes until all reach the same accuracy", level, _level_table(progress), name="level"
        ),
    ]


def progress_by_data(outcomes: Sequence[Outcome]) -> dict[str, dict[str, Progress]]:
    """The progress of runs by data set and row."""
    found: dict[str, dict[str, Progress]] = {}
    for outcome in outcomes:
        found.setdefault(outcome.labels["data"], {})[outcome.labels["row"]] = progress_of(outcome)
    return found


def _accuracy_table(progress: Mapping[str, Mapping[str, Progress]]) -> list[Row]:
    lines = []
    for data, row, run in _each(progress):
        published, rounds, _ = _published(data, row)
        lines.append(
            {
                "data": data,
                "method": row,
                "accuracy": format_percent(run.final, run.spread),
                "published": published,
                "own heads": format_percent(run.heads),
                "own classes": format_percent(run.own),
                "rounds": max(run.bytes),
                "rounds published": rounds,
            }
        )
    return lines


def _transmitted_table(progress: Mapping[str, Mapping[str, Progress]]) -> list[Row]:
    lines = []
    for data, row, run in _each(progress):
        _, _, values = _published(data, row)
        last, other = max(run.bytes), progress[data].get(FEDAVG)
        lines.append(
            {
                "data": data,
                "method": row,
                "values": format_power(run.values[last]),
                "published": values and format_power(values),
                "bytes": format_bytes(run.bytes[last]),
                "of fedavg's bytes": _share(run.bytes[last], other, last),
                "with initial weights": _share(run.bytes[last] + run.initial_bytes, other, last, initial=True),
            }
        )
    return lines


def _each(progress: Mapping[str, Mapping[str, Progress]]) -> list[tuple[str, str, Progress]]:
    return [(data, row, run) for data, rows in progress.items() for row, run in rows.items()]


def _published(data: str, row: str) -> tuple[float, int, float] | tuple[None, None, None]:
    return PUBLISHED_TABLE.get(data, {}).get(TWO_STAGE if row == BATCH else row, (None, None, None))


def _level_table(progress: Mapping[str, Mapping[str, Progress]]) -> list[Row]:
    lines = []
    for data, rows in progress.items():
        ends = [end for row in COMPARED if row in rows and (end := rows[row].final) is not None]
        if not ends:
            continue
        level = min(ends)
        for row, run in rows.items():
            line: Row = {"data": data, "method": row, "level": f"{level:.2f}"}
            if (first := run.reached(level)) is None:
                lines.append(line | {"round": None})
                continue
            other = rows.get(FEDAVG)
            lines.append(
                line
                | {
                    "round": first,
                    "values": format_power(run.values[first]),
                    "bytes": format_bytes(run.bytes[first]),
                    "of fedavg's bytes": _share(run.bytes[first], other, other.reached(level) if other else None),
                }
            )
    return lines


def _share(mine: float, other: Progress | None, until: int | None, initial: bool = False) -> str | None:
    """Bytes in percent of another run's bytes until a round; initial: with the initial weights of that run."""
    if other is None or until is None or not other.bytes.get(until):
        return None
    return f"{100 * mine / (other.bytes[until] + (other.initial_bytes if initial else 0.0)):.3g} %"


def format_power(count: float) -> str:
    """A large number as the paper writes it: 4.526e9."""
    mantissa, _, exponent = f"{count:.3e}".partition("e")
    return "0" if not count else f"{mantissa}e{int(exponent)}"


TABLE2 = Experiment("two-stage-table2", "Two-stage learning's table 2: accuracy, rounds and bytes", _cells, _sections)
