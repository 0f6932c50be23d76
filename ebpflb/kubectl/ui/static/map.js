// SPDX-License-Identifier: Apache-2.0
// The map: clients, Services and pods in three columns of cards, and lines between them. The width of
// a line shows its number of connections, and the red part how many of them went wrong.

import { element, keepChildren, setAttributes, setText, svg } from "./dom.js";
import { count, counted, problemCount, problems, rate } from "./format.js";
import { LINE } from "./state.js";

const CARD_HEIGHT = 27;
// The largest card of a map with few of them, and of a full one.
const LARGEST = 96;
const LARGEST_OF_MANY = 34;
const GAP = 6;
const HEIGHT = 470;
const THINNEST = 1.2;
// The share of the width that the cards of one column take.
const CARD_SHARE = 0.25;
const LAST = ["nobody", "others"];

export function drawMap(box, view, state, open) {
  const layout = layOut(view, box.clientWidth);
  const drawing = box.querySelector("svg");
  setAttributes(drawing, { width: box.clientWidth, height: layout.height });
  keepChildren(
    drawing,
    layout.lines,
    (line) => line.key,
    (line) => makeLine(line, open),
    (target, line) => updateLine(target, line, view, state),
  );
  let cards = box.querySelector(".cards");
  if (!cards) {
    cards = element("div", { class: "cards" });
    box.append(cards);
  }
  keepChildren(
    cards,
    layout.cards,
    (card) => card.key,
    (card) => makeCard(card, open),
    (target, card) => updateCard(target, card, view, state),
  );
}

function layOut(view, width) {
  const scale = pixelsEach(view);
  const cardWidth = width * CARD_SHARE;
  const columns = ordered(view).map((groups, at) => {
    let top = 0;
    return new Map(
      groups.map((group) => {
        const isToScale = group.kind !== "others";
        const height = Math.max(CARD_HEIGHT, isToScale ? group.connections * scale : 0);
        const left = (at * (width - cardWidth)) / 2;
        const card = { key: `${LINE[at]}=${group.id}`, at, group, left, top, width: cardWidth, height };
        top += height + GAP;
        return [group.id, card];
      }),
    );
  });
  const cards = columns.flatMap((column) => [...column.values()]);
  const height = Math.max(0, ...cards.map((card) => card.top + card.height)) + 2;
  return { cards, height, lines: stackLines(view.links, columns, scale) };
}

// Clients and pods follow the order of the Services that they are linked to, so that fewer lines cross.
// It does not depend on numbers, so nothing moves unless links come or go. LAST stay last.
function ordered({ columns, links }) {
  const places = new Map(columns[1].map((group, at) => [group.id, at]));
  return columns.map((groups, at) => {
    if (at === 1) return groups;
    const [its, service] = at === 0 ? ["from", "to"] : ["to", "from"];
    const linked = Map.groupBy(links.filter((link) => link.column === (at === 0 ? 0 : 1)), (link) => link[its]);
    const mean = ({ id }) => {
      const found = linked.get(id).map((link) => places.get(link[service]));
      return found.reduce((sum, place) => sum + place, 0) / found.length;
    };
    const rank = (group) => LAST.indexOf(group.kind);
    return [...groups].sort((one, other) => rank(one) - rank(other) || mean(one) - mean(other));
  });
}

// As many as fit for each connection, with room for cards that are too small to be to scale. The card
// of the others is not to scale, because its sum would make the rest thin.
function pixelsEach(view) {
  const shown = view.columns.map((groups) => groups.filter((group) => group.kind !== "others"));
  const largest = Math.max(1, ...shown.flat().map((group) => group.connections));
  const fitting = shown.map((groups) => {
    const sum = groups.reduce((all, group) => all + group.connections, 0);
    return Math.max(HEIGHT - groups.length * (CARD_HEIGHT + GAP), CARD_HEIGHT) / Math.max(sum, 1);
  });
  return Math.max(LARGEST_OF_MANY / largest, Math.min(LARGEST / largest, ...fitting));
}

