// One card per federation: where it is, how fast, and whom its moving means wait for.

import { byId, element, reconcile, setText } from "./dom.js";
import { progress, sparkline } from "./chart.js";
import { bytes, count, duration, list, number } from "./format.js";

export function drawFederations(state, onShowMembers) {
  const all = state.sorted;
  byId("no-federations").hidden = all.length > 0;
  reconcile(byId("federations"), all, (federation) => federation.id, () => element("li", { class: "card" }),
    (card, federation) => {
      const text = JSON.stringify(federation);
      if (card.shown === text) { return; }  // nothing to draw again
      card.shown = text;
      const focused = card.contains(document.activeElement);
      card.replaceChildren(...(federation.served ? content(federation, onShowMembers) : lost(federation)));
      if (focused) { card.querySelector("button")?.focus(); }
    });
}

function lost({ name, why }) {
  return [element("h3", {}, name), element("p", { class: "error" }, `Not served: ${why}. Restore a backup.`)];
}

function content(federation, onShowMembers) {
  const { name, method, round, channels, members, uploads } = federation;
  const show = element("button", { type: "button", class: "plain", "aria-label": `Show the members of ${name}` }, "Show members");
  show.addEventListener("click", () => onShowMembers(federation.id));
  const states = Object.entries(members).filter(([, n]) => n).map(([state, n]) => `${number(n)} ${state}`);
  const speed = [`${number(federation.uploads_per_minute)} uploads per minute`,
    `${number(federation.rounds_per_hour)} rounds per hour`];
  return [
    element("div", { class: "card-head" }, element("h3", {}, name), element("span", { class: "quiet" }, method)),
    element("div", { class: "card-round" },
      element("p", { class: "big" }, round < 0 ? "Not started" : `Round ${number(round)}`), sparkline(federation.minutes)),
    element("p", { class: "quiet" }, speed.join(", ")),
    ...channels.filter((channel) => channel.kind === "moving").map((channel) => moving(channel, federation)),
    element("p", { class: "quiet card-foot" },
      element("span", {}, `${list(states) || "no member"}; ${count(uploads, "upload")}, ${bytes(federation.bytes)}`), show),
  ];
}

function moving(channel, { expected, deadline }) {
  const { name, version, waiting, missing, missing_names: names } = channel;
  const place = element("div", { class: "mean" }, element("p", {}, element("strong", {}, name), ` at version ${number(version)}`));
  const text = element("p", { class: "quiet" });
  if (waiting === 0) {
    setText(text, `nobody has uploaded since; ${count(expected, "member")} expected`);
  } else {
    place.append(progress(waiting, expected));
    const who = missing ? `; waits up to ${duration(deadline)} for ${list(names, missing - names.length)}` : "";
    setText(text, `${number(waiting)} of ${number(expected)} uploaded${who}`);
  }
  place.append(text);
  return place;
}
