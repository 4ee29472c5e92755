"""Two-stage learning's table 1: transmitted values by its formulas, beside measured messages (Ma et al. 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from consilience.papers.cells import Cell, Outcome, ResultSection, Scale
from consilience.papers.metrics_by_round import metric_lines, record_samples
from consilience.papers.sizes import Experiment
from consilience.papers.two_stage.experiment import BATCH, FEDAVG, FEDPROX, TWO_STAGE, TwoStageSize
from consilience.papers.two_stage.table2 import PUBLISHED_TABLE, format_power
from consilience.presentation.tables import format_bytes

_ROWS = (TWO_STAGE, BATCH, FEDAVG, FEDPROX)
_LEARNERS, _SAMPLES, _ROUNDS = 3, 20, 2
Row = dict[str, Any]


def _cells(size: TwoStageSize, scale: Scale) -> list[Cell]:
    """Two short rounds of each method with the models of table 2: messages do not depend on what is learned."""
    found = []
    for data, task in size.tasks.items():
        few = replace(
            task, learners=_LEARNERS, participation=1.0, train=_LEARNERS * _SAMPLES, test=_SAMPLES, rounds=_ROUNDS,
            eval_every=_ROUNDS, epochs=1, batch_size=_SAMPLES, partition="iid", seeds=1,
        )  # fmt: skip
        if task.partition == "owners":  # who are the learners
            few = replace(few, partition="owners", learners=task.learners, participation=0.03, train=2 * task.learners)
        for row in _ROWS:
            cell = Cell({"data": data, "row": row}, few.settings(scale, row) | {"ensemble": "off", "seeds": 1})
            found.append(replace(cell, records={"messages": record_messages, "samples": record_samples}))
    return found


def record_messages(outcome: Outcome) -> dict[str, float]:
    """A record of one device's messages in a round in which it misses nothing: values and bytes, up and down."""
    found = {"values_up": 0.0, "values_down": 0.0, "bytes_up": 0.0, "bytes_down": 0.0}
    for line in metric_lines(outcome):
        if line["round"] == 1 and line["participated"]:
            for key in found:
                what, way = key.split("_")
                found[key] = max(found[key], line[what][way])
    return found


def _sections(outcomes: Sequence[Outcome]) -> list[ResultSection]:
    """The formulas with the sizes of our models, measured messages, and what the published totals imply."""
    text = (
        "Values that one device exchanges in a round: 2 G for two-stage, G being the size of the shared part, and 2 N "
        "for fedavg and fedprox, N being the size of the model. Measured: values and bytes, as encoded, of the upload "
        "and the download of one device in one round of a run. In total, by the paper's formulas with its rounds and "
        "m = 10 devices per round: n (m G + 2 m G) for two-stage, which sends the shared part once per round too (N_1 "
        "= G), and 2 n m N. Published: the total of table 2, and the size that it implies by these formulas."
    )
    return [ResultSection("Table 1: transmitted values", text, [_row(outcome) for outcome in outcomes], name="table1")]


def _row(outcome: Outcome) -> Row:
    data, row, sent = outcome.labels["data"], outcome.labels["row"], outcome.records["messages"]
    voted, size = row in (TWO_STAGE, BATCH), int(sent["values_up"])
    line: Row = {
        "data": data,
        "method": row,
        "model": outcome.config.model.name,
        "G or N": f"{size:,}",
        "per device": f"{2 * size:,}",
        "measured": f"{int(sent['values_up'] + sent['values_down']):,}",
        "bytes up": format_bytes(sent["bytes_up"]),
        "bytes down": format_bytes(sent["bytes_down"]),
    }
    published = PUBLISHED_TABLE.get(data, {}).get(TWO_STAGE if voted else row)
    if published is None:
        return line
    _, rounds, total = published
    per_value = (3 if voted else 2) * rounds * _DEVICES.get(data, 10)
    return line | {
        "rounds published": rounds,
        "total by formula": format_power(per_value * size),
        "published": format_power(total),
        "implied size": f"{total / per_value:,.0f}",
    }


_DEVICES = {"shakespeare": 13.2}  # a tenth of 132 roles
TABLE1 = Experiment(
    "two-stage-table1", "Two-stage learning's table 1: transmitted values by formula, and measured", _cells, _sections
)
