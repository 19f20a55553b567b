// Configurations that are selected by what they have: a part of an axis, a cell, a line.

import { toSegment } from "./draw.js";

/** @import { Interval, Point } from "./types.d.ts" */

/**
 * What is selected after some members were pressed: they alone, or nobody where they were alone before. With `several`
 * the others stay selected, and they join them or leave.
 * @param {number[]} before
 * @param {number[]} ids
 * @param {boolean} several
 * @returns {number[]}
 */
export function picked(before, ids, several) {
  const all = ids.every((id) => before.includes(id));
  const others = before.filter((id) => !ids.includes(id));
  if (several) return all ? others : [...others, ...ids];
  return all && !others.length ? [] : ids;
}

const SLACK = 0.015; // of a ruler: values of categories lie a little apart, and the ends are rounded

/**
 * Whether a line lies within all brushes, or hardly beside them.
 * @param {(number | null)[]} at where it crosses each ruler, from 0 to 1
 * @param {Map<number, Interval>} brushes by the place of their ruler
 */
export function withinAll(at, brushes) {
  for (const [ruler, [low, high]] of brushes) {
    const place = at[ruler];
    if (place === null || place === undefined || place < low - SLACK || place > high + SLACK) return false;
  }
  return true;
}

/**
 * A brush moved, or its upper end alone, by a part of the ruler; it stays on the ruler.
 * @param {Interval} brush
 * @param {number} by
 * @param {boolean} end
 * @returns {Interval}
 */
export function moved([low, high], by, end) {
  if (end) return [low, Math.min(1, Math.max(low + Math.abs(by) / 2, high + by))];
  const shift = Math.max(-low, Math.min(1 - high, by));
  return [low + shift, high + shift];
}

/**
 * The line nearest to a place, as far as `reach` pixels away; the last of those that are equally near.
 * @template {{ at: (number | null)[] }} L
 * @param {L[]} lines
 * @param {number[]} xs of the rulers, in pixels
 * @param {(share: number) => number} y
 * @param {Point} point
 * @param {number} reach
 * @returns {L | null}
 */
export function nearestLine(lines, xs, y, point, reach) {
  let best = null, least = reach;
  const right = xs.findIndex((x) => x >= point.x);
  const left = Math.max(0, right < 0 ? xs.length - 2 : right - 1);
  for (const one of lines) {
    const [from, to] = [one.at[left], one.at[left + 1]];
    if (from === null || to === null || from === undefined || to === undefined) continue;
    const distance = toSegment(point, [xs[left], y(from)], [xs[left + 1], y(to)]);
    if (distance <= least) [best, least] = [one, distance];
  }
  return best;
}
