// What is seen first: what is wrong, a few numbers, and the health of the store.

import { byId, element, facts, reconcile, setText } from "./dom.js";
import { ago, bytes, count, date, duration, list, number } from "./format.js";

const LITTLE = 1e9;  // bytes of free disk below which the page warns
const TROUBLES = {
  "disk full": "The disk is full: uploads are refused until there is room.",
  "cannot write": "The store cannot be written: uploads are refused. The relay's log says why.",
  "taken over": "Another relay has taken over this store: this one writes nothing any more. Stop it.",
  stopping: "The relay is stopping.",
};

export function drawAbout(state) {
  const { version, started } = state.relay;
  setText(byId("about"), `${location.host}, consilience ${version}, running for ${duration(state.now - started)}`);
}

export function drawAlerts(state) {
  const { store } = state, wrong = [];
  if (store.status !== "ok") { wrong.push(TROUBLES[store.status] ?? `The store: ${store.status}.`); }
  for (const { name, why, served } of state.sorted) {
    if (!served) { wrong.push(`The federation ${name} is not served: ${why}. Restore a backup.`); }
  }
  if (store.status === "ok" && store.free_bytes < LITTLE) {
    wrong.push(`Only ${bytes(store.free_bytes)} of the disk are free: when it is full, uploads are refused.`);
  }
  reconcile(byId("alerts"), wrong, (text) => text, () => element("p", { class: "note" }), setText);
}

export function drawTiles(state) {
  const members = [...state.members.values()];
  const sum = (values) => values.reduce((a, b) => a + b, 0);
  const served = state.served, { refusals, store } = state;
  const inState = (name) => members.filter((member) => member.state === name).length;
  const rest = ["away", "invited", "expired", "revoked"].map((name) => [inState(name), name]).filter(([n]) => n);
  const recent = members.filter((member) => state.now - member.seen < 60).length;
  const uploads = sum(members.map((member) => member.uploads)), size = sum(members.map((member) => member.bytes));
  const [most] = Object.entries(refusals.codes).sort((a, b) => b[1] - a[1]);
  facts(byId("tiles"), [
    { term: "Active members", value: `${inState("active")} of ${number(members.length)}`,
      note: list(rest.map(([n, name]) => `${number(n)} ${name}`)) || "all have uploaded" },
    { term: "Seen in last minute", value: number(recent), note: lastSeen(members, state) },
    { term: "Uploads per minute", value: number(sum(served.map((f) => f.uploads_per_minute))),
      note: `${count(uploads, "upload")} so far, ${bytes(size)}` },
    roundsTile(served),
    { term: "Refused requests", value: number(refusals.count), note: most ? `most often ${most[0]}` : "since the start" },
    { term: "Store", value: bytes(store.bytes), note: `${bytes(store.free_bytes)} of the disk free`,
      tone: store.status === "ok" ? "" : "bad" },
  ]);
}

function roundsTile(served) {
  const fastest = served.reduce((a, b) => a && a.rounds_per_hour >= b.rounds_per_hour ? a : b, null);
  if (served.length === 1) {
    return { term: "Rounds per hour", value: number(fastest.rounds_per_hour),
      note: fastest.round < 0 ? "no round yet" : `round ${number(fastest.round)} now` };
  }
  const note = fastest?.rounds_per_hour ? `fastest: ${fastest.name}, ${number(fastest.rounds_per_hour)} rounds per hour`
    : "no round in the last hour";
  return { term: "Federations", value: number(served.length), note: served.length ? note : "none yet" };
}

function lastSeen(members, state) {
  const last = members.reduce((a, b) => a && a.seen >= b.seen ? a : b, null);
  return last?.seen ? `last: ${last.name}, ${ago(last.seen, state.now)}` : "nobody since the start";
}

export function drawStore(state) {
  const { store, relay } = state;
  const repairs = store.repairs ? `${count(store.repairs, "record")}` : "none";
  facts(byId("store"), [
    { term: "Uploads", value: store.status === "ok" ? "are written" : store.status, note: TROUBLES[store.status],
      tone: store.status === "ok" ? "" : "bad" },
    { term: "Size", value: bytes(store.bytes), note: `${bytes(store.free_bytes)} of the disk are free` },
    { term: "Damage repaired since the start", value: repairs, note: store.last_repairs.join("; "),
      tone: store.repairs ? "bad" : "" },
    { term: "Last backup", value: store.last_backup ? ago(store.last_backup, state.now) : "not known",
      note: store.last_backup ? date(store.last_backup) : "consilience relay backup FILE makes one" },
    { term: "Epoch", value: String(relay.epoch),
      note: relay.epoch_began ? `since ${date(Date.parse(relay.epoch_began) / 1000)}` : "" },
    { term: "Relay", value: `consilience ${relay.version}`, note: `started ${date(relay.started)}; protocol ${relay.protocol}` },
  ]);
}
