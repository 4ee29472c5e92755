"""Two-stage learning's figures 2 and 3: accuracy and bytes over rounds, from the runs of table 2 (Ma et al. 2020)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from consilience.papers.cells import Outcome, ResultSection
from consilience.papers.metrics_by_round import select_rounds
from consilience.papers.sizes import Experiment
from consilience.papers.two_stage.experiment import ROWS, two_stage_setup
from consilience.papers.two_stage.progress import Progress
from consilience.papers.two_stage.table2 import ACCURACY, CATCH_UP, DIFFERENCES, TABLE2, progress_by_data
from consilience.presentation.tables import format_bytes

Row = dict[str, Any]
_SHARES = (0.1, 0.25, 0.5, 0.75, 1)  # of the rounds, which the tables show


def _sections(outcomes: Sequence[Outcome]) -> list[ResultSection]:
    """Two figures for each data set."""
    sections: list[ResultSection] = []
    for data, progress in progress_by_data(outcomes).items():
        setup = two_stage_setup([outcome for outcome in outcomes if outcome.labels["data"] == data])
        text = setup if sections else f"{ACCURACY}\n\n{setup}\n\n{DIFFERENCES}"
        sections.append(
            ResultSection(
                f"Accuracy over rounds: {data}",
                text,
                _accuracy_table(progress),
                _accuracy_figure(progress),
                f"accuracy-{data}",
            )
        )
        sections.append(
            ResultSection(
                f"Bytes over rounds: {data}",
                f"Bytes of all messages so far, both ways, of all devices; methods without messages are not drawn. "
                f"{CATCH_UP}",
                _bytes_table(progress),
                _bytes_figure(progress) if any(max(run.bytes.values()) for run in progress.values()) else None,
                f"bytes-{data}",
            )
        )
    return sections


def _accuracy_table(progress: Mapping[str, Progress]) -> list[Row]:
    return [
        {"method": row, **{f"round {r}": f"{curve[r]:.1f}" for r in _table_rounds(list(curve))}}
        for row, run in progress.items()
        if (curve := {point["round"]: point["accuracy"] for point in run.curve()})
    ]


def _bytes_table(progress: Mapping[str, Progress]) -> list[Row]:
    return [
        {"method": row, **{f"round {r}": format_bytes(run.bytes[r]) for r in _table_rounds(list(run.accuracy))}}
        for row, run in progress.items()
    ]


def _table_rounds(rounds: Sequence[int]) -> list[int]:
    """A few of the tested rounds, and the last."""
    return select_rounds(rounds, [share * max(rounds, default=0) for share in _SHARES])


def _accuracy_figure(progress: Mapping[str, Progress]) -> Callable[[], Any]:
    rows = [{"method": row, **point} for row, run in progress.items() for point in run.curve()]

    def figure() -> Any:
        from consilience.presentation.charts import curves

        return curves(rows, names=ROWS)

    return figure


def _bytes_figure(progress: Mapping[str, Progress]) -> Callable[[], Any]:
    rows = [
        {"method": row, "round": round_, "bytes": sent}
        for row, run in progress.items()
        for round_, sent in run.bytes.items()
        if sent
    ]

    def figure() -> Any:
        from consilience.presentation.charts import sent_by_round

        return sent_by_round(rows, ROWS)

    return figure


FIGURES2_3 = Experiment(
    "two-stage-curves", "Two-stage learning's figures 2 and 3: accuracy and bytes over rounds", TABLE2.cells, _sections
)
