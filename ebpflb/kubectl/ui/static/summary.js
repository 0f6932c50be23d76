// SPDX-License-Identifier: Apache-2.0
// Sums of everything that passes the filters, and the state of the nodes.

import { element, keepChildren, setAttributes, setText, svg } from "./dom.js";
import { byteRate, count, counted, quantiles, rate } from "./format.js";

const BAR = 10;
const BARS_HEIGHT = 34;

export function drawSummary(box, view) {
  const { total, seconds } = view;
  const tiles = [
    ["Connections", rate(total.connections, seconds), count(total.connections), ""],
    ["Failed", rate(total.failed, seconds), count(total.failed), total.failed ? "bad" : ""],
    ["Refused", rate(total.refused, seconds), count(total.refused), total.refused ? "bad" : ""],
    ["Dropped", rate(total.dropped, seconds), count(total.dropped), total.dropped ? "bad" : ""],
    ["RTT p50 / p95", quantiles(total.rtt_seconds), "", ""],
    ["Sent", byteRate(total.sent, seconds), "", ""],
    ["Received", byteRate(total.received, seconds), "", ""],
  ];
  if (!box.firstElementChild) box.append(element("dl"), element("figure", {}, bars(), element("figcaption", {}, "5 minutes")));
  const [list, figure] = box.children;
  keepChildren(list, tiles, ([name]) => name, makeTile, updateTile);
  drawBars(figure.firstElementChild, view.history);
}

function makeTile([name]) {
  return element("div", {}, element("dt", {}, name), element("dd", {}, element("b"), element("span")));
}

function updateTile(tile, [, value, sum, kind]) {
  const [shown, all] = tile.lastElementChild.children;
  setText(shown, value);
  setText(all, sum);
  setAttributes(tile, { class: kind || null });
}

export const bars = () => svg("svg", { class: "bars", role: "img" });

export function drawBars(drawing, history) {
  const largest = Math.max(1, ...history.map(([, all]) => all));
  const width = history.length * BAR;
  const height = (number) => (number ? Math.max((number / largest) * BARS_HEIGHT, 1) : 0);
  const bar = (number, at, kind) =>
    svg("rect", { class: kind, x: at * BAR, y: BARS_HEIGHT - height(number), width: BAR - 2, height: height(number) });
  const bad = history.reduce((sum, [, , each]) => sum + each, 0);
  const all = history.reduce((sum, [, each]) => sum + each, 0);
  setAttributes(drawing, {
    viewBox: `0 0 ${width} ${BARS_HEIGHT}`,
    width,
    height: BARS_HEIGHT,
    "aria-label": `Last 5 minutes: ${counted(all, "connection")}, ${count(bad)} of them went wrong`,
  });
  drawing.replaceChildren(
    ...history.flatMap(([, every, wrong], at) => [bar(every, at, "fine"), bar(wrong, at, "bad")]),
  );
}

export function drawNodes(box, nodes) {
  const silent = nodes.filter((node) => node.state === "silent");
  const [summary, list] = box.children;
  const names = silent.slice(0, 3).map((node) => node.node).join(", ");
  const more = silent.length > 3 ? ` and ${silent.length - 3} more` : "";
  const verb = silent.length === 1 ? "does" : "do";
  setText(summary, `${counted(nodes.length, "node")}${silent.length ? `; ${names}${more} ${verb} not answer` : ""}`);
  setAttributes(box, { class: silent.length ? "bad" : null });
  keepChildren(list, nodes, (node) => node.node, () => element("li", {}, element("b"), element("span")), updateNode);
}

function updateNode(item, node) {
  const parts = [
    node.state === "silent" ? `does not answer: ${node.why}` : node.state,
    counted(node.flows, "flow"),
    node.lost ? `${count(node.lost)} lost: they arrived too fast` : "",
    node.unreadable ? `${count(node.unreadable)} lines that are not flows` : "",
  ];
  setText(item.firstElementChild, node.node);
  setText(item.lastElementChild, parts.filter(Boolean).join(", "));
  setAttributes(item, { class: node.state === "silent" ? "bad" : null });
}
