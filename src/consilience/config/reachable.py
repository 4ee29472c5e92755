"""The setting `reachable`: which learners can be reached in a round, by a fixed plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from consilience.config.parsing import Form, Number, parse_setting

_SOME = Form((Number("K", lambda value: value >= 1 and value == int(value), "a whole number, 1 or more"),))
_FORMS = {"all": Form(), "fixed": _SOME, "turns": _SOME}


@dataclass(frozen=True)
class Reachable:
    """Who can be reached: all learners; "fixed", always the first `count`; "turns", `count` of them in turn."""

    kind: Literal["all", "fixed", "turns"] = "all"
    count: int = 0

    def learners(self, number: int, round_: int) -> list[bool]:
        """Which of a number of learners can be reached in a round, for each of them; the first round is 1.

        >>> Reachable("turns", 2).learners(5, 3)  # after 0 and 1, and 2 and 3
        [True, False, False, False, True]
        """
        if self.kind == "all":
            return [True] * number
        first = (round_ - 1) * self.count if self.kind == "turns" else 0
        found = {k % number for k in range(first, first + min(self.count, number))}
        return [k in found for k in range(number)]


def parse_reachable(text: str) -> Reachable:
    """The plan that a setting names.

    >>> parse_reachable("fixed(2)")
    Reachable(kind='fixed', count=2)
    """
    word, numbers = parse_setting("reachable", text, _FORMS)
    return Reachable(word, int(numbers[0]) if numbers else 0)  # type: ignore[arg-type]  # a key of _FORMS


ALL = Reachable()
"""Every learner can be reached in every round."""
