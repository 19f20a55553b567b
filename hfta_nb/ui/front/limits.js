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
 * Extent of what can be drawn of some series. One member gone to 1e12 must not flatten the others: on a linear axis
 * what lies far beyond the extremes that most members reach is left out, but of every member that did not diverge
 * something stays in sight. `figures.py` does the same.
 * @param {Series[]} series
 * @param {boolean} log
 * @returns {Interval}
 */
export function extent(series, log) {
  const ends = [];
  for (const { ys, trace, member } of series) {
    let low = Infinity, high = -Infinity;
    for (let i = 0; i < trace.n; i++) {
      const v = log ? Math.log10(ys[i]) : ys[i];
      if (v < low && v > -Infinity) low = v;
      if (v > high && v < Infinity) high = v;
    }
    if (low <= high) ends.push({ low, high, sound: member.state !== "DIVERGED" });
  }
  const lows = ends.map((e) => e.low).sort((a, b) => b - a);
  const highs = ends.map((e) => e.high).sort((a, b) => a - b);
  /** @type {Interval} */
  const all = [lows.at(-1) ?? 1, highs.at(-1) ?? 0];
  if (log || ends.length < 3) return all;
  const quarter = (ends.length - 1) >> 2;
  const sound = ends.filter((e) => e.sound);
  const top = Math.max(highs[quarter], ...sound.map((e) => e.low));
  const bottom = Math.min(lows[quarter], ...sound.map((e) => e.high));
  // Curves that cross (the losses of two networks) may have hardly anything in common: how far one of them goes counts.
  const ranges = ends.map((e) => e.high - e.low).sort((a, b) => a - b);
  const reach = 4 * (Math.max(Math.abs(top - bottom), ranges[quarter]) || Math.abs(top) || 1);
  if (all[0] >= bottom - reach && all[1] <= top + reach) return all;
  return insideExtent(series, [bottom - reach, top + reach]);
}

/** @param {Series[]} series @param {Interval} inside @returns {Interval} */
function insideExtent(series, [least, greatest]) {
  let low = Infinity, high = -Infinity;
  for (const { ys, trace } of series) {
    for (let i = 0; i < trace.n; i++) {
      if (ys[i] >= least && ys[i] < low) low = ys[i];
      if (ys[i] <= greatest && ys[i] > high) high = ys[i];
    }
  }
  return [low, high];
}
