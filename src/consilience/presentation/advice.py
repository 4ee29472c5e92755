"""Advice on whether learners should work together, from a trial on samples that they hold out: in three sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from consilience.config.overrides import parse_method
from consilience.kinds import ACCURACY, METRICS
from consilience.presentation.message import joined
from consilience.presentation.method_looks import spoken_name
from consilience.presentation.notebook import tables_html
from consilience.presentation.paired import Difference
from consilience.presentation.score_words import in_words_of, metric_headings
from consilience.presentation.tables import format_bytes, method_label, new_table, plural, table_text
from consilience.presentation.trial import (
    NEAR,
    Effect,
    LearnerGain,
    LeftOut,
    TrialAnswers,
    TrialSize,
    Verdict,
    best_of_all,
    choose_by_others,
    difference,
    learner_gains,
    surely_helped,
    verdict,
)
from consilience.user_code import short_name

WITH_ITSELF = " with itself only"
"""In the name of a way of learning alone: a method whose learners receive only what they have sent themselves."""
_NAMED = 10  # learners that a sentence names; of more it says how many


@dataclass(frozen=True, eq=False)  # comparing by value would compare whole arrays
class Advice:
    """Whether working together pays, for whom, and by which method: what a trial says, and its numbers.

    Printed, it is three sentences. All numbers are of held-out samples; nothing was measured on the data's test part.
    """

    size: TrialSize
    verdict: Verdict
    gain: Difference
    """Of own answers over learning alone, in points: the mean over learners, paired by seed."""
    common_gain: Difference
    """Of common answers over learning alone, on everybody's held-out samples."""
    learners: tuple[LearnerGain, ...]
    control: tuple[LearnerGain, ...]
    """Learning alone with another order of batches, against learning alone: what differs by chance."""
    method: str
    """Of those within half a point of the best over all seeds, the one that sends least."""
    chosen: tuple[str, ...]
    """For each seed, the method that the others choose so; `gain` and `learners` are of its answers."""
    alone: str
    """The best way of learning alone over all seeds, which is compared with."""
    answers: Mapping[str, TrialAnswers]
    """Of every method that was run, the control among them."""
    tried: tuple[str, ...]
    """The methods of working together that were run."""
    left_out: tuple[LeftOut, ...] = ()

    @property
    def helped(self) -> tuple[str, ...]:
        """The learners that gain, beyond chance."""
        return self._names("helped")

    @property
    def harmed(self) -> tuple[str, ...]:
        """The learners that lose, beyond chance."""
        return self._names("harmed")

    @property
    def not_clear(self) -> tuple[str, ...]:
        """The learners of whom it cannot be told."""
        return self._names("not clear")

    @property
    def for_some(self) -> bool:
        """Whether it pays for some learners, though not clearly for all of them on average."""
        return self.verdict != "yes" and bool(surely_helped(self.learners))

    @property
    def sentences(self) -> tuple[str, str, str]:
        """Whether it pays, for whom, and by which method."""
        return _whether(self), _whom(self), _which(self)

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
        return [_methods_table(self), _learners_table(self)]

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

    def _names(self, effect: Effect) -> tuple[str, ...]:
        return tuple(each.name for each in self.learners if each.effect == effect)


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


# -- sentences -----------------------------------------------------------------------------------------------------


def _whether(advice: Advice) -> str:
    """Whether working together pays, and by how much."""
    gain, data = advice.gain, advice.size.data
    opening = {
        "yes": f"Yes, working together pays on {data}",
        "no": f"No, working together does not pay on {data}",
        "not clear": f"Not clear from this trial whether working together pays on {data}",
    }[advice.verdict]
    if advice.verdict == "yes" and advice.harmed:
        opening = f"Yes, working together pays on {data}, but not for every learner"
    elif advice.for_some:
        doubt = "No on average" if advice.verdict == "no" else "Not clear on average"
        opening = f"{doubt}, but working together on {data} pays for some learners"
    by = _compared(advice)
    size = in_words_of(METRICS[advice.size.metric], f"{'more' if gain.mean >= 0 else 'less'} accurate")
    return (
        f"{opening}: with {by}, learners' own answers to their own held-out samples are {abs(gain.mean):.1f} points "
        f"{size} than {_alone(advice)} ({gain.interval()}){_reason(advice)}{_common(advice)}."
    )


