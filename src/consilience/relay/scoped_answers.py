"""Answers within a list of partners: means over, and entries of, the members that a member asks for and itself.

They are made from the stored contributions of those members, for one member, and are not kept.
"""

from __future__ import annotations

import numpy as np

from consilience.channels import Answer, scoped_mean
from consilience.channels.robust import robust_mean
from consilience.relay.messages import Messages
from consilience.relay.rejections import Rejection
from consilience.relay.robust_answers import Outdated
from consilience.relay.snapshot import Snapshot
from consilience.relay.store import Store
from consilience.wire import schema
from consilience.wire.rules import Rules

Partners = tuple[int, ...]


class ScopedAnswers:
    """The lists of partners that members of one federation ask with, and the means over them.

    A mean over one partner is that partner's upload, and two means whose lists differ in one partner give that
    partner's upload away. So the charter says how many partners a mean is over at least, row by row, and with how many
    different lists a member may ask; these are counted from the start of the relay.
    """

    def __init__(self, federation: int, messages: Messages, rules: Rules) -> None:
        self._federation, self._messages, self._rules = federation, messages, rules
        self._lists: dict[int, set[Partners]] = {}

    @property
    def fewest(self) -> int:
        """The fewest partners that an answer is of."""
        return self._rules.partners

    def check(self, number: int, partners: Partners) -> None:
        """Refuse a list that the charter does not allow, and one list too many."""
        fewest, lists = self._rules.partners, self._rules.partner_lists
        if not fewest:
            raise Rejection("partners", "the charter lets nobody choose partners; ask without `partner`")
        others = set(partners) - {number}
        if len(others) < fewest:
            raise Rejection(
                "partners", f"{len(others)} partners named beside yourself; the charter asks for {fewest} or more"
            )
        known = self._lists.setdefault(number, set())
        if partners not in known and len(known) >= lists:
            raise Rejection(
                "partners", f"you have asked with {len(known)} different lists of partners; the charter allows {lists}"
            )
        known.add(partners)

    def work(self, partners: Partners) -> int:
        """About how many bytes are read for one channel."""
        return (len(partners) + 1) * self._messages.largest

    def mean(self, store: Store, snapshot: Snapshot, channel: schema.Mean, number: int, partners: Partners) -> Answer:
        """A standing mean over the partners and the member itself.

        A row that fewer partners have than the charter asks for is zeros with count 0.
        """
        members = sorted({number, *partners})
        values, weights = self._read(store, snapshot.revision, channel, members)
        others = np.array([member != number for member in members])
        enough = (weights[others] > 0).sum(0) >= self._rules.partners
        weights = np.where(enough, weights, 0.0)
        answer = scoped_mean(channel, values, weights, np.ones((1, len(members))))[0]
        if not channel.robustness.needs_all:
            return answer
        robust = {k: v.astype(np.float32) for k, v in robust_mean(channel, values, weights).items()}
        return Answer(robust, answer.count)

    def _read(
        self, store: Store, revision: int, channel: schema.Mean, members: list[int]
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """The members' contributions, (members, ...), and their weights; zeros of those who have none."""
        values = {k: np.zeros((len(members), *t.shape), np.float32) for k, t in channel.tensors.items()}
        weights = np.zeros((len(members), *channel.rows))
        with store.reading():  # all from one moment
            record = store.federations.get(self._federation)
            if record is None or record.revision != revision:
                raise Outdated(f"the federation is not at revision {revision} any more")
            for i, member in enumerate(members):
                found = store.contributions.get_with_upload(self._federation, channel.name, member)
                if found is None:
                    continue
                named = self._messages.read_stored(found[1], channel.name)
                for k, value in values.items():
                    value[i] = named[f"{channel.name}.{k}"]
                weights[i] = named[f"{channel.name}.count"] if channel.rows else found[0].weight
        return values, weights


def entries_within(
    entries: list[np.ndarray], keep: int, number: int, partners: Partners, fewest: int
) -> list[np.ndarray]:
    """Of the entries that can be drawn, those of the partners and of the member itself.

    Where fewer partners than `fewest` have an entry, only its own: whose another one is would be known.
    """
    allowed, found = np.array(sorted({number, *partners})), []
    for each in entries:
        within = each[np.isin(each // keep, allowed)]
        others = np.unique(within // keep)
        enough = (others != number).sum() >= fewest
        found.append(within if enough else within[within // keep == number])
    return found
