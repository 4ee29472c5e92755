// A small chart of bars, drawn for the width that it has: uploads in each of the last 60 minutes.

import { element, shape } from "./dom.js";
import { clock, count, number } from "./format.js";

const HEIGHT = 150, TOP = 18, BOTTOM = 24, RIGHT = 4;

// A round number at or above the largest value.
function ceiling(largest) {
  const power = 10 ** Math.floor(Math.log10(Math.max(largest, 1)));
  return [1, 2, 4, 5, 10].map((step) => step * power).find((value) => value >= Math.max(largest, 4));
}

export function drawChart(place, caption, state) {
  const width = Math.max(place.clientWidth, 200), minutes = state.minutes, now = state.now, minute = Math.floor(now / 60);
  const shown = [width, minute, ...minutes].join(" ");
  if (place.firstChild && place.dataset.shown === shown) { return; }
  place.dataset.shown = shown;
  const top = ceiling(Math.max(...minutes));
  const left = 12 + 8 * String(number(top)).length, step = (width - left - RIGHT) / minutes.length;
  const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top);
  const label = (x, at, text, anchor) => shape("text", { x, y: at, "text-anchor": anchor }, text);
  const lines = [top, top / 2].flatMap((value) => [
    shape("line", { x1: left, x2: width - RIGHT, y1: y(value), y2: y(value), class: "grid-line" }),
    label(left - 6, y(value) + 4, number(value), "end"),
  ]);
  const bars = minutes.map((uploads, i) => uploads === 0 ? null : shape("rect", {
    x: left + i * step + 0.5, width: Math.max(step - 1.5, 1), y: y(uploads), height: HEIGHT - BOTTOM - y(uploads), rx: 1,
  }, shape("title", {}, `${clock((minute - 59 + i) * 60)}: ${count(uploads, "upload")}`)));
  const axis = shape("line", { x1: left, x2: width - RIGHT, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM, class: "axis" });
  const times = [[0, "start"], [30, "middle"], [60, "end"]].map(([i, anchor]) =>
    label(left + i * step, HEIGHT - 6, i === 60 ? "now" : clock((minute - 60 + i) * 60), anchor));
  place.replaceChildren(shape("svg", {
    width, height: HEIGHT, role: "img", "aria-labelledby": "speed-title chart-text", class: "chart",
  }, ...lines, ...bars, axis, ...times));
  const total = minutes.reduce((a, b) => a + b, 0);
  const counted = now - state.relay.started < 3600 ? `since the relay started at ${clock(state.relay.started)}`
    : "in the last hour";
  caption.textContent = `${count(total, "upload")} ${counted}, of all federations together`;
}

// The same without labels, for one federation.
export function sparkline(minutes) {
  const width = 120, height = 26, top = Math.max(...minutes, 4), step = width / 60;
  const first = 60 - minutes.length;
  const bars = minutes.map((uploads, i) => uploads === 0 ? null : shape("rect", {
    x: (first + i) * step, width: step - 0.4, y: height * (1 - uploads / top), height: height * uploads / top,
  }));
  return shape("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", class: "spark",
    "aria-hidden": "true" }, ...bars);
}

export function progress(done, of) {
  const bar = element("progress", { max: Math.max(of, 1), value: done });
  bar.setAttribute("aria-hidden", "true");  // the text beside it says the same
  return bar;
}
