// Strokes on a canvas.

/** @import { Plot } from "./plot.js" */
/** @import { Trace } from "./trace.js" */
/** @import { Point, Values } from "./types.d.ts" */

/**
 * A line through points; the pen lifts where a value can't be drawn, and points that share a pixel are skipped.
 * @param {CanvasRenderingContext2D} c
 * @param {Values} xs
 * @param {Values} ys
 * @param {number} n
 * @param {{ px(value: number): number }} x
 * @param {{ px(value: number): number }} y
 */
export function line(c, xs, ys, n, x, y) {
  c.beginPath();
  let down = false, lastX = 0, lastY = 0;
  for (let i = 0; i < n; i++) {
    const px = x.px(xs[i]), py = y.px(ys[i]);
    if (!(Number.isFinite(px) && Number.isFinite(py))) { down = false; continue; }
    if (down && Math.abs(px - lastX) < 0.4 && Math.abs(py - lastY) < 0.4) continue;
    if (down) c.lineTo(px, py); else c.moveTo(px, py);
    down = true;
    lastX = px;
    lastY = py;
  }
  c.stroke();
}

/**
 * What lies between two curves over time.
 * @param {CanvasRenderingContext2D} c
 * @param {Plot} plot
 * @param {Trace} least
 * @param {Trace} most
 * @param {string} color
 */
export function band(c, { x, y }, least, most, color) {
  c.beginPath();
  for (let i = 0; i < most.n; i++) c.lineTo(x.px(most.time[i]), y.px(most.value[i]));
  for (let i = least.n - 1; i >= 0; i--) c.lineTo(x.px(least.time[i]), y.px(least.value[i]));
  c.fillStyle = color;
  c.globalAlpha = 0.22;
  c.fill();
  c.globalAlpha = 1;
}

/** @param {CanvasRenderingContext2D} c @param {number} x @param {number} y @param {number} radius */
export function dot(c, x, y, radius) {
  c.beginPath();
  c.arc(x, y, radius, 0, 2 * Math.PI);
  c.fill();
}

/**
 * @param {CanvasRenderingContext2D} c
 * @param {{ margin: { top: number }, plotHeight: number }} plot
 * @param {number} px
 * @param {string} color
 */
export function vertical(c, plot, px, color) {
  c.strokeStyle = color;
  c.lineWidth = 1;
  c.setLineDash([3, 3]);
  c.beginPath();
  c.moveTo(px, plot.margin.top);
  c.lineTo(px, plot.margin.top + plot.plotHeight);
  c.stroke();
  c.setLineDash([]);
}

/** Distance of a place from the line between two others. @param {Point} p @param {number[]} a @param {number[]} b */
export function toSegment(p, [ax, ay], [bx, by]) {
  if (!Number.isFinite(ax + ay)) return Infinity;
  if (!Number.isFinite(bx + by)) [bx, by] = [ax, ay];
  const [dx, dy] = [bx - ax, by - ay];
  const t = Math.max(0, Math.min(1, ((p.x - ax) * dx + (p.y - ay) * dy) / (dx * dx + dy * dy || 1)));
  return Math.hypot(p.x - ax - t * dx, p.y - ay - t * dy);
}
