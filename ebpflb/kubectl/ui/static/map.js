// SPDX-License-Identifier: Apache-2.0
// The map: clients, Services and pods in three columns of cards, and lines between them. The width of
// a line shows its number of connections, and the red part how many of them had problems. Its spine is
// seen by who cannot tell pale colours.

import { element, keepChildren, pressed, setAttributes, setText, svg } from "./dom.js";
import { counted, problemCount, problemShare, problems, rate } from "./format.js";
import { showName } from "./names.js";
import { chain, rove } from "./roving.js";
import { LINE } from "./state.js";

// Of a card with few connections: in a window that is low, and in one that is high.
const LOW = 27;
const HIGH = 60;
// The largest card of a map with few of them, and of a full one, as multiples of that.
const LARGEST = 4;
const LARGEST_OF_MANY = 1.25;
const GAP = 6;
const LEAST_HEIGHT = 420;
const MARGIN = 24;
const THINNEST = 1.5;
const SPINE = 1.5;
const THINNEST_RED = 2.2;
// The share of the width that the cards of one column take.
const CARD_SHARE = 0.27;

export function drawMap(box, view, state, open) {
  const room = window.innerHeight - box.getBoundingClientRect().top - window.scrollY - MARGIN;
  const layout = layOut(view, box.clientWidth, Math.max(room, LEAST_HEIGHT));
  const drawing = box.querySelector("svg");
  setAttributes(drawing, { width: box.clientWidth, height: layout.height });
  setAttributes(box, { class: view.links.some(problemCount) ? "troubled" : null });
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
  rove(box, movesOf(layout));
}

// Up and down within a column of cards, or of lines; left and right along the lines.
function movesOf({ cards, lines }) {
  const moves = new Map();
  const keys = (items) => items.map(({ key }) => key);
  for (const at of [0, 1, 2]) chain(moves, keys(cards.filter((card) => card.at === at)), "ArrowUp", "ArrowDown");
  const ordered = lines.toSorted((one, other) => one.fromMiddle - other.fromMiddle);
  for (const at of [0, 1]) chain(moves, keys(ordered.filter(({ link }) => link.column === at)), "ArrowUp", "ArrowDown");
  for (const { key, from, to } of ordered) {
    Object.assign(moves.get(key), { ArrowLeft: from.key, ArrowRight: to.key });
    moves.get(from.key).ArrowRight ??= key;
    moves.get(to.key).ArrowLeft ??= key;
  }
  return moves;
}

function layOut(view, width, room) {
  const most = Math.max(1, ...view.columns.map((groups) => groups.length));
  const low = Math.min(HIGH, Math.max(LOW, Math.floor(room / most) - GAP));
  const scale = pixelsEach(view, room, low);
  const cardWidth = width * CARD_SHARE;
  const columns = ordered(view).map((groups, at) => {
    let top = 0;
    return new Map(
      groups.map((group) => {
        const isToScale = group.kind !== "others";
        const height = Math.max(low, isToScale ? group.connections * scale : 0);
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
// What has problems comes first, and the others last. Beyond that it does not depend on numbers, so
// nothing moves unless links come or go.
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
    const rank = (group) => (group.kind === "others" ? 2 : problemCount(group) ? 0 : 1);
    return [...groups].sort((one, other) => rank(one) - rank(other) || mean(one) - mean(other));
  });
}

// As many as fit for each connection, with room for cards that are too small to be to scale. The card
// of the others is not to scale, because its sum would make the rest thin.
function pixelsEach(view, room, low) {
  const shown = view.columns.map((groups) => groups.filter((group) => group.kind !== "others"));
  const largest = Math.max(1, ...shown.flat().map((group) => group.connections));
  const fitting = shown.map((groups) => {
    const sum = groups.reduce((all, group) => all + group.connections, 0);
    return Math.max(room - groups.length * (low + GAP), low) / Math.max(sum, 1);
  });
  return Math.max((LARGEST_OF_MANY * low) / largest, Math.min((LARGEST * low) / largest, ...fitting));
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
  // What has problems is drawn over the rest.
  return lines.sort((one, other) => Boolean(problemCount(one.link)) - Boolean(problemCount(other.link)));
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
  return svg(
    "g",
    pressed(() => open(wantedBy(line))),
    svg("title"),
    ...["near", "fine", "spine", "bad"].map((kind) => svg("path", { class: kind })),
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
  const [title, near, fine, spine, bad] = target.children;
  const said = `${from.group.name} to ${to.group.name}: ${spoken(link, view)}`;
  setText(title, said);
  setAttributes(target, { "aria-label": said, "aria-expanded": String(isOpen(wantedBy(line), state)) });
  setAttributes(near, { d: path, "stroke-width": Math.max(line.wide, 9) });
  setAttributes(fine, { d: path, "stroke-width": line.wide });
  setAttributes(spine, { d: path, "stroke-width": SPINE });
  const share = problemCount(link) / link.connections;
  setAttributes(bad, { d: path, "stroke-width": share ? Math.max(line.wide * share, THINNEST_RED) : 0 });
  setAttributes(target, { class: share ? "line unwell" : "line" });
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
  setText(trouble, bad && !isNobody ? `▲ ${problemShare(group)}` : "");
  setText(number, rate(group.connections, view.seconds));
  setAttributes(target, {
    class: `card ${group.kind}`,
    title: `${group.name}: ${spoken(group, view)}`,
    "aria-expanded": String(isOpen(wantedOf(card), state)),
  });
  // Not as an attribute, which the page's own security policy forbids.
  for (const side of ["left", "top", "width", "height"]) target.style[side] = `${card[side]}px`;
}

function spoken(tally, view) {
  const bad = problems(tally);
  const parts = [counted(tally.connections, "connection"), rate(tally.connections, view.seconds)];
  if (bad) parts.push(`▲ ${problemShare(tally)}: ${bad}`);
  if (tally.active) parts.push(`${tally.active} active now`);
  return parts.join(", ");
}

const isOpen = (wanted, state) => LINE.every((name) => wanted[name] === state[name]);
