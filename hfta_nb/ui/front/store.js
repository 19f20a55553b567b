// What the kernel told. Its messages are `{kind: "update", full, serial, layout?, curves: [[owner, name, count], ...],
// ...}` with four binary buffers: epoch (float32), step and time (float64), value (float32), the curves' points one
// after another. Owner -1 is the device. A front end without a state, or one that missed a message, asks by
// `{kind: "hello"}`.

import { COLUMNS, Trace } from "./trace.js";

/** @import { DeviceLine, Layout, Member, Interval, Run, Update } from "./types.d.ts" */

const DEVICE = -1;
/** @type {Layout} */
const EMPTY = { t0: null, device: "", epochs: 0, metrics: [], members: [], of: 0, axes: [], auto: "", legend: 12 };
/** @type {Run} */
const NO_RUN = { state: "WAITING", reason: "", phase: "", epochs_done: 0, best: null, blown: [] };
const FINAL = new Set(["COMPLETE", "STOPPED", "FAILED", "INTERRUPTED"]);
const ENDED = new Set(["DIVERGED", "STOPPED", "PRUNED", "FAILED", "INTERRUPTED", "DELETED"]);

const FIRST_PAUSE_MS = 500;
const LAST_PAUSE_MS = 30_000;

/** What the kernel told, shared by all views of one model. */
export class Store {
  /** @param {() => void} send asks the kernel for everything */
  constructor(send) {
    this.send = send;
    this.asking = 0; // the timer of the next question
    this.serial = /** @type {number | null} */ (null);
    this.generation = 0; // counts layouts: whatever a view made for an earlier one is void
    this.fulls = 0;
    this.t0 = /** @type {number | null} */ (null);
    this.listeners = /** @type {Set<(whole: boolean) => void>} */ (new Set());
    this.layout = EMPTY;
    this.members = /** @type {Map<number, Member>} */ (new Map());
    this.device = /** @type {Map<string, Trace>} */ (new Map());
    this.lines = /** @type {DeviceLine[]} */ ([]);
    this.run = /** @type {Run} */ (NO_RUN);
    this.pauses = /** @type {Interval[]} */ ([]);
  }

  /** Whether the run is over. */
  get over() { return FINAL.has(this.run.state); }

  /** Why a member counts as blown up; empty where it doesn't. @param {Member} member */
  blown(member) { return this.run.blown.find(([id]) => id === member.id)?.[1] ?? ""; }

  /** Ask for everything until it comes: a question may be lost, or wait in the kernel for a cell to end. */
  ask(pause = FIRST_PAUSE_MS) {
    this.answered();
    try { this.send(); } catch { return; } // the kernel is gone
    this.asking = setTimeout(() => this.ask(Math.min(2 * pause, LAST_PAUSE_MS)), pause);
  }

  answered() {
    clearTimeout(this.asking);
    this.asking = 0;
  }

  /** @param {Update} message @param {DataView[]} buffers */
  take(message, buffers) {
    if (message.kind === "nothing") this.answered();
    if (message.kind !== "update") return;
    const missed = this.serial === null || message.serial !== this.serial + 1;
    this.serial = message.serial;
    if (message.answer && !missed && !this.asking) return; // a second answer, or another page's: all of it is here
    if (message.full) {
      this.answered();
      this.reset(message.layout ?? EMPTY);
    } else if (missed && !this.asking) this.ask();
    if (!message.full && message.layout) this.relabel(message.layout);
    this.t0 = this.layout.t0 ?? this.t0;
    const t0 = this.t0 ?? 0;
    this.run = message.run;
    this.pauses = message.pauses.map(([a, b]) => /** @type {Interval} */ ([a - t0, b === null ? Infinity : b - t0]));
    if (message.device) this.lines = message.device;
    for (const [id, state, reason] of message.states) {
      const member = this.members.get(id);
      if (member) Object.assign(member, { state, reason });
    }
    this.points(message.curves, buffers);
    for (const listener of this.listeners) listener(Boolean(message.full || message.layout));
  }

  /** @param {Layout} layout */
  reset(layout) {
    const same = JSON.stringify(layout) === JSON.stringify(this.layout);
    this.fulls++;
    if (!same) this.generation++;
    this.layout = layout;
    this.t0 = layout.t0;
    this.members = new Map();
    this.device = new Map();
    layout.members.forEach((m, place) => {
      this.members.set(m.id, { ...m, place, state: "WAITING", reason: "", curves: new Map() });
    });
  }

  /** Members have other values, and so other names and colours; their curves stay. @param {Layout} layout */
  relabel(layout) {
    this.generation++;
    this.layout = layout;
    layout.members.forEach((m, place) => Object.assign(this.members.get(m.id) ?? {}, m, { place }));
  }

  /** @param {Update["curves"]} curves @param {DataView[]} buffers */
  points(curves, buffers) {
    // A buffer may start at any byte of the message it came in; typed arrays must not.
    const aligned = (/** @type {DataView} */ { buffer, byteOffset, byteLength }) =>
      new Uint8Array(buffer, byteOffset, byteLength).slice().buffer;
    const [epoch, step, time, value] = COLUMNS.map(([, kind], i) => new kind(aligned(buffers[i])));
    let at = 0;
    for (const [owner, name, count] of curves) {
      const curvesOf = owner === DEVICE ? this.device : this.members.get(owner)?.curves;
      if (curvesOf && !curvesOf.has(name)) curvesOf.set(name, new Trace());
      const trace = curvesOf?.get(name);
      const t0 = (this.t0 ??= time[at]);
      for (const end = at + count; at < end; at++) trace?.add(epoch[at], step[at], time[at] - t0, value[at]);
    }
  }
}

/** Whether a member ended before its last epoch. @param {Member} member */
export function ended(member) {
  return ENDED.has(member.state) || (member.state === "COMPLETE" && member.reason !== "");
}
