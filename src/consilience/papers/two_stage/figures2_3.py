"""Two-stage learning's figures 2 and 3: accuracy by round, and what had traveled by then; of the runs of table 2."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from consilience.papers.cells import Outcome, Shown
from consilience.papers.two_stage.experiment import ROWS, SIZES, circumstances
from consilience.papers.two_stage.progress import Course, some_of
from consilience.papers.two_stage.table2 import ACCURACY, DIFFERENCES, HEARD, cells, courses_of
from consilience.presentation.tables import format_bytes

Row = dict[str, Any]
_SHARES = (0.1, 0.25, 0.5, 0.75, 1)  # of the rounds, that the tables tell of


def told(outcomes: Sequence[Outcome]) -> list[Shown]:
    """Two figures for each data set."""
    shown: list[Shown] = []
    for data, courses in courses_of(outcomes).items():
        mine = circumstances([outcome for outcome in outcomes if outcome.labels["data"] == data])
        text = mine if shown else f"{ACCURACY}\n\n{mine}\n\n{DIFFERENCES}"
        shown.append(
            Shown(f"Accuracy by round: {data}", text, _better(courses), _climbing(courses), f"accuracy-{data}")
        )
        shown.append(
            Shown(
                f"What has traveled by round: {data}",
                f"Bytes of whole messages so far, both ways, of everybody; who sends none is not drawn. {HEARD}",
                _dearer(courses),
                _growing(courses) if any(max(c.bytes.values()) for c in courses.values()) else None,
                f"traveled-{data}",
            )
        )
    return shown


def _better(courses: Mapping[str, Course]) -> list[Row]:
    return [
        {"method": row, **{f"round {r}": f"{curve[r]:.1f}" for r in _some(list(curve))}}
        for row, course in courses.items()
        if (curve := {point["round"]: point["accuracy"] for point in course.curve()})
    ]


def _dearer(courses: Mapping[str, Course]) -> list[Row]:
    return [
        {"method": row, **{f"round {r}": format_bytes(course.bytes[r]) for r in _some(list(course.accuracy))}}
        for row, course in courses.items()
    ]


def _some(rounds: Sequence[int]) -> list[int]:
    """A few of the rounds that were tested, the last among them."""
    return some_of(rounds, [share * max(rounds, default=0) for share in _SHARES])


def _climbing(courses: Mapping[str, Course]) -> Callable[[], Any]:
    rows = [{"method": row, **point} for row, course in courses.items() for point in course.curve()]

    def figure() -> Any:
        from consilience.presentation.charts import curves

        return curves(rows, names=ROWS)

    return figure


def _growing(courses: Mapping[str, Course]) -> Callable[[], Any]:
    rows = [
        {"method": row, "round": round_, "bytes": sent}
        for row, course in courses.items()
        for round_, sent in course.bytes.items()
        if sent
    ]

    def figure() -> Any:
        from consilience.presentation.charts import sent_by_round

        return sent_by_round(rows, ROWS)

    return figure


CURVES = SIZES.both(
    "two-stage-curves", "Two-stage learning's figures 2 and 3: accuracy and what has traveled, by round", cells, told
)
