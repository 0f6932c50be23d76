// SPDX-License-Identifier: Apache-2.0
// Numbers as people read them.

const BYTES = ["B", "KiB", "MiB", "GiB", "TiB"];

export const count = (number) => number.toLocaleString("en-US");

export const counted = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

function short(number) {
  if (number >= 100) return count(Math.round(number));
  return number.toFixed(number >= 10 || Number.isInteger(number) ? 0 : 1);
}

// Low rates are per minute: 0.05/s says little.
export function rate(number, seconds) {
  if (!number) return "0/s";
  const each = number / seconds;
  return each >= 1 ? `${short(each)}/s` : `${short(each * 60)}/min`;
}

export function bytes(number) {
  let unit = 0;
  while (number >= 1024 && unit < BYTES.length - 1) {
    number /= 1024;
    unit += 1;
  }
  return `${unit ? number.toFixed(number < 10 ? 1 : 0) : Math.round(number)} ${BYTES[unit]}`;
}

export const byteRate = (number, seconds) => `${bytes(number / seconds)}/s`;

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 0.001) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  if (seconds < 120) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  return `${(seconds / 60).toFixed(0)} min`;
}

export const quantiles = (found) => (found ? `${duration(found.p50)} / ${duration(found.p95)}` : "–");

// In the time zone of the browser; the text itself if it is not a time.
export function clock(text) {
  const moment = new Date(text);
  if (Number.isNaN(moment.getTime())) return text;
  return `${moment.toLocaleTimeString("en-GB")}.${String(moment.getMilliseconds()).padStart(3, "0")}`;
}

// All verdicts but "forwarded".
const PROBLEMS = ["failed", "refused", "dropped"];

export function problems(tally) {
  const parts = PROBLEMS.filter((name) => tally[name]);
  return parts.map((name) => `${count(tally[name])} ${name}`).join(", ");
}

export const problemCount = (tally) => PROBLEMS.reduce((sum, name) => sum + tally[name], 0);
