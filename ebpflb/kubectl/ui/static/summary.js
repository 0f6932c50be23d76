// SPDX-License-Identifier: Apache-2.0
// Sums of everything that passes the filters, and the state of the nodes.

import { drawBars } from "./bars.js";
import { active } from "./columns.js";
import { element, keepChildren, setAttributes, setText } from "./dom.js";
import { byteRate, count, counted, quantiles, rate } from "./format.js";

export function drawSummary(box, view, look) {
  const { total, seconds } = view;
  const tile = (name, number) => [name, rate(number, seconds), count(number)];
  const bad = (name, number) => [...tile(name, number), number ? "bad" : null];
  const tiles = [
    tile("Connections", total.connections),
    bad("Failed", total.failed),
    bad("Refused", total.refused),
    bad("Dropped", total.dropped),
    ["Active", active(view), "", "active", view.active_why || "connections that Services have open now"],
    ["RTT p50 / p95", quantiles(total.rtt_seconds)],
    ["Sent", byteRate(total.sent, seconds)],
    ["Received", byteRate(total.received, seconds)],
  ];
  keepChildren(box.querySelector("dl"), tiles, ([name]) => name, makeTile, updateTile);
  drawBars(box.querySelector("figure"), view, look);
}

function makeTile([name]) {
  return element("div", {}, element("dt", {}, name), element("dd", {}, element("b"), element("span")));
}

function updateTile(tile, [, value, sum = "", kind = null, title = null]) {
  const [shown, all] = tile.lastElementChild.children;
  setText(shown, value);
  setText(all, sum);
  setAttributes(tile, { class: kind, title });
}

const STATES = { silent: ["does not answer", "do not answer"], empty: ["has no flows from then", "have no flows from then"] };

export function drawNodes(box, nodes) {
  const [summary, list] = box.children;
  const parts = Object.entries(STATES).map(([state, verbs]) => named(nodes.filter((node) => node.state === state), verbs));
  setText(summary, [counted(nodes.length, "node"), ...parts.filter(Boolean)].join("; "));
  setAttributes(box, { class: nodes.some((node) => node.state === "silent") ? "menu bad" : "menu" });
  keepChildren(list, nodes, (node) => node.node, () => element("li", {}, element("b"), element("span")), updateNode);
}

function named(nodes, [one, several]) {
  if (!nodes.length) return "";
  const names = nodes.slice(0, 3).map((node) => node.node).join(", ");
  const more = nodes.length > 3 ? ` and ${nodes.length - 3} more` : "";
  return `${names}${more} ${nodes.length === 1 ? one : several}`;
}

function updateNode(item, node) {
  const said = node.state === "silent" ? `does not answer: ${node.why}` : node.why || node.state;
  const parts = [
    said,
    counted(node.flows, "flow"),
    node.lost ? `${count(node.lost)} lost: they arrived too fast` : "",
    node.unreadable ? `${count(node.unreadable)} lines that are not flows` : "",
  ];
  setText(item.firstElementChild, node.node);
  setText(item.lastElementChild, parts.filter(Boolean).join(", "));
  setAttributes(item, { class: node.state === "silent" ? "bad" : null });
}
