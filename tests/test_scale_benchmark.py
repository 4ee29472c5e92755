"""The benchmark of nodes: what it prints of its points, and that it refuses other weights."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.scale import table_of_nodes

ALONE: dict[str, Any] = {"samples": 12, "processes": 1, "nodes": 0, "cpu": 0.2, "wall": 0.4, "start": 0.1, "bits": 7}
SENT = {"calls": 10.0, "sent": 2048.0, "received": 4096.0}


def test_a_call_costs_what_a_round_takes_more_than_in_one_process() -> None:
    node = ALONE | SENT | {"nodes": 1, "cpu": 0.25, "wall": 0.5, "start": 4.0}
    head, first, second = table_of_nodes([ALONE, node])
    assert head.split()[-3:] == ["ms/call", "cpu", "ms"]
    assert first.split() == ["12", "1", "processes", "0.200", "0.400", "1.00", "0.10"]
    assert second.split() == ["12", "1", "nodes", "0.250", "0.500", "1.25", "4.00", "10", "2", "4", "10.00", "5.00"]


def test_other_weights_than_in_one_process_are_refused() -> None:
    with pytest.raises(SystemExit, match="the weights are others than in one process"):
        list(table_of_nodes([ALONE, ALONE | SENT | {"nodes": 1, "bits": 8}]))
