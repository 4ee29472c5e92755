"""The numbers of an advice as tables: one line per method, and one per learner."""

from __future__ import annotations

from rich.table import Table

from consilience.config.overrides import parse_method
from consilience.kinds import METRICS
from consilience.presentation.advice_numbers import AdviceNumbers
from consilience.presentation.advice_sentences import points, way_alone
from consilience.presentation.score_words import metric_headings
from consilience.presentation.tables import format_bytes, method_label, new_table, plural
from consilience.presentation.trial import difference
from consilience.user_code import short_name

_CAPTION = (
    "On samples that learners held out, in percent. Own: a learner's own answer to its own samples; common: the common "
    "answer to everybody's; both the mean over learners. Gain: of own answers over learning {alone}, paired by "
    "seed, with its 95 % interval. With itself only: alone, with the loss term of that method on own data. Upload and "
    "download: the largest messages of a learner in a round."
)
_LEARNERS_CAPTION = (
    "Own answers to own held-out samples, in percent, by the method that the other seeds choose. Helped, harmed: "
    "by more than {worth}, and more than chance does in one of ten learners (sign test over the samples)."
)


def methods_table(advice: AdviceNumbers) -> Table:
    """Of each method that was run its answers, its gain over learning alone, and its bytes."""
    size, alone = advice.size, advice.answers[advice.alone]
    title = f"{size.data}: {plural(len(size.learners), 'learner')}, {size.rounds} rounds, {plural(size.seeds, 'seed')}"
    table = new_table(title, _CAPTION.format(alone=way_alone(advice)))
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


def learners_table(advice: AdviceNumbers) -> Table:
    """Of each learner its answers alone and together, and what differs by chance."""
    table = new_table("Each learner", _LEARNERS_CAPTION.format(worth=points(advice.size.worth)))
    table.add_column("learner")
    for heading in ("samples", "alone %", "together %", "gain", "", "by chance"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each, other in zip(advice.learners, advice.control, strict=True):
        shares = (f"{each.alone:.1f}", f"{each.together:.1f}", f"{each.gain:+.1f}")
        table.add_row(each.name, str(each.samples), *shares, each.effect, f"{other.gain:+.1f} {other.effect}")
    return table
