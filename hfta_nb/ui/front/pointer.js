// Pointer, wheel and keyboard on a plot.

/** @import { Plot } from "./plot.js" */
/** @import { Point, Interval } from "./types.d.ts" */

/** @typedef {{ from: Point, x: Interval, y: Interval, moved: boolean }} Drag */

let wheelElsewhereMs = -Infinity; // when the page was last scrolled: a scroll that runs into a plot stays a scroll

/** Notes when the page is scrolled elsewhere. @param {AbortSignal} signal */
export function watchScrolling(signal) {
  const scrolled = (/** @type {Event} */ e) => {
    if (!(e.target instanceof HTMLCanvasElement)) wheelElsewhereMs = performance.now();
  };
  window.addEventListener("wheel", scrolled, { signal, capture: true, passive: true });
}

/** Whether a click or a key adds to what is selected. @param {MouseEvent | KeyboardEvent} e */
export function adds(e) { return e.shiftKey || e.ctrlKey || e.metaKey; }

/** Zooms and pans a plot, and tells its panel what is pointed at. */
export class Pointer {
  /** @param {Plot} plot */
  constructor(plot) {
    this.plot = plot;
    this.drag = /** @type {Drag | null} */ (null);
    const { canvas, view } = plot;
    const options = { signal: view.signal };
    canvas.addEventListener("pointerdown", (e) => this.press(e), options);
    canvas.addEventListener("pointermove", (e) => this.move(e), options);
    canvas.addEventListener("pointerup", (e) => this.release(e), options);
    canvas.addEventListener("pointercancel", () => this.drop(), options);
    canvas.addEventListener("pointerleave", () => { if (!this.drag) view.unhover(); }, options);
    canvas.addEventListener("dblclick", (e) => { e.preventDefault(); view.resetZoom(); }, options);
    canvas.addEventListener("wheel", (e) => this.wheel(e), { ...options, passive: false });
    canvas.addEventListener("keydown", (e) => this.key(e), options);
    canvas.addEventListener("blur", () => view.unhover(), options);
  }

  /** @param {MouseEvent} e @returns {Point} */
  local(e) {
    const box = this.plot.canvas.getBoundingClientRect();
    return { x: e.clientX - box.left, y: e.clientY - box.top };
  }

  /** @param {PointerEvent} e */
  press(e) {
    const { canvas, drawn, x, y } = this.plot;
    if (e.button !== 0 || !drawn) return;
    canvas.setPointerCapture(e.pointerId);
    /** @type {Drag} */
    const drag = { from: this.local(e), x: [x.low, x.high], y: [y.low, y.high], moved: false };
    this.drag = drag;
  }

  /** @param {PointerEvent} e */
  move(e) {
    const { canvas, drawn, panel, view, x, y } = this.plot;
    if (!drawn) return;
    const at = this.local(e);
    const { drag } = this;
    if (!drag) return view.hover(this.plot, at);
    const [dx, dy] = [at.x - drag.from.x, at.y - drag.from.y];
    if (!drag.moved && Math.hypot(dx, dy) < 4) return;
    drag.moved = true;
    canvas.classList.add("hfta-dragging");
    this.plot.setZoom("x", [drag.x[0] - dx / x.per, drag.x[1] - dx / x.per]);
    if (!panel.fixedY) this.plot.setZoom("y", [drag.y[0] - dy / y.per, drag.y[1] - dy / y.per]);
    view.unhover();
    view.redraw();
  }

  /** @param {PointerEvent} e */
  release(e) {
    const click = this.drag && !this.drag.moved;
    this.drop();
    if (click) this.plot.panel.click?.(this.plot, this.local(e), adds(e));
  }

  drop() {
    this.drag = null;
    this.plot.canvas.classList.remove("hfta-dragging");
  }

  /** @param {WheelEvent} e */
  wheel(e) {
    const { plot } = this;
    const { margin, panel, view } = plot;
    const now = performance.now();
    if (now - wheelElsewhereMs < 350) { wheelElsewhereMs = now; return; }
    if (!plot.drawn) return;
    const zoomed = plot.zoomOf("x").x || plot.zoom.y;
    if (e.deltaY > 0 && !zoomed) { wheelElsewhereMs = now; return; } // all is in sight: the page scrolls
    e.preventDefault();
    const at = this.local(e);
    const factor = Math.exp(Math.max(-60, Math.min(60, e.deltaY * (e.deltaMode ? 16 : 1))) * 0.005);
    const inside = at.x > margin.left && at.y < margin.top + plot.plotHeight;
    if (at.x > margin.left) this.zoomBy("x", at.x, factor);
    if ((inside || at.x <= margin.left) && !panel.fixedY) this.zoomBy("y", at.y, factor);
    view.hover(plot, at);
    view.redraw();
  }

  /**
   * Zoom about a pixel; zooming out ends where all of the data is in sight.
   * @param {"x" | "y"} axis
   * @param {number} pixel
   * @param {number} factor
   */
  zoomBy(axis, pixel, factor) {
    const { inverse, low, high, whole } = this.plot[axis];
    const still = inverse(pixel);
    /** @type {Interval} */
    const range = [still + (low - still) * factor, still + (high - still) * factor];
    if (factor > 1 && range[0] <= whole[0] && range[1] >= whole[1]) return this.plot.setZoom(axis, null);
    const size = range[1] - range[0];
    if (size > 1e-9 * Math.max(1e-3, Math.abs(still)) && size < 1e12) this.plot.setZoom(axis, range);
  }

  /** @param {number} factor */
  zoomMiddle(factor) {
    const { margin, panel, plotHeight, plotWidth } = this.plot;
    this.zoomBy("x", margin.left + plotWidth / 2, factor);
    if (!panel.fixedY) this.zoomBy("y", margin.top + plotHeight / 2, factor);
  }

  /** @param {KeyboardEvent} e */
  key(e) {
    const { plot } = this;
    const { panel, view } = plot;
    if (!plot.drawn || e.ctrlKey || e.metaKey || e.altKey) return;
    /** @type {Record<string, () => void>} */
    const actions = {
      "+": () => this.zoomMiddle(0.8), "=": () => this.zoomMiddle(0.8), "-": () => this.zoomMiddle(1.25),
      0: () => view.resetZoom(),
      ArrowLeft: () => panel.walk(plot, -1, 0), ArrowRight: () => panel.walk(plot, 1, 0),
      ArrowUp: () => panel.walk(plot, 0, -1), ArrowDown: () => panel.walk(plot, 0, 1),
      Enter: () => panel.press?.(e.shiftKey), " ": () => panel.press?.(e.shiftKey),
      Escape: () => view.unhover(),
    };
    const action = actions[e.key];
    if (!action) return;
    e.preventDefault();
    e.stopPropagation();
    action();
    view.redraw();
  }
}
