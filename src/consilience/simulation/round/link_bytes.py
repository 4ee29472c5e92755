"""Bytes peer to peer: every link's message counts, up at its sender and down at its receiver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from consilience.simulation.records.round_record import Record
from consilience.simulation.round.run_state import RunState
from consilience.simulation.round.scopes import Links
from consilience.wire import schema


def record_link_bytes(run: RunState, record: Record, due: Mapping[int, Sequence[str]], links: Sequence[Links]) -> None:
    """Count the messages of a round. At the first gossip step a message has all that is due; later ones have means.

    A message that is lost counts at its sender only. What has been averaged travels in float32.
    """
    if not links:
        return
    first, later = (np.zeros((2, *run.setup.federations.shape)) for _ in range(2))  # bytes and values
    for cohort, names in due.items():
        at, count, channels = run.at(cohort), run.byte_counts[cohort], run.learners[cohort].channels
        means = [name for name in names if isinstance(channels[name], schema.Mean)]
        first[:, at[0], at[1]] = np.array([[count.up(names)], [count.values("up", names)]])
        later[:, at[0], at[1]] = np.array([[count.in_full(means)], [count.values("up", means)]]) if means else 0.0
    for f, each in enumerate(links):
        for k, unit in enumerate(("bytes", "values")):
            size = first[k, f] + (len(each.arrived) - 1) * later[k, f]
            record[f"{unit}.up"][f] += each.sent.sum(0) * size
            record[f"{unit}.down"][f] += each.arrived[0] @ first[k, f]
            for arrived in each.arrived[1:]:
                record[f"{unit}.down"][f] += arrived @ later[k, f]
