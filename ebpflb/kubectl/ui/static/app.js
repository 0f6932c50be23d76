// SPDX-License-Identifier: Apache-2.0
// Requests the traffic every two seconds, and draws what the page's address selects.

import { HEADS } from "./columns.js";
import { copy } from "./copy.js";
import { element, keepChildren, setAttributes, setText } from "./dom.js";
import { count, counted, when } from "./format.js";
import { drawMap } from "./map.js";
import { drawPanel, makePanel } from "./panel.js";
import { change, cleared, isFiltered, isLineOpen, query, read } from "./state.js";
import { drawNodes, drawSummary } from "./summary.js";
import { drawTable } from "./table.js";
import { drawTime, iso, startSlider, windowOf } from "./time.js";

const PERIOD_MS = 2000;
const TYPING_MS = 250;

const at = (id) => document.getElementById(id);
const form = at("filters");
const panel = at("panel");
let timer = null;
let isPaused = false;
let latest = null;
// When the figures were right, in seconds since 1970.
let asOf = null;
// What had the focus when the panel was opened.
let opener = null;
// Answers to earlier requests are ignored.
let question = 0;

async function ask(name, parameters) {
  const answer = await fetch(`api/${name}?${new URLSearchParams(parameters)}`).catch(() => {
    throw new Error("The command behind this page has ended: run `kubectl ebpflb ui` again.");
  });
  const content = await answer.json();
  if (!answer.ok) throw new Error(content.error);
  return content;
}

// `isAsked`: by the user; then a screen reader announces the result, but not every two seconds.
async function refresh(isAsked = false) {
  clearTimeout(timer);
  const mine = ++question;
  const state = read();
  if (isAsked) drawTime(at("back"), at("past"), state, "asking all nodes …");
  try {
    const [view, line] = await Promise.all([
      ask("view", query(state)),
      isLineOpen(state) ? ask("line", query(state)) : null,
    ]);
    if (mine !== question) return;
    latest = { view, line };
    draw();
    if (isAsked) setText(at("said"), at("shown").textContent);
    tellTrouble(view, state);
  } catch (error) {
    if (mine !== question) return;
    drawTime(at("back"), at("past"), state, "no answer");
    complain(error.message, true);
  }
  refreshLater(state);
}

function refreshLater(state) {
  if (!isPaused && !document.hidden && !state.until) timer = setTimeout(() => refresh(), PERIOD_MS);
}

function tellTrouble(view, state) {
  const isFollowed = view.nodes.some((node) => node.state !== "silent");
  if (isFollowed || state.until) asOf = Date.now() / 1000;
  complain(view.trouble, !isFollowed && !state.until && view.nodes.length > 0);
}

// `isOld`: the figures are those of an earlier time.
function complain(text, isOld) {
  const age = isOld && asOf ? ` (figures as of ${when(Math.floor(asOf))})` : "";
  const said = text || age ? `${text || "No node is followed"}${age}` : "";
  setText(at("trouble"), said);
  at("trouble").hidden = !said;
  document.body.classList.toggle("old", Boolean(age));
}

function draw() {
  const state = read();
  const { view, line } = latest;
  showPanel(state, line);
  setText(at("cluster"), view.cluster);
  HEADS[state.group].forEach((name, column) => setText(at("heads").children[column], `${name}s`));
  drawTime(at("back"), at("past"), state, windowOf(view));
  setAttributes(at("copy"), { title: commandOf(latest) });
  document.title = `ebpflb: ${view.cluster}`;
  drawNodes(at("nodes"), view.nodes);
  drawSummary(at("summary"), view, lookAtMinute);
  drawEmpty(view, state);
  for (const button of document.querySelectorAll("[data-view]")) {
    setAttributes(button, { "aria-pressed": String(button.dataset.view === state.view) });
  }
  const isTable = state.view === "table";
  at("map-view").hidden = isTable || !view.rows.length;
  at("table-view").hidden = !isTable || !view.rows.length;
  if (isTable) drawTable(at("table-view"), view, state, open, go);
  else drawMap(at("map"), view, state, open);
  choices("namespaces", view.choices.namespaces);
  choices("services", view.choices.services);
  choices("node-names", view.nodes.map((node) => node.node));
  document.body.dataset.drawn = String(question);
}

