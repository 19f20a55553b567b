// Mean curves over seeds, each in a band of one standard deviation to either side.

import { line } from "./draw.js";
import { extent, pad } from "./limits.js";
import { formatNumber } from "./numbers.js";
import { element, refill, swatch } from "./page.js";
import { Plot } from "./plot.js";
import { adds } from "./pointer.js";
import { nearestSpot, nextSpot } from "./read_curves.js";
import { nearest, Trace } from "./trace.js";

/** @import { Figure } from "./linked_figure.js" */
/** @import { Band, Member, Panel, PlotView, Point, Scene, SeedsData, Series, Spot, Tip } from "./types.d.ts" */

const MOST_CHIPS = 24;

/** A band as a curve that the pointer can be at; the member stands for its place. @param {Band} band @param {number} place */
function seriesOf(band, place) {
  const trace = new Trace();
  band.epochs.forEach((epoch, i) => trace.add(epoch, i + 1, 0, band.means[i]));
  /** @type {Member} */
  const member = { ...band, id: place, place, config: [], marks: [], state: "", reason: "", curves: new Map() };
  return /** @type {Series} */ ({ member, trace, part: "validation", main: true, xs: trace.epoch, ys: trace.value });
}

/** @implements {PlotView} @implements {Panel} */
export class Seeds {
  /** @param {Figure} figure @param {HTMLElement} box */
  constructor(figure, box) {
    this.figure = figure;
    this.signal = figure.signal;
    this.timeZoom = { x: null, y: null };
    this.margin = {};
    this.fixedY = false;
    this.data = /** @type {SeedsData} */ ({ metric: "", bands: [] });
    this.shown = /** @type {Series[]} */ ([]);
    this.near = /** @type {Spot | null} */ (null);
    this.plot = new Plot(this, this, "seeds");
    this.legend = element("div", "hfta-legend", { role: "group", "aria-label": "Configurations" });
    box.append(this.plot.box, this.legend);
  }

  get theme() { return this.figure.theme; }
  sharesTime() { return false; }

  /** @param {SeedsData} data */
  draw(data) {
    if (data !== this.data) {
      this.data = data;
      this.shown = data.bands.map(seriesOf);
      this.near = null;
    }
    this.redraw();
    const few = data.bands.length <= MOST_CHIPS ? data.bands : [];
    refill(this.legend, few.map((band) => {
      const button = element("button", "hfta-chip", { type: "button", title: `${band.label}: mean of ${band.of}; click to select its members` });
      button.append(swatch(this.figure.paint(band), band.dash), element("span", "", {}, band.label));
      button.setAttribute("aria-pressed", String(this.figure.holds(band.ids)));
      button.addEventListener("click", (e) => this.figure.choose(band.ids, adds(e)), { signal: this.signal });
      return button;
    }));
  }

  redraw() {
    this.plot.resize();
    this.plot.draw();
    this.plot.canvas.setAttribute("aria-label", this.describe());
  }

  // What the plot shows.

  /** @returns {Scene} */
  scene() {
    const { bands } = this.data;
    const last = Math.max(1, ...bands.flatMap(({ epochs }) => epochs));
    const edges = this.shown.flatMap((s, place) => [-1, 1].map((sign) => ({
      ...s, ys: Float64Array.from(bands[place].means, (mean, i) => mean + sign * bands[place].deviations[i]),
    })));
    return {
      x: { extent: [Math.min(1, last - 1), last], log: false, format: formatNumber, title: "epoch", whole: true },
      y: { extent: pad(extent(edges, false, null), false, 0.04), log: false, format: formatNumber },
      empty: this.shown.length ? "" : "no validated epoch yet",
    };
  }

  /** Bands behind curves, and what is selected above the rest. @param {CanvasRenderingContext2D} c @param {Plot} plot */
  paint(c, plot) {
    const { figure, data: { bands } } = this;
    const any = figure.chosen.size > 0;
    const drawn = bands.map((band, place) => ({ band, place, on: any && figure.holds(band.ids) }))
      .sort((a, b) => Number(a.on) - Number(b.on));
    const shown = any ? drawn.filter(({ on }) => on) : drawn;
    const alpha = Math.max(0.05, Math.min(0.18, 0.9 / shown.length));
    for (const { band } of shown) this.fill(c, plot, band, alpha);
    for (const { band, place, on } of drawn) {
      c.strokeStyle = figure.paint(band);
      c.globalAlpha = any && !on ? 0.15 : 1;
      c.lineWidth = this.near?.series === this.shown[place] ? 3 : 1.7;
      c.setLineDash(band.dash);
      line(c, this.shown[place].xs, this.shown[place].ys, band.epochs.length, plot.x, plot.y);
    }
    c.globalAlpha = 1;
    c.setLineDash([]);
  }

  /** @param {CanvasRenderingContext2D} c @param {Plot} plot @param {Band} band @param {number} alpha */
  fill(c, { x, y }, { epochs, means, deviations, ...stroke }, alpha) {
    c.fillStyle = this.figure.paint(stroke);
    c.globalAlpha = alpha;
    c.beginPath();
    epochs.forEach((epoch, i) => c.lineTo(x.px(epoch), y.px(means[i] + deviations[i])));
    for (let i = epochs.length - 1; i >= 0; i--) c.lineTo(x.px(epochs[i]), y.px(means[i] - deviations[i]));
    c.fill();
  }

  describe() {
    const { metric, bands } = this.data;
    return `Mean ${metric} over epochs of ${bands.length} configurations, with the standard deviation over seeds`;
  }

  // Pointer and keyboard.

  /** @param {Plot} plot @param {Point} at */
  hover(plot, at) {
    this.near = nearestSpot(this.shown, plot, at);
    this.show(at);
    return null;
  }

  /** @param {Point} at */
  show(at) {
    this.redraw();
    this.figure.tooltip.show(this.tip(), this.plot, at);
  }

  unhover() {
    this.forget();
    this.figure.tooltip.hide();
    this.redraw();
  }

  forget() { this.near = null; }

  resetZoom() {
    this.plot.zoom = { x: null, y: null };
    this.redraw();
  }

  /** @param {Plot} plot @param {Point} at @param {boolean} several */
  click(plot, at, several) {
    const found = nearestSpot(this.shown, plot, at);
    this.figure.choose(found && found.distance < 24 ? this.data.bands[found.series.member.id].ids : [], several);
  }

  /** @param {boolean} several */
  press(several) {
    if (this.near) this.figure.choose(this.data.bands[this.near.series.member.id].ids, several);
  }

  /** @param {Plot} plot @param {number} dx @param {number} dy */
  walk(plot, dx, dy) {
    this.near = nextSpot(this.shown, this.near, dx, dy);
    if (!this.near) return;
    const { series: { xs, ys }, index } = this.near;
    this.show({ x: plot.x.px(xs[index]), y: plot.y.px(ys[index]) });
  }

  /** @returns {Tip | null} */
  tip() {
    if (!this.near) return null;
    const { series, index } = this.near;
    const epoch = series.xs[index];
    const rows = this.data.bands.map((band, place) => {
      const i = nearest(this.shown[place].xs, band.epochs.length, epoch);
      const cells = band.epochs[i] === epoch ? [formatNumber(band.means[i]), `± ${formatNumber(band.deviations[i], 2)}`] : ["–", ""];
      return { color: this.figure.paint(band), dash: band.dash, name: band.label, near: this.shown[place] === series, cells, order: band.means[i] };
    });
    rows.sort((a, b) => b.order - a.order);
    return { head: `epoch ${formatNumber(epoch)}`, columns: ["mean", "std"], rows, notes: [] };
  }
}
