// Signs in, keeps the connection to the relay, and draws what it sends.
//
// The token is in this tab's session storage and is sent with every request; there is no cookie that other sites could
// make the browser send.

import { drawChart } from "./chart.js";
import { byId, setText } from "./dom.js";
import { drawFederations } from "./federations.js";
import { clock } from "./format.js";
import { MemberTable } from "./members.js";
import { drawAbout, drawAlerts, drawStore, drawTiles } from "./overview.js";
import { drawRefusals } from "./refusals.js";
import { State } from "./state.js";
import { watch } from "./stream.js";

const KEY = "consilience-operator-token";
const FORM = /^co1_[0-9a-f]{1,15}_[A-Za-z0-9_-]{43}$/;
const LONGEST = 30;  // seconds between two attempts to connect
let state = new State();
let session = null;  // an AbortController while signed in
let drawing = 0;
let lostAt = null;
const table = new MemberTable(() => draw());

// -- drawing

function draw() {
  if (!drawing) { drawing = requestAnimationFrame(() => { drawing = 0; drawNow(); }); }
}

function drawNow() {
  if (!session || !state.relay) { return; }
  drawAbout(state);
  drawAlerts(state);
  drawTiles(state);
  drawChart(byId("chart"), byId("chart-text"), state);
  drawFederations(state, (id) => table.showFederation(id));
  table.draw(state);
  drawRefusals(state);
  drawStore(state);
}

function show(what) {
  byId("sign-in").hidden = what !== "sign-in";
  byId("status").hidden = what !== "status";
  byId("sign-out").hidden = what === "sign-in";
}

function connection(name, text) {
  byId("connection").dataset.state = name;
  setText(byId("connection-text"), text);
  byId("retry").hidden = name !== "lost";
  if (name !== "lost") { setText(byId("countdown"), ""); }
  byId("status").classList.toggle("stale", name === "lost");
}

// -- signing in and out

function signOut(message = "") {
  session?.abort();
  session = null;
  sessionStorage.removeItem(KEY);
  state = new State();
  for (const id of ["tiles", "alerts", "federations", "refusals", "store", "chart"]) { byId(id).replaceChildren(); }
  byId("members").tBodies[0].replaceChildren();
  byId("codes").tBodies[0].replaceChildren();
  setText(byId("about"), "The state of a consilience relay");
  lostAt = null;
  connection("none", message ? "" : "Signed out");
  show("sign-in");
  byId("token").value = "";
  fail(message);
  byId("token").focus();
}

function fail(message) {
  setText(byId("sign-in-error"), message);
  byId("token").setAttribute("aria-invalid", String(Boolean(message)));
}

// What is wrong with a token before it is sent; empty if it looks like one.
function complaint(token) {
  if (!token) { return "Enter your operator token."; }
  if (token.startsWith("cs1_")) { return "This is a member's token (cs1_…). The page needs an operator's, which starts with co1_."; }
  if (!FORM.test(token)) { return `This is not an operator token: it starts with co1_ and has 48 characters or more; this has ${token.length}.`; }
  return "";
}

function reason(error) {
  if (error.code === "expired") { return "This token has expired. Make a new one: consilience relay operator add NAME."; }
  if (error.code === "wrong-token") { return "The relay does not know this token: it was replaced, removed, or is of another relay."; }
  return `The relay refused this token: ${error.message}.`;
}

// -- the connection

async function run(token, mine, isNew) {
  let attempt = 0;
  while (!mine.signal.aborted) {
    try {
      await watch(token, (kind, sent) => { attempt = 0; receive(token, kind, sent); }, mine.signal);
    } catch (error) {
      if (mine.signal.aborted) { return; }
      if (error.final) { signOut(reason(error)); return; }
      if (isNew && !state.relay) { signOut(`The relay cannot be reached: ${error.message}. Try again.`); return; }
      attempt += 1;
      await pause(Math.max(Math.min(2 ** (attempt - 1), LONGEST) * (0.8 + 0.4 * Math.random()), error.retryAfter ?? 0), mine);
    }
  }
}

function receive(token, kind, sent) {
  const first = !state.relay;
  state.apply(kind, sent);
  if (kind === "status") {
    sessionStorage.setItem(KEY, token);
    lostAt = null;
    connection("live", "Live");
    show("status");
    if (first) { byId("status").focus({ preventScroll: true }); }
  }
  draw();
}

// Waits before the next attempt, shows for how long, and ends early if the person or the network says so.
async function pause(seconds, mine) {
  lostAt ??= state.relay ? ` State of ${clock(state.now, true)}.` : "";
  connection("lost", `Connection lost, trying again.${lostAt}`);
  const end = Date.now() + 1000 * seconds, early = new AbortController();
  const stop = () => early.abort();
  byId("retry").addEventListener("click", stop, { once: true });
  addEventListener("online", stop, { once: true });
  while (Date.now() < end && !early.signal.aborted && !mine.signal.aborted) {
    setText(byId("countdown"), `In ${Math.ceil((end - Date.now()) / 1000)} s`);
    await new Promise((done) => { setTimeout(done, 200); });
  }
  removeEventListener("online", stop);
  byId("retry").removeEventListener("click", stop);
  setText(byId("countdown"), "");
}

function signIn(token, isNew) {
  session?.abort();
  session = new AbortController();
  fail("");
  connection("connecting", "Connecting …");
  run(token, session, isNew);
}

byId("sign-in-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const token = byId("token").value.trim(), wrong = complaint(token);
  if (wrong) { fail(wrong); byId("token").focus(); } else { signIn(token, true); }
});
byId("sign-out").addEventListener("click", () => signOut());
addEventListener("resize", draw);
setInterval(() => { if (!document.hidden) { draw(); } }, 1000);  // times since something was seen

document.title = `Relay at ${location.host}`;
const saved = sessionStorage.getItem(KEY);
if (saved) { show("connecting"); signIn(saved, false); } else { show("sign-in"); byId("token").focus(); }
