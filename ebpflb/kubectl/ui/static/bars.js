// SPDX-License-Identifier: Apache-2.0
// The connections of the last minutes over time: a bar for each 20 seconds, and times below them.

import { element, keepChildren, pressed, setAttributes, setText, svg } from "./dom.js";
import { count, counted, problemShare, rate, timeOfDay, when } from "./format.js";
import { chain, rove } from "./roving.js";

const WIDTH = 20;
const HEIGHT = 36;
const AXIS = 15;
const MINUTE = 60;

export function drawBars(figure, { history, begin }, look) {
  if (!figure.firstElementChild) {
    figure.append(svg("svg", { class: "bars", role: "group" }, svg("g"), svg("g"), svg("path")), element("figcaption"));
  }
  const [drawing, caption] = figure.children;
  const [bars, times, window] = drawing.children;
  const seconds = history[1][0] - history[0][0];
  const end = history.at(-1)[0] + seconds;
  const items = history.map(([at, all, wrong], number) => ({ at, all, wrong, left: number * WIDTH, end: at + seconds }));
  const largest = Math.max(1, ...items.map(({ all }) => all));
  setAttributes(drawing, { width: history.length * WIDTH, height: HEIGHT + AXIS, "aria-label": said(items, end) });
  setText(caption, `Connections per ${seconds} s, up to ${count(largest)}; red: problems`);
  keepChildren(bars, items, keyOf, (item) => makeBar(item, look), (bar, item) => updateBar(bar, item, largest, seconds));
  const ticks = items.filter(({ at }) => at % MINUTE === 0);
  keepChildren(times, ticks, keyOf, ({ at }) => svg("text", { y: HEIGHT + AXIS - 3 }, timeOfDay(at)), (text, { left }) => setAttributes(text, { x: left }));
  // What the numbers cover.
  const covered = items.find(({ end }) => end > begin) ?? items[0];
  setAttributes(window, { d: `M${covered.left},${HEIGHT + 1.5} H${history.length * WIDTH - 2}` });
  const moves = new Map();
  chain(moves, items.map(keyOf).reverse(), "ArrowRight", "ArrowLeft");
  rove(bars, moves);
}

const keyOf = ({ at }) => String(at);

function said(items, end) {
  const sum = (name) => items.reduce((all, item) => all + item[name], 0);
  const minutes = (end - items[0].at) / MINUTE;
  return `${minutes} minutes until ${when(end)}: ${counted(sum("all"), "connection")}, ${count(sum("wrong"))} with problems`;
}

function makeBar({ end }, look) {
  const rect = (kind) => svg("rect", { class: kind });
  return svg("g", pressed(() => look(end)), svg("title"), rect("near"), rect("fine"), rect("bad"));
}

function updateBar(bar, { at, all, wrong, left, end }, largest, seconds) {
  const [title, near, fine, bad] = bar.children;
  const share = wrong ? `, ▲ ${problemShare({ connections: all, failed: wrong, refused: 0, dropped: 0 })} with problems` : "";
  const text = `${when(at)} to ${when(end)}: ${counted(all, "connection")}, ${rate(all, seconds)}${share}`;
  setText(title, text);
  setAttributes(bar, { "aria-label": text });
  setAttributes(near, { x: left, y: 0, width: WIDTH, height: HEIGHT });
  for (const [target, number] of [[fine, all], [bad, wrong]]) {
    const height = number && Math.max((number / largest) * HEIGHT, 1);
    setAttributes(target, { x: left, y: HEIGHT - height, width: WIDTH - 2, height });
  }
}
