// How the device's measurements are drawn: power in a strip of its own, and below it utilization (left scale) and memory
// (right scale), all on one time axis.

import { band, dot, line, vertical } from "./draw.js";
import { formatNumber, GIB } from "./numbers.js";
import { ticks } from "./ticks.js";

/** @import { DevicePanel } from "./device.js" */
/** @import { Plot } from "./plot.js" */
/** @import { Trace } from "./trace.js" */
/** @import { DeviceLine } from "./types.d.ts" */

/** Where the strip of power is, in pixels from the top. */
export const STRIP = { top: 10, height: 44, gap: 12 };

/**
 * One line, or a dot where there is a single point.
 * @param {CanvasRenderingContext2D} c
 * @param {Plot} plot
 * @param {DevicePanel} panel
 * @param {{ l: DeviceLine, trace: Trace }} shown
 * @param {{ px(value: number): number }} y
 * @param {number} width
 */
function stroke(c, plot, panel, { l, trace: { time, value, n } }, y, width) {
  const stands = panel.standsOut(l);
  c.globalAlpha = stands === false ? 0.2 : 1;
  c.strokeStyle = c.fillStyle = panel.view.paint(l);
  c.lineWidth = stands ? width + 1 : width;
  c.setLineDash(panel.dashOf(l));
  if (n > 1) line(c, time, value, n, plot.x, y);
  else dot(c, plot.x.px(time[0]), y.px(value[0]), 3);
}

/** Utilization and memory. @param {CanvasRenderingContext2D} c @param {Plot} plot @param {DevicePanel} panel */
export function paintDevice(c, plot, panel) {
  const { margin, plotHeight } = plot;
  const { view } = panel;
  const thin = panel.together ? 1.1 : 1.6;
  const bottom = margin.top + plotHeight;
  const gib = { px: (/** @type {number} */ v) => bottom - plotHeight * (v / GIB / panel.memoryTop / 1.02) };
  view.shadePauses(c, plot);
  for (const shown of panel.lines("memory")) {
    stroke(c, plot, panel, shown, gib, Math.min(1.3, thin));
    const { l, trace: { time, n } } = shown;
    if (n < 2 || panel.dashOf(l).length || panel.together) continue;
    c.lineTo(plot.x.px(time[n - 1]), bottom);
    c.lineTo(plot.x.px(time[0]), bottom);
    c.globalAlpha *= 0.13;
    c.fill();
  }
  c.globalAlpha = 1;
  const [least, most] = panel.lines("spread");
  if (least && most) band(c, plot, least.trace, most.trace, view.paint(least.l));
  for (const shown of panel.lines("fraction")) stroke(c, plot, panel, shown, plot.y, thin);
  c.globalAlpha = 1;
  c.setLineDash([]);
  if (view.cursorTime !== null) vertical(c, plot, Math.round(plot.x.px(view.cursorTime)) + 0.5, view.theme.muted);
}

/** The strip of power. @param {CanvasRenderingContext2D} c @param {Plot} plot @param {DevicePanel} panel */
export function paintPower(c, plot, panel) {
  const lines = panel.lines("power");
  if (!lines.length) return;
  const { view, powerTop } = panel;
  const { margin: { left }, plotWidth } = plot;
  const bottom = STRIP.top + STRIP.height;
  const watts = { px: (/** @type {number} */ v) => bottom - STRIP.height * (v / powerTop / 1.05) };
  c.lineWidth = 1;
  c.strokeStyle = view.theme.muted;
  c.beginPath();
  c.moveTo(left + 0.5, STRIP.top);
  c.lineTo(left + 0.5, bottom + 0.5);
  c.lineTo(left + plotWidth, bottom + 0.5);
  c.stroke();
  c.fillStyle = view.theme.muted;
  c.textBaseline = "middle";
  c.textAlign = "right";
  c.fillText("0", left - 6, bottom);
  c.fillText(`${formatNumber(powerTop, 3)} W`, left - 6, watts.px(powerTop), left - 8);
  c.save();
  c.beginPath();
  c.rect(left, STRIP.top, plotWidth, STRIP.height);
  c.clip();
  for (const shown of lines) stroke(c, plot, panel, shown, watts, panel.together ? 1.1 : 1.4);
  c.globalAlpha = 1;
  c.setLineDash([]);
  const strip = { margin: { top: STRIP.top }, plotHeight: STRIP.height };
  if (view.cursorTime !== null) vertical(c, strip, Math.round(plot.x.px(view.cursorTime)) + 0.5, view.theme.muted);
  c.restore();
}

/** The scale of memory, on the right. @param {CanvasRenderingContext2D} c @param {Plot} plot @param {DevicePanel} panel */
export function paintMemoryScale(c, plot, panel) {
  if (!panel.lines("memory").length) return;
  const { margin, plotHeight, plotWidth, width } = plot;
  const top = panel.memoryTop;
  c.fillStyle = panel.view.theme.muted;
  c.textAlign = "left";
  c.textBaseline = "middle";
  for (const { at, text } of ticks(0, top, false, plotHeight / 48, formatNumber)) {
    c.fillText(text, margin.left + plotWidth + 6, margin.top + plotHeight * (1 - at / top / 1.02));
  }
  c.save();
  c.translate(width - 6, margin.top + plotHeight / 2);
  c.rotate(-Math.PI / 2);
  c.textAlign = "center";
  c.fillText("memory, GiB", 0, 0);
  c.restore();
}
