// SPDX-License-Identifier: Apache-2.0
// What is shown of flows: of many in the table and at the top of the panel, of one in its list.

import { byteRate, bytes, count, duration, problemShare, problems, quantiles, rate } from "./format.js";

// The first three columns of the map and of the table, by what they are grouped by.
export const HEADS = {
  workload: ["Client", "Service", "Workload"],
  pod: ["Client", "Service", "Pod"],
  namespace: ["Client namespace", "Service namespace", "Pod namespace"],
  node: ["Client node", "Service", "Pod node"],
  zone: ["Client zone", "Service", "Pod zone"],
};
export const NAMES = 3;

// Title (of names: see HEADS), what to sort by (empty if the table cannot be sorted by it), and the text
// of a row, except for names.
export const COLUMNS = [
  ["", "client"],
  ["", "service"],
  ["", "target"],
  ["Connections", "connections", (row) => count(row.connections)],
  ["Rate", "", (row, seconds) => rate(row.connections, seconds)],
  ["Active", "", (row) => active(row)],
  ["Problems", "problems", (row) => row.reasons.map(([why, number]) => `${count(number)} ${why}`).join(", ") || "–"],
  ["Sent", "sent", (row, seconds) => byteRate(row.sent, seconds)],
  ["Received", "received", (row, seconds) => byteRate(row.received, seconds)],
  ["RTT p50 / p95", "", (row) => quantiles(row.rtt_seconds)],
  ["Lasted p50 / p95", "", (row) => quantiles(row.seconds)],
];

// Name, and text; nothing is shown without a text.
export const FACTS = [
  ["Connections", (total, seconds) => `${rate(total.connections, seconds)} (${count(total.connections)})`],
  ["Problems", (total) => (problems(total) ? `▲ ${problemShare(total)} (${problems(total)})` : "none")],
  ["Why", (total) => total.reasons.map(([why, number]) => `${why} (${count(number)})`).join(", ")],
  ["RTT p50 / p95", (total) => total.rtt_seconds && quantiles(total.rtt_seconds)],
  ["Lasted p50 / p95", (total) => total.seconds && quantiles(total.seconds)],
  [
    "Sent, received",
    ({ sent, received }, seconds) => (sent + received ? `${byteRate(sent, seconds)}, ${byteRate(received, seconds)}` : ""),
  ],
  ["Active now", (total, seconds, line) => (line.active === null ? "" : `${count(line.active)} of the Service`)],
  ["Retransmits", (total) => (total.retransmits ? count(total.retransmits) : "")],
];

// Connections that are open now; of a Service as a whole.
export const active = (found) => (found.active === null ? "–" : count(found.active));

// One flow as its agent describes it (docs/monitoring.md): its three ends, and everything else.
export function endsOf({ client, frontend, protocol, backend }) {
  return [client ? end(client) : "unknown client", `${end(frontend)}/${protocol}`, backend ? end(backend) : ""].filter(Boolean);
}

export function detailsOf(flow) {
  return [
    `recorded on ${flow.node}`,
    flow.path,
    flow.seconds === undefined ? "" : `lasted ${duration(flow.seconds)}`,
    flow.rtt_seconds === undefined ? "" : `RTT ${duration(flow.rtt_seconds)}`,
    flow.bytes?.original || flow.bytes?.reply ? `${bytes(flow.bytes.original)} sent, ${bytes(flow.bytes.reply)} received` : "",
    flow.retransmits ? `${count(flow.retransmits)} retransmits` : "",
    flow.snat ? "masqueraded" : "",
    flow.hairpin ? "hairpin" : "",
  ].filter(Boolean);
}

export const whyOf = (flow) =>
  (flow.event === "start" ? "started" : flow.reason || flow.ended || "").replaceAll("_", " ");

function end({ address, pod, port }) {
  if (!port) return pod || address;
  return `${pod || (address.includes(":") ? `[${address}]` : address)}:${port}`;
}
