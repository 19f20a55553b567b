// The devices: how busy they are, their power and their memory. Several are drawn as thin lines, or one of them alone.

import { formatNumber, formatTime, GIB, niceCeiling, quantity } from "./numbers.js";
import { paintDevice, paintMemoryScale, paintPower, STRIP } from "./paint_device.js";
import { lastOf, nearest } from "./trace.js";

/** @import { Plot } from "./plot.js" */
/** @import { Trace } from "./trace.js" */
/** @import { DeviceLine, Panel, Point, Scene, Tip } from "./types.d.ts" */
/** @import { View } from "./view.js" */

const TOP = 8;
const DASHES = [[], [7, 3], [2, 2], [9, 3, 2, 3]]; // of the devices, in turn

/** @param {string} a @param {string} b */
function inOrder(a, b) { return a.localeCompare(b, "en", { numeric: true }); }

/** The greatest value of some traces, at least 0. @param {{ trace: Trace }[]} shown */
function greatest(shown) {
  let most = 0;
  for (const { trace: { value, n } } of shown) for (let i = 0; i < n; i++) if (value[i] > most) most = value[i];
  return most;
}

/** @implements {Panel} */
export class DevicePanel {
  /** @param {View} view */
  constructor(view) {
    this.view = view;
    this.margin = { left: 44, right: 50, top: TOP };
    this.fixedY = true;
    this.memoryTop = this.powerTop = 1;
    this.near = /** @type {{ trace: Trace, index: number } | null} */ (null);
    // What stands out while the pointer is on its chip; and the one of several devices that is shown alone.
    this.lifted = { measurement: /** @type {string | null} */ (null), device: /** @type {string | null} */ (null) };
    this.chosen = /** @type {string | null} */ (null);
  }

  /** The points of a line, if it has any. @param {DeviceLine} l */
  trace(l) {
    const trace = this.view.store.device.get(l.key);
    return trace?.n ? trace : null;
  }

  /** The devices that were measured: the run's own as "", first. */
  get devices() { return [...new Set(this.view.store.lines.map((l) => l.device))].sort(inOrder); }

  /** @param {string} device */
  nameOf(device) { return device || this.view.store.layout.device || "device"; }

  /** The devices that are shown. */
  get shown() {
    const { devices, chosen } = this;
    return chosen !== null && devices.includes(chosen) ? [chosen] : devices;
  }

  /** Whether several are drawn. */
  get together() { return this.shown.length > 1; }

  /** Lines of a kind that have points. @param {DeviceLine["kind"]} kind */
  lines(kind) {
    const devices = this.shown;
    const found = [];
    for (const l of this.view.store.lines) {
      if (l.kind !== kind || !devices.includes(l.device)) continue;
      if (devices.length > 1 && l.measurement === "process_memory_bytes") continue; // its dash would say another device
      const trace = this.trace(l);
      if (trace) found.push({ l, trace });
    }
    return found;
  }

  /** Which of several devices a line is of. @param {string} device */
  dashOfDevice(device) { return this.together ? DASHES[this.devices.indexOf(device) % DASHES.length] : []; }

  /** @param {DeviceLine} l */
  dashOf(l) { return this.together ? this.dashOfDevice(l.device) : l.dash; }

  /** Whether a line is lifted, or another one is; null where none is. @param {DeviceLine} l */
  standsOut({ measurement, device }) {
    const { lifted } = this;
    if (lifted.measurement === null && lifted.device === null) return null;
    return measurement === lifted.measurement || device === lifted.device;
  }

  /** @returns {Scene} */
  scene() {
    this.memoryTop = niceCeiling((greatest(this.lines("memory")) / GIB) * 1.08 || 1);
    const power = this.lines("power");
    this.powerTop = niceCeiling(greatest(power) || 1);
    this.margin.top = power.length ? STRIP.top + STRIP.height + STRIP.gap : TOP;
    return {
      x: { extent: this.view.timeExtent(), log: false, format: formatTime, title: "time since the start" },
      y: { extent: [0, 1.02], log: false, format: (v) => `${Math.round(v * 100)}%` },
      empty: this.view.store.device.size ? "" : "no device measurements yet",
    };
  }

  /** @param {CanvasRenderingContext2D} c @param {Plot} plot */
  paint(c, plot) { paintDevice(c, plot, this); }

  /** @param {CanvasRenderingContext2D} c @param {Plot} plot */
  above(c, plot) {
    paintPower(c, plot, this);
    paintMemoryScale(c, plot, this);
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

  /** One row per measurement, one column per device. @returns {Tip | null} */
  tip() {
    if (!this.near) return null;
    const time = this.near.trace.time[this.near.index];
    const { shown, view } = this;
    const lines = view.store.lines.filter((l) => shown.includes(l.device) && this.trace(l));
    const rows = [], spread = [];
    for (const measurement of new Set(lines.map((l) => l.measurement))) {
      const of = shown.map((device) => lines.find((l) => l.measurement === measurement && l.device === device));
      const cells = of.map((l) => (l ? this.at(l, time) : "–"));
      const l = of.find((found) => found !== undefined);
      if (!l) continue;
      if (l.kind === "spread") { spread.push(cells[0]); continue; }
      const color = l.kind === "other" ? "transparent" : view.paint(l);
      rows.push({ color, dash: shown.length > 1 ? [] : l.dash, name: l.label, cells });
    }
    const notes = [spread.length ? `cores from ${spread.join(" to ")}` : ""];
    return { head: formatTime(time), columns: shown.length > 1 ? shown.map((d) => this.nameOf(d)) : [], rows, notes };
  }

  /** What a line has at a time. @param {DeviceLine} l @param {number} time */
  at(l, time) {
    const trace = this.trace(l);
    return trace ? quantity(l, trace.value[nearest(trace.time, trace.n, time)]) : "–";
  }

  /** Chips under the plot: one per measurement, with its last value, or those between which several devices have it. */
  chips() {
    const found = [];
    const all = [...this.lines("fraction"), ...this.lines("power"), ...this.lines("memory")];
    for (const measurement of new Set(all.map(({ l }) => l.measurement))) {
      const same = all.filter(({ l }) => l.measurement === measurement)
        .sort((a, b) => lastOf(a.trace) - lastOf(b.trace));
      const [{ l, trace }, most] = [same[0], same[same.length - 1]];
      const [low, high] = [quantity(l, lastOf(trace)), quantity(l, lastOf(most.trace))];
      found.push({ line: l, text: same.length === 1 ? this.now(l, trace) : low === high ? low : `${low} to ${high}` });
    }
    return found;
  }

  /** @param {DeviceLine} l @param {Trace} trace */
  now(l, trace) {
    const text = quantity(l, lastOf(trace));
    if (l.measurement !== "memory_bytes") return text;
    const total = this.view.store.device.get(l.key.replace("memory_bytes", "memory_total_bytes"));
    return total && total.n ? `${text} of ${formatNumber(lastOf(total) / GIB, 3)}` : text;
  }

  /** What is drawn, in words. */
  what() { return this.lines("power").length ? "utilization, power, memory" : "utilization, memory"; }

  describe() {
    const now = this.chips().map(({ line: l, text }) => `${l.label} ${text}`);
    if (!now.length) return "Utilization of the device: no measurements yet.";
    const which = this.devices.length > 1 ? this.shown.map((d) => this.nameOf(d)).join(", ") : "the device";
    return `Utilization of ${which} over time; now ${now.join(", ")}.`;
  }
}
