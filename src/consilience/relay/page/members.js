// The table of members: searched, filtered and sorted here; rows beyond the first are shown when they are asked for.

import { byId, element, reconcile, setText } from "./dom.js";
import { ago, bytes, count, number } from "./format.js";

const FIRST = 25, STEP = 100;  // rows that are shown at first, and how many more each time
const STATES = {
  active: "has uploaded", away: "missed a deadline: moving means do not wait for it", invited: "has not uploaded yet",
  expired: "its token has expired", revoked: "its token has been revoked",
};
const COLUMNS = [
  { id: "name", title: "Member", sort: (m) => m.key, text: (m) => m.name },
  { id: "federation", title: "Federation", sort: (m, state) => state.federations.get(m.federation)?.name ?? "",
    text: (m, state) => state.federations.get(m.federation)?.name ?? "" },
  { id: "state", title: "State", sort: (m) => Object.keys(STATES).indexOf(m.state), text: (m) => m.state },
  { id: "round", title: "Round", number: true, sort: (m) => m.round, text: (m) => (m.round < 0 ? "–" : number(m.round)) },
  { id: "uploads", title: "Uploads", number: true, sort: (m) => m.uploads, text: (m) => number(m.uploads) },
  { id: "bytes", title: "Uploaded", number: true, sort: (m) => m.bytes, text: (m) => (m.bytes ? bytes(m.bytes) : "–") },
  { id: "seen", title: "Last seen", number: true, sort: (m) => -m.seen, text: (m, state) => ago(m.seen, state.now) },
];

export class MemberTable {
  constructor(onChange) {
    this.sort = "federation";
    this.down = false;
    this.limit = FIRST;
    this.onChange = onChange;
    this.head = byId("members").tHead.rows[0];
    this.body = byId("members").tBodies[0];
    for (const column of COLUMNS) { this.head.append(this.heading(column)); }
    byId("sort").append(...COLUMNS.map((column) => element("option", { value: column.id }, column.title)));
    byId("filter-state").append(element("option", { value: "" }, "all"),
      ...Object.keys(STATES).map((name) => element("option", { value: name }, name)));
    this.sortBy("federation", false);
    byId("filters").addEventListener("submit", (event) => event.preventDefault());
    byId("filters").addEventListener("input", () => this.filter());
    byId("sort").addEventListener("change", (event) => this.sortBy(event.target.value, false));
    byId("more").addEventListener("click", () => { this.limit += STEP; this.onChange(); });
  }

  heading({ id, title, number: right }) {
    const button = element("button", { type: "button" }, title);
    button.addEventListener("click", () => this.sortBy(id, this.sort === id && !this.down));
    return element("th", { scope: "col", role: "columnheader", "data-column": id, class: right ? "number" : false }, button);
  }

  sortBy(id, down) {
    this.sort = id;
    this.down = down;
    byId("sort").value = id;
    for (const heading of this.head.cells) {
      const mine = heading.dataset.column === id;
      heading.setAttribute("aria-sort", mine ? (down ? "descending" : "ascending") : "none");
    }
    this.filter();
  }

  filter() {
    this.limit = FIRST;
    this.onChange();
  }

  showFederation(id) {
    byId("filter-federation").value = String(id);
    byId("search").value = "";
    byId("filter-state").value = "";
    this.filter();
    byId("members-title").scrollIntoView({ block: "start" });
    byId("members-title").focus({ preventScroll: true });
  }

  draw(state) {
    this.drawFederationFilter(state);
    const found = this.found(state), shown = found.slice(0, this.limit), all = state.members.size;
    byId("members").classList.toggle("one-federation", state.federations.size < 2);
    byId("members").hidden = !found.length;
    const counted = found.length === all ? count(all, "member") : `${number(found.length)} of ${count(all, "member")}`;
    const some = shown.length < found.length ? `; the first ${number(shown.length)} are shown` : "";
    setText(byId("members-count"), all ? counted + some : "nobody is invited yet: consilience relay invite NAME");
    byId("more").hidden = shown.length === found.length;
    setText(byId("more"), `Show ${number(Math.min(STEP, found.length - shown.length))} more`);
    reconcile(this.body, shown, (member) => member.id, () => this.row(), (row, member) => this.fill(row, member, state));
  }

  found(state) {
    const text = byId("search").value.trim().toLowerCase();
    const federation = Number(byId("filter-federation").value), wanted = byId("filter-state").value;
    const value = COLUMNS.find((column) => column.id === this.sort).sort, sign = this.down ? -1 : 1;
    return [...state.members.values()]
      .filter((m) => (!federation || m.federation === federation) && (!wanted || m.state === wanted) && m.key.includes(text))
      .map((m) => [value(m, state), m])
      .sort(([a, x], [b, y]) => sign * (a < b ? -1 : a > b ? 1 : 0) || x.federation - y.federation || x.number - y.number)
      .map(([, m]) => m);
  }

  row() {
    const cells = COLUMNS.map(({ id, title, number: right }, i) => element(i ? "td" : "th", {
      role: i ? "cell" : "rowheader", scope: i ? false : "row", class: right ? "number" : false,
      "data-column": id, "data-title": title,
    }));
    return element("tr", { role: "row" }, ...cells);
  }

  fill(row, member, state) {
    COLUMNS.forEach((column, i) => {
      const cell = row.cells[i], text = column.text(member, state);
      if (column.id !== "state") { setText(cell, text); return; }
      if (cell.dataset.state === text) { return; }
      cell.dataset.state = text;
      cell.replaceChildren(element("span", { class: `badge ${text}`, title: STATES[text] ?? "" }, text));
    });
  }

  drawFederationFilter(state) {
    const place = byId("filter-federation"), chosen = place.value;
    const options = [{ id: 0, name: "all" }, ...state.served];
    place.parentElement.hidden = options.length < 3;
    reconcile(place, options, (each) => each.id, (each) => element("option", { value: each.id }), (option, each) => setText(option, each.name));
    place.value = chosen || "0";
  }
}
