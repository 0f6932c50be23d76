// SPDX-License-Identifier: Apache-2.0
// Names of groups: NAMESPACE/NAME, an address, a reason, or how many others there are.

import { element } from "./dom.js";
import { count } from "./format.js";

// What is never cut: so much of a namespace, and of the end of a name, which tells pods apart.
const BEGIN = 4;
const END = 6;
// Of fewer letters, an ellipsis would save nothing.
const FEWEST = 2;

// Each part is an element, so that the style can say what is cut.
export function showName(target, group) {
  if (target.textContent === shownName(group)) return;
  const [, namespace, slash, name] = /^(?:([^/]*)(\/))?(.*)$/s.exec(shownName(group));
  const kept = namespace?.length > BEGIN + FEWEST ? BEGIN : namespace?.length;
  const cut = name.length > END + FEWEST ? name.length - END : 0;
  const parts = [
    ["namespace", namespace?.slice(0, kept)],
    ["namespace cut", namespace?.slice(kept)],
    ["namespace", slash],
    ["cut", name.slice(0, cut)],
    [cut ? "" : "cut", name.slice(cut)],
  ];
  target.replaceChildren(...parts.filter(([, text]) => text).map(([kind, text]) => element("span", { class: kind }, text)));
}

function shownName(group) {
  if (group.kind !== "others") return group.name;
  return group.hidden ? `${count(group.hidden)} others` : "others";
}
