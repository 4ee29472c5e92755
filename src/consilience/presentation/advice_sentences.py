"""Advice in three sentences: whether working together pays, for whom, and by which method."""

from __future__ import annotations

from collections.abc import Sequence

from consilience.config.overrides import parse_method
from consilience.kinds import ACCURACY, METRICS
from consilience.presentation.advice_numbers import AdviceNumbers
from consilience.presentation.message import joined
from consilience.presentation.method_looks import spoken_name
from consilience.presentation.score_words import in_words_of
from consilience.presentation.tables import format_bytes, method_label, plural
from consilience.presentation.trial import WITH_ITSELF, LeftOut, best_of_all, difference
from consilience.user_code import short_name

_NAMED = 10  # learners that a sentence names; of more it says how many


def sentences_of(advice: AdviceNumbers) -> tuple[str, str, str]:
    """Whether it pays, for whom, and by which method."""
    return _whether(advice), _whom(advice), _which(advice)


def way_alone(advice: AdviceNumbers) -> str:
    """How learners learn alone in the way that is compared with: "alone", or what is added to it."""
    first, second, *_ = advice.answers
    way, itself, _ = advice.alone.partition(WITH_ITSELF)
    if itself:
        return f"alone with the loss term of {spoken(way)} on own data"
    return {first: "alone", second: f"alone {second.partition(' ')[2]}"}[advice.alone]


def points(size: float) -> str:
    """How many points of percent."""
    return f"{size:g} point" if size == 1 else f"{size:g} points"


def spoken(name: str) -> str:
    """A method's name, NAME:KEY=VALUE, in a sentence."""
    given = parse_method(name)
    method = short_name(str(given.pop("name")))
    label = spoken_name(method_label(method, given))
    return f"{label} ({method})" if label.startswith("the default method") else label


# -- whether -----------------------------------------------------------------------------------------------------------


def _whether(advice: AdviceNumbers) -> str:
    """Whether working together pays, and by how much."""
    gain = advice.gain
    size = _than(gain.mean, advice.size.metric)
    return (
        f"{_opening(advice)}: with {_compared(advice)}, learners are {size} when each trains {way_alone(advice)}, on "
        f"held-out samples of their own ({gain.interval()}){_reason(advice)}{_on_everybodys(advice)}."
    )


def _opening(advice: AdviceNumbers) -> str:
    data = advice.size.data
    if advice.verdict == "yes" and advice.harmed:
        return f"Yes, working together pays on {data}, but not for every learner"
    if advice.for_some:
        doubt = "No on average" if advice.verdict == "no" else "Not clear on average"
        return f"{doubt}, but working together on {data} pays for some learners"
    return {
        "yes": f"Yes, working together pays on {data}",
        "no": f"No, working together does not pay on {data}",
        "not clear": f"Not clear from this trial whether working together pays on {data}",
    }[advice.verdict]


def _than(gain: float, metric: str) -> str:
    """How much more or less accurate, up to what it is compared with."""
    size = f"{abs(gain):.1f}"
    if size == "0.0":
        return "as accurate as" if metric == ACCURACY.key else "as good as"
    return in_words_of(METRICS[metric], f"{size} points {'more' if gain > 0 else 'less'} accurate than")


def _compared(advice: AdviceNumbers) -> str:
    """The method whose answers are compared; where seeds differ, the two or more that they choose."""
    chosen = list(dict.fromkeys(advice.chosen))
    if len(chosen) == 1:
        return spoken(chosen[0])
    *others, last = sorted(chosen, key=advice.tried.index)
    return f"{', '.join(map(spoken, others))} or {spoken(last)} (for each seed, the one that the other seeds choose)"


def _reason(advice: AdviceNumbers) -> str:
    """Why it is not clear, or what is excluded."""
    gain, worth = advice.gain, points(advice.size.worth)
    if advice.verdict == "yes":
        return ""
    if advice.verdict == "no":
        return f", and a gain of {worth} is unlikely"
    if gain.low is not None and gain.low > 0:
        return f", which may be less than the {worth} worth having"
    return f", which allows for no gain and for one of {worth}: more samples would tell"


