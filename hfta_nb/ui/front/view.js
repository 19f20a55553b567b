// One view: toolbar, two plots, legends, tooltip.

import { CurvesPanel } from "./curves.js";
import { DevicePanel } from "./device.js";
import { picked } from "./groups.js";
import { Legend } from "./legend.js";
import { settledEnd } from "./limits.js";
import { formatNumber } from "./numbers.js";
import { element, onTraits } from "./page.js";
import { Plot } from "./plot.js";
import { watchScrolling } from "./pointer.js";
import { ended } from "./store.js";
import { onTheme, readTheme } from "./theme.js";
import { Toolbar } from "./toolbar.js";
import { Tooltip } from "./tooltip.js";

/** @import { Store } from "./store.js" */
/** @import { Axis, Member, Model, Point, Interval, Stroke } from "./types.d.ts" */

const TRAITS = ["metric", "x_axis", "log_x", "log_y", "smoothing", "split", "color_by", "selected", "running",
  "rungs"];

/** Redraws when something changed and somebody can see it. */
export class View {
  /** @param {Model} model @param {Store} store @param {HTMLElement} el @param {AbortSignal} signal */
  constructor(model, store, el, signal) {
    this.model = model;
    this.store = store;
    this.signal = signal;
    this.timeZoom = { x: /** @type {Interval | null} */ (null), y: null };
    this.cursorTime = /** @type {number | null} */ (null);
    this.hovering = /** @type {{ plot: Plot, at: Point } | null} */ (null);
    this.hovered = /** @type {Set<number> | null} */ (null); // ids lifted by the pointer or by a focused chip
    this.generation = -1;
    this.dirty = this.stale = false;
    this.onScreen = true;
    this.frame = 0;
    this.told = this.marks = "";
    this.stats = { frames: 0, drawMs: /** @type {number[]} */ ([]) };
    this.root = element("div", "hfta-live");
    Object.assign(this.root, { hfta: this.stats }); // for tests and the benchmark
    this.probe = element("span", "hfta-probe");
    this.toolbar = new Toolbar(this);
    this.announcer = element("div", "hfta-unseen", { "aria-live": "polite", role: "status" });
    this.curves = new CurvesPanel(this);
    this.device = new DevicePanel(this);
    this.plots = [new Plot(this, this.curves, "curves"), new Plot(this, this.device, "device")];
    this.titles = [element("div", "hfta-title"), element("div", "hfta-title")];
    this.legend = new Legend(this);
    this.tooltip = new Tooltip(this.root);
    this.build(el);
    this.theme = readTheme(this.probe);
    this.watch();
    this.changed(true);
  }

  /** @param {string} trait @returns {any} */
  get(trait) { return this.model.get(trait); }

  /** @param {string} trait @param {unknown} value */
  set(trait, value) {
    this.model.set(trait, value);
    this.model.save_changes();
  }

  /** @param {HTMLElement} el */
  build(el) {
    const left = element("div", "hfta-curves");
    left.append(this.titles[0], this.plots[0].box, this.legend.bar, this.legend.members);
    const right = element("div", "hfta-device");
    right.append(this.titles[1], this.plots[1].box, this.legend.device);
    const panels = element("div", "hfta-panels");
    panels.append(left, right);
    this.root.prepend(this.probe, this.toolbar.box, panels, this.announcer);
    el.append(this.root);
  }

  watch() {
    const { signal } = this;
    const listener = (/** @type {boolean} */ whole) => this.changed(whole);
    this.store.listeners.add(listener);
    onTraits(this.model, TRAITS, signal, (trait) => this.traitChanged(trait));
    const resized = new ResizeObserver(() => this.redraw());
    for (const plot of this.plots) resized.observe(plot.box);
    const seen = new IntersectionObserver((entries) => {
      this.onScreen = entries[entries.length - 1].isIntersecting;
      if (this.onScreen && this.dirty) this.schedule();
    });
    seen.observe(this.root);
    document.addEventListener("visibilitychange", () => { if (this.dirty) this.schedule(); }, { signal });
    watchScrolling(signal);
    onTheme(() => this.changed(true), signal);
    signal.addEventListener("abort", () => {
      this.store.listeners.delete(listener);
      resized.disconnect();
      seen.disconnect();
      cancelAnimationFrame(this.frame);
    });
  }

