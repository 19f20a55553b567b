// What part of the values an axis shows.

/** @import { Interval, Series } from "./types.d.ts" */

/**
 * [low, high] with room around it; of logarithms if log.
 * @param {Interval} range
 * @param {boolean} log
 * @param {number} part
 * @returns {Interval}
 */
export function pad([low, high], log, part) {
  if (!(low <= high)) return log ? [-3, 0] : [0, 1];
  const room = low < high ? (high - low) * part : log ? 0.3 : Math.abs(low) * 0.1 || 0.5;
  return [low - room, high + room];
}

/**
 * The values of a series that an axis can show: the least, the greatest and the last.
 * @param {Pick<Series, "ys" | "trace">} series
 * @param {boolean} log whether as logarithms
 */
function ends({ ys, trace }, log) {
  let low = Infinity, high = -Infinity, last = NaN;
  for (let i = 0; i < trace.n; i++) {
    const v = log ? Math.log10(ys[i]) : ys[i];
    if (!Number.isFinite(v)) continue;
    if (v < low) low = v;
    if (v > high) high = v;
    last = v;
  }
  return { low, high, last };
}

/**
 * The values that are shown of some series: all of the best member's, and of the others those that lie near. A member
 * at 1e12 must not flatten the others. The range begins with the best member's (of the middle one where none is the
 * best yet) and a quarter of the series, and grows by the next series as long as that is not far: not beyond the size
 * of the range so far, or of the values, and not beyond four times that of the beginning. `figures/limits.py` does the
 * same.
 * @param {Series[]} series
 * @param {boolean} log whether low and high are logarithms
 * @param {number | null} best the id of the best member
 * @returns {Interval}
 */
export function extent(series, log, best) {
  const all = series.map((s) => ({ ...ends(s, log), best: s.member.id === best })).filter((e) => e.low <= e.high);
  if (!all.length) return [1, 0];
  const quarter = (all.length - 1) >> 2;
  let core = all.filter((e) => e.best);
  if (!core.length) core = [[...all].sort((a, b) => a.last - b.last)[(all.length - 1) >> 1]];
  let bottom = Math.min(all.map((e) => e.low).sort((a, b) => b - a)[quarter], ...core.map((e) => e.low));
  let top = Math.max(all.map((e) => e.high).sort((a, b) => a - b)[quarter], ...core.map((e) => e.high));
  const unit = log ? 1 : Math.max(Math.abs(bottom), Math.abs(top)) || 1;
  const far = 4 * Math.max(top - bottom, unit);
  const [least, most] = [bottom - far, top + far];
  const beyond = new Map(all.map((e) => [e, Math.max(bottom - e.low, e.high - top)]));
  for (const e of all.sort((a, b) => (beyond.get(a) ?? 0) - (beyond.get(b) ?? 0))) {
    const reach = Math.max(top - bottom, unit);
    if (e.low >= Math.max(least, bottom - reach) && e.high <= Math.min(most, top + reach)) {
      [bottom, top] = [Math.min(bottom, e.low), Math.max(top, e.high)];
    }
  }
  return [bottom, top];
}

/**
 * All of these series, as far as it can be drawn.
 * @param {Series[]} series
 * @param {boolean} log
 * @returns {Interval}
 */
export function wholeExtent(series, log) {
  const all = series.map((s) => ends(s, log));
  return [Math.min(...all.map((e) => e.low)), Math.max(...all.map((e) => e.high))];
}

/**
 * What an axis leaves out: the members with values above it and below it, and the values that lie farthest out.
 * @param {Series[]} series
 * @param {Interval} shown
 * @param {boolean} log
 */
export function offScale(series, [low, high], log) {
  const above = { members: new Set(), far: -Infinity }, below = { members: new Set(), far: Infinity };
  for (const s of series) {
    const e = ends(s, log);
    if (e.high > high) { above.members.add(s.member.id); above.far = Math.max(above.far, e.high); }
    if (e.low < low) { below.members.add(s.member.id); below.far = Math.min(below.far, e.low); }
  }
  const value = (/** @type {number} */ v) => (log ? 10 ** v : v);
  return {
    above: { count: above.members.size, far: value(above.far) },
    below: { count: below.members.size, far: value(below.far) },
  };
}

const ROUND = [1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10];

/** The next of some numbers a little apart: an axis that ends there moves seldom. @param {number} v */
export function settledEnd(v) {
  const power = 10 ** Math.floor(Math.log10(v));
  return power * (ROUND.find((m) => m * power >= v) ?? 10);
}
