// SPDX-License-Identifier: Apache-2.0
// The line that is open: its sums, why connections failed, its latest flows, and explain for each.

import { drawBars } from "./bars.js";
import { FACTS, detailsOf, endsOf, whyOf } from "./columns.js";
import { copy } from "./copy.js";
import { element, keepChildren, setText } from "./dom.js";
import { clock } from "./format.js";

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
    element("figure"),
    element("h3", {}, "Latest flows"),
    element("ol", { class: "flows" }),
  );
}

export function drawPanel(box, line, state, ask, look) {
  const [head, facts, figure, title, list] = box.children;
  setText(head.firstElementChild, Object.keys(ANY).map((name) => nameOf(state[name]) || ANY[name]).join(" → "));
  keepChildren(
    facts,
    factsOf(line),
    ([name]) => name,
    ([name]) => element("div", {}, element("dt", {}, name), element("dd")),
    (target, [, text]) => setText(target.lastElementChild, text),
  );
  drawBars(figure, line, look);
  setText(title, line.flows.length ? "Latest flows" : "No flows kept for this line");
  const { until } = state;
  keepChildren(list, line.flows, ({ number }) => `flow ${number} ${until}`, (kept) => makeFlow(kept, until, ask), () => {});
}

// The name in an id, which is KIND:NAME.
const nameOf = (id) => id.slice(id.indexOf(":") + 1);

function factsOf(line) {
  return FACTS.map(([name, text]) => [name, text(line.total, line.seconds, line)]).filter(([, text]) => text);
}

function makeFlow({ number, flow }, until, ask) {
  const answer = element("pre", { hidden: "", tabindex: 0, "aria-label": "Output of explain" });
  const button = element("button", { type: "button", "aria-expanded": "false" }, "Explain");
  const copier = element("button", { type: "button", hidden: "" }, "Copy command");
  button.onclick = () => explain(flow.node, () => ask("explain", { flow: number, id: flow.id ?? "", until }), button, answer, copier);
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
    copier,
    answer,
  );
}

async function explain(node, ask, button, answer, copier) {
  const isShown = button.getAttribute("aria-expanded") === "true";
  button.setAttribute("aria-expanded", String(!isShown));
  answer.hidden = isShown;
  copier.hidden = true;
  if (isShown) return;
  setText(answer, `asking ${node} …`);
  try {
    const found = await ask();
    // What the plugin answers names the nodes itself.
    const place = found.command.startsWith("kubectl ") ? "" : found.node;
    setText(answer, `${place}$ ${found.command}\n\n${found.text}`);
    copier.onclick = () => copy(copier, found.copied);
    copier.hidden = answer.hidden;
  } catch (error) {
    setText(answer, error.message);
  }
}
