// SPDX-License-Identifier: Apache-2.0
// Which time is shown: now, or a window in the past, which the nodes are asked for.

import { setAttributes, setText } from "./dom.js";
import { when } from "./format.js";

const STEP_SECONDS = 300;

export const iso = (seconds) => new Date(seconds * 1000).toISOString().replace(".000", "");

// The end of the window that a place of the slider stands for; 0 for now.
function endOf(slider) {
  const steps = Math.floor(Date.now() / 1000 / STEP_SECONDS) + Number(slider.value);
  return Number(slider.value) ? steps * STEP_SECONDS : 0;
}

export function startSlider(label, look) {
  const [slider, output] = label.children;
  slider.addEventListener("input", () => tell(slider, output, endOf(slider)));
  slider.addEventListener("change", () => look(endOf(slider)));
}

function tell(slider, output, end) {
  const text = end ? `until ${when(end)}` : "now";
  setText(output, text);
  setAttributes(slider, { "aria-valuetext": text });
}

export const windowOf = (view) => `${when(Math.round(view.begin))} to ${when(Math.round(view.end))}`;

// `said`: the window, or why there is none.
export function drawTime(label, banner, { until }, said) {
  const [slider, output] = label.children;
  const end = until ? Date.parse(until) / 1000 : 0;
  if (slider !== document.activeElement) {
    slider.value = end ? Math.min(-1, Math.floor(end / STEP_SECONDS) - Math.floor(Date.now() / 1000 / STEP_SECONDS)) : 0;
    tell(slider, output, end);
  }
  banner.hidden = !until;
  document.body.classList.toggle("past", Boolean(until));
  setText(banner.firstElementChild, `Past: ${said}`);
}
