// The points of one curve.

/** @import { Values } from "./types.d.ts" */

const LIMIT = 4096; // the same as in live_state.py

/** In the order of a message's buffers; steps and times are too large for float32. */
export const COLUMNS = /** @type {const} */ (
  [["epoch", Float32Array], ["step", Float64Array], ["time", Float64Array], ["value", Float32Array]]);

/** Points of one curve, in growing typed arrays; thinned beyond LIMIT so that extremes survive. */
export class Trace {
  constructor() {
    this.n = 0;
    this.version = 0;
    this.epoch = new Float32Array(64);
    this.step = new Float64Array(64);
    this.time = new Float64Array(64);
    this.value = new Float32Array(64);
  }

  grow() {
    for (const [name, kind] of COLUMNS) {
      const wider = new kind(2 * this.n);
      wider.set(this[name]);
      Object.assign(this, { [name]: wider });
    }
  }

  /** @param {number} epoch @param {number} step @param {number} time @param {number} value */
  add(epoch, step, time, value) {
    while (this.n && this.step[this.n - 1] >= step) this.n--; // a resumed run starts again from its checkpoint
    if (this.n === this.step.length) this.grow();
    const i = this.n++;
    this.epoch[i] = epoch;
    this.step[i] = step;
    this.time[i] = time;
    this.value[i] = value;
    this.version++;
    if (this.n > LIMIT) this.thin();
  }

  /** Of each of LIMIT / 4 equal stretches of steps the lowest and the highest finite point stay, and the last point. */
  thin() {
    const last = this.n - 1, first = this.step[0];
    const span = this.step[last] - first + 1;
    const stretch = (/** @type {number} */ i) => Math.floor(((this.step[i] - first) * (LIMIT / 4)) / span);
    let kept = 0;
    const keep = (/** @type {number} */ i) => {
      for (const column of [this.epoch, this.step, this.time, this.value]) column[kept] = column[i];
      kept++;
    };
    for (let start = 0, end; start < last; start = end) {
      let low = -1, high = -1;
      for (end = start; end < last && stretch(end) === stretch(start); end++) {
        if (!Number.isFinite(this.value[end])) continue;
        if (low < 0 || this.value[end] < this.value[low]) low = end;
        if (high < 0 || this.value[end] > this.value[high]) high = end;
      }
      if (low < 0) low = high = start;
      keep(Math.min(low, high));
      if (low !== high) keep(Math.max(low, high));
    }
    keep(last);
    this.n = kept;
  }
}

/** The last value of a curve. @param {Trace} trace */
export function lastOf(trace) { return trace.value[trace.n - 1]; }

/**
 * Exponential smoothing that starts unbiased; NaN stays NaN and is not carried on.
 * @param {ArrayLike<number>} values
 * @param {number} n
 * @param {number} weight
 */
export function smooth(values, n, weight) {
  const out = new Float64Array(n);
  let sum = 0, norm = 0;
  for (let i = 0; i < n; i++) {
    if (!Number.isFinite(values[i])) { out[i] = NaN; continue; }
    sum = weight * sum + (1 - weight) * values[i];
    norm = weight * norm + (1 - weight);
    out[i] = sum / norm;
  }
  return out;
}

/**
 * Index of the point nearest to x among the first n of ascending xs.
 * @param {Values} xs
 * @param {number} n
 * @param {number} x
 */
export function nearest(xs, n, x) {
  let low = 0, high = n - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle + 1; else high = middle;
  }
  return low > 0 && x - xs[low - 1] < xs[low] - x ? low - 1 : low;
}
