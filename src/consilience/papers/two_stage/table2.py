"""Two-stage learning's table 2: how good, in how many rounds, and for how much that travels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from consilience.papers.cells import Cell, Outcome, Scale, Shown
from consilience.papers.two_stage.experiment import COMPARED, FEDAVG, ROWS, SIZES, Size, circumstances
from consilience.papers.two_stage.progress import Course, course_of, percent
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
"""Table 2 of Ma et al. 2020: accuracy in percent, rounds, and values that traveled; means of 50 runs."""
DIFFERENCES = (
    "Not as published: there, runs end when they have converged, and here all of one data set have as many rounds. "
    "Of CIFAR-10 there are 20,000 images at most and not 50,000, and they are not augmented. Of Shakespeare there are "
    "133 roles at most and not 132. The paper gives neither learning rates nor alpha_1, alpha_2 and lambda; its "
    "devices train by signs of gradients too, and here by Adam."
)
HEARD = (
    "Who was away hears what it missed before it trains again; that counts here and not in the paper, and of weights "
    "it is all of them once more."
)
TRAVELED = (
    f"Values are numbers that travel, of however many bits, as the paper counts them; bytes are whole messages as "
    f"encoded. Both ways, everybody, in the whole run. {HEARD} The first common values come of the seed and are not "
    f"sent; the last column has them sent to everybody once, in float32."
)
ACCURACY = (
    "Accuracy in % on the test set. Of two-stage it is that of the mean of all devices' logits, as published; of "
    "fedavg and fedprox that of the newest common model. Two rows are not in the paper. two-stage-1bit shares the "
    "devices' part, too, at one bit a weight, and has the newest common model. independent is a control: the same "
    "devices with the same model send nothing, and their logits are averaged all the same; how much better two-stage "
    "is than that is what exchange adds."
)
READINGS = (
    "Two more readings of the paper: own heads, the mean of the logits of all devices' own small heads; own classes, "
    "each learner alone with the model it has, on test samples of the classes it has."
)
Row = dict[str, Any]


def cells(size: Size, scale: Scale) -> list[Cell]:
    """Every method on every data set."""
    return [
        Cell({"data": data, "row": row}, task.settings(scale, row)) for data, task in size.tasks.items() for row in ROWS
    ]


def told(outcomes: Sequence[Outcome]) -> list[Shown]:
    """What all came to, published beside measured; and what it took to be as good as the worst of the compared."""
    courses = courses_of(outcomes)
    text = f"{ACCURACY} {READINGS}\n\n{circumstances(outcomes)}\n\n{DIFFERENCES}"
    level = (
        "The level of a data set is the accuracy that the worst of two-stage-1bit, fedavg and fedprox ended with, so "
        "that each of them has come there: the first round tested after which it had, and what had traveled until "
        "then. Other rows that never came there have none."
    )
    return [
        Shown("Table 2: accuracy and rounds", text, _ended(courses), name="table2"),
        Shown("Table 2: what travels", TRAVELED, _traveled(courses), name="traveled"),
        Shown("Until all are as good as the worst of them", level, _levelled(courses), name="level"),
    ]


def courses_of(outcomes: Sequence[Outcome]) -> dict[str, dict[str, Course]]:
    """The courses of runs by data set and row."""
    found: dict[str, dict[str, Course]] = {}
    for outcome in outcomes:
        found.setdefault(outcome.labels["data"], {})[outcome.labels["row"]] = course_of(outcome)
    return found


def _ended(courses: Mapping[str, Mapping[str, Course]]) -> list[Row]:
    lines = []
    for data, row, course in _each(courses):
        published, rounds, _ = _published(data, row)
        lines.append(
            {
                "data": data,
                "method": row,
                "accuracy": percent(course.final, course.spread),
                "published": published,
                "own heads": percent(course.heads),
                "own classes": percent(course.own),
                "rounds": max(course.bytes),
                "rounds published": rounds,
            }
        )
    return lines


def _traveled(courses: Mapping[str, Mapping[str, Course]]) -> list[Row]:
    lines = []
    for data, row, course in _each(courses):
        _, _, values = _published(data, row)
        last, other = max(course.bytes), courses[data].get(FEDAVG)
        lines.append(
            {
                "data": data,
                "method": row,
                "values": powers(course.values[last]),
                "published": values and powers(values),
                "bytes": format_bytes(course.bytes[last]),
                "of fedavg's bytes": _share(course.bytes[last], other, last),
                "with first download": _share(course.bytes[last] + course.first, other, last, sent=True),
            }
        )
    return lines


def _each(courses: Mapping[str, Mapping[str, Course]]) -> list[tuple[str, str, Course]]:
    return [(data, row, course) for data, rows in courses.items() for row, course in rows.items()]


def _published(data: str, row: str) -> tuple[float, int, float] | tuple[None, None, None]:
    return PUBLISHED_TABLE.get(data, {}).get(row, (None, None, None))


def _levelled(courses: Mapping[str, Mapping[str, Course]]) -> list[Row]:
    lines = []
    for data, rows in courses.items():
        ends = [end for row in COMPARED if row in rows and (end := rows[row].final) is not None]
        if not ends:
            continue
        level = min(ends)
        for row, course in rows.items():
            line: Row = {"data": data, "method": row, "level": f"{level:.2f}"}
            if (first := course.reached(level)) is None:
                lines.append(line | {"round": None})
                continue
            other = rows.get(FEDAVG)
            lines.append(
                line
                | {
                    "round": first,
                    "values": powers(course.values[first]),
                    "bytes": format_bytes(course.bytes[first]),
                    "of fedavg's bytes": _share(course.bytes[first], other, other.reached(level) if other else None),
                }
            )
    return lines


def _share(mine: float, other: Course | None, until: int | None, sent: bool = False) -> str | None:
    """Bytes in percent of those that another had sent until a round; sent: its first common values as well."""
    if other is None or until is None or not other.bytes.get(until):
        return None
    return f"{100 * mine / (other.bytes[until] + (other.first if sent else 0.0)):.3g} %"


def powers(count: float) -> str:
    """A large number as the paper writes it: 4.526e9."""
    mantissa, _, exponent = f"{count:.3e}".partition("e")
    return "0" if not count else f"{mantissa}e{int(exponent)}"


TABLE2 = SIZES.both("two-stage-table2", "Two-stage learning's table 2: accuracy, rounds and what travels", cells, told)
