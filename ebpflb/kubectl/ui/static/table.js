// SPDX-License-Identifier: Apache-2.0
// The same data as the map, in rows: client, Service and pod, and every number.

import { COLUMNS, HEADS, NAMES } from "./columns.js";
import { element, keepChildren, setAttributes, setText } from "./dom.js";
import { bytes, counted, problemCount } from "./format.js";
import { showName } from "./names.js";

const kindOf = (name, at) => (at < NAMES ? null : name === "Problems" ? "problems" : "number");

export function drawTable(box, view, state, open, change) {
  if (!box.firstElementChild) box.append(makeTable(change), element("p", { class: "rest" }));
  const [table, rest] = box.children;
  const [, head, body] = table.children;
  COLUMNS.forEach(([, by], at) => {
    const cell = head.firstElementChild.children[at];
    setAttributes(cell, { "aria-sort": by === state.sort ? order(by) : null });
    if (at < NAMES) setText(cell.firstElementChild, HEADS[state.group][at]);
  });
  keepChildren(
    body,
    view.rows,
    (row) => `row ${row.client.id} ${row.service.id} ${row.target.id}`,
    (row) => makeRow(row, open),
    (target, row) => updateRow(target, row, view, state),
  );
  drawRest(rest, view, change);
}

const order = (by) => (["client", "service", "target"].includes(by) ? "ascending" : "descending");

function makeTable(change) {
  const heads = COLUMNS.map(([name, by], at) =>
    element(
      "th",
      { scope: "col", class: kindOf(name, at) },
      by ? element("button", { type: "button", click: () => change({ sort: by }) }, name) : name,
    ),
  );
  return element(
    "table",
    {},
    element("caption", {}, "Connections by client, Service and pod"),
    element("thead", {}, element("tr", {}, ...heads)),
    element("tbody"),
  );
}

function makeRow(row, open) {
  const wanted = { client: row.client.id, via: row.service.id, target: row.target.id };
  const start = () => open(wanted);
  const cells = COLUMNS.map(([name], at) => {
    if (at === 0) return element("th", { scope: "row" }, element("button", { type: "button" }));
    return element("td", { class: kindOf(name, at) });
  });
  return element("tr", { click: start }, ...cells);
}

function updateRow(target, row, view, state) {
  const [client, service, pod, ...numbers] = target.children;
  showName(client.firstElementChild, row.client);
  showName(service, row.service);
  showName(pod, row.target);
  COLUMNS.slice(NAMES).forEach(([, , text], at) => setText(numbers[at], text(row, view.seconds)));
  const isOpen =
    state.client === row.client.id && state.via === row.service.id && state.target === row.target.id;
  setAttributes(target, { class: `${problemCount(row) ? "bad" : ""} ${isOpen ? "open" : ""}`.trim() || null });
  setAttributes(client.firstElementChild, {
    "aria-expanded": String(isOpen),
    "aria-label": `${row.client.name} to ${row.service.name} to ${row.target.name}: details`,
  });
}

function drawRest(box, view, change) {
  if (!view.rest.rows) {
    box.replaceChildren();
    return;
  }
  const { rows, connections, sent, received } = view.rest;
  const text = `${counted(rows, "more row")} with ${counted(connections, "connection")}, ${bytes(sent + received)}. `;
  if (!box.firstElementChild) {
    box.append(element("span"), element("button", { type: "button", click: () => change({ rows: "10000" }) }, "Show them"));
  }
  setText(box.firstElementChild, text);
}
