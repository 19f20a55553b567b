// The ticks of an axis.

import { formatTime } from "./numbers.js";

/** @import { Format, Tick } from "./types.d.ts" */

const SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

/**
 * Ticks between low and high; those with text are labelled.
 * @param {number} low
 * @param {number} high
 * @param {boolean} log whether low and high are logarithms
 * @param {number} count about how many there is room for
 * @param {Format} format
 * @param {boolean} [whole] whether only whole numbers are
 * @returns {Tick[]}
 */
export function ticks(low, high, log, count, format, whole = false) {
  if (log && high - low >= 0.9) return logTicks(low, high, count, format);
  const [from, to] = log ? [10 ** low, 10 ** high] : [low, high];
  const raw = (to - from) / Math.max(1, count);
  const time = format === formatTime && raw > 0.5;
  const power = 10 ** Math.floor(Math.log10(raw));
  const digits = Math.max(3, Math.ceil(Math.log10(Math.max(Math.abs(from), Math.abs(to)) / raw)) + 1);
  const even = time
    ? SECONDS.find((s) => s >= raw) ?? Math.ceil(raw / 86400) * 86400
    : power * ([1, 2, 5].find((m) => m * power >= raw * 0.999) ?? 10);
  const step = whole && !log ? Math.max(1, even) : even;
  const found = [];
  for (let i = Math.ceil(from / step - 1e-9); i * step <= to * (1 + 1e-12) + step * 1e-9 && found.length < 50; i++) {
    const v = i * step;
    if (!log || v > 0) found.push({ at: log ? Math.log10(v) : v, text: format(Number(v.toPrecision(12)), digits) });
  }
  return found;
}

/** @param {number} low @param {number} high @param {number} count @param {Format} format @returns {Tick[]} */
function logTicks(low, high, count, format) {
  const decades = Math.max(1, Math.ceil((high - low) / Math.max(1, count)));
  const found = [];
  for (let d = Math.floor(low); d <= high; d++) {
    const few = high - low < 2.2 && decades === 1;
    for (let m = 1; m < (decades > 1 ? 2 : 10); m++) {
      const at = d + Math.log10(m);
      if (at < low - 1e-9 || at > high + 1e-9) continue;
      const labelled = m === 1 ? d % decades === 0 : few && (m === 2 || m === 5);
      found.push({ at, text: labelled ? format(Number(`${m}e${d}`), 3) : "" });
    }
  }
  return found;
}
