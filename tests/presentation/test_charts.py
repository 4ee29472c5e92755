"""Charts of a report: labels, colors, and drawing in a browser in light and dark themes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consilience.presentation import charts, scatter_charts
from consilience.presentation.label_placement import place_labels
from consilience.presentation.theme import theme
from consilience.report.page import Section, write_page, write_report

pytest.importorskip("altair")
pytest.importorskip("vl_convert")
from tests.report_tools import ALL, run_folder, run_with_gain, values_of

CHROMIUM = shutil.which("chromium")
CHARTS = {
    "curves": charts.curves([{"method": m, "round": r, "accuracy": r} for m in "ab" for r in (1, 2)]),
    "silent": charts.over_bytes([{"method": "a", "bytes": 0, "accuracy": 1.0}]),
    "bytes": charts.over_bytes([{"method": m, "bytes": b, "accuracy": 1.0} for m in "ab" for b in (0, 10, 1e7)]),
    "spread": charts.spread([{"method": "a", "accuracy": a} for a in (1.0, 2.0)]),
    "partition": charts.class_counts_heatmap([{"learner": 0, "class": c, "samples": 3} for c in "ab"]),
    "losses": charts.losses([{"method": "a", "term": t, "round": r, "value": r} for t in "xyz" for r in (1, 2)]),
    "bound": charts.mutual_information([{"method": "a", "round": r, "mutual_information": 0.1} for r in (1, 2)]),
    "heatmap": charts.heatmap([{"a.b": x, "c": "d", "gain": x - 1.5} for x in (1, 2)], "a.b", "c", "gain"),
    "phases": charts.phases([{"method": "a", "phase": p, "seconds": 1.0} for p in ("train", "exchange")]),
    "scatter": scatter_charts.scatter([{"x": x, "y": x, "learner": x, "class": "c"} for x in (0.0, 1.0)]),
    "side by side": scatter_charts.scatters(
        [(f"round {r}", [{"x": x, "y": x, "learner": x, "class": "c"} for x in (0.0, 1.0)]) for r in (1, 2)]
    ),
    "frontier": scatter_charts.frontier(
        [{"a.b": b, "c": b % 7, "name": f"{b}"} for b in (0, 10, 12, 500)], "a.b", "c", "name"
    ),
    "nobody sends": scatter_charts.frontier([{"b": 0, "c": c, "name": "n"} for c in (1.0, None)], "b", "c", "name"),
}

SENT = (0, 506, 592, 1012, 1880, 2025, 2312, 3560, 3752, 4050, 7120, 7204, 7288, 7457, 7794, 33726, 62876, 124848)
REACHED = (77.9, 84.8, 78.6, 85.9, 80, 86.6, 81.7, 80.1, 82.1, 86.2, 81.9, 87, 87.8, 88.1, 87.9, 88, 88.3, 88.4)


def test_frontier_labels_do_not_overlap_and_the_line_follows_the_best() -> None:
    rows = [{"bytes": b, "accuracy": a, "what": f"way {i}"} for i, (b, a) in enumerate(zip(SENT, REACHED, strict=True))]
    spec = scatter_charts.frontier(rows, "bytes", "accuracy", "what").to_dict()
    stairs, marks, *_ = spec["layer"]
    told, line = (values_of(layer) for layer in (marks, stairs))
    assert [row["key"] for row in told][:2] == ["1  way 0", "2  way 1"] and len(told) == 18
    best = [i + 1 for i in range(18) if all(a < REACHED[i] for a in REACHED[:i])]
    assert [row["number"] for row in told if row["best"]] == best == [1, 2, 4, 6, 12, 13, 14, 17, 18]
    assert [row["accuracy"] for row in line] == [*(REACHED[i - 1] for i in best), 88.4]  # continued to the edge
    assert 0 < told[0]["place"] < 506 and "? '0' :" in marks["encoding"]["x"]["axis"]["labelExpr"]
    (left, right), (bottom, top) = (marks["encoding"][axis]["scale"]["domain"] for axis in ("x", "y"))
    for width in (260, 640, 860):
        at = [
            (
                width * np.log(row["place"] / left) / np.log(right / left) + row["right"],
                450 * (top - row["accuracy"]) / (top - bottom) + row["down"],
            )
            for row in told
        ]
        close = [(p, q) for i, p in enumerate(at) for q in at[:i] if abs(p[0] - q[0]) < 14 and abs(p[1] - q[1]) < 11]
        assert not close, f"numbers lie on each other in a chart {width} pixels wide"


def test_labels_avoid_points_other_labels_and_the_edge() -> None:
    assert place_labels([(0.5, 0.5)], [(100, 100)], (10, 10)) == [(12.0, 0.0)]
    ((right, _),) = place_labels([(0.99, 0.5)], [(100, 100)], (10, 10))
    assert right <= 0
    first, second = place_labels([(0.5, 0.5), (0.5, 0.5)], [(100, 100)], (10, 10))
    assert first != second


def test_classes_differ_in_color_and_shape_in_light_and_dark_themes() -> None:
    rows = [{"x": c, "y": c % 3, "learner": w, "class": str(c)} for c, w in product(range(20), range(2))]
    encoding = scatter_charts.scatter(rows).to_dict()["layer"][0]["encoding"]
    assert encoding["fill"]["scale"]["range"] == "ordinal" and encoding["fill"]["scale"]["domain"][-1] == "19"
    shapes = encoding["shape"]["scale"]["range"]
    for dark in (False, True):
        colors = theme(dark)["range"]["ordinal"]
        assert len(set(colors)) == 10 and theme(dark)["background"] not in colors
        assert len({(i % 10, shapes[i % len(shapes)]) for i in range(20)}) == 20


def test_compact_class_has_one_label_and_a_split_class_two() -> None:
    rows = [{"x": x, "y": 0.0, "learner": w, "class": "near"} for x, w in ((0.0, 0), (0.01, 1))]
    rows += [{"x": x, "y": 1.0, "learner": w, "class": "far"} for x, w in ((0.0, 0), (1.0, 1))]
    words = scatter_charts.scatter(rows).to_dict()["layer"][-1]
    assert sorted(row["class"] for row in values_of(words)) == ["far", "far", "near"]


def test_more_methods_than_colors_differ_in_dashes_or_colors() -> None:
    names = [f"m{i}" for i in range(12)]
    rows = [{"method": name, "round": 1, "accuracy": 1.0} for name in names]
    dashes = charts.curves(rows).to_dict()["encoding"]["strokeDash"]["scale"]["range"]
    looks = {(i % 8, tuple(dashes[i % len(dashes)])) for i in range(12)}
    assert len(looks) == 12


def test_heatmap_of_signed_gains_is_centered_at_zero() -> None:
    spec = CHARTS["heatmap"].to_dict()
    cells, words = spec["layer"]
    assert cells["encoding"]["color"]["scale"]["domain"] == [-0.5, 0.5]
    assert words["mark"]["type"] == "text"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here")
    quiet = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    with playwright.sync_playwright() as library:
        opened = library.chromium.launch(executable_path=CHROMIUM, args=[*quiet, "--disable-sync"])
        yield opened
        opened.close()


def open_page(browser: Any, page: Path, scheme: str = "light", width: int = 1000) -> tuple[Any, list[str]]:
    """Opens a page offline and returns it with its drawn charts, and all errors."""
    context = browser.new_context(offline=True, color_scheme=scheme, viewport={"width": width, "height": 900})
    view, wrong = context.new_page(), []
    view.on("console", lambda said: wrong.append(said.text))
    view.on("pageerror", lambda error: wrong.append(str(error)))
    view.on("request", lambda request: wrong.append(request.url) if not request.url.startswith("file:") else None)
    view.goto(page.as_uri())
    view.wait_for_selector("html[data-drawn]", timeout=60_000)
    return view, wrong


@pytest.mark.parametrize(("scheme", "width"), [("light", 1000), ("dark", 1000), ("light", 390)])
def test_browser_draws_every_chart_offline(browser: Any, tmp_path: Path, scheme: str, width: int) -> None:
    page = write_report([run_folder(tmp_path / "a")], tmp_path / "report.html", None)
    view, wrong = open_page(browser, page, scheme, width)
    assert wrong == []
    assert [view.locator(f'figure[data-chart="{name}"] svg.marks').count() for name in ALL] == [1] * len(ALL)
    assert view.evaluate("document.documentElement.scrollWidth") <= width
    paper = view.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(22, 25, 29)"}[scheme]
    view.context.close()


def test_chart_labels_are_light_in_the_dark_theme(browser: Any, tmp_path: Path) -> None:
    write_page(tmp_path / "p.html", "P", [Section("frontier", figure=CHARTS["frontier"])], "c")
    for scheme, ink in (("light", "#1f2328"), ("dark", "#e8e8e8")):
        view, wrong = open_page(browser, tmp_path / "p.html", scheme, 390)
        words = view.locator("figure svg.marks g.mark-text.role-mark").last.locator("text")
        assert wrong == [] and words.all_text_contents() == ["1", "2", "3", "4"]
        assert {each.get_attribute("fill") for each in words.all()} == {ink}
        view.context.close()


def test_charts_are_redrawn_when_the_theme_changes(browser: Any, tmp_path: Path) -> None:
    write_page(tmp_path / "p.html", "P", [Section(n, figure=c) for n, c in CHARTS.items()], "c")
    view, wrong = open_page(browser, tmp_path / "p.html")
    assert (wrong, view.locator("figure svg.marks").count()) == ([], len(CHARTS))
    by_day = view.locator('figure[data-chart="curves"] svg.marks').inner_html()
    view.emulate_media(color_scheme="dark")
    view.wait_for_selector('html[data-drawn="dark"]')
    assert wrong == []
    assert view.locator("figure svg.marks").count() == len(CHARTS)
    assert view.locator('figure[data-chart="curves"] svg.marks').inner_html() != by_day
    view.context.close()


def test_first_screen_answers_whether_it_helped_whom_and_at_what_cost(browser: Any, tmp_path: Path) -> None:
    runs = [("independent", 0.0, 0.0), ("fedavg", -5.0, 5e6), ("fedprox", -4.0, 4e6), ("consilience", 3.0, 5e5)]
    folders = [run_with_gain(tmp_path / name, name, gain, sent) for name, gain, sent in runs]
    page = write_report(folders, tmp_path / "report.html")
    view, wrong = open_page(browser, page, width=1280)
    for place in (".lead", ".answers", ".note", 'figure[data-chart="cost"] svg', 'figure[data-chart="gains"] svg'):
        box = view.locator(place).first.bounding_box()
        assert box["y"] >= 0 and box["y"] + box["height"] <= 900, place
    assert [text.split("?")[0] for text in view.locator(".answers dt").all_text_contents()] == [
        "Did it help",
        "Whom did it help",
        "At what cost",
    ]
    names = view.locator('figure[data-chart="cost"] svg text').all_text_contents()
    assert {"fedavg", "fedprox", "consilience"} <= set(names) and "learning alone: 21.5 %" in names
    view.locator('nav a[href="#losses"]').evaluate("link => link.click()")
    view.wait_for_selector("#losses details.fold[open]")
    assert wrong == []
    view.context.close()


def test_phone_has_a_legend_instead_of_names_and_a_table_with_a_fixed_first_column(
    browser: Any, tmp_path: Path
) -> None:
    runs = [("independent", 0.0, 0.0), ("fedavg", -5.0, 5e6), ("consilience", 3.0, 5e5)]
    folders = [run_with_gain(tmp_path / name, name, gain, sent) for name, gain, sent in runs]
    view, wrong = open_page(browser, write_report(folders, tmp_path / "report.html"), width=390)
    assert wrong == [] and view.evaluate("document.documentElement.scrollWidth") <= 390
    for chart in ("cost", "accuracy"):
        assert view.locator(f'figure[data-chart="{chart}"] g.role-legend-label text').count() >= 2
    before = view.locator("#summary tbody th").first.bounding_box()["x"]
    view.locator("#summary .wide").evaluate("box => { box.scrollLeft = 200; }")
    assert view.locator("#summary .wide").evaluate("box => box.scrollLeft") > 0
    assert view.locator("#summary tbody th").first.bounding_box()["x"] == before
    view.context.close()
