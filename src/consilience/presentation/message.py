"""What runs say, in sentences: did working together help, whom, and at what cost?

A report begins with these sentences; tables on a terminal and `comparison.table()` end in them. They claim no more than
the numbers: differences are paired by seed, with a 95 % interval, and one that may be 0 is no clear difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from consilience.kinds.metric import ACCURACY
from consilience.presentation.gains import (
    ALONE,
    CENTRALIZED,
    Gain,
    Summary,
    alone_for,
    by_seed,
    control_of,
    gains,
    is_control,
)
from consilience.presentation.method_looks import spoken_name
from consilience.presentation.paired import Difference, paired_difference
from consilience.presentation.ranking import RANKINGS, TEST_CHOSE, rank, ranked_by
from consilience.presentation.score_words import in_words_of, metric_of, percent_of
from consilience.presentation.tables import format_bytes, method_label, plural

_DEFAULT, _FEDAVG = "consilience", "fedavg"
_MORE_SEEDS = "One seed does not show how much of this is chance"


@dataclass(frozen=True)
class Message:
    """What runs say, in sentences; sentences that the runs have no numbers for are empty."""

    headline: str
    own: str = ""
    """The own accuracies of the methods that the headline names."""
    helped: str = ""
    """Did working together help? On everybody's data."""
    whom: str = ""
    """Whom did it help? On data like each learner's own."""
    cost: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def sentences(self) -> list[str]:
        """All sentences without the cost, which the headline names."""
        return [each for each in (self.headline, self.own, self.helped, self.whom, *self.warnings) if each]


def message(summaries: Sequence[Summary]) -> Message | None:
    """What runs of one task say; None if none of them was tested yet."""
    known = [s for s in summaries if s["accuracy"]["mean"] is not None and s.get("data") and not s.get("diverged")]
    if not known:
        return None
    if all(s.get("set") for s in known):
        return Message(
            _best_setting(known, len(summaries)), cost=_cost(rank(known)[0], known), warnings=_unclear(known)
        )
    lead = _lead(known)
    named = _named(lead, known)
    gain = dict(zip(map(_label, known), gains(known), strict=True))
    found = Message(_headline(named, known), _own(named), warnings=(*_lowered(known, gain), *_notes(summaries)))
    if lead["method"] in (ALONE, CENTRALIZED):
        return found
    return Message(
        found.headline,
        found.own,
        _helped(lead, known),
        " ".join(filter(None, [_whom(lead, gain[_label(lead)]), _control(control_of(lead, known))])),
        _cost(lead, known),
        found.warnings,
    )


def page_title(summaries: Sequence[Summary]) -> str:
    """What was compared, as a title: "independent, fedavg and consilience on digits"."""
    data = joined([f"{Path(name).name}" for name in dict.fromkeys(s["data"] for s in summaries if s.get("data"))])
    labels = list(dict.fromkeys(s["method"] for s in summaries))
    swept = list(dict.fromkeys(key.removeprefix("method.") for s in summaries for key in s.get("set") or ()))
    what = joined(labels) if len(labels) <= 3 else f"{len(labels)} methods"
    if swept and all(s.get("set") for s in summaries):
        what = f"{plural(len(summaries), 'setting')} of {joined(swept)} for {what}"
    elif len(labels) > 1:
        what += " compared"
    elif len(summaries) > 1:
        what = f"{len(summaries)} runs of {what}"
    return f"{what} on {data}" if data else what


# -- sentences ---------------------------------------------------------------------------------------------------------


def _named(lead: Summary, known: Sequence[Summary]) -> list[Summary]:
    """The runs that matter: the lead, FedAvg, the most accurate, learning alone, one model on all data."""
    exchanging = [s for s in known if s["bytes_total"] > 0]
    fedavg = [s for s in exchanging if s["method"] == _FEDAVG][:1]
    matter = [*fedavg, _best(exchanging)] if len(exchanging) > 2 else exchanging
    alone = alone_for(lead, known) or next((s for s in known if s["method"] == ALONE and not is_control(s)), None)
    all_data = next((s for s in known if s["method"] == CENTRALIZED), None)
    by_label: dict[str, Summary] = {}
    for s in (lead, *matter, alone, all_data):
        if s is not None:
            by_label.setdefault(_label(s), s)
    return list(by_label.values())


def _headline(named: Sequence[Summary], known: Sequence[Summary]) -> str:
    """The accuracy and the bytes of the methods that matter; the lead is the first."""
    lead, *others = named
    metric = metric_of(known)
    clauses = [f"{spoken_name(_label(s))} {s['accuracy']['mean']:.1f} %{_for_bytes(s)}" for s in others]
    exchanging = [s for s in known if s["bytes_total"] > 0]
    chosen = (
        in_words_of(metric, f", the most accurate of {len(exchanging)},")
        if exchanging[1:] and lead["method"] != _DEFAULT
        else ""
    )
    first = f"{_first_name(lead)}{chosen} reaches {percent_of(metric, lead['accuracy']['mean'])}{_for_bytes(lead)}"
    many = plural(max(int(s["learners"]) for s in known), "learner")
    return f"With {many} on {Path(lead['data']).name}, {'; '.join([first, *clauses])}."


