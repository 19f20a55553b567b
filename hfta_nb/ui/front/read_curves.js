// What is read from the curves: the point that is pointed at, the next one, and what the tooltip says.

import { toSegment } from "./draw.js";
import { marksOf } from "./marks.js";
import { formatNumber, formatTime } from "./numbers.js";
import { ended } from "./store.js";
import { nearest } from "./trace.js";

/** @import { CurvesPanel } from "./curves.js" */
/** @import { offScale } from "./limits.js" */
/** @import { Point, Scale, Series, Spot, Split, Member, Tip } from "./types.d.ts" */

/** The mean distance between two points of a series; 0 where it has one. @param {Series} series */
function spacing({ xs, trace }) {
  return trace.n > 1 ? (xs[trace.n - 1] - xs[0]) / (trace.n - 1) : 0;
}

/**
 * The point of a series at x; null where it has none near (it ended before, or that epoch was not validated).
 * @param {Series} series
 * @param {number} x
 * @param {Series} pointed the curve that is pointed at: it may have more points than this one, which then counts at its
 *   own alone
 */
export function indexAt(series, x, pointed) {
  const i = nearest(series.xs, series.trace.n, x);
  const gap = Math.min(spacing(series), spacing(pointed));
  return Math.abs(series.xs[i] - x) <= Math.max(0.75 * gap, Math.abs(x) * 1e-9) ? i : null;
}

/** The same spot among newer series. @param {Spot} spot @param {Series[]} shown @returns {Spot | null} */
export function followed({ series: old, index }, shown) {
  const series = shown.find(({ member, part }) => member.id === old.member.id && part === old.part);
  return series ? { series, index: Math.min(index, series.trace.n - 1) } : null;
}

/**
 * The series and point nearest to a place on the plot, by distance to the line in pixels.
 * @param {Series[]} shown
 * @param {{ x: Scale, y: Scale }} plot
 * @param {Point} at
 */
export function nearestSpot(shown, plot, at) {
  let best = /** @type {Spot & { distance: number } | null} */ (null);
  const x = plot.x.inverse(at.x);
  for (const series of shown) {
    const { xs, ys, trace } = series;
    const index = nearest(xs, trace.n, plot.x.log ? 10 ** x : x);
    for (let i = Math.max(0, index - 1); i < Math.min(trace.n, index + 2); i++) {
      const j = Math.min(i + 1, trace.n - 1);
      const [a, b] = [i, j].map((k) => [plot.x.px(xs[k]), plot.y.px(ys[k])]);
      const distance = toSegment(at, a, b);
      if (distance < (best?.distance ?? Infinity)) best = { series, index, distance };
    }
  }
  return best;
}

/**
 * To the next point of a series, or to the series above or below.
 * @param {Series[]} mains
 * @param {Spot | null} near
 * @param {number} dx
 * @param {number} dy
 * @returns {Spot | null}
 */
export function nextSpot(mains, near, dx, dy) {
  if (!mains.length) return null;
  if (!near || !mains.includes(near.series)) return { series: mains[0], index: mains[0].trace.n - 1 };
  const { series, index } = near;
  if (!dy) return { series, index: Math.max(0, Math.min(series.trace.n - 1, index + dx)) };
  const order = [];
  for (const s of mains) {
    const i = indexAt(s, series.xs[index], series);
    if (i !== null) order.push({ series: s, index: i });
  }
  order.sort((a, b) => b.series.ys[b.index] - a.series.ys[a.index]);
  const place = order.findIndex((p) => p.series === series) + dy;
  return order[Math.max(0, Math.min(order.length - 1, place))];
}

/** How many members are off scale, and how far. @param {ReturnType<typeof offScale>} off */
export function offScaleWords({ above, below }) {
  const words = (/** @type {number} */ count) => `${count} ${count === 1 ? "member" : "members"} off scale`;
  return {
    above: above.count ? `${words(above.count)}, up to ${formatNumber(above.far, 2)}` : "",
    below: below.count ? `${words(below.count)}, down to ${formatNumber(below.far, 2)}` : "",
  };
}

/**
 * A head line, rows of the members from top to bottom, and a note on the nearest.
 * @param {CurvesPanel} panel
 * @param {Spot} near
 * @returns {Tip}
 */
export function tipOf({ parts, shown, view }, { series, index }) {
  const { trace, member } = series;
  const rows = /** @type {Map<Member, { values: Map<Split, number>, order: number }>} */ (new Map());
  for (const s of shown) {
    const i = indexAt(s, series.xs[index], series);
    if (i === null) continue;
    const row = rows.get(s.member) ?? { values: new Map(), order: 0 };
    rows.set(s.member, row);
    row.values.set(s.part, s.ys[i]);
    row.order = s.ys[i]; // the main one comes last
  }
  const lost = (/** @type {{ order: number }} */ row) => Number(Number.isNaN(row.order));
  const sorted = [...rows].sort(([, a], [, b]) => lost(a) - lost(b) || b.order - a.order || 0);
  const head = [`epoch ${formatNumber(trace.epoch[index])}`, `step ${trace.step[index]}`];
  if (Number.isFinite(trace.time[index])) head.push(formatTime(trace.time[index]));
  const text = (/** @type {number | undefined} */ v) => (v === undefined ? "–" : formatNumber(v));
  return {
    head: head.join(" · "),
    columns: parts.length > 1 ? ["train", "validation"] : [],
    rows: sorted.map(([m, row]) => ({
      color: view.colorOf(m), dash: view.dashOf(m), name: m.label, near: m === member,
      cells: parts.map((p) => text(row.values.get(p))),
    })),
    notes: [
      ended(member) ? `${member.state}${member.reason ? ": " + member.reason : ""}` : view.store.blown(member),
      marksOf(member),
    ],
  };
}
