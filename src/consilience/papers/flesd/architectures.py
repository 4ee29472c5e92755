"""Small teachers and a large student, and the reverse, through similarities (asked in section 6 of Shi et al. 2021).

Learner 0 has the public set and distills on it, the others train on their own images. Only similarities travel, so that
each encoder stays as it is; with `distill = "learner"` the others distill their own as well, since they cannot download
the weights of another encoder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from consilience.papers.cells import Cell, Outcome, ResultSection, Scale
from consilience.papers.flesd.experiment import OBJECTIVE, FlesdSize, flesd_setup
from consilience.papers.flesd.outcomes import BySeed, flesd_cell, format_mean, format_paired, group_outcomes
from consilience.papers.metrics_by_round import recorded_by_round
from consilience.papers.sizes import Experiment

_ROUNDS = 2
_INDEPENDENT, _TOGETHER = "independent", "flesd"


def _cells(size: FlesdSize, scale: Scale) -> list[Cell]:
    """Every pair of a teachers' and a student's encoder; and independent learners with either encoder."""
    pair = size.encoders
    cells = []
    for seed in size.seeds_for(scale, size.table.seeds):
        for encoder in (pair.small, pair.large):
            labels = {"row": _INDEPENDENT, "teachers": encoder, "student": encoder, "seed": seed}
            settings = size.settings(scale, size.alpha, 1, seed, name="independent", objective=OBJECTIVE)
            cells.append(flesd_cell(labels, settings | {"model": encoder}))
        method = size.flesd(distill="learner", width=pair.width)
        settings = size.settings(scale, size.alpha, _ROUNDS, seed, **method)
        for teachers in (pair.small, pair.large):
            for student in (pair.small, pair.large):
                labels = {"row": _TOGETHER, "teachers": teachers, "student": student, "seed": seed}
                groups = {"student": {"learners": "0", "model": student}}
                cells.append(flesd_cell(labels, settings | {"model": teachers, "groups": groups}))
    return cells


def _sections(outcomes: Sequence[Outcome]) -> list[ResultSection]:
    """The student and the teachers of every pair, against the same encoder alone, and the change of either encoder."""
    alone = _independent(outcomes)
    together = group_outcomes([o for o in outcomes if o.labels["row"] == _TOGETHER], "teachers", "student")
    config, encoders = outcomes[0].config, " and ".join(dict.fromkeys(o.labels["student"] for o in outcomes))
    text = (
        f"{flesd_setup(outcomes[0], model=encoders)} Partition {config.federation.partition}, "
        f"{config.training.total_epochs} epochs in total. Accuracy of a linear probe in %, mean and standard "
        f"deviation over seeds. Student: learner 0, which distills the similarities of all others on its own images, "
        f"the public set, in {_ROUNDS} rounds. Teachers: the mean over the other learners, which train on their own "
        f"images and then distill too; the student uploads nothing, so that they do not depend on it. Alone: the same "
        f"learner with the same encoder, trained on its own images. Differences are paired by seed, with 95 % "
        f"intervals."
    )
    sections = [
        ResultSection("Student and teachers by encoder", text, _table(together, alone), name="architectures"),
        ResultSection(
            "What another size changes",
            "Differences in points, paired by seed, with 95 % intervals.",
            _changes(together),
            _figure(together),
            "changes",
        ),
        ResultSection(
            "Alone", "The mean over learners that train with SimCLR alone.", _alone_table(alone), name="alone"
        ),
    ]
    return [section for section in sections if section.table]


def _last(outcome: Outcome) -> list[float]:
    """The accuracy of each learner after the last round."""
    return recorded_by_round(outcome, "accuracy_linear")[outcome.summary["rounds"]]


def _student(outcomes: Sequence[Outcome]) -> BySeed:
    return {o.labels["seed"]: _last(o)[0] for o in outcomes}


def _teachers(outcomes: Sequence[Outcome]) -> BySeed:
    return {o.labels["seed"]: fmean(_last(o)[1:]) for o in outcomes}


def _independent(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """Independent learners by their encoder."""
    some = [o for o in outcomes if o.labels["row"] == _INDEPENDENT]
    return {encoder: found for (encoder,), found in group_outcomes(some, "student").items()}


Pairs = Mapping[tuple[Any, ...], list[Outcome]]


def _table(together: Pairs, alone: Mapping[str, list[Outcome]]) -> list[dict[str, Any]]:
    return [
        {
            "teachers": teachers,
            "student": student,
            "student %": format_mean(_student(found)),
            "student to alone": format_paired(_student(found), _student(alone.get(student, []))),
            "teachers %": format_mean(_teachers(found)),
            "teachers to alone": format_paired(_teachers(found), _teachers(alone.get(teachers, []))),
            "student to teachers alone": format_paired(_student(found), _teachers(alone.get(teachers, []))),
        }
        for (teachers, student), found in together.items()
    ]


def _changes(together: Pairs) -> list[dict[str, Any]]:
    """How the student's accuracy changes with its own encoder, and with that of its teachers."""
    encoders = list(dict.fromkeys(each for pair in together for each in pair))
    lines: list[dict[str, Any]] = []
    if len(encoders) == 2:
        small, large = encoders
        for teachers in encoders:
            some = [together.get((teachers, student), []) for student in (large, small)]
            about: dict[str, Any] = {"fixed": f"teachers {teachers}", "changed": f"student {small} to {large}"}
            lines.append(about | {"student": format_paired(*map(_student, some))})
        for student in encoders:
            some = [together.get((teachers, student), []) for teachers in (large, small)]
            about = {"fixed": f"student {student}", "changed": f"teachers {small} to {large}"}
            lines.append(about | {"student": format_paired(*map(_student, some))})
    return [line for line in lines if line["student"] is not None]


def _alone_table(alone: Mapping[str, list[Outcome]]) -> list[dict[str, Any]]:
    return [
        {
            "encoder": encoder,
            "learner 0 %": format_mean(_student(found)),
            "the others %": format_mean(_teachers(found)),
        }
        for encoder, found in alone.items()
    ]


def _figure(together: Pairs) -> Callable[[], Any]:
    rows = [
        {
            "method": f"teachers {teachers}, student {student}",
            "panel": who,
            "kind": "measured",
            "accuracy": fmean(values.values()),
            "spread": 0.0,
        }
        for (teachers, student), found in together.items()
        for who, values in (("student", _student(found)), ("teachers", _teachers(found)))
    ]

    def figure() -> Any:
        from consilience.presentation.scatter_charts import levels

        return levels(rows)

    return figure


ARCHITECTURES = Experiment(
    "flesd-architectures",
    "FLESD between encoders: small teachers and a large student, the reverse, and equal ones",
    _cells,
    _sections,
)