function stackLines(links, columns, scale) {
  const lines = links.map((link) => {
    const from = columns[link.column].get(link.from);
    const to = columns[link.column + 1].get(link.to);
    return { key: `${from.key} ${to.key}`, link, from, to, wide: link.connections * scale };
  });
  const [left, right] = ["from", "to"].map((end) => Map.groupBy(lines, (line) => line[end]));
  const room = new Map([...left, ...right].map(([card, its]) => [card, Math.min(1, card.height / thickness(its))]));
  for (const line of lines) {
    line.wide = Math.max(THINNEST, line.wide * Math.min(room.get(line.from), room.get(line.to)));
  }
  stack(lines, "from", "to");
  stack(lines, "to", "from");
  return lines;
}

const thickness = (lines) => lines.reduce((all, line) => all + line.wide, 0);

// Where lines leave their cards: around the middle, in the order of the cards at their other ends.
function stack(lines, here, there) {
  for (const [card, its] of Map.groupBy(lines, (line) => line[here])) {
    its.sort((one, other) => one[there].top - other[there].top);
    let top = card.top + (card.height - thickness(its)) / 2;
    for (const line of its) {
      line[`${here}Middle`] = top + line.wide / 2;
      top += line.wide;
    }
  }
}

function makeLine(line, open) {
  const start = () => open(wantedBy(line));
  return svg(
    "g",
    {
      class: "line",
      role: "button",
      tabindex: 0,
      click: start,
      keydown: (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        start();
      },
    },
    svg("title"),
    svg("path", { class: "near" }),
    svg("path", { class: "fine" }),
    svg("path", { class: "bad" }),
  );
}

// A line has two ends: the third column matches anything.
function wantedBy(line) {
  const wanted = { client: "", via: "", target: "" };
  wanted[LINE[line.from.at]] = line.from.group.id;
  wanted[LINE[line.to.at]] = line.to.group.id;
  return wanted;
}

function updateLine(target, line, view, state) {
  const { link, from, to } = line;
  const [left, right] = [from.left + from.width, to.left];
  const middle = (left + right) / 2;
  const path = `M${left},${line.fromMiddle} C${middle},${line.fromMiddle} ${middle},${line.toMiddle} ${right},${line.toMiddle}`;
  const [title, near, fine, bad] = target.children;
  const said = `${from.group.name} to ${to.group.name}: ${spoken(link, view)}`;
  setText(title, said);
  setAttributes(target, { "aria-label": said, "aria-expanded": String(isOpen(wantedBy(line), state)) });
  setAttributes(near, { d: path, "stroke-width": Math.max(line.wide, 9) });
  setAttributes(fine, { d: path, "stroke-width": line.wide });
  const share = problemCount(link) / link.connections;
  setAttributes(bad, { d: path, "stroke-width": share ? Math.max(line.wide * share, THINNEST) : 0 });
}

function makeCard(card, open) {
  const wanted = wantedOf(card);
  return element(
    "button",
    { type: "button", click: () => open(wanted) },
    element("span", { class: "name" }),
    element("span", { class: "trouble" }),
    element("span", { class: "rate" }),
  );
}

const wantedOf = (card) => ({ client: "", via: "", target: "", [LINE[card.at]]: card.group.id });

function updateCard(target, card, view, state) {
  const { group } = card;
  const [name, trouble, number] = target.children;
  showName(name, group);
  const bad = problemCount(group);
  const isNobody = group.kind === "nobody";
  setText(trouble, bad && !isNobody ? `▲ ${count(bad)}` : "");
  setText(number, rate(group.connections, view.seconds));
  setAttributes(target, {
    class: `card ${group.kind}`,
    title: `${group.name}: ${spoken(group, view)}`,
    "aria-expanded": String(isOpen(wantedOf(card), state)),
  });
  // Not as an attribute, which the page's own security policy forbids.
  for (const side of ["left", "top", "width", "height"]) target.style[side] = `${card[side]}px`;
}

// The namespace of a name is paler.
export function showName(target, group) {
  const [, before, after] = /^((?:[^/]*\/)?)(.*)$/s.exec(shownName(group));
  if (target.textContent === before + after) return;
  target.replaceChildren(element("span", { class: "namespace" }, before), element("span", {}, after));
}

export function shownName(group) {
  if (group.kind !== "others") return group.name;
  return group.hidden ? `${count(group.hidden)} others` : "others";
}

function spoken(tally, view) {
  const bad = problems(tally);
  const all = `${counted(tally.connections, "connection")}, ${rate(tally.connections, view.seconds)}`;
  return bad ? `${all}, ${bad}` : all;
}

const isOpen = (wanted, state) => LINE.every((name) => wanted[name] === state[name]);
