// Parallel coordinates: a line for each configuration through its values on all axes. A part of an axis is selected by
// dragging along it, or with the arrow keys.

import { moved, nearestLine, withinAll } from "./groups.js";
import { formatNumber } from "./numbers.js";
import { drawn } from "./page.js";
import { adds } from "./pointer.js";
import { ticks } from "./ticks.js";

/** @import { Figure } from "./linked_figure.js" */
/** @import { Interval, ParallelData, ParallelLine, Point, Ruler } from "./types.d.ts" */

const HEIGHT = 290;
const MARGIN_OF_RULERS = { left: 70, right: 70, top: 34, bottom: 16 };
const REACH = 8; // pixels
const STEP = 0.1;
const ROOM = 0.06;

/** The ticks of a ruler, from 0 to 1. @param {Ruler} ruler @returns {[share: number, text: string][]} */
export function rulerTicks({ low, high, log, few }) {
  let free = -Infinity; // a text needs some room
  if (few.length) return few.filter(([share]) => share >= free && ((free = share + ROOM), true));
  return ticks(low, high, log, 5, formatNumber).map(({ at, text }) => [(at - low) / (high - low), text]);
}

export class Parallel {
  /** @param {Figure} figure @param {HTMLElement} box */
  constructor(figure, box) {
    this.figure = figure;
    this.data = /** @type {ParallelData} */ ({ rulers: [], lines: [] });
    this.brushes = /** @type {Map<number, Interval>} */ (new Map());
    this.brushed = ""; // the members that the brushes have selected
    this.drag = /** @type {{ ruler: number, from: number, moved: boolean } | null} */ (null);
    this.svg = drawn("svg", { height: String(HEIGHT), role: "group", class: "hfta-parallel" });
    this.lines = drawn("g");
    this.rulers = drawn("g");
    this.svg.append(this.lines, this.rulers);
    this.stamp = "";
    box.append(this.svg);
    const options = { signal: figure.signal };
    this.svg.addEventListener("pointermove", (e) => this.move(e), options);
    this.svg.addEventListener("pointerup", (e) => this.release(e), options);
    this.svg.addEventListener("pointercancel", () => { this.drag = null; }, options);
    this.svg.addEventListener("pointerleave", () => figure.tooltip.hide(), options);
  }

  get width() { return this.svg.clientWidth; }

  /** Of a ruler, in pixels. @param {number} place */
  x(place) {
    const { left, right } = MARGIN_OF_RULERS;
    return left + (place * (this.width - left - right)) / Math.max(1, this.data.rulers.length - 1);
  }

  /** @param {number} share */
  y(share) {
    const { top, bottom } = MARGIN_OF_RULERS;
    return top + (1 - share) * (HEIGHT - top - bottom);
  }

  /** @param {number} y */
  shareAt(y) { return 1 - (y - MARGIN_OF_RULERS.top) / (HEIGHT - MARGIN_OF_RULERS.top - MARGIN_OF_RULERS.bottom); }

  /** @param {ParallelData} data */
  draw(data) {
    const names = data.rulers.map((r) => r.name).join("\n");
    if (names !== this.data.rulers.map((r) => r.name).join("\n")) this.brushes.clear();
    this.data = data;
    // What another view selects ends the brushes.
    if (!this.drag && [...this.figure.chosen].sort().join() !== this.brushed) this.brushes.clear();
    const what = `Parallel coordinates of ${data.lines.length} configurations over ${names.replaceAll("\n", ", ")}`;
    this.svg.setAttribute("aria-label", what);
    const stamp = JSON.stringify([data.rulers, this.width]);
    if (stamp !== this.stamp) {
      this.stamp = stamp;
      this.drawRulers();
    }
    this.drawLines();
  }

  /** The lines that stand out: those in the brushes, or of selected members; null where nothing is selected. */
  standing() {
    const { chosen } = this.figure;
    if (this.brushes.size) return new Set(this.data.lines.filter((one) => withinAll(one.at, this.brushes)));
    if (!chosen.size) return null;
    return new Set(this.data.lines.filter((one) => one.ids.some((id) => chosen.has(id))));
  }

  drawLines() {
    const { figure, data: { lines } } = this;
    const on = this.standing();
    const usual = Math.max(0.3, Math.min(0.9, 16 / lines.length));
    const order = [...lines].sort((a, b) => Number(on?.has(a) ?? false) - Number(on?.has(b) ?? false));
    this.lines.replaceChildren(...order.map((one) => {
      const best = one.best && !on;
      const path = drawn("path", { d: this.path(one), fill: "none", stroke: figure.paint(one) });
      path.setAttribute("stroke-width", best ? "3" : on?.has(one) ? "2.2" : "1.3");
      path.setAttribute("stroke-opacity", String(best ? 1 : on ? (on.has(one) ? 0.95 : 0.16) : usual));
      return path;
    }));
    for (const [place, group] of [...this.rulers.children].entries()) this.drawBrush(place, group);
  }

  /** @param {ParallelLine} one */
  path({ at }) {
    let pen = "M";
    return at.map((share, place) => {
      if (share === null) { pen = "M"; return ""; }
      const point = `${pen}${this.x(place).toFixed(1)} ${this.y(share).toFixed(1)}`;
      pen = "L";
      return point;
    }).join("");
  }

  drawRulers() {
    const focused = [...this.rulers.children].indexOf(/** @type {Element} */ (document.activeElement));
    this.rulers.replaceChildren(...this.data.rulers.map((ruler, place) => this.ruler(ruler, place)));
    const again = this.rulers.children[focused];
    if (again instanceof SVGElement) again.focus({ preventScroll: true });
  }

