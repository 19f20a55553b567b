// The curves of the members on the canvas.

import { dot, line, vertical } from "./draw.js";
import { paintMarks, paintRungs } from "./marks.js";
import { indexAt } from "./read_curves.js";
import { ended } from "./store.js";

/** @import { CurvesPanel } from "./curves.js" */
/** @import { offScaleWords } from "./read_curves.js" */
/** @import { Plot } from "./plot.js" */
/** @import { Series, Values } from "./types.d.ts" */
/** @import { View } from "./view.js" */

/** @param {CanvasRenderingContext2D} c @param {Plot} plot @param {CurvesPanel} panel */
export function paintCurves(c, plot, panel) {
  const { shown, view } = panel;
  const { best } = view.store.run;
  if (panel.xAxis === "time") view.shadePauses(c, plot);
  paintRungs(c, plot, panel);
  const lifted = view.hovered;
  const chosen = new Set(view.get("selected"));
  // Those that stand out are drawn last, over the others.
  const rank = (/** @type {Series} */ { member, main }) =>
    8 * Number(lifted?.has(member.id) ?? false) + 4 * Number(chosen.has(member.id)) + 2 * Number(member.id === best)
    + Number(main);
  const many = shown.length > 80;
  for (const s of [...shown].sort((a, b) => rank(a) - rank(b))) {
    const up = lifted?.has(s.member.id) || (!lifted && chosen.has(s.member.id));
    const faded = lifted ? !up : chosen.size > 0 && !up;
    const first = s.member.id === best;
    const alpha = faded ? (first ? 0.6 : 0.22) : many && !up && !first ? 0.75 : 1;
    if (first && s.main && s.trace.n > 1) halo(c, plot, view, s);
    curve(c, plot, panel, s, up || (first && s.main), alpha * (s.main ? 1 : 0.5));
  }
  const winner = shown.find((s) => s.main && s.member.id === best);
  if (winner) nameBest(c, plot, view, winner);
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
function curve(c, plot, panel, series, up, alpha) {
  const { member, trace, main, xs, ys } = series;
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
  if (main) paintMarks(c, plot, series, up);
  if (main && ended(member)) cross(c, plot, xs, ys, trace.n);
  else if (main) arrow(c, plot, xs[trace.n - 1], ys[trace.n - 1]);
}

/**
 * What lifts the best curve off the others.
 * @param {CanvasRenderingContext2D} c
 * @param {Plot} plot
 * @param {View} view
 * @param {Series} series
 */
function halo(c, plot, view, { trace, xs, ys }) {
  c.globalAlpha = 0.85;
  c.strokeStyle = view.theme.paper;
  c.lineWidth = 6;
  c.setLineDash([]);
  line(c, xs, ys, trace.n, plot.x, plot.y);
}

/** @param {CanvasRenderingContext2D} c @param {Plot} plot @param {View} view @param {Series} series */
function nameBest(c, plot, view, { member, trace, xs, ys }) {
  const i = trace.n - 1;
  const [top, right] = [plot.margin.top, plot.margin.left + plot.plotWidth];
  const [x, y] = [plot.x.px(xs[i]), plot.y.px(ys[i])];
  if (!(x <= right && y >= top && y <= top + plot.plotHeight)) return;
  const text = member.config.some(([name]) => name === "run") ? "best" : `best #${member.id}`; // of several runs, numbers are nobody's
  const wide = c.measureText(text).width;
  c.globalAlpha = 1;
  c.textAlign = "left";
  c.textBaseline = "middle";
  c.lineWidth = 4;
  c.strokeStyle = view.theme.paper;
  c.fillStyle = view.theme.ink;
  const beside = x + 6 + wide <= right; // the run is not over
  const [tx, ty] = beside ? [x + 6, y] : [Math.max(plot.margin.left + 4, x - wide), Math.max(top + 9, y - 11)];
  c.strokeText(text, tx, ty);
  c.fillText(text, tx, ty);
}

/**
 * At the edge beyond which a curve has gone.
 * @param {CanvasRenderingContext2D} c
 * @param {Plot} plot
 * @param {number} x
 * @param {number} y
 */
function arrow(c, plot, x, y) {
  const [top, bottom] = [plot.margin.top, plot.margin.top + plot.plotHeight];
  const py = plot.y.px(y);
  if (!(py < top || py > bottom)) return;
  const [px, tip, foot] = [plot.x.px(x), py < top ? top + 1 : bottom - 1, py < top ? top + 8 : bottom - 8];
  c.beginPath();
  c.moveTo(px, tip);
  c.lineTo(px - 5, foot);
  c.lineTo(px + 5, foot);
  c.fill();
}

/**
 * What is off scale, at the edges that it has left by.
 * @param {CanvasRenderingContext2D} c
 * @param {Plot} plot
 * @param {ReturnType<typeof offScaleWords>} words
 */
export function sayOffScale(c, plot, { above, below }) {
  const { margin, plotHeight, plotWidth, view: { theme } } = plot;
  const say = (/** @type {string} */ text, /** @type {number} */ y) => {
    const wide = c.measureText(text).width;
    c.fillStyle = theme.paper;
    c.fillRect(margin.left + plotWidth - wide - 22, y - 7, wide + 8, 14);
    c.fillStyle = theme.ink;
    c.textAlign = "right";
    c.textBaseline = "middle";
    c.fillText(text, margin.left + plotWidth - 18, y);
  };
  if (above) say(`▲ ${above}`, margin.top + 9);
  if (below) say(`▼ ${below}`, margin.top + plotHeight - 9);
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
