// The curves of the members.

import { extent, offScale, pad, wholeExtent } from "./limits.js";
import { formatNumber, formatTime } from "./numbers.js";
import { paintCurves, sayOffScale } from "./paint_curves.js";
import { followed, nearestSpot, nextSpot, offScaleWords, tipOf } from "./read_curves.js";
import { smooth } from "./trace.js";

/** @import { Plot } from "./plot.js" */
/** @import { Trace } from "./trace.js" */
/** @import { Format, Interval, Metric, Panel, Point, Scene, Series, Split, Spot } from "./types.d.ts" */
/** @import { TimeAxis, Values } from "./types.d.ts" */
/** @import { View } from "./view.js" */

export const X_TITLES = { epoch: "epoch", step: "optimizer step", time: "time since the start" };
/** @type {Split[]} */
const SPLITS = ["train", "validation"];

/** @implements {Panel} */
export class CurvesPanel {
  /** @param {View} view */
  constructor(view) {
    this.view = view;
    this.margin = {};
    this.fixedY = false;
    this.shown = /** @type {Series[]} */ ([]);
    this.parts = /** @type {Split[]} */ ([]);
    this.near = /** @type {Spot | null} */ (null); // what the pointer or the keyboard is at
    this.stamp = "";
    this.range = /** @type {Interval} */ ([0, 1]);
    this.off = { above: "", below: "" }; // what the range leaves out
    this.cache = /** @type {WeakMap<Trace, { version: number, weight: number, values: Values }>} */ (new WeakMap());
  }

  /** @returns {TimeAxis} */
  get xAxis() { return this.view.get("x_axis"); }

  /** @returns {Metric | undefined} */
  get metric() {
    const { metrics } = this.view.store.layout;
    return metrics.find((m) => m.name === this.view.get("metric")) ?? metrics[0];
  }

  /** What is to be drawn: one series per member and split that has points. */
  series() {
    const metric = this.metric;
    const split = /** @type {Split | "both"} */ (this.view.get("split"));
    // A metric that lacks the chosen split shows the one that it has.
    this.parts = SPLITS.filter((part) =>
      metric?.[part] && (split === part || split === "both" || !metric[split]));
    const found = [];
    for (const member of this.view.store.members.values()) {
      for (const part of this.parts) {
        const trace = member.curves.get(metric?.[part] ?? "");
        if (!trace?.n) continue;
        const main = part === this.parts.at(-1);
        found.push({ member, trace, part, main, xs: trace[this.xAxis], ys: this.smoothed(trace) });
      }
    }
    return found;
  }

  /** @param {Trace} trace @returns {Values} */
  smoothed(trace) {
    const weight = this.view.get("smoothing");
    if (!weight) return trace.value;
    const known = this.cache.get(trace);
    if (known?.version === trace.version && known.weight === weight) return known.values;
    const values = smooth(trace.value, trace.n, weight);
    this.cache.set(trace, { version: trace.version, weight, values });
    return values;
  }

  /** @returns {Scene} */
  scene() {
    const { view, xAxis } = this;
    this.shown = this.series();
    // New data make new series: what the pointer is at is found again among them.
    if (this.near) this.near = followed(this.near, this.shown);
    const logX = view.get("log_x"), logY = view.get("log_y");
    const format = /** @type {Format} */ (xAxis === "time" ? formatTime : formatNumber);
    return {
      x: { extent: this.extentX(logX), log: logX, format, title: X_TITLES[xAxis], whole: xAxis !== "time" },
      y: { extent: this.extentY(logY), log: logY, format: formatNumber },
      empty: this.shown.length ? "" : this.waiting(),
    };
  }

  waiting() {
    const { run, layout } = this.view.store;
    if (!layout.members.length) return "no run yet";
    if (run.state !== "RUNNING") return "no points of this metric";
    return run.phase && !run.phase.startsWith("training") ? `${run.phase} …` : "the first epoch is under way";
  }

  /** @param {boolean} log @returns {Interval} */
  extentX(log) {
    if (this.view.sharesTime()) return this.view.timeExtent();
    let low = Infinity, high = -Infinity;
    for (const { xs, trace } of this.shown) {
      let first = 0;
      while (log && first < trace.n && !(xs[first] > 0)) first++;
      if (first === trace.n) continue;
      low = Math.min(low, log ? Math.log10(xs[first]) : xs[first]);
      high = Math.max(high, log ? Math.log10(xs[trace.n - 1]) : xs[trace.n - 1]);
    }
    if (!(low <= high) && !log) return [0, (this.xAxis === "epoch" && this.view.store.layout.epochs) || 1];
    const end = this.plannedEnd();
    high = Math.max(high, log ? Math.log10(end) : end);
    if (!log && this.xAxis === "epoch" && high - low < 1) {
      // Epochs are whole: a single one stands between its neighbours.
      const [first, last] = [Math.floor(low), Math.ceil(high)];
      return first < last ? [first, last] : [first - 1, last + 1];
    }
    return pad([low, high], log, 0.01);
  }

