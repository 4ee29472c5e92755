"""Colors and dashes of methods, and names at the ends of lines and beside points."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest

from consilience.methods import METHODS
from consilience.presentation.label_placement import place_names
from consilience.presentation.method_looks import COLORS, look_order, spoken_name
from consilience.presentation.theme import theme
from consilience.simulation.compare import DEFAULT_METHODS

pytest.importorskip("altair")
from consilience.presentation.charts import curves
from consilience.presentation.line_labels import spread_out
from tests.report_tools import values_of


def test_built_in_methods_have_fixed_looks_and_default_ones_different_colors() -> None:
    order = look_order(list(METHODS))
    assert all(look_order([name])[order.index(name)] == name for name in METHODS)
    assert len({order.index(name) % COLORS for name in DEFAULT_METHODS}) == len(DEFAULT_METHODS) == COLORS
    assert {len(theme(dark)["range"]["category"]) for dark in (False, True)} == {COLORS}


def test_first_label_of_a_method_has_its_look_and_others_another_color() -> None:
    order = look_order(["fedavg every=2", "fedavg every=4", "consilience"])
    assert order[1] == "fedavg every=2" and order[0] == "consilience"
    assert order.index("fedavg every=4") % COLORS not in (0, 1)


def test_method_of_a_user_keeps_its_look_whatever_it_is_compared_with() -> None:
    alone, among = look_order(["mine.py:spread"]), look_order(["mine.py:spread", "fedavg", "consilience"])
    assert alone.index("mine.py:spread") == among.index("mine.py:spread")
    many = [f"kd={i}" for i in range(COLORS)]
    assert len({look_order(many).index(label) % COLORS for label in many}) == COLORS


def test_spoken_names() -> None:
    assert spoken_name("consilience") == "the default method"
    assert spoken_name("fedavg every=2") == "FedAvg every=2" and spoken_name("mine") == "mine"


def test_names_at_line_ends_keep_their_order_and_do_not_overlap() -> None:
    ends = [(299.0, "low"), (100.0, "a"), (101.0, "b"), (100.5, "c"), (0.0, "top")]
    placed = spread_out(ends)
    assert [name for name, _ in placed] == ["top", "a", "c", "b", "low"]
    places = [place for _, place in placed]
    assert all(b - a >= 14 for a, b in pairwise(places)) and places[0] >= 0 and places[-1] <= 300
    assert places[2] == pytest.approx(100.5)


def test_lines_are_labeled_where_names_fit() -> None:
    few = [{"method": m, "round": r, "accuracy": r + ord(m) / 100} for m in "abc" for r in (1, 2)]
    spec = curves(few).to_dict()
    assert spec["usermeta"]["narrowLegend"]["values"] == ["a", "b", "c"]
    named = [row for layer in spec["layer"] if layer.get("name", "").startswith("label_") for row in values_of(layer)]
    assert {row["method"] for row in named} == {"a", "b", "c"}
    many = [{"method": f"m{i}", "round": r, "accuracy": float(r)} for i in range(11) for r in (1, 2)]
    assert "usermeta" not in curves(many).to_dict() and "usermeta" not in curves(few[:2]).to_dict()


def test_names_beside_points_do_not_overlap() -> None:
    points = [(0.5, 0.5), (0.52, 0.5), (0.5, 0.53), (0.95, 0.5)]
    words, size = [(80.0, 14.0)] * 4, (560.0, 300.0)
    offsets = place_names(points, [size], words, taken=[(4.0, 140.0, 120.0, 154.0)])
    centers = [(x * size[0] + dx, y * size[1] + dy) for (x, y), (dx, dy) in zip(points, offsets, strict=True)]
    for (ax, ay), (bx, by) in combinations(centers, 2):
        assert abs(ax - bx) >= 80 or abs(ay - by) >= 14
    assert all(40 <= x <= size[0] - 40 for x, _ in centers)