function drawEmpty(view, state) {
  const { connections } = view.total;
  at("empty").hidden = view.rows.length > 0;
  setText(at("empty"), view.rows.length ? "" : emptyText(view, state));
  const lines = `${counted(view.rows.length + view.rest.rows, "line")}, ${counted(connections, "connection")}`;
  setText(at("shown"), isFiltered(state) ? `${lines} of ${count(view.seen)}` : lines);
}

const commandOf = ({ view, line }) => (line ?? view).command;

function emptyText(view, state) {
  if (view.seen && isFiltered(state)) return "No flows match the filters.";
  if (view.nodes.length && view.nodes.every((node) => node.state === "silent")) {
    return `No node answers. ${view.nodes[0].node}: ${view.nodes[0].why}`;
  }
  if (state.until) return "The nodes have kept no flows of this time.";
  return (
    "No flows yet. Agents report a connection when it ends, and refusals and drops at once: " +
    "new traffic to Services will appear here. Earlier flows: look back, at the top."
  );
}

function choices(id, names) {
  keepChildren(at(id), names, (name) => name, (name) => element("option", { value: name }), () => {});
}

function showPanel(state, line) {
  const isOpen = Boolean(line) && isLineOpen(state);
  if (isOpen && panel.hidden) makePanel(panel, close);
  panel.hidden = !isOpen;
  if (isOpen) drawPanel(panel, line, state, ask, lookAtMinute);
}

function go(wanted, isStep = false) {
  change(wanted, isStep);
  fillForm();
  return refresh(true);
}

// At the window that ends then; 0 for now.
const look = (end) => go({ until: end ? iso(end) : "" }, true);
// The last bar has not ended yet: its minute is that of now.
const lookAtMinute = (end) => go({ until: end * 1000 > Date.now() ? "" : iso(end), window: "60" }, true);

async function open(wanted) {
  opener = document.activeElement?.dataset.key ?? null;
  await go(wanted, true);
  at("panel-title")?.focus();
}

function close() {
  change({ client: "", via: "", target: "" }, true);
  panel.hidden = true;
  draw();
  const back = [...document.querySelectorAll("[data-key]")].find((each) => each.dataset.key === opener);
  (back ?? document.querySelector(`[data-view="${read().view}"]`)).focus();
}

function fillForm() {
  const state = read();
  for (const field of form.elements) {
    if (field.name && field !== document.activeElement) field.value = state[field.name];
  }
}

let typing = null;
const filterBy = (field) => go({ [field.name]: field.value.trim() });
form.addEventListener("input", ({ target }) => {
  // Half a name matches nothing.
  if (target.list) return;
  clearTimeout(typing);
  typing = setTimeout(() => filterBy(target), TYPING_MS);
});
form.addEventListener("change", ({ target }) => target.list && filterBy(target));
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("reset", (event) => {
  event.preventDefault();
  clearTimeout(typing);
  change(cleared());
  fillForm();
  refresh(true);
});
for (const button of document.querySelectorAll("[data-view]")) {
  button.addEventListener("click", () => go({ view: button.dataset.view }));
}
startSlider(at("back"), look);
at("past").lastElementChild.addEventListener("click", () => look(0));
at("copy").addEventListener("click", () => latest && copy(at("copy"), commandOf(latest)));
at("pause").addEventListener("click", () => {
  isPaused = !isPaused;
  setAttributes(at("pause"), { "aria-pressed": String(isPaused) });
  setText(at("pause"), isPaused ? "Resume" : "Pause");
  refresh();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !panel.hidden) close();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) refresh();
});
document.querySelector(".skip").addEventListener("click", async (event) => {
  event.preventDefault();
  await go({ view: "table" });
  at("table-view").focus();
});
window.addEventListener("popstate", () => {
  fillForm();
  refresh(true);
});
new ResizeObserver(() => latest && read().view === "map" && drawMap(at("map"), latest.view, read(), open)).observe(at("map"));
fillForm();
refresh(true);
