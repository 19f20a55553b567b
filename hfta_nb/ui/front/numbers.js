// Numbers as text.

/** @import { DeviceLine } from "./types.d.ts" */

export const GIB = 2 ** 30;

/** @param {number} seconds @returns {string} */
export function formatTime(seconds) {
  if (seconds < 0) return "-" + formatTime(-seconds);
  const two = (/** @type {number} */ v) => String(v).padStart(2, "0");
  const tenths = Math.round(seconds * 10);
  if (tenths < 600 && tenths % 10) return `0:${two(Math.floor(tenths / 10))}.${tenths % 10}`;
  const s = Math.round(seconds);
  if (s < 3600) return `${Math.floor(s / 60)}:${two(s % 60)}`;
  return `${Math.floor(s / 3600)}:${two(Math.floor((s % 3600) / 60))}:${two(s % 60)}`;
}

/** @param {number} v @param {number} [digits] */
export function formatNumber(v, digits = 4) {
  if (!Number.isFinite(v)) return String(v).replace("Infinity", "inf").replace("NaN", "nan");
  const size = Math.abs(v);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) {
    return v.toExponential(Math.max(0, digits - 2)).replace(/\.?0+e/, "e").replace("e+", "e");
  }
  return String(Number(v.toPrecision(digits)));
}

/** A measurement of the device in its unit. @param {DeviceLine} line @param {number} value */
export function quantity({ key, kind }, value) {
  if (!Number.isFinite(value)) return "–";
  if (kind === "fraction" || kind === "spread") return `${Math.round(value * 100)}%`;
  if (key.endsWith("_bytes")) return `${formatNumber(value / GIB, 3)} GiB`;
  const units = /** @type {Record<string, string>} */ ({ w: "W", c: "°C", j: "J", s: "s", hz: "Hz", mhz: "MHz" });
  return `${formatNumber(value, 3)} ${units[key.match(/_(w|c|j|s|hz|mhz)$/)?.[1] ?? ""] ?? ""}`.trim();
}

/** The next number above that an axis may end at. @param {number} v */
export function niceCeiling(v) {
  const power = 10 ** Math.floor(Math.log10(v));
  return power * ([1, 1.5, 2, 3, 4, 5, 6, 8].find((m) => m * power >= v * 0.9999) ?? 10);
}