def _own(named: Sequence[Summary]) -> str:
    """The own accuracies; one model on all data has none."""
    known = [s for s in named if s["method"] != CENTRALIZED and s["accuracy_own"]["mean"] is not None]
    clauses = [f"{spoken_name(_label(s))} {s['accuracy_own']['mean']:.1f} %" for s in known]
    if clauses and metric_of(known) != ACCURACY:
        return f"Own answers, {metric_of(known).name} on data like each learner's own: {'; '.join(clauses)}."
    return f"Own answers, on data like each learner's own: {'; '.join(clauses)}." if clauses else ""


def _helped(lead: Summary, known: Sequence[Summary]) -> str:
    alone = alone_for(lead, known)
    difference = None if alone is None else paired_difference(by_seed(lead), by_seed(alone))
    if difference is None:
        run = f"no run of {ALONE}, which learns alone,"
        return f"Not known whether it helps: there is {run} with the same data, learners, rounds and seeds."
    name = _capital(spoken_name(_label(lead)))
    size = f"{_accurate(difference, lead)} than learning alone"
    if difference.seeds == 1:
        return f"{name} is {size} on everybody's data, in one seed. {_MORE_SEEDS}."
    if not difference.clear:
        few = " Two seeds are too few to be certain." if difference.seeds == 2 else ""
        return f"No clear difference on everybody's data: {_lower(name)} is {size} ({difference.interval()}).{few}"
    verdict = "Yes" if difference.mean > 0 else "No"
    return f"{verdict}: on everybody's data {_lower(name)} is {size} ({difference.interval()})."


def _accurate(difference: Difference, of: Summary) -> str:
    """How much more accurate a run is than another."""
    size = f"{abs(difference.mean):.1f} points {'more' if difference.mean >= 0 else 'less'} accurate"
    return in_words_of(metric_of([of]), size)


def _whom(lead: Summary, gain: Gain | None) -> str:
    if gain is None:
        return ""
    same = gain.learners - gain.helped - gain.harmed
    between = f", {same} {'is' if same == 1 else 'are'} about the same" if same else ""
    return (
        f"On data like their own, {spoken_name(_label(lead))} helps {gain.helped} of {plural(gain.learners, 'learner')}"
        f"{_over_seeds(gain)} by more than a point and harms {gain.harmed or 'none'}{between}; "
        f"on average {_points(gain.difference)}."
    )


def _control(gain: Gain | None) -> str:
    """How many learners differ as much by the order of batches alone."""
    if gain is None:
        return ""
    helps = f"helps {gain.helped or 'none'} of {plural(gain.learners, 'learner')}"
    return f"Control: learning alone with another batch order {helps} and harms {gain.harmed or 'none'}."


def _cost(lead: Summary, known: Sequence[Summary]) -> str:
    if not lead["bytes_total"]:
        return f"{_capital(spoken_name(_label(lead)))} sends nothing."
    up, down = (format_bytes(lead["bytes"][way]) for way in ("up", "down"))
    words = [f"{format_bytes(lead['bytes_total'])} in all: per learner and round {up} up and {down} down."]
    fedavg = next((s for s in known if s["method"] == _FEDAVG and s["bytes_total"] > 0 and s is not lead), None)
    if fedavg is not None:
        ratio = fedavg["bytes_total"] / lead["bytes_total"]
        amount = f"{ratio:.1f} times as much" if ratio >= 1 else f"{ratio:.0%} of that".replace("%", " %")
        difference = paired_difference(by_seed(fedavg), by_seed(lead))
        words.append(f"{spoken_name(_label(fedavg))} sends {amount}{_compared(difference, lead)}.")
    return " ".join(words)


def _compared(difference: Difference | None, of: Summary) -> str:
    if difference is None:
        return ""
    size = f" and is {_accurate(difference, of)}"
    unclear = ", no clear difference" if difference.seeds > 1 and not difference.clear else ""
    return f"{size}{unclear} ({difference.interval()})"


def _lowered(known: Sequence[Summary], gain: dict[str, Gain | None]) -> list[str]:
    """A warning that names the methods under which learners lose accuracy on data like their own."""
    found: list[str] = []
    doubtful: list[str] = []
    for s in known:
        own = gain[_label(s)]
        if own is None or not s["bytes_total"] or own.difference.mean >= 0 or not own.harmed:
            continue
        words = ("points on average", f"{plural(own.learners, 'learner')}{_over_seeds(own)} lose more than a point")
        unit, lost = words if not found else ("", str(own.learners))
        found.append(f"{_label(s)} {own.difference.mean:+.1f} {unit}".rstrip() + f" ({own.harmed} of {lost})")
        doubtful += [] if own.difference.clear else [_label(s)]
    if not found:
        return []
    which = "" if len(doubtful) == len(found) else f": {joined(doubtful)}"
    doubt = f" Not certain with so few seeds{which}."
    what = f"Working together lowers {metric_of(known).name} on own data"
    return [f"{what}: {'; '.join(found)}.{doubt if doubtful else ''}"]


