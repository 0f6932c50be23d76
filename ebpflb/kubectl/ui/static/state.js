// SPDX-License-Identifier: Apache-2.0
// What the page shows is part of its address, so that reload, bookmarks and the back button work.

const DEFAULTS = {
  view: "map",
  group: "workload",
  window: "60",
  namespace: "",
  service: "",
  node: "",
  verdict: "",
  text: "",
  sort: "problems",
  rows: "100",
  client: "",
  via: "",
  target: "",
  until: "",
};
export const LINE = ["client", "via", "target"];
const FILTERS = ["namespace", "service", "node", "verdict", "text"];

export function read() {
  const given = new URLSearchParams(location.search);
  return Object.fromEntries(
    Object.entries(DEFAULTS).map(([name, usual]) => [name, given.get(name) ?? usual]),
  );
}

// With `isStep` the back button returns to what was shown before.
export function change(wanted, isStep = false) {
  const text = String(search({ ...read(), ...wanted }));
  const address = text ? `?${text}` : location.pathname;
  history[isStep ? "pushState" : "replaceState"](null, "", address);
}

function search(state) {
  const differs = ([name, value]) => value !== DEFAULTS[name];
  return new URLSearchParams(Object.entries(state).filter(differs));
}

// For the server: without the view, which only the page needs.
export function query(state) {
  const { view, ...rest } = state;
  return search(rest);
}

export const cleared = () => Object.fromEntries(FILTERS.map((name) => [name, DEFAULTS[name]]));

export const isFiltered = (state) => FILTERS.some((name) => state[name]);

export const isLineOpen = (state) => LINE.some((name) => state[name]);
