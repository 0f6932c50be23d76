// SPDX-License-Identifier: Apache-2.0
// Buttons that copy a command.

import { setText } from "./dom.js";

const SHOWN_MS = 1500;

export async function copy(button, text) {
  button.dataset.name ??= button.textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    window.prompt("Copy this command:", text);
    return;
  }
  setText(button, "Copied");
  setTimeout(() => setText(button, button.dataset.name), SHOWN_MS);
}
