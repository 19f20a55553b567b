// Marks beside the curves: epochs at which trials are pruned or members replaced, and where a member became a copy or was changed.

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
 * A ring at each epoch at which a member took another's state or was given other values; said of one that stands out.
 * @param {CanvasRenderingContext2D} c
 * @param {Plot} plot
 * @param {Series} series
 * @param {boolean} up whether it stands out
 */
export function paintMarks(c, plot, { member, trace, xs, ys }, up) {
  for (const [epoch, what] of member.marks) {
    const i = nearest(trace.epoch, trace.n, epoch);
    // One that begins as a copy, or is changed before its first epoch has ended, has its first point later.
    if (i < 0 || Math.abs(trace.epoch[i] - epoch) > 1 || !Number.isFinite(plot.y.px(ys[i]))) continue;
    const [x, y] = [plot.x.px(xs[i]), plot.y.px(ys[i])];
    c.lineWidth = 1.5;
    c.beginPath();
    c.arc(x, y, 5, 0, 2 * Math.PI);
    c.stroke();
    if (!up) continue;
    const right = x + 8 + c.measureText(what).width < plot.margin.left + plot.plotWidth;
    c.textAlign = right ? "left" : "right";
    c.textBaseline = "bottom";
    c.fillText(what, right ? x + 8 : x - 8, y - 6);
  }
}

/** What a tooltip says of them. @param {Series["member"]} member */
export function marksOf({ marks }) {
  return marks.map(([epoch, what]) => `${what} at epoch ${epoch}`).slice(-3).join("; ");
}
