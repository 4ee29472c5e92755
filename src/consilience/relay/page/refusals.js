// What was refused: how often by code, and the last ones.

import { byId, element, reconcile, setText } from "./dom.js";
import { clock, count, number } from "./format.js";

export function drawRefusals(state) {
  const { refusals, federations } = state;
  const codes = Object.entries(refusals.codes).sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
  const since = `since the relay started at ${clock(state.relay.started)}`;
  setText(byId("refusals-text"), codes.length ? `${count(refusals.count, "request")} ${since}` : `none ${since}`);
  byId("codes").hidden = byId("last-title").hidden = !codes.length;
  reconcile(byId("codes").tBodies[0], codes, ([code]) => code,
    ([code]) => element("tr", {}, element("th", { scope: "row" }, element("code", {}, code)), element("td", { class: "number" })),
    (row, [, times]) => setText(row.cells[1], number(times)));
  reconcile(byId("refusals"), refusals.last, (each) => JSON.stringify(each), (each) => entry(each, federations), () => {});
}

function entry({ time, code, message, request, member, federation, times }, federations) {
  const of = federations.get(federation)?.name;
  const who = member ? (federations.size > 1 && of ? `${member} of ${of}` : member) : "somebody without a valid token";
  return element("li", {},
    element("p", {}, element("time", {}, clock(time, true)), " ", element("code", {}, code), ` ${who}${times > 1 ? `, ${number(times)} times` : ""}`),
    element("p", { class: "quiet" }, `${request}: ${message}`));
}