def _compared(advice: Advice) -> str:
    """The method whose answers are compared; where seeds differ, the two or more that they choose."""
    chosen = list(dict.fromkeys(advice.chosen))
    if len(chosen) == 1:
        return spoken(chosen[0])
    *others, last = sorted(chosen, key=advice.tried.index)
    return f"{', '.join(map(spoken, others))} or {spoken(last)}, whichever the other seeds choose"


def _alone(advice: Advice) -> str:
    """The way of learning alone that is compared with."""
    first, second, *_ = advice.answers
    way, itself, _ = advice.alone.partition(WITH_ITSELF)
    if itself:
        return f"alone, with the regularization of {spoken(way)} and nobody else's data"
    return {first: "alone", second: f"alone, trained {second.partition(' ')[2]}"}[advice.alone]


def _reason(advice: Advice) -> str:
    """Why it is not clear, or what is excluded."""
    gain, worth = advice.gain, _points(advice.size.worth)
    if advice.verdict == "yes":
        return ""
    if advice.verdict == "no":
        return f", and a gain of {worth} is unlikely"
    if gain.low is not None and gain.low > 0:
        return f", which may be less than the {worth} worth having"
    return ", and the interval contains 0: more samples or seeds would tell"


def _points(size: float) -> str:
    return f"{size:g} point" if size == 1 else f"{size:g} points"


def _common(advice: Advice) -> str:
    """The common answer, where it gains more on everybody's samples than own answers do on each learner's."""
    common = advice.common_gain
    if not common.clear or common.mean < advice.gain.mean + advice.size.worth:
        return ""
    together, alone = (advice.answers[name].common.mean() for name in (advice.method, advice.alone))
    metric = METRICS[advice.size.metric]
    if metric != ACCURACY:
        return (
            f"; its common answer, one model for everybody, has an {metric.name} of {together:.1f} % on everybody's "
            f"held-out samples, learning alone of {alone:.1f} %"
        )
    return (
        f"; its common answer, one model for everybody, is right on {together:.1f} % of everybody's held-out samples, "
        f"learning alone on {alone:.1f} %"
    )


def _whom(advice: Advice) -> str:
    """How many learners are helped and harmed, which ones, and how many by chance."""
    count, control = len(advice.learners), advice.control
    unclear = advice.not_clear
    clauses = [
        f"helps {_who(advice.helped)} of {plural(count, 'learner')}{_named(advice.helped, count)}",
        f"harms {_who(advice.harmed)}{_named(advice.harmed, count)}",
    ]
    doubt = f"; for {_unclear(unclear, count)} the difference is not clear" if unclear else ""
    by_chance = [sum(each.effect == effect for each in control) for effect in ("helped", "harmed")]
    return (
        f"It {joined(clauses)}{doubt}; for comparison, chance alone (learning alone with another order of batches) "
        f"helps {by_chance[0] or 'none'} and harms {by_chance[1] or 'none'}."
    )


def _unclear(names: Sequence[str], learners: int) -> str:
    if len(names) == learners:
        return "all of them"
    if len(names) > _NAMED:
        return f"{len(names)} others"
    return f"{'learner' if len(names) == 1 else 'learners'} {joined(names)}"


def _who(names: Sequence[str]) -> str:
    return str(len(names)) if names else "none"


def _named(names: Sequence[str], learners: int) -> str:
    """The names in brackets, if they are few and not everybody's."""
    return f" ({joined(names)})" if 0 < len(names) <= _NAMED and len(names) < learners else ""


def _which(advice: Advice) -> str:
    """The method, its bytes, and how sure that is."""
    best, size = advice.answers[advice.method], advice.size
    advised = {"yes": "Use", "not clear": "If you try it, use", "no": "If you work together all the same, use"}
    asked = "" if size.budget is None else f", within the {format_bytes(size.budget)} allowed"
    return (
        f"{advised['yes' if advice.for_some else advice.verdict]} {spoken(advice.method)}, {format_bytes(best.up)} up "
        f"and {format_bytes(best.down)} down per learner and round{asked}: {_sure(advice)}, in a trial of "
        f"{plural(size.rounds, 'round')} in which {plural(len(size.learners), 'learner')} held out each of their "
        f"{size.samples:,} samples once, over {plural(size.seeds, 'seed')}{_left_out(advice)}."
    )


