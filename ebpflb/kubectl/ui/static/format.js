// SPDX-License-Identifier: Apache-2.0
// Numbers as people read them.

const BYTES = ["B", "KiB", "MiB", "GiB", "TiB"];

export const count = (number) => number.toLocaleString("en-US");

export const counted = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

// Two digits, or all of a larger number.
export function rate(number, seconds) {
  const each = number / seconds;
  if (!each) return "0/s";
  return `${each < 99.5 ? each.toPrecision(2) : count(Math.round(each))}/s`;
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

// Times of day are in the time zone of the browser.
const timeOf = (moment) => moment.toLocaleTimeString("en-GB");

// `seconds`: since 1970. Without seconds of the minute that are 0.
export const timeOfDay = (seconds) => timeOf(new Date(seconds * 1000)).replace(/:00$/, "");

// With the date, unless that is today.
export function when(seconds) {
  const moment = new Date(seconds * 1000);
  const isToday = moment.toDateString() === new Date().toDateString();
  const day = isToday ? "" : `${moment.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} `;
  return day + timeOfDay(seconds);
}

// The text itself if it is not a time.
export function clock(text) {
  const moment = new Date(text);
  if (Number.isNaN(moment.getTime())) return text;
  return `${timeOf(moment)}.${String(moment.getMilliseconds()).padStart(3, "0")}`;
}

// All verdicts but "forwarded".
const PROBLEMS = ["failed", "refused", "dropped"];

export function problems(tally) {
  const parts = PROBLEMS.filter((name) => tally[name]);
  return parts.map((name) => `${count(tally[name])} ${name}`).join(", ");
}

// Of the connections, in percent.
export function problemShare(tally) {
  const percent = (100 * problemCount(tally)) / tally.connections;
  if (percent > 0 && percent < 1) return "<1 %";
  return percent > 99 && percent < 100 ? ">99 %" : `${Math.round(percent)} %`;
}

export const problemCount = (tally) => PROBLEMS.reduce((sum, name) => sum + tally[name], 0);