  /** @param {string} trait */
  traitChanged(trait) {
    if (trait === "metric" || trait === "log_y") this.plots[0].zoom.y = null;
    if (trait === "x_axis" || trait === "log_x") this.plots[0].zoom.x = null;
    if (trait === "x_axis" || trait === "metric" || trait === "split") this.unhover();
    if (trait === "selected") this.announceSelection();
    this.changed(true);
  }

  /** Something may look different. @param {boolean} whole more than points: controls and legends are made anew */
  changed(whole) {
    if (this.generation !== this.store.generation) {
      this.generation = this.store.generation;
      this.unhover();
    }
    this.stale = this.stale || whole;
    this.redraw();
  }

  redraw() {
    this.dirty = true;
    this.schedule();
  }

  schedule() {
    if (this.frame || document.hidden || !this.onScreen) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      if (document.hidden || !this.onScreen) return;
      this.dirty = false;
      this.draw();
    });
  }

  draw() {
    this.theme = readTheme(this.probe);
    for (const plot of this.plots) plot.resize();
    const start = performance.now();
    for (const plot of this.plots) plot.draw();
    this.stats.frames++;
    this.stats.drawMs.push(performance.now() - start);
    if (this.stats.drawMs.length > 500) this.stats.drawMs.shift();
    if (this.stale) {
      this.root.dataset.device = this.store.layout.device.replace(/:.*/, "");
      this.toolbar.refresh();
      this.legend.refresh();
      this.stale = false;
    }
    this.words();
    if (this.hovering) this.tooltip.show(this.hovering.plot.panel.tip(), this.hovering.plot, this.hovering.at);
  }

  // What is drawn in which colour.

  colorAxis() {
    const { layout } = this.store;
    const find = (/** @type {string} */ name) => layout.axes.find((a) => a.name === name);
    return find(this.get("color_by")) ?? find(layout.auto) ?? null;
  }

  /** @param {Stroke} stroke */
  paint(stroke) { return this.theme.dark ? stroke.dark : stroke.light; }

  /** @param {Axis} axis */
  shades(axis) { return this.theme.dark ? axis.dark : axis.light; }

  /** @param {Member} member */
  colorOf(member) {
    const axis = this.colorAxis();
    return axis ? this.shades(axis)[axis.of[member.place]] : this.paint(member);
  }

  /** @param {Member} member */
  dashOf(member) { return this.colorAxis() ? [] : member.dash; }

  // Time, shared by both plots.

  sharesTime() { return this.get("x_axis") === "time" && !this.get("log_x"); }

  /** @returns {Interval} */
  timeExtent() {
    let low = 0, high = 0;
    const all = [...this.store.device.values()];
    if (this.sharesTime()) for (const m of this.store.members.values()) all.push(...m.curves.values());
    for (const { time, n } of all) {
      if (n && Number.isFinite(time[n - 1])) high = Math.max(high, time[n - 1]);
      if (n && time[0] < low) low = time[0];
    }
    // Nobody knows when the run will end: the axis ends where it can stay for a while.
    if (!this.store.over) return [low, settledEnd(Math.max(10, high))];
    return [low, high > low ? high + (high - low) * 0.01 : low + 10];
  }

  /** @param {CanvasRenderingContext2D} c @param {Plot} plot */
  shadePauses(c, plot) {
    c.fillStyle = this.theme.muted;
    for (const [begin, end] of this.store.pauses) {
      const from = Math.max(plot.margin.left, plot.x.px(begin));
      const to = Math.min(plot.margin.left + plot.plotWidth, end === Infinity ? Infinity : plot.x.px(end));
      if (!(to > from)) continue;
      c.globalAlpha = 0.16;
      c.fillRect(from, plot.margin.top, to - from, plot.plotHeight);
      c.globalAlpha = 0.9;
      c.textAlign = "center";
      c.textBaseline = "top";
      if (to - from > 44) c.fillText("paused", (from + to) / 2, plot.margin.top + 4);
    }
    c.globalAlpha = 1;
  }

  resetZoom() {
    this.timeZoom.x = null;
    for (const plot of this.plots) plot.zoom = { x: null, y: null };
    this.redraw();
  }

  fitSelection() {
    this.curves.fit(this.plots[0]);
    this.redraw();
  }

  // Pointer, focus and selection.

  /** @param {Plot} plot @param {Point} at */
  hover(plot, at) { this.showHover(plot, plot.panel.hover(plot, at), at); }

  /** @param {Plot} plot @param {Member | null} member @param {Point} at */
  showHover(plot, member, at) {
    this.hovering = { plot, at };
    this.lift(member && [member.id]);
  }

  unhover() {
    for (const plot of this.plots) plot.panel.forget();
    this.cursorTime = this.hovering = null;
    this.tooltip.hide();
    this.lift(null);
  }

  /** @param {number[] | null} ids of members that stand out for now */
  lift(ids) {
    this.hovered = ids && new Set(ids);
    this.redraw();
  }

  /** @param {number | null} id @param {boolean} several whether others stay selected */
  select(id, several) {
    const before = /** @type {number[]} */ (this.get("selected"));
    const after = picked(before, id === null ? [] : [id], several);
    if (after.length !== before.length || after.some((v, i) => v !== before[i])) this.set("selected", after);
  }

  announceSelection() {
    const ids = /** @type {number[]} */ (this.get("selected"));
    const names = ids.map((id) => this.store.members.get(id)?.label ?? `#${id}`);
    this.announcer.textContent = names.length ? `selected: ${names.join("; ")}` : "nothing selected";
  }

  // Words.

  summary() {
    const { members, run, layout } = this.store;
    const hopeless = run.blown.length ? `, ${run.blown.length} blown up` : "";
    if (!members.size) return "";
    const counts = /** @type {Map<string, number>} */ (new Map());
    for (const { state } of members.values()) counts.set(state, (counts.get(state) ?? 0) + 1);
    const states = [...counts].map(([state, count]) => `${count} ${state.toLowerCase()}`).join(", ");
    const epoch = layout.epochs ? `epoch ${formatNumber(Math.floor(run.epochs_done))} of ${layout.epochs}, ` : "";
    const some = layout.of > members.size ? `${members.size} of ${layout.of} members are drawn: ` : "";
    return `${epoch}${some}${states}${hopeless}`;
  }

  words() {
    const { run } = this.store;
    this.toolbar.status.textContent = this.summary();
    const zoomed = this.timeZoom.x || this.plots.some((p) => p.zoom.x || p.zoom.y);
    this.toolbar.reset.hidden = !zoomed;
    const { metric, parts } = this.curves;
    const one = parts[0] === "train" ? "training" : parts[0] ?? "";
    const how = parts.length > 1 ? "validation solid, training dotted" : one;
    this.title(0, metric ? metric.label : "curves", how);
    this.title(1, this.device.devices.length > 1 ? "devices" : "device", run.state === "PAUSED" ? "paused" : this.device.what());
    this.plots.forEach((plot) => plot.canvas.setAttribute("aria-label", plot.panel.describe()));
    this.legend.refreshDevice();
    const told = `${run.state} ${[...this.store.members.values()].filter(ended).length}`;
    if (this.told && told !== this.told) {
      const why = run.reason ? `: ${run.reason}` : "";
      this.announcer.textContent = `run ${run.state.toLowerCase()}${why}; ${this.summary()}`;
    }
    const marks = `${told} ${run.best} ${run.blown}`;
    if (this.marks && marks !== this.marks) this.legend.refresh();
    [this.told, this.marks] = [told, marks];
  }

  /** @param {number} place @param {string} text @param {string} note */
  title(place, text, note) {
    const box = this.titles[place];
    const stamp = text + "\n" + note;
    if (box.dataset.stamp === stamp) return;
    box.dataset.stamp = stamp;
    box.replaceChildren(element("b", "", {}, text), element("span", "", {}, note ? ` · ${note}` : ""));
  }
}
