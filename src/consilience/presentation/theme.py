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
        "style": {
            "halo": {"fill": paper, "stroke": paper, "strokeWidth": 4},
            "name": {"fill": ink},
        },
        "tick": {"color": ink},
        "boxplot": {"median": {"color": ink}, "rule": {"color": ink}},
    }


CSS = """
:root { color-scheme: light dark; --ink: #1f2328; --paper: #ffffff; --faint: #d8dce1; --soft: #f4f5f7;
        --quiet: #57606a; --note: #fff6da; --edge: #b07d00; --link: #0058a8; --best: #e8f1fb; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --paper: #16191d; --faint: #4a4f57; --soft: #22262c;
          --quiet: #a8b0ba; --note: #3a2f10; --edge: #e0b040; --link: #7ab8f5; --best: #1d2f42; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 74rem; padding: 1rem 1rem 4rem; background: var(--paper); color: var(--ink);
       font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { margin: 0; font-size: 1.6rem; line-height: 1.2; }
h2 { margin: 3rem 0 .4rem; padding-top: .6rem; border-top: 1px solid var(--faint); font-size: 1.2rem;
     line-height: 1.25; }
h1 + section > h2 { margin-top: .1rem; padding: 0; border: 0; color: var(--quiet); font-size: 1rem;
                    font-weight: normal; }
h3 { margin: 1.6rem 0 .3rem; font-size: 1.1rem; line-height: 1.25; }
a { color: var(--link); }
.quiet, footer, figcaption { color: var(--quiet); font-size: .9rem; }
.lead { margin: .6rem 0; max-width: 62rem; font-size: 1.25rem; line-height: 1.35; font-weight: 600; }
.answers { display: grid; grid-template-columns: repeat(auto-fit, minmax(16rem, 1fr)); gap: .8rem; margin: .8rem 0; }
.answers div { padding: .5rem .8rem .6rem; border-radius: .4rem; background: var(--soft); }
.answers dt { font-weight: 600; }
.answers dd { margin: .1rem 0 0; font-size: .92rem; line-height: 1.4; }
.note { margin: .6rem 0; padding: .4rem .8rem; border-left: 4px solid var(--edge); background: var(--note);
        font-size: .92rem; line-height: 1.4; }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr)); gap: 0 1.5rem; }
* + .grid { margin-top: 1rem; }
.grid section { min-width: 0; }
.grid h3 { margin-top: .8rem; }
.grid p { margin: .2rem 0; color: var(--quiet); font-size: .88rem; line-height: 1.35; }
figure { margin: .6rem 0; overflow-x: auto; }
img { max-width: 100%; height: auto; }
.chart { width: 100%; min-height: 6rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .92rem; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--faint); text-align: left; vertical-align: baseline;
         overflow-wrap: normal; background: var(--paper); }
th { font-weight: 600; }
tbody th, thead th:first-child { position: sticky; left: 0; z-index: 1; }
tbody th { overflow-wrap: anywhere; min-width: 9rem; }
.best th, .best td { background: var(--best); font-weight: 600; }
.badge { padding: .05rem .4rem; border-radius: .6rem; background: var(--link); color: var(--paper);
         font-size: .72rem; white-space: nowrap; }
.number { text-align: right; white-space: nowrap; }
thead .number { white-space: normal; }
pre { padding: .8rem; overflow-x: auto; background: var(--soft); font-size: .85rem; line-height: 1.35; }
code { font-family: ui-monospace, monospace; font-size: .9em; }
details { margin: .4rem 0; }
summary { cursor: pointer; }
summary h3 { display: inline; }
.fold { margin: 1.4rem 0 0; padding-top: .8rem; border-top: 1px solid var(--faint); }
nav { position: relative; float: right; margin-left: 1rem; font-size: .92rem; }
nav details { margin: 0; }
nav ul { position: absolute; right: 0; z-index: 1001; width: 24rem; max-height: 80vh; overflow-y: auto; margin: .3rem 0;
         padding: .6rem .8rem; border: 1px solid var(--faint); border-radius: .4rem; background: var(--paper);
         list-style: none; }
nav .level-2 { padding-left: 1rem; }
.vega-embed { width: 100%; }
.vega-embed .vega-actions { background: var(--paper); border-color: var(--faint); }
.vega-embed .vega-actions a { color: var(--ink); }
.vega-embed .vega-actions a:hover { background: var(--soft); color: var(--ink); }
.vega-embed summary { opacity: .4; }
@media (max-width: 40rem) {
  nav { float: none; margin: 0; }
  nav ul { position: static; width: auto; }
  .lead { font-size: 1.1rem; }
  .answers { grid-template-columns: 1fr; gap: .5rem; }
  tbody th { min-width: 8rem; max-width: 9rem; }
  th, td { padding: .3rem .4rem; font-size: .85rem; }
}
"""