def _notes(summaries: Sequence[Summary]) -> list[str]:
    """What limits the claims: unfinished and diverged runs, no run of learning alone, accuracy of a probe."""
    notes = []
    for what, labels in (
        ("Not finished", [_label(s) for s in summaries if not s["finished"]]),
        ("Diverged", [_label(s) for s in summaries if s.get("diverged")]),
    ):
        notes += [f"{what}: {', '.join(labels)}."] if labels else []
    probed = [_label(s) for s in summaries if s.get("accuracy_source", "classifier") != "classifier"]
    if probed:
        notes.append(f"Trained without labels, accuracy of a probe: {', '.join(probed)}.")
    return notes


def _best_setting(known: Sequence[Summary], tried: int) -> str:
    """The best and the worst of the settings of a sweep, by the metric that ranks them."""
    ranked, metric = rank(known), ranked_by(known)
    best, worst = ranked[0], ranked[-1]
    where = f"With {plural(int(best['learners']), 'learner')} on {Path(best['data']).name}"
    tests = f" ({best['accuracy']['mean']:.1f} % on the test set)" if metric == "accuracy_validation" else ""
    ranking = in_words_of(metric_of(known), RANKINGS[metric])
    return (
        f"{where}, {_setting(best)} is the best of {plural(tried, 'setting')} of {best['method']} by "
        f"{ranking}: {best[metric]['mean']:.1f} %{tests}{_for_bytes(best)}; the worst is {_setting(worst)}: "
        f"{worst[metric]['mean']:.1f} %{_for_bytes(worst)}."
    )


def _unclear(known: Sequence[Summary]) -> tuple[str, ...]:
    """Whether test data chose the best setting of a sweep, and whether it is clearly better than the second."""
    metric = ranked_by(known)
    chosen = (
        ()
        if metric == "accuracy_validation"
        else (_capital(in_words_of(metric_of(known), TEST_CHOSE.format(metric=RANKINGS[metric]))) + ".",)
    )
    first, *others = rank(known)
    difference = paired_difference(by_seed(first, metric), by_seed(others[0], metric)) if others else None
    if difference is None or difference.clear:
        return chosen
    if difference.seeds == 1:
        return (*chosen, f"The best setting is {difference.mean:.1f} points ahead of the second. {_MORE_SEEDS}.")
    return (*chosen, f"No clear difference between the best setting and the second: {_points(difference)}.")


# -- choices and words -------------------------------------------------------------------------------------------------


def _lead(known: Sequence[Summary]) -> Summary:
    """The run that the sentences are about: the default method, else the most accurate one that exchanges."""
    default = [s for s in known if s["method"] == _DEFAULT]
    exchanging = [s for s in known if s["bytes_total"] > 0]
    alone = [s for s in known if s["method"] not in (CENTRALIZED, ALONE)]
    return _best(default or exchanging or alone or known)


def _best(known: Sequence[Summary]) -> Summary:
    """The most accurate run; of those that are equal to a tenth of a percent, the one that sends the least."""
    return max(known, key=lambda s: (round(float(s["accuracy"]["mean"]), 1), -float(s["bytes_total"])))


def _label(summary: Summary) -> str:
    return str(summary.get("label") or method_label(summary["method"], summary["settings"]))


def _setting(summary: Summary) -> str:
    return " ".join(f"{key.removeprefix('method.')}={value}" for key, value in summary["set"].items())


def _first_name(summary: Summary) -> str:
    """The name of a method where it is first mentioned."""
    name = spoken_name(_label(summary))
    return f"{name} ({_DEFAULT})" if summary["method"] == _DEFAULT and _DEFAULT not in name else name


def _for_bytes(summary: Summary) -> str:
    return f" for {format_bytes(summary['bytes_total'])}" if summary["bytes_total"] else ""


def _points(difference: Difference) -> str:
    return f"{difference.mean:+.1f} points ({difference.interval()})"


def _over_seeds(gain: Gain) -> str:
    return f" over {gain.difference.seeds} seeds" if gain.difference.seeds > 1 else ""


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _lower(text: str) -> str:
    """A name within a sentence: only "The" loses its capital."""
    return text[:1].lower() + text[1:] if text.startswith("The ") else text


def joined(words: Sequence[str]) -> str:
    """Words of a list: "a, b and c"."""
    return " and ".join([*([", ".join(words[:-1])] if words[1:] else []), *words[-1:]])
