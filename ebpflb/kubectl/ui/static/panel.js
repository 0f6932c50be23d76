// SPDX-License-Identifier: Apache-2.0
// The line that is open: its sums, why connections failed, its latest flows, and explain for each.

import { FACTS, detailsOf, endsOf, whyOf } from "./columns.js";
import { element, keepChildren, setText } from "./dom.js";
import { clock } from "./format.js";
import { bars, drawBars } from "./summary.js";

const ANY = { client: "any client", via: "any Service", target: "any pod" };

export function makePanel(box, close) {
  box.replaceChildren(
    element(
      "header",
      {},
      element("h2", { id: "panel-title", tabindex: -1 }),
      element("button", { type: "button", class: "close", "aria-label": "Close", click: close }, "×"),
    ),
    element("dl", { class: "facts" }),
    element("figure", {}, bars()),
    element("h3", {}, "Latest flows"),
    element("ol", { class: "flows" }),
  );
}

export function drawPanel(box, line, state, ask) {
  const [head, facts, figure, title, list] = box.children;
  setText(head.firstElementChild, Object.keys(ANY).map((name) => nameOf(state[name]) || ANY[name]).join(" → "));
  keepChildren(
    facts,
    factsOf(line),
    ([name]) => name,
    ([name]) => element("div", {}, element("dt", {}, name), element("dd")),
    (target, [, text]) => setText(target.lastElementChild, text),
  );
  drawBars(figure.firstElementChild, line.history);
  setText(title, line.flows.length ? "Latest flows" : "No flows kept for this line");
  keepChildren(list, line.flows, ({ number }) => `flow ${number}`, (kept) => makeFlow(kept, ask), () => {});
}

// The name in an id, which is KIND:NAME.
const nameOf = (id) => id.slice(id.indexOf(":") + 1);

function factsOf({ total, seconds }) {
  return FACTS.map(([name, text]) => [name, text(total, seconds)]).filter(([, text]) => text);
}

function makeFlow({ number, flow }, ask) {
  const answer = element("pre", { hidden: "", tabindex: 0, "aria-label": "Output of explain" });
  const button = element("button", { type: "button", "aria-expanded": "false" }, "Explain");
  button.onclick = () => explain(flow.node, number, button, answer, ask);
  const isBad = flow.verdict !== "forwarded";
  return element(
    "li",
    { class: isBad ? "bad" : null },
    element(
      "p",
      {},
      element("time", {}, clock(flow.time)),
      element("b", {}, flow.verdict),
      element("span", {}, whyOf(flow)),
      button,
    ),
    element("p", { class: "ends" }, endsOf(flow).join(" → ")),
    element("p", { class: "more" }, detailsOf(flow).join(", ")),
    answer,
  );
}

async function explain(node, number, button, answer, ask) {
  const isShown = button.getAttribute("aria-expanded") === "true";
  button.setAttribute("aria-expanded", String(!isShown));
  answer.hidden = isShown;
  if (isShown) return;
  setText(answer, `asking ${node} …`);
  try {
    const found = await ask("explain", { flow: number });
    // What the plugin answers names the nodes itself.
    const place = found.command.startsWith("kubectl ") ? "" : found.node;
    setText(answer, `${place}$ ${found.command}\n\n${found.text}`);
  } catch (error) {
    setText(answer, error.message);
  }
}
