"""Advice on whether learners should work together, from a trial on samples that they hold out: in three sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from consilience.presentation.advice_numbers import AdviceNumbers
from consilience.presentation.advice_sentences import sentences_of
from consilience.presentation.advice_tables import learners_table, methods_table
from consilience.presentation.notebook import tables_html
from consilience.presentation.tables import table_text
from consilience.presentation.trial import (
    NEAR,
    LeftOut,
    TrialAnswers,
    TrialSize,
    best_of_all,
    choose_by_others,
    difference,
    learner_gains,
    verdict,
)


class Advice(AdviceNumbers):
    """Whether working together pays, for whom, and by which method: what a trial says, and its numbers.

    Printed, it is three sentences. All numbers are of held-out samples; nothing was measured on the data's test part.
    """

    @property
    def sentences(self) -> tuple[str, str, str]:
        """Whether it pays, for whom, and by which method."""
        return sentences_of(self)

    def __str__(self) -> str:
        return "\n".join(self.sentences)

    def __repr__(self) -> str:
        return f"Advice({self.verdict}: {self.gain.mean:+.1f} points with {self.method} on {self.size.data})"

    def _repr_html_(self) -> str:
        return tables_html(self.tables(), self.sentences)

    def table(self) -> str:
        """The numbers as text: one line per method, and one per learner."""
        return "\n".join(map(table_text, self.tables()))

    def tables(self) -> list[Table]:
        """The numbers: of each method, and of each learner."""
        return [methods_table(self), learners_table(self)]

    def to_dict(self) -> dict[str, Any]:
        """The verdict, the sentences and all numbers as JSON."""
        return {
            "verdict": self.verdict,
            "for_some": self.for_some,
            "sentences": list(self.sentences),
            "gain": self.gain.to_dict(),
            "common_gain": self.common_gain.to_dict(),
            "method": self.method,
            "alone": self.alone,
            "chosen": list(self.chosen),
            "helped": list(self.helped),
            "harmed": list(self.harmed),
            "learners": [{**asdict(each), "gain": each.gain} for each in self.learners],
            "control": [{**asdict(each), "gain": each.gain} for each in self.control],
            "methods": [_method_numbers(each) for each in self.answers.values()],
            "left_out": [asdict(each) for each in self.left_out],
            "trial": asdict(self.size),
        }


def make_advice(
    size: TrialSize,
    answers: Mapping[str, TrialAnswers],
    alone: Sequence[str],
    control: str,
    left_out: Sequence[LeftOut] = (),
) -> Advice:
    """What the answers of a trial say. alone: the ways of learning alone, the plain one first. control: its control."""
    tried = [name for name in answers if name not in (*alone, control)]
    together = choose_by_others([answers[name] for name in tried], NEAR)
    baseline = best_of_all([answers[name] for name in alone])
    gain = difference(together.answers, baseline)
    return Advice(
        size,
        verdict(gain, size.worth),
        gain,
        difference(together.answers, baseline, common=True),
        learner_gains(together.answers, baseline, size.learners, size.worth),
        learner_gains(answers[control], answers[alone[0]], size.learners, size.worth),
        best_of_all([answers[name] for name in tried], NEAR).method,
        together.methods,
        baseline.method,
        answers,
        tuple(tried),
        tuple(left_out),
    )


def _method_numbers(answers: TrialAnswers) -> dict[str, Any]:
    return {
        "method": answers.method,
        "own": {
            "mean": answers.mean,
            "by_seed": answers.by_repetition.tolist(),
            "by_learner": answers.by_learner.tolist(),
        },
        "common": {"mean": float(answers.common.mean()), "by_seed": answers.common.mean(1).tolist()},
        "bytes": {"up": answers.up, "down": answers.down},
    }
