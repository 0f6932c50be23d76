// SPDX-License-Identifier: Apache-2.0
// The line that is open: its sums, why connections failed, its latest flows, and explain for each.

import { element, keepChildren, setText } from "./dom.js";
import { byteRate, bytes, clock, count, duration, problems, quantiles, rate } from "./format.js";
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
  keepChildren(list, line.flows, (flow) => `flow ${flow.number}`, (flow) => makeFlow(flow, ask), () => {});
}

// The name in an id, which is KIND:NAME.
const nameOf = (id) => id.slice(id.indexOf(":") + 1);

function factsOf({ total, seconds }) {
  const volume = total.sent + total.received;
  return [
    ["Connections", `${rate(total.connections, seconds)} (${count(total.connections)})`],
    ["Problems", problems(total) || "none"],
    ["Why", total.reasons.map(([why, number]) => `${why} (${count(number)})`).join(", ")],
    ["RTT p50 / p95", total.rtt && quantiles(total.rtt)],
    ["Lasted p50 / p95", total.seconds && quantiles(total.seconds)],
    ["Sent, received", volume && `${byteRate(total.sent, seconds)}, ${byteRate(total.received, seconds)}`],
    ["Retransmits", total.retransmits ? count(total.retransmits) : ""],
  ].filter(([, text]) => text);
}

function makeFlow(flow, ask) {
  const answer = element("pre", { hidden: "", tabindex: 0, "aria-label": "Output of explain" });
  const button = element("button", { type: "button", "aria-expanded": "false" }, "Explain");
  button.onclick = () => explain(flow, button, answer, ask);
  const isBad = flow.verdict !== "forwarded";
  const why = (flow.event === "start" ? "started" : flow.why).replaceAll("_", " ");
  return element(
    "li",
    { class: isBad ? "bad" : null },
    element(
      "p",
      {},
      element("time", {}, clock(flow.time)),
      element("b", {}, flow.verdict),
      element("span", {}, why),
      button,
    ),
    element("p", { class: "ends" }, [flow.client || "unknown client", flow.frontend, flow.backend].filter(Boolean).join(" → ")),
    element("p", { class: "more" }, more(flow)),
    answer,
  );
}

function more(flow) {
  const parts = [
    `recorded on ${flow.node}`,
    flow.path,
    flow.seconds === null ? "" : `lasted ${duration(flow.seconds)}`,
    flow.rtt === null ? "" : `RTT ${duration(flow.rtt)}`,
    flow.sent || flow.received ? `${bytes(flow.sent)} sent, ${bytes(flow.received)} received` : "",
    flow.retransmits ? `${count(flow.retransmits)} retransmits` : "",
    flow.snat ? "masqueraded" : "",
    flow.hairpin ? "hairpin" : "",
  ];
  return parts.filter(Boolean).join(", ");
}

async function explain(flow, button, answer, ask) {
  const isShown = button.getAttribute("aria-expanded") === "true";
  button.setAttribute("aria-expanded", String(!isShown));
  answer.hidden = isShown;
  if (isShown) return;
  setText(answer, `asking ${flow.node} …`);
  try {
    const found = await ask("explain", { flow: flow.number });
    setText(answer, `${found.node}$ ${found.command}\n\n${found.text}`);
  } catch (error) {
    setText(answer, error.message);
  }
}
