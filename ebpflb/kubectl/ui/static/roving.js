// SPDX-License-Identifier: Apache-2.0
// One tab stop for many elements, between which arrows move.

import { setAttributes } from "./dom.js";

// moves: key of an element -> name of a key -> where it leads.
export function chain(moves, keys, back, forth) {
  keys.forEach((key, at) => moves.set(key, { ...moves.get(key), [back]: keys[at - 1], [forth]: keys[at + 1] }));
}

export function rove(box, moves) {
  const stops = new Map([...box.querySelectorAll("[data-key]")].map((each) => [each.dataset.key, each]));
  const enter = (current) => {
    box.dataset.current = current;
    for (const [key, each] of stops) setAttributes(each, { tabindex: key === current ? 0 : -1 });
  };
  enter(stops.has(box.dataset.current) ? box.dataset.current : [...moves.keys()][0]);
  box.onfocusin = ({ target }) => stops.has(target.dataset.key) && enter(target.dataset.key);
  box.onkeydown = (event) => {
    const next = stops.get(moves.get(event.target.dataset.key)?.[event.key]);
    if (!next) return;
    event.preventDefault();
    next.focus();
  };
}
