// The curves of the members on the canvas.

import { dot, line, vertical } from "./draw.js";
import { indexAt } from "./read_curves.js";
import { ended } from "./store.js";

/** @import { CurvesPanel } from "./curves.js" */
/** @import { Plot } from "./plot.js" */
/** @import { Series, Values } from "./types.d.ts" */

/** @param {CanvasRenderingContext2D} c @param {Plot} plot @param {CurvesPanel} panel */
export function paintCurves(c, plot, panel) {
  const { shown, view } = panel;
  if (panel.xAxis === "time") view.shadePauses(c, plot);
  const lifted = view.hovered;
  const chosen = new Set(view.get("selected"));
  // Those that stand out are drawn last, over the others.
  const rank = (/** @type {Series} */ { member, main }) =>
    4 * Number(lifted?.has(member.id) ?? false) + 2 * Number(chosen.has(member.id)) + Number(main);
  const many = shown.length > 80;
  for (const s of [...shown].sort((a, b) => rank(a) - rank(b))) {
    const up = lifted?.has(s.member.id) || (!lifted && chosen.has(s.member.id));
    const faded = lifted ? !up : chosen.size > 0 && !up;
    curve(c, plot, panel, s, up, (faded ? 0.22 : many && !up ? 0.75 : 1) * (s.main ? 1 : 0.5));
  }
  c.globalAlpha = 1;
  guide(c, plot, panel);
}

/**
 * @param {CanvasRenderingContext2D} c
 * @param {Plot} plot
 * @param {CurvesPanel} panel
 * @param {Series} series
 * @param {boolean} up whether it stands out
 * @param {number} alpha
 */
function curve(c, plot, panel, { member, trace, main, xs, ys }, up, alpha) {
  c.strokeStyle = c.fillStyle = panel.view.colorOf(member);
  c.lineJoin = "round";
  c.globalAlpha = alpha;
  if (up && main && ys !== trace.value) { // what smoothing hides
    c.globalAlpha = alpha * 0.35;
    c.lineWidth = 1;
    c.setLineDash([]);
    line(c, xs, trace.value, trace.n, plot.x, plot.y);
    c.globalAlpha = alpha;
  }
  c.lineWidth = (main ? 1.6 : 1.1) + (up ? 1.1 : 0);
  c.setLineDash(main ? panel.view.dashOf(member) : [2, 3]);
  if (trace.n > 1) line(c, xs, ys, trace.n, plot.x, plot.y);
  else dot(c, plot.x.px(xs[0]), plot.y.px(ys[0]), main ? 3 : 2);
  c.setLineDash([]);
  if (main && ended(member)) cross(c, plot, xs, ys, trace.n);
}

/**
 * Where a member ended.
 * @param {CanvasRenderingContext2D} c
 * @param {Plot} plot
 * @param {Values} xs
 * @param {Values} ys
 * @param {number} n
 */
function cross(c, plot, xs, ys, n) {
  let last = n - 1;
  const { log } = plot.y;
  while (last >= 0 && !(Number.isFinite(ys[last]) && (!log || ys[last] > 0))) last--;
  // Without a single value that can be drawn it stands on the upper edge.
  const x = plot.x.px(xs[Math.max(0, last)]);
  const top = plot.margin.top;
  const y = last < 0 ? top + 6 : Math.max(top + 6, Math.min(top + plot.plotHeight - 6, plot.y.px(ys[last])));
  c.lineWidth = 2;
  c.beginPath();
  c.moveTo(x - 4, y - 4); c.lineTo(x + 4, y + 4);
  c.moveTo(x - 4, y + 4); c.lineTo(x + 4, y - 4);
  c.stroke();
}

/** What is pointed at. @param {CanvasRenderingContext2D} c @param {Plot} plot @param {CurvesPanel} panel */
function guide(c, plot, { near, shown, view, xAxis }) {
  const elsewhere = xAxis === "time" ? view.cursorTime : null;
  const x = near ? near.series.xs[near.index] : elsewhere;
  if (x === null) return;
  vertical(c, plot, Math.round(plot.x.px(x)) + 0.5, view.theme.muted);
  if (!near) return;
  for (const s of shown) {
    const i = indexAt(s, x, near.series);
    if (i === null) continue;
    const top = s.member === near.series.member;
    c.globalAlpha = top ? 1 : 0.6;
    c.fillStyle = view.colorOf(s.member);
    dot(c, plot.x.px(s.xs[i]), plot.y.px(s.ys[i]), top && s === near.series ? 4.5 : 2.2);
  }
  c.globalAlpha = 1;
}
