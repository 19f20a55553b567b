// Marks beside the curves: epochs at which trials are pruned or members replaced, and where a member became a copy.

import { vertical } from "./draw.js";
import { nearest } from "./trace.js";

/** @import { CurvesPanel } from "./curves.js" */
/** @import { Plot } from "./plot.js" */
/** @import { Series } from "./types.d.ts" */

/** @param {CanvasRenderingContext2D} c @param {Plot} plot @param {CurvesPanel} panel */
export function paintRungs(c, plot, { view, xAxis }) {
  const epochs = /** @type {number[]} */ (view.get("rungs") ?? []);
  if (xAxis !== "epoch" || !epochs.length) return;
  const places = epochs.map((epoch) => Math.round(plot.x.px(epoch)) + 0.5);
  c.globalAlpha = 0.55;
  for (const x of places) vertical(c, plot, x, view.theme.muted);
  c.globalAlpha = 1;
  const first = places.find((x) => x >= plot.margin.left);
  if (first === undefined) return;
  c.fillStyle = view.theme.muted;
  c.textAlign = "left";
  c.textBaseline = "top";
  c.fillText(places.length > 1 ? "rungs" : "rung", first + 4, plot.margin.top + 2);
}

/**
 * A ring at each epoch at which a member took another's state.
 * @param {CanvasRenderingContext2D} c
 * @param {Plot} plot
 * @param {Series} series
 */
export function paintCopies(c, plot, { member, trace, xs, ys }) {
  for (const [epoch] of member.copies) {
    const i = nearest(trace.epoch, trace.n, epoch);
    if (trace.epoch[i] !== epoch || !Number.isFinite(plot.y.px(ys[i]))) continue;
    c.lineWidth = 1.5;
    c.beginPath();
    c.arc(plot.x.px(xs[i]), plot.y.px(ys[i]), 5, 0, 2 * Math.PI);
    c.stroke();
  }
}

/** What a tooltip says of it. @param {Series["member"]} member */
export function copiesOf({ copies }) {
  return copies.map(([epoch, parent]) => `copy of #${parent} at epoch ${epoch}`).slice(-3).join(", ");
}