  /** @param {Ruler} ruler @param {number} place */
  ruler(ruler, place) {
    const { figure: { signal } } = this;
    const [x, top, bottom] = [this.x(place), this.y(1), this.y(0)];
    const last = place === this.data.rulers.length - 1;
    const group = drawn("g", { tabindex: "0", role: "slider", "aria-orientation": "vertical", "aria-label": ruler.name,
      "aria-valuemin": "0", "aria-valuemax": "100", class: "hfta-ruler", "data-lm-suppress-shortcuts": "true" });
    const px = (/** @type {number} */ v) => String(Math.round(v) + 0.5);
    group.append(drawn("line", { x1: px(x), x2: px(x), y1: String(top), y2: String(bottom) }));
    for (const [share, text] of rulerTicks(ruler)) {
      const y = this.y(share);
      group.append(drawn("line", { x1: px(x - 3), x2: px(x + 3), y1: px(y), y2: px(y) }));
      const anchor = last ? "start" : "end";
      group.append(drawn("text", { x: String(x + (last ? 9 : -9)), y: String(y + 4), "text-anchor": anchor }, text));
    }
    group.append(drawn("text", { x: String(x), y: "16", "text-anchor": "middle", class: "hfta-ruler-name" }, ruler.name));
    group.append(drawn("rect", { class: "hfta-brush", x: String(x - 7), width: "14" }));
    const hit = { class: "hfta-ruler-hit", x: String(x - 13), y: String(top - 8), width: "26", height: String(bottom - top + 16) };
    group.append(drawn("rect", hit));
    group.addEventListener("pointerdown", (e) => this.press(place, e), { signal });
    group.addEventListener("keydown", (e) => this.key(place, e), { signal });
    return group;
  }

  /** @param {number} place @param {Element} group */
  drawBrush(place, group) {
    const rect = group.querySelector(".hfta-brush");
    const brush = this.brushes.get(place);
    const [low, high] = brush ?? [0, 0];
    rect?.setAttribute("y", String(this.y(high)));
    rect?.setAttribute("height", String(this.y(low) - this.y(high)));
    group.setAttribute("aria-valuenow", String(Math.round(50 * (low + high))));
    const percent = (/** @type {number} */ v) => `${Math.round(100 * v)}%`;
    const words = brush ? `from ${percent(low)} to ${percent(high)} of the axis` : "all";
    group.setAttribute("aria-valuetext", words);
  }

  // Pointer and keyboard.

  /** @param {PointerEvent} e @returns {Point} */
  local(e) {
    const box = this.svg.getBoundingClientRect();
    return { x: e.clientX - box.left, y: e.clientY - box.top };
  }

  /** @param {number} ruler @param {PointerEvent} e */
  press(ruler, e) {
    if (e.button !== 0) return;
    this.svg.setPointerCapture(e.pointerId);
    this.drag = { ruler, from: this.local(e).y, moved: false };
    this.figure.tooltip.hide();
  }

  /** @param {PointerEvent} e */
  move(e) {
    const at = this.local(e);
    const { drag } = this;
    if (!drag) return this.hover(at);
    drag.moved ||= Math.abs(at.y - drag.from) > 3;
    if (!drag.moved) return;
    const [low, high] = [this.shareAt(Math.max(at.y, drag.from)), this.shareAt(Math.min(at.y, drag.from))];
    this.brushes.set(drag.ruler, [Math.max(0, low), Math.min(1, high)]);
    this.drawLines();
  }

  /** @param {Point} at */
  nearest(at) {
    const xs = this.data.rulers.map((_, place) => this.x(place));
    return nearestLine(this.data.lines, xs, (share) => this.y(share), at, REACH);
  }

  /** @param {Point} at */
  hover(at) {
    const one = this.nearest(at);
    if (!one) return this.figure.tooltip.hide();
    const row = { color: this.figure.paint(one), dash: [], name: one.value, cells: [] };
    this.figure.tooltip.show({ head: one.label, columns: [], rows: [row], notes: [] }, { canvas: this.svg }, at);
  }

  /** @param {PointerEvent} e */
  release(e) {
    const { drag } = this;
    this.drag = null;
    if (drag?.moved) return this.select();
    if (drag && this.brushes.delete(drag.ruler)) return this.select();
    const one = this.nearest(this.local(e));
    this.brushes.clear();
    this.figure.choose(one?.ids ?? [], adds(e));
  }

  /** Selects what is in the brushes. */
  select() {
    const ids = this.brushes.size ? [...this.standing() ?? []].flatMap((one) => one.ids) : [];
    this.brushed = [...ids].sort().join();
    this.figure.set(ids);
    this.drawLines();
  }

  /** @param {number} place @param {KeyboardEvent} e */
  key(place, e) {
    const by = /** @type {Record<string, number>} */ ({ ArrowUp: STEP, ArrowDown: -STEP })[e.key];
    const brush = this.brushes.get(place);
    if (by) {
      /** @type {Interval} */
      const first = by > 0 ? [0, 2 * STEP] : [1 - 2 * STEP, 1];
      this.brushes.set(place, brush ? moved(brush, by, e.shiftKey) : first);
    } else if (e.key !== "Escape" || !this.brushes.delete(place)) return;
    e.preventDefault();
    e.stopPropagation();
    this.select();
  }
}