  /** Where the run will end as it is planned, so that curves grow into the plot; 0 where it is over or nobody knows. */
  plannedEnd() {
    const { layout: { epochs }, over } = this.view.store;
    if (over || this.xAxis === "time") return 0;
    if (this.xAxis === "epoch") return epochs;
    const steps = this.shown.map(({ trace: { epoch, step, n } }) => (step[n - 1] / epoch[n - 1]) * epochs);
    return Math.max(0, ...steps.filter(Number.isFinite));
  }

  /** Shows all of the selected members' curves, and as little else as possible. @param {Plot} plot */
  fit(plot) {
    const chosen = new Set(this.view.get("selected"));
    const series = this.shown.filter((s) => chosen.has(s.member.id));
    const log = this.view.get("log_y");
    if (series.length) plot.setZoom("y", pad(wholeExtent(series, log), log, 0.04));
  }

  /** @param {boolean} log */
  extentY(log) {
    const versions = this.shown.map((s) => s.trace.version).join();
    const traits = ["metric", "split", "smoothing"].map((name) => this.view.get(name));
    const { fulls, run: { best } } = this.view.store;
    const stamp = [versions, fulls, log, best, ...traits].join();
    if (stamp !== this.stamp) {
      this.stamp = stamp;
      this.range = pad(extent(this.shown, log, best), log, 0.04);
      this.off = offScaleWords(offScale(this.shown, this.range, log));
    }
    return this.range;
  }

  /** @param {CanvasRenderingContext2D} c @param {Plot} plot */
  paint(c, plot) { paintCurves(c, plot, this); }

  /** @param {CanvasRenderingContext2D} c @param {Plot} plot */
  above(c, plot) { if (!plot.zoom.y) sayOffScale(c, plot, this.off); }

  /** Points at a spot, or at none. @param {Spot | null} spot */
  point(spot) {
    this.near = spot;
    this.view.cursorTime = spot ? spot.series.trace.time[spot.index] : null;
    return spot ? spot.series.member : null;
  }

  forget() { this.near = null; }

  /** @param {Plot} plot @param {Point} at */
  hover(plot, at) { return this.point(nearestSpot(this.shown, plot, at)); }

  /** @param {Plot} plot @param {Point} at @param {boolean} several */
  click(plot, at, several) {
    const found = nearestSpot(this.shown, plot, at);
    this.view.select(found && found.distance < 24 ? found.series.member.id : null, several);
  }

  /** @param {boolean} several */
  press(several) {
    if (this.near) this.view.select(this.near.series.member.id, several);
  }

  /**
   * Keyboard: to the next point, or to the member above or below.
   * @param {Plot} plot
   * @param {number} dx
   * @param {number} dy
   */
  walk(plot, dx, dy) {
    const spot = nextSpot(this.shown.filter((s) => s.main), this.near, dx, dy);
    if (!spot) return;
    const { series: { xs, ys }, index } = spot;
    this.view.showHover(plot, this.point(spot), { x: plot.x.px(xs[index]), y: plot.y.px(ys[index]) });
  }

  tip() { return this.near && tipOf(this, this.near); }

  describe() {
    const { metric, view } = this;
    if (!this.shown.length || !metric) return `Curves of the members: ${this.waiting()}`;
    const lasts = this.shown.filter((s) => s.main).map((s) => ({ v: s.ys[s.trace.n - 1], name: s.member.label }))
      .filter(({ v }) => Number.isFinite(v)).sort((a, b) => a.v - b.v);
    const named = (/** @type {{ v: number, name: string }} */ { v, name }) => `${formatNumber(v)} (${name})`;
    const range = lasts.length ? `; last values from ${named(lasts[0])} to ${named(lasts[lasts.length - 1])}` : "";
    const what = `${metric.label} over ${X_TITLES[this.xAxis]} for ${view.store.members.size} members`;
    const off = [this.off.above, this.off.below].filter(Boolean).map((words) => `; ${words}`).join("");
    return `Curves of ${what}${range}${off}. ${view.summary()}`;
  }
}
