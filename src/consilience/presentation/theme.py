"""The style of pages and charts, light and dark."""

from __future__ import annotations

from typing import Any

# The colors of Okabe and Ito, which are distinct for all kinds of color vision.
_COLORS = ("#CC79A7", "#E69F00", "#56B4E9")
_SHAPES = ("circle", "square", "triangle-up", "cross", "diamond", "triangle-down", "triangle-right", "stroke")


def theme(dark: bool = False) -> dict[str, Any]:
    """The style of charts as a Vega-Lite configuration."""
    ink, faint = ("#e8e8e8", "#4a4f57") if dark else ("#1f2328", "#d8dce1")
    words = {"labelColor": ink, "titleColor": ink, "titleFontWeight": "normal"}
    # Dark colors are lighter in the dark theme, and yellow is darker in the light theme.
    first = ("#3d8fe0", "#f07a2a", "#1fbf94") if dark else ("#0072B2", "#D55E00", "#009E73")
    last = ("#ffffff", "#F0E442") if dark else ("#000000", "#9A8B00")
    more = ("#9aa0a6", "#b98a5a") if dark else ("#8a8f96", "#7a4a1e")  # for ten classes, which also differ in shape
    paper = "#16191d" if dark else "#ffffff"
    return {
        "background": paper,
        "font": "system-ui, sans-serif",
        "view": {"stroke": None},
        "axis": words | {"gridColor": faint, "domainColor": faint, "tickColor": faint, "labelLimit": 230},
        "legend": words | {"orient": "bottom", "labelLimit": 300, "symbolSize": 250, "symbolStrokeWidth": 2},
        "header": {"labelColor": ink, "titleColor": ink, "labelFontSize": 12},
        "title": {"color": ink},
        "range": {
            "category": [*first, *_COLORS, *last],
            "ordinal": [*first, *_COLORS, *last, *more],
            "symbol": list(_SHAPES),
        },
        "text": {"color": ink},
        "style": {"halo": {"fill": paper, "stroke": paper, "strokeWidth": 4}, "name": {"fill": ink}},
        "boxplot": {"median": {"color": ink}, "rule": {"color": ink}},
    }


CSS = """
:root { color-scheme: light dark; --ink: #1f2328; --paper: #ffffff; --faint: #d8dce1; --soft: #f4f5f7;
        --quiet: #57606a; --note: #fff6da; --edge: #b07d00; --link: #0058a8; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --paper: #16191d; --faint: #4a4f57; --soft: #22262c;
          --quiet: #a8b0ba; --note: #3a2f10; --edge: #e0b040; --link: #7ab8f5; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 64rem; padding: 1.5rem 1rem 4rem; background: var(--paper); color: var(--ink);
       font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.7rem; line-height: 1.2; }
h2 { margin-top: 3rem; padding-top: .6rem; border-top: 1px solid var(--faint); font-size: 1.35rem; line-height: 1.25; }
h3 { margin-top: 2.2rem; font-size: 1.1rem; }
a { color: var(--link); }
.quiet, footer, figcaption { color: var(--quiet); font-size: .9rem; }
.note { margin: .5rem 0; padding: .5rem .8rem; border-left: 4px solid var(--edge); background: var(--note); }
figure { margin: 1rem 0; overflow-x: auto; }
img { max-width: 100%; height: auto; }
.chart { width: 100%; min-height: 6rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .92rem; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--faint); text-align: left; vertical-align: baseline;
         overflow-wrap: normal; }
th { font-weight: 600; }
tbody th { overflow-wrap: anywhere; min-width: 9rem; }
.number { text-align: right; white-space: nowrap; }
thead .number { white-space: normal; }
pre { padding: .8rem; overflow-x: auto; background: var(--soft); font-size: .85rem; line-height: 1.35; }
code { font-family: ui-monospace, monospace; font-size: .9em; }
details { margin: .4rem 0; }
summary { cursor: pointer; }
.vega-embed { width: 100%; }
.vega-embed .vega-actions { background: var(--paper); border-color: var(--faint); }
.vega-embed .vega-actions a { color: var(--ink); }
.vega-embed .vega-actions a:hover { background: var(--soft); color: var(--ink); }
.vega-embed summary { opacity: .4; }
@media (max-width: 40rem) {
  table, tbody { display: block; }
  thead { position: absolute; left: -99rem; }
  tr { display: block; padding: .5rem 0; border-bottom: 2px solid var(--faint); }
  th, td { display: flex; justify-content: space-between; gap: 1rem; padding: .1rem 0; border: 0; }
  td.number { text-align: right; }
  td::before { content: attr(data-label); color: var(--quiet); }
}
"""

# Charts are redrawn when the color scheme changes. A narrow page has panels and legends in one column.
SCRIPT = """
const night = matchMedia("(prefers-color-scheme: dark)");
const themes = JSON.parse(document.getElementById("themes").textContent);
const charts = [...document.querySelectorAll("figure[data-chart]")].map((figure) => ({
  place: figure.querySelector(".chart"), entry: +figure.dataset.entry,
  spec: figure.querySelector("script").textContent }));

function fitted(spec, room) {
  const panels = spec.facet ? spec.spec : null;
  if (panels && room < 560) { spec.columns = 1; panels.width = room - 70; }
  else if (panels) { panels.width = (room - 65 * spec.columns) / spec.columns - (spec.columns > 2 ? 45 : 0); }
  else { spec.width = "container"; }
  return spec;
}

async function draw() {
  const dark = night.matches;
  for (const { place, entry, spec } of charts) {
    const room = place.clientWidth;
    const look = structuredClone(themes[dark ? "dark" : "light"]);
    const beside = room < 560 ? 130 : 60;  // names of rows, which a legend is not drawn under
    look.legend.columns = Math.max(1, Math.floor((room - beside) / entry));
    look.legend.labelLimit = Math.min(300, room - 100);
    if (room < 560) { look.axis.labelLimit = 110; }
    const actions = { export: true, source: false, compiled: false, editor: false };
    const options = { config: look, renderer: "svg", ast: true, actions, tooltip: { theme: dark ? "dark" : "light" } };
    try { await vegaEmbed(place, fitted(JSON.parse(spec), room), options); }
    catch (error) { place.textContent = `This chart could not be drawn: ${error.message}`; console.error(error); }
  }
  document.documentElement.dataset.drawn = dark ? "dark" : "light";
}

night.addEventListener("change", draw);
draw();
"""