# Charts are redrawn when the color scheme or the width changes, and drawn when a folded section is opened. A narrow
# page has panels and legends in one column, and a legend instead of names beside lines and points.
SCRIPT = """
const night = matchMedia("(prefers-color-scheme: dark)");
const themes = JSON.parse(document.getElementById("themes").textContent);
const charts = [...document.querySelectorAll("figure[data-chart]")].map((figure) => ({
  place: figure.querySelector(".chart"), entry: +figure.dataset.entry,
  spec: figure.querySelector("script").textContent }));

function withLegend(spec, legend) {
  for (const layer of spec.layer ?? []) { withLegend(layer, legend); }
  for (const channel of ["color", "fill", "shape", "strokeDash"]) {
    const encoded = spec.encoding?.[channel];
    if (encoded?.legend === null) { encoded.legend = legend; }
  }
}

function sideBySide(spec, room) {
  const count = spec.hconcat.length;
  const width = room < 560 ? room - 70 : Math.max(120, (room - 60) / count - 70);
  for (const panel of spec.hconcat) { panel.width = width; panel.height = width; }
  if (room < 560) { spec.vconcat = spec.hconcat; delete spec.hconcat; }
}

function fitted(spec, room) {
  const panels = spec.facet ? spec.spec : null;
  const legend = spec.usermeta?.narrowLegend;
  if (legend && room < 480) {
    spec.layer = spec.layer.filter((layer) => !layer.name?.startsWith("label_"));
    withLegend(spec, legend);
  }
  if (panels && room < 560) { spec.columns = 1; panels.width = room - 70; }
  else if (panels) { panels.width = (room - 65 * spec.columns) / spec.columns - (spec.columns > 2 ? 45 : 0); }
  else if (spec.hconcat) { sideBySide(spec, room); }
  else { spec.width = "container"; }
  return spec;
}

async function drawOne(chart, dark) {
  const { place, entry, spec } = chart;
  const room = place.clientWidth;
  if (!room) { return; }  // in a folded section
  const look = structuredClone(themes[dark ? "dark" : "light"]);
  const beside = room < 560 ? 130 : 60;  // names of rows, which a legend is not drawn under
  look.legend.columns = Math.max(1, Math.floor((room - beside) / entry));
  look.legend.labelLimit = Math.min(300, room - 100);
  if (room < 560) { look.axis.labelLimit = 150; }
  if (room < 420) { look.axis.labelLimit = 110; }
  const actions = { export: true, source: false, compiled: false, editor: false };
  const options = { config: look, renderer: "svg", ast: true, actions, tooltip: { theme: dark ? "dark" : "light" } };
  chart.drawn = `${dark} ${room}`;
  try { await vegaEmbed(place, fitted(JSON.parse(spec), room), options); }
  catch (error) { place.textContent = `This chart could not be drawn: ${error.message}`; console.error(error); }
}

async function draw() {
  const dark = night.matches;
  for (const chart of charts) {
    if (chart.drawn !== `${dark} ${chart.place.clientWidth}`) { await drawOne(chart, dark); }
  }
  document.documentElement.dataset.drawn = dark ? "dark" : "light";
}

function reveal() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const folded = target && target.querySelector("details.fold:not([open])");
  if (folded) { folded.open = true; }
}

let waiting;
addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(draw, 200); });
addEventListener("hashchange", reveal);
document.querySelectorAll("details.fold").forEach((fold) => fold.addEventListener("toggle", draw));
night.addEventListener("change", draw);
reveal();
draw();
"""
