// A plot: a canvas with two axes, zoom and pan.

import { element } from "./page.js";
import { Pointer } from "./pointer.js";
import { ticks } from "./ticks.js";

/** @import { AxisSpec, Panel, PlotView, Interval, Scale, Scene } from "./types.d.ts" */

const MARGIN = { left: 52, right: 12, top: 8, bottom: 34 };

/** @typedef {{ x: Interval | null, y: Interval | null }} Zoom what the axes show where that is not all of the data */

const same = (/** @type {number} */ v) => v;
/** @type {Scale} */
const UNDRAWN = { low: 0, high: 1, log: false, per: 1, whole: [0, 1], px: same, at: same, inverse: same };

/** What is drawn on it is its panel's. */
export class Plot {
  /** @param {PlotView} view @param {Panel} panel @param {string} name */
  constructor(view, panel, name) {
    this.view = view;
    this.panel = panel;
    this.width = this.height = 0;
    this.ratio = 1;
    this.x = this.y = UNDRAWN;
    this.zoom = /** @type {Zoom} */ ({ x: null, y: null });
    this.box = element("div", "hfta-plot");
    this.canvas = element("canvas", "", { role: "img", tabindex: "0" });
    this.canvas.dataset.panel = name;
    this.box.append(this.canvas);
    this.context = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    this.margin = { ...MARGIN, ...panel.margin };
    new Pointer(this);
  }

  resize() {
    this.width = this.box.clientWidth;
    this.height = this.box.clientHeight;
    const ratio = window.devicePixelRatio || 1;
    const [w, h] = [Math.round(this.width * ratio), Math.round(this.height * ratio)];
    if (this.canvas.width !== w || this.canvas.height !== h) Object.assign(this.canvas, { width: w, height: h });
    this.ratio = ratio;
  }

  get drawn() { return this.x !== UNDRAWN; }
  get plotWidth() { return Math.max(10, this.width - this.margin.left - this.margin.right); }
  get plotHeight() { return Math.max(10, this.height - this.margin.top - this.margin.bottom); }

  /** Where a zoom lasts; both plots share x while both show time. @param {"x" | "y"} axis @returns {Zoom} */
  zoomOf(axis) { return axis === "x" && this.view.sharesTime() ? this.view.timeZoom : this.zoom; }

  /** @param {"x" | "y"} axis @param {Interval | null} range */
  setZoom(axis, range) {
    this.zoomOf(axis)[axis] = range;
  }

  /** @param {"x" | "y"} axis @param {AxisSpec} spec @returns {Scale} */
  scale(axis, spec) {
    const range = this.zoomOf(axis)[axis] ?? spec.extent;
    const [low, high] = range;
    const { left, top } = this.margin;
    const [start, size] = axis === "x" ? [left, this.plotWidth] : [top + this.plotHeight, -this.plotHeight];
    const per = size / (high - low);
    return {
      low, high, log: spec.log, per, whole: spec.extent,
      px: spec.log
        ? (/** @type {number} */ v) => start + (Math.log10(v) - low) * per
        : (/** @type {number} */ v) => start + (v - low) * per,
      at: (t) => start + (t - low) * per, // of a logarithm already taken
      inverse: (px) => low + (px - start) / per,
    };
  }

  draw() {
    if (this.width < 40 || this.height < 40) return;
    const { context: c, view } = this;
    const scene = this.panel.scene();
    this.margin = { ...MARGIN, ...this.panel.margin };
    c.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    c.fillStyle = view.theme.paper;
    c.fillRect(0, 0, this.width, this.height);
    c.font = `11px ${view.theme.font}`;
    this.x = this.scale("x", scene.x);
    this.y = this.scale("y", scene.y);
    this.axes(c, scene);
    c.save();
    c.beginPath();
    c.rect(this.margin.left, this.margin.top, this.plotWidth, this.plotHeight);
    c.clip();
    this.panel.paint(c, this);
    c.restore();
    this.panel.above?.(c, this);
    if (scene.empty) this.say(c, scene.empty);
  }

  /** @param {CanvasRenderingContext2D} c @param {string} text */
  say(c, text) {
    c.fillStyle = this.view.theme.muted;
    c.textAlign = "center";
    c.textBaseline = "middle";
    c.fillText(text, this.margin.left + this.plotWidth / 2, this.margin.top + this.plotHeight / 2);
  }

  /** @param {CanvasRenderingContext2D} c @param {Scene} scene */
  axes(c, scene) {
    const { left, top } = this.margin;
    const [right, bottom] = [left + this.plotWidth, top + this.plotHeight];
    const { muted, line } = this.view.theme;
    c.lineWidth = 1;
    c.setLineDash([]);
    c.strokeStyle = line;
    c.fillStyle = muted;
    const half = (/** @type {number} */ v) => Math.round(v) + 0.5;
    c.globalAlpha = 1;
    c.beginPath();
    c.textAlign = "right";
    c.textBaseline = "middle";
    for (const { at, text } of ticks(this.y.low, this.y.high, this.y.log, this.plotHeight / 48, scene.y.format)) {
      const y = this.y.at(at);
      if (!text) { c.moveTo(left - 3, half(y)); c.lineTo(left, half(y)); continue; }
      c.moveTo(left, half(y));
      c.lineTo(right, half(y));
      c.fillText(text, left - 6, y, left - 8);
    }
    c.textAlign = "center";
    c.textBaseline = "top";
    let free = -Infinity;
    const across = ticks(this.x.low, this.x.high, this.x.log, this.plotWidth / 76, scene.x.format, scene.x.whole);
    for (const { at, text } of across) {
      const x = this.x.at(at);
      c.moveTo(half(x), bottom);
      c.lineTo(half(x), bottom + (text ? 4 : 2));
      const wide = c.measureText(text).width;
      if (!text || x - wide / 2 < free) continue;
      c.fillText(text, x, bottom + 6);
      free = x + wide / 2 + 8;
    }
    c.globalAlpha = 0.55;
    c.stroke();
    c.globalAlpha = 1;
    c.beginPath();
    c.strokeStyle = muted;
    c.moveTo(left + 0.5, top);
    c.lineTo(left + 0.5, half(bottom));
    c.lineTo(right, half(bottom));
    c.stroke();
    c.textBaseline = "bottom";
    c.fillText(scene.x.title ?? "", left + this.plotWidth / 2, this.height - 1);
  }
}
