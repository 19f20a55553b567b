// The device: how busy it is (left scale) and its memory (right scale).

import { band, dot, line, vertical } from "./draw.js";
import { formatNumber, formatTime, GIB, niceCeiling, quantity } from "./numbers.js";
import { ticks } from "./ticks.js";
import { lastOf, nearest } from "./trace.js";

/** @import { Plot } from "./plot.js" */
/** @import { Trace } from "./trace.js" */
/** @import { DeviceLine, Panel, Point, Scene, Tip } from "./types.d.ts" */
/** @import { View } from "./view.js" */

/** @implements {Panel} */
export class DevicePanel {
  /** @param {View} view */
  constructor(view) {
    this.view = view;
    this.margin = { left: 44, right: 50 };
    this.fixedY = true;
    this.memoryTop = 1;
    this.near = /** @type {{ trace: Trace, index: number } | null} */ (null);
    this.lifted = /** @type {string | null} */ (null); // the key of the line that its chip lifts
  }

  /** The points of a line, if it has any. @param {DeviceLine} l */
  trace(l) {
    const trace = this.view.store.device.get(l.key);
    return trace?.n ? trace : null;
  }

  /** Lines of a kind that have points. @param {DeviceLine["kind"]} kind */
  lines(kind) {
    const found = [];
    for (const l of this.view.store.lines) {
      const trace = l.kind === kind && this.trace(l);
      if (trace) found.push({ l, trace });
    }
    return found;
  }

  /** @returns {Scene} */
  scene() {
    let most = 0;
    for (const { trace: { value, n } } of this.lines("memory")) {
      for (let i = 0; i < n; i++) if (value[i] > most) most = value[i];
    }
    this.memoryTop = niceCeiling((most / GIB) * 1.08 || 1);
    return {
      x: { extent: this.view.timeExtent(), log: false, format: formatTime, title: "time since the start" },
      y: { extent: [0, 1.02], log: false, format: (v) => `${Math.round(v * 100)}%` },
      empty: this.view.store.device.size ? "" : "no device measurements yet",
    };
  }

  /** @param {CanvasRenderingContext2D} c @param {Plot} plot */
  paint(c, plot) {
    this.view.shadePauses(c, plot);
    for (const { l, trace } of this.lines("memory")) this.memory(c, plot, l, trace);
    const [least, most] = this.lines("spread");
    if (least && most) band(c, plot, least.trace, most.trace, this.view.paint(least.l));
    for (const { l, trace: { time, value, n } } of this.lines("fraction")) {
      c.globalAlpha = this.lifted && this.lifted !== l.key ? 0.2 : 1;
      c.strokeStyle = c.fillStyle = this.view.paint(l);
      c.lineWidth = this.lifted === l.key ? 2.6 : 1.6;
      c.setLineDash(l.dash);
      if (n > 1) line(c, time, value, n, plot.x, plot.y);
      else dot(c, plot.x.px(time[0]), plot.y.px(value[0]), 3);
    }
    c.globalAlpha = 1;
    c.setLineDash([]);
    const { cursorTime, theme } = this.view;
    if (cursorTime !== null) vertical(c, plot, Math.round(plot.x.px(cursorTime)) + 0.5, theme.muted);
  }

  /** @param {CanvasRenderingContext2D} c @param {Plot} plot @param {DeviceLine} l @param {Trace} trace */
  memory(c, plot, l, { time, value, n }) {
    const { margin, plotHeight, x } = plot;
    const y = {
      px: (/** @type {number} */ bytes) => margin.top + plotHeight * (1 - bytes / GIB / this.memoryTop / 1.02),
    };
    c.globalAlpha = this.lifted && this.lifted !== l.key ? 0.25 : 1;
    c.strokeStyle = c.fillStyle = this.view.paint(l);
    c.lineWidth = this.lifted === l.key ? 2.6 : 1.3;
    c.setLineDash(l.dash);
    if (n > 1) line(c, time, value, n, x, y);
    else dot(c, x.px(time[0]), y.px(value[0]), 2.5);
    if (n > 1 && !l.dash.length) {
      c.lineTo(x.px(time[n - 1]), margin.top + plotHeight);
      c.lineTo(x.px(time[0]), margin.top + plotHeight);
      c.globalAlpha *= 0.13;
      c.fill();
    }
    c.globalAlpha = 1;
  }