def _on_everybodys(advice: AdviceNumbers) -> str:
    """The common answers, where they gain more on everybody's samples than own answers do on each learner's."""
    common = advice.common_gain
    if not common.clear or common.mean < advice.gain.mean + advice.size.worth:
        return ""
    together, alone = (advice.answers[name].common.mean() for name in (advice.method, advice.alone))
    metric = METRICS[advice.size.metric]
    score = "are right on" if metric == ACCURACY else f"have an {metric.name} of"
    return (
        f"; on held-out samples of all learners, models that learned together {score} {together:.1f} %, those that "
        f"learned alone {'on ' * (metric == ACCURACY)}{alone:.1f} %"
    )


# -- for whom ----------------------------------------------------------------------------------------------------------


def _whom(advice: AdviceNumbers) -> str:
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
        f"It {joined(clauses)}{doubt}; training alone once more, with another order of batches, seems to help "
        f"{by_chance[0] or 'none'} and to harm {by_chance[1] or 'none'}, which is chance."
    )


def _unclear(names: Sequence[str], learners: int) -> str:
    if len(names) == learners:
        return "all of them"
    return f"{len(names)} others" if len(names) > _NAMED else _learners(names)


def _learners(names: Sequence[str]) -> str:
    return f"{'learner' if len(names) == 1 else 'learners'} {joined(names)}"


def _who(names: Sequence[str]) -> str:
    return str(len(names)) if names else "none"


def _named(names: Sequence[str], learners: int) -> str:
    """The names in brackets, if they are few and not everybody's."""
    return f" ({_learners(names)})" if 0 < len(names) <= _NAMED and len(names) < learners else ""


# -- by which method ---------------------------------------------------------------------------------------------------


def _which(advice: AdviceNumbers) -> str:
    """The method, its bytes, and how sure that is."""
    best, size = advice.answers[advice.method], advice.size
    advised = {"yes": "Use", "not clear": "If you try it, use", "no": "If you work together all the same, use"}
    asked = "" if size.budget is None else f", within the {format_bytes(size.budget)} allowed"
    return (
        f"{advised['yes' if advice.for_some else advice.verdict]} {spoken(advice.method)}, which sends "
        f"{format_bytes(best.up)} and receives {format_bytes(best.down)} per learner and round{asked}: "
        f"{_sure(advice)}; the trial had {plural(size.rounds, 'round')} and {plural(size.seeds, 'seed')}, and "
        f"{plural(len(size.learners), 'learner')} held out each of their {size.samples:,} samples once"
        f"{_left_out(advice)}."
    )


def _sure(advice: AdviceNumbers) -> str:
    """How often the other seeds choose the method, and how far it is from the most accurate of the other methods."""
    others = [advice.answers[name] for name in advice.tried if name != advice.method]
    if not others:
        return "it is the only method tried"
    second = best_of_all(others)
    ahead = difference(advice.answers[advice.method], second)
    clear = "" if ahead.clear else "; no clear difference"
    return (
        f"of {len(advice.tried)} methods it is chosen in {advice.chosen.count(advice.method)} of {advice.size.seeds} "
        f"seeds, and it is {_than(ahead.mean, advice.size.metric)} {spoken(second.method)} "
        f"(95 % interval {ahead.low:+.1f} to {ahead.high:+.1f}{clear})"
    )


def _left_out(advice: AdviceNumbers) -> str:
    if not advice.left_out:
        return ""
    each = [f"{spoken(left.method)} {_why(left)}" for left in advice.left_out]
    return f"; {joined(each)} and {'was' if len(each) == 1 else 'were'} not run"


def _why(left: LeftOut) -> str:
    return "does not fit this task or these models" if left.bytes is None else f"needs {format_bytes(left.bytes)}"
