// SPDX-License-Identifier: Apache-2.0
// Buttons that copy a command.

import { setText } from "./dom.js";

const SHOWN_MS = 1500;

export async function copy(button, text) {
  const name = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    window.prompt("Copy this command:", text);
    return;
  }
  setText(button, "Copied");
  setTimeout(() => setText(button, name), SHOWN_MS);
}