  /** The scale of memory, on the right. @param {CanvasRenderingContext2D} c @param {Plot} plot */
  above(c, plot) {
    if (!this.lines("memory").length) return;
    const right = plot.margin.left + plot.plotWidth;
    c.fillStyle = this.view.theme.muted;
    c.textAlign = "left";
    c.textBaseline = "middle";
    for (const { at, text } of ticks(0, this.memoryTop, false, plot.plotHeight / 48, formatNumber)) {
      c.fillText(text, right + 6, plot.margin.top + plot.plotHeight * (1 - at / this.memoryTop / 1.02));
    }
    c.save();
    c.translate(plot.width - 6, plot.margin.top + plot.plotHeight / 2);
    c.rotate(-Math.PI / 2);
    c.textAlign = "center";
    c.fillText("memory, GiB", 0, 0);
    c.restore();
  }

  forget() { this.near = null; }

  /** @param {Plot} plot @param {Point} at */
  hover(plot, at) {
    this.pointAt(plot.x.inverse(at.x));
    return null;
  }

  /** @param {number} time */
  pointAt(time) {
    const longest = [...this.view.store.device.values()].sort((a, b) => b.n - a.n)[0];
    this.near = longest?.n ? { trace: longest, index: nearest(longest.time, longest.n, time) } : null;
    this.view.cursorTime = this.near ? longest.time[this.near.index] : null;
  }

  /** @param {Plot} plot @param {number} dx */
  walk(plot, dx) {
    if (!this.near) this.pointAt(Infinity);
    if (!this.near) return;
    const { trace, index } = this.near;
    const to = Math.max(0, Math.min(trace.n - 1, index + dx));
    this.near = { trace, index: to };
    this.view.cursorTime = trace.time[to];
    this.view.showHover(plot, null, { x: plot.x.px(trace.time[to]), y: plot.margin.top + 20 });
  }

  /** @returns {Tip | null} */
  tip() {
    if (!this.near) return null;
    const time = this.near.trace.time[this.near.index];
    const rows = [], spread = [];
    for (const l of this.view.store.lines) {
      const trace = this.trace(l);
      if (!trace) continue;
      const value = trace.value[nearest(trace.time, trace.n, time)];
      if (l.kind === "spread") { spread.push(quantity(l, value)); continue; }
      const color = l.kind === "other" ? "transparent" : this.view.paint(l);
      rows.push({ color, dash: l.dash, name: l.label, cells: [quantity(l, value)] });
    }
    return { head: formatTime(time), columns: [], rows, notes: [spread.length ? `cores from ${spread.join(" to ")}` : ""] };
  }

  /** Chips under the plot, with the last value of each. */
  chips() {
    return [...this.lines("fraction"), ...this.lines("memory")]
      .map(({ l, trace }) => ({ line: l, text: this.now(l, trace) }));
  }

  /** @param {DeviceLine} l @param {Trace} trace */
  now(l, trace) {
    const text = quantity(l, lastOf(trace));
    const total = l.key === "memory_bytes" && this.view.store.device.get("memory_total_bytes");
    return total && total.n ? `${text} of ${formatNumber(lastOf(total) / GIB, 3)}` : text;
  }

  describe() {
    const now = this.chips().map(({ line: l, text }) => `${l.label} ${text}`);
    if (!now.length) return "Utilization of the device: no measurements yet.";
    return `Utilization of the device over time; now ${now.join(", ")}.`;
  }
}