def _sure(advice: Advice) -> str:
    """How often the other seeds choose the method, and how far it is from the most accurate of the other methods."""
    others = [advice.answers[name] for name in advice.tried if name != advice.method]
    if not others:
        return "the only one that was tried"
    second = best_of_all(others)
    ahead = difference(advice.answers[advice.method], second)
    size = f"{abs(ahead.mean):.1f} points {'more' if ahead.mean >= 0 else 'less'} accurate than {spoken(second.method)}"
    clear = "" if ahead.clear else "; no clear difference"
    size = in_words_of(METRICS[advice.size.metric], size)
    return (
        f"chosen in {advice.chosen.count(advice.method)} of {advice.size.seeds} seeds among {len(advice.tried)} "
        f"methods, and {size} (95 % interval {ahead.low:+.1f} to {ahead.high:+.1f}{clear})"
    )


def _left_out(advice: Advice) -> str:
    if not advice.left_out:
        return ""
    each = [f"{spoken(left.method)} {_why(left)}" for left in advice.left_out]
    return f"; {joined(each)} and {'was' if len(each) == 1 else 'were'} not run"


def _why(left: LeftOut) -> str:
    return "does not fit these learners" if left.bytes is None else f"needs {format_bytes(left.bytes)}"


def spoken(name: str) -> str:
    """A method's name, NAME:KEY=VALUE, in a sentence."""
    given = parse_method(name)
    method = short_name(str(given.pop("name")))
    label = spoken_name(method_label(method, given))
    return f"{label} ({method})" if label.startswith("the default method") else label


# -- tables ------------------------------------------------------------------------------------------------------------

_CAPTION = (
    "On samples that learners held out, in percent. Own: a learner's own answer to its own samples; common: the common "
    "answer to everybody's; both the mean over learners. Gain: of own answers over learning {alone}, paired by "
    "seed, with its 95 % interval. With itself only: alone, with the regularization of that method. Upload and "
    "download: the largest messages of a learner in a round."
)
_LEARNERS_CAPTION = (
    "Own answers to own held-out samples, in percent, by the method that the other seeds choose. Helped, harmed: "
    "by more than {worth}, and more than chance does in one of ten learners (sign test over the samples)."
)


def _methods_table(advice: Advice) -> Table:
    size, alone = advice.size, advice.answers[advice.alone]
    title = f"{size.data}: {plural(len(size.learners), 'learner')}, {size.rounds} rounds, {plural(size.seeds, 'seed')}"
    table = new_table(title, _CAPTION.format(alone=_alone(advice)))
    table.add_column("method", min_width=12)
    for heading in (metric_headings(METRICS[size.metric])["accuracy_own"], "common %", "gain", "upload", "download"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, each in advice.answers.items():
        gain = difference(each, alone)
        interval = f"{gain.mean:+.1f} ({gain.low:+.1f} to {gain.high:+.1f})" if each is not alone else "–"
        given = parse_method(name)
        label = method_label(short_name(str(given.pop("name"))), given) + " *" * (name == advice.method)
        numbers = (f"{each.mean:.1f}", f"{each.common.mean():.1f}", interval)
        table.add_row(label, *numbers, format_bytes(each.up), format_bytes(each.down))
    return table


def _learners_table(advice: Advice) -> Table:
    table = new_table("Each learner", _LEARNERS_CAPTION.format(worth=_points(advice.size.worth)))
    table.add_column("learner")
    for heading in ("samples", "alone %", "together %", "gain", "", "by chance"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each, other in zip(advice.learners, advice.control, strict=True):
        shares = (f"{each.alone:.1f}", f"{each.together:.1f}", f"{each.gain:+.1f}")
        table.add_row(each.name, str(each.samples), *shares, each.effect, f"{other.gain:+.1f} {other.effect}")
    return table


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
