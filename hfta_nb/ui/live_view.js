// The live view: member curves on the left, the device's utilization and memory on the right.
//
// One ES module without imports; anywidget calls the function it exports once per model. The kernel sends
// messages `{kind: "update", full, serial, layout?, curves: [[owner, name, count], ...], ...}` with four binary
// buffers: epoch (float32), step and time (float64), value (float32), the curves' points one after another.
// Owner -1 is the device. A front end without a state, or one that missed a message, asks by `{kind: "hello"}`.
// Names come from people: they reach the page by textContent and fillText alone.

// ---------------------------------------------------------------------------------------------- data

const LIMIT = 4096; // the same as in live_state.py
const DEVICE = -1;
// In the order of a message's buffers; steps and times are too large for float32.
const COLUMNS = [["epoch", Float32Array], ["step", Float64Array], ["time", Float64Array], ["value", Float32Array]];

/** Points of one curve, in growing typed arrays; thinned beyond LIMIT so that extremes survive. */
class Trace {
  constructor() {
    this.n = 0;
    this.version = 0;
    this.grow(64);
  }

  grow(capacity) {
    for (const [name, kind] of COLUMNS) {
      const wider = new kind(capacity);
      if (this.n) wider.set(this[name].subarray(0, this.n));
      this[name] = wider;
    }
  }

  add(epoch, step, time, value) {
    while (this.n && this.step[this.n - 1] >= step) this.n--; // a resumed run starts again from its checkpoint
    if (this.n === this.step.length) this.grow(this.n * 2);
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
    const stretch = (i) => Math.floor(((this.step[i] - first) * (LIMIT / 4)) / span);
    let kept = 0;
    const keep = (i) => {
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

const EMPTY = { t0: null, epochs: 0, metrics: [], members: [], of: 0, axes: [], auto: "", legend: 12 };
const ENDED = new Set(["DIVERGED", "STOPPED", "PRUNED", "FAILED", "INTERRUPTED", "DELETED"]);

const FIRST_PAUSE_MS = 500;
const LAST_PAUSE_MS = 30_000;

/** What the kernel told, shared by all views of one model. */
class Store {
  constructor(send) {
    this.send = send;
    this.asking = 0; // the timer of the next question
    this.serial = null;
    this.generation = 0; // counts layouts: whatever a view made for an earlier one is void
    this.fulls = 0;
    this.listeners = new Set();
    this.clear();
  }

  clear() {
    this.layout = EMPTY;
    this.members = new Map();
    this.device = new Map();
    this.lines = [];
    this.run = { state: "WAITING", reason: "", phase: "", epochs_done: 0 };
    this.pauses = [];
  }

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

  take(message, buffers) {
    if (message.kind === "nothing") this.answered();
    if (message.kind !== "update") return;
    const missed = this.serial === null || message.serial !== this.serial + 1;
    this.serial = message.serial;
    if (message.answer && !missed && !this.asking) return; // a second answer, or another page's: all of it is here
    if (message.full) {
      this.answered();
      this.reset(message.layout);
    } else if (missed && !this.asking) this.ask();
    if (!message.full && message.layout) this.relabel(message.layout);
    this.t0 = this.layout.t0 ?? this.t0;
    this.run = message.run;
    this.pauses = message.pauses.map(([a, b]) => [a - this.t0, b === null ? Infinity : b - this.t0]);
    if (message.device) this.lines = message.device;
    for (const [id, state, reason] of message.states) {
      const member = this.members.get(id);
      if (member) Object.assign(member, { state, reason });
    }
    this.points(message.curves, buffers);
    for (const listener of this.listeners) listener(Boolean(message.full || message.layout));
  }

  reset(layout) {
    const same = JSON.stringify(layout) === JSON.stringify(this.layout);
    this.clear();
    this.fulls++;
    if (!same) this.generation++;
    this.layout = layout;
    this.t0 = layout.t0;
    layout.members.forEach((m, place) => {
      this.members.set(m.id, { ...m, place, state: "WAITING", reason: "", curves: new Map() });
    });
  }

  /** Members have other values, and so other names and colours; their curves stay. */
  relabel(layout) {
    this.generation++;
    this.layout = layout;
    layout.members.forEach((m, place) => Object.assign(this.members.get(m.id) ?? {}, m, { place }));
  }

  points(curves, buffers) {
    // A buffer may start at any byte of the message it came in; typed arrays must not.
    const aligned = (view) => view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength);
    const [epoch, step, time, value] = COLUMNS.map(([, kind], i) => new kind(aligned(buffers[i])));
    let at = 0;
    for (const [owner, name, count] of curves) {
      const curvesOf = owner === DEVICE ? this.device : this.members.get(owner)?.curves;
      if (curvesOf && !curvesOf.has(name)) curvesOf.set(name, new Trace());
      const trace = curvesOf?.get(name);
      this.t0 ??= time[at];
      for (const end = at + count; at < end; at++) trace?.add(epoch[at], step[at], time[at] - this.t0, value[at]);
    }
  }
}

/** Exponential smoothing that starts unbiased; NaN stays NaN and is not carried on. */
function smooth(values, n, weight) {
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

/** Index of the point nearest to x among the first n of ascending xs. */
function nearest(xs, n, x) {
  let low = 0, high = n - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle + 1; else high = middle;
  }
  return low > 0 && x - xs[low - 1] < xs[low] - x ? low - 1 : low;
}

// ---------------------------------------------------------------------------------------------- numbers

const SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

function formatTime(seconds) {
  if (seconds < 0) return "-" + formatTime(-seconds);
  const two = (v) => String(v).padStart(2, "0");
  const tenths = Math.round(seconds * 10);
  if (tenths < 600 && tenths % 10) return `0:${two(Math.floor(tenths / 10))}.${tenths % 10}`;
  const s = Math.round(seconds);
  if (s < 3600) return `${Math.floor(s / 60)}:${two(s % 60)}`;
  return `${Math.floor(s / 3600)}:${two(Math.floor((s % 3600) / 60))}:${two(s % 60)}`;
}

function formatNumber(v, digits = 4) {
  if (!Number.isFinite(v)) return String(v).replace("Infinity", "inf").replace("NaN", "nan");
  const size = Math.abs(v);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) {
    return v.toExponential(Math.max(0, digits - 2)).replace(/\.?0+e/, "e").replace("e+", "e");
  }
  return String(Number(v.toPrecision(digits)));
}

/** Ticks between low and high (logarithms if `log`, whole numbers if `whole`): [{at, text}], those with text labelled. */
function ticks(low, high, log, count, format, whole = false) {
  if (log && high - low >= 0.9) return logTicks(low, high, count, format);
  const [from, to] = log ? [10 ** low, 10 ** high] : [low, high];
  const raw = (to - from) / Math.max(1, count);
  const time = format === formatTime && raw > 0.5;
  const power = 10 ** Math.floor(Math.log10(raw));
  const digits = Math.max(3, Math.ceil(Math.log10(Math.max(Math.abs(from), Math.abs(to)) / raw)) + 1);
  const even = time
    ? SECONDS.find((s) => s >= raw) ?? Math.ceil(raw / 86400) * 86400
    : power * [1, 2, 5, 10].find((m) => m * power >= raw * 0.999);
  const step = whole && !log ? Math.max(1, even) : even;
  const found = [];
  for (let i = Math.ceil(from / step - 1e-9); i * step <= to * (1 + 1e-12) + step * 1e-9 && found.length < 50; i++) {
    const v = i * step;
    if (!log || v > 0) found.push({ at: log ? Math.log10(v) : v, text: format(Number(v.toPrecision(12)), digits) });
  }
  return found;
}

function logTicks(low, high, count, format) {
  const decades = Math.max(1, Math.ceil((high - low) / Math.max(1, count)));
  const found = [];
  for (let d = Math.floor(low); d <= high; d++) {
    const few = high - low < 2.2 && decades === 1;
    for (let m = 1; m < (decades > 1 ? 2 : 10); m++) {
      const at = d + Math.log10(m);
      if (at < low - 1e-9 || at > high + 1e-9) continue;
      const labelled = m === 1 ? d % decades === 0 : few && (m === 2 || m === 5);
      found.push({ at, text: labelled ? format(Number(`${m}e${d}`), 3) : "" });
    }
  }
  return found;
}

// ---------------------------------------------------------------------------------------------- theme

function readTheme(probe) {
  const style = getComputedStyle(probe);
  const ink = getComputedStyle(probe.parentElement);
  const [r, g, b] = (style.backgroundColor.match(/[\d.]+/g) ?? [255, 255, 255]).map(Number);
  return {
    dark: 0.2126 * r + 0.7152 * g + 0.0722 * b < 128,
    paper: style.backgroundColor, ink: ink.color, font: ink.fontFamily,
    muted: style.color, line: style.borderTopColor, accent: style.borderLeftColor,
  };
}

/** Calls back when the page's theme changes: JupyterLab marks body, other hosts mark html, or the system's changes. */
function onTheme(callback, signal) {
  const observer = new MutationObserver(callback);
  const names = ["data-jp-theme-name", "data-jp-theme-light", "data-theme", "class", "style"];
  const marks = { attributes: true, attributeFilter: names };
  observer.observe(document.body, marks);
  observer.observe(document.documentElement, marks);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", callback, { signal });
  signal.addEventListener("abort", () => observer.disconnect());
}

// ---------------------------------------------------------------------------------------------- plots

const MARGIN = { left: 52, right: 12, top: 8, bottom: 34 };
let wheelElsewhereMs = -Infinity; // when the page was last scrolled: a scroll that runs into a plot stays a scroll

/** A canvas with two axes, zoom and pan. A panel fills in `scene` (axes and extents), `paint` and `probe`. */
class Plot {
  constructor(view, panel, name) {
    this.view = view;
    this.panel = panel;
    this.zoom = { x: null, y: null };
    this.box = element("div", "hfta-plot");
    this.canvas = element("canvas", "", { role: "img", tabindex: "0" });
    this.canvas.dataset.panel = name;
    this.box.append(this.canvas);
    this.context = this.canvas.getContext("2d");
    this.margin = { ...MARGIN, ...panel.margin };
    this.pointer = null;
    this.listen();
  }

  resize() {
    this.width = this.box.clientWidth;
    this.height = this.box.clientHeight;
    const ratio = window.devicePixelRatio || 1;
    const [w, h] = [Math.round(this.width * ratio), Math.round(this.height * ratio)];
    if (this.canvas.width !== w || this.canvas.height !== h) Object.assign(this.canvas, { width: w, height: h });
    this.ratio = ratio;
  }

  get plotWidth() { return Math.max(10, this.width - this.margin.left - this.margin.right); }
  get plotHeight() { return Math.max(10, this.height - this.margin.top - this.margin.bottom); }

  /** Where a zoom lasts; both plots share x while both show time. */
  zoomOf(axis) { return axis === "x" && this.view.sharesTime() ? this.view.timeZoom : this.zoom; }

  setZoom(axis, range) {
    this.zoomOf(axis)[axis] = range;
  }

  /** Scale of an axis of the scene: low and high (as logarithms if log), and value to pixel and back. */
  scale(axis, spec) {
    const range = this.zoomOf(axis)[axis] ?? spec.extent;
    const [low, high] = range;
    const { left, top } = this.margin;
    const [start, size] = axis === "x" ? [left, this.plotWidth] : [top + this.plotHeight, -this.plotHeight];
    const per = size / (high - low);
    return {
      low, high, log: spec.log, format: spec.format, per, whole: spec.extent,
      px: spec.log ? (v) => start + (Math.log10(v) - low) * per : (v) => start + (v - low) * per,
      at: (t) => start + (t - low) * per, // of a logarithm already taken
      inverse: (px) => low + (px - start) / per,
    };
  }

  draw() {
    if (this.width < 40 || this.height < 40) return;
    const { context: c, view } = this;
    const scene = this.panel.scene();
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

  say(c, text) {
    c.fillStyle = this.view.theme.muted;
    c.textAlign = "center";
    c.textBaseline = "middle";
    c.fillText(text, this.margin.left + this.plotWidth / 2, this.margin.top + this.plotHeight / 2);
  }

  axes(c, scene) {
    const { left, top } = this.margin;
    const [right, bottom] = [left + this.plotWidth, top + this.plotHeight];
    const { muted, line } = this.view.theme;
    c.lineWidth = 1;
    c.setLineDash([]);
    c.strokeStyle = line;
    c.fillStyle = muted;
    const half = (v) => Math.round(v) + 0.5;
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
    c.fillText(scene.x.title, left + this.plotWidth / 2, this.height - 1);
  }

  listen() {
    const { canvas } = this;
    const options = { signal: this.view.signal };
    canvas.addEventListener("pointerdown", (e) => this.press(e), options);
    canvas.addEventListener("pointermove", (e) => this.move(e), options);
    canvas.addEventListener("pointerup", (e) => this.release(e), options);
    canvas.addEventListener("pointercancel", () => this.drop(), options);
    canvas.addEventListener("pointerleave", () => { if (!this.drag) this.view.unhover(); }, options);
    canvas.addEventListener("dblclick", (e) => { e.preventDefault(); this.view.resetZoom(); }, options);
    canvas.addEventListener("wheel", (e) => this.wheel(e), { ...options, passive: false });
    canvas.addEventListener("keydown", (e) => this.key(e), options);
    canvas.addEventListener("blur", () => this.view.unhover(), options);
  }

  local(e) {
    const box = this.canvas.getBoundingClientRect();
    return { x: e.clientX - box.left, y: e.clientY - box.top };
  }

  press(e) {
    if (e.button !== 0 || !this.x) return;
    this.canvas.setPointerCapture(e.pointerId);
    this.drag = { from: this.local(e), x: [this.x.low, this.x.high], y: [this.y.low, this.y.high], moved: false };
  }

  move(e) {
    if (!this.x) return;
    const at = this.local(e);
    if (!this.drag) return this.view.hover(this, at);
    const [dx, dy] = [at.x - this.drag.from.x, at.y - this.drag.from.y];
    if (!this.drag.moved && Math.hypot(dx, dy) < 4) return;
    this.drag.moved = true;
    this.canvas.classList.add("hfta-dragging");
    this.setZoom("x", this.drag.x.map((v) => v - dx / this.x.per));
    if (!this.panel.fixedY) this.setZoom("y", this.drag.y.map((v) => v - dy / this.y.per));
    this.view.unhover();
    this.view.redraw();
  }

  release(e) {
    const click = this.drag && !this.drag.moved;
    this.drop();
    if (click) this.panel.click?.(this, this.local(e), e.shiftKey || e.ctrlKey || e.metaKey);
  }

  drop() {
    this.drag = null;
    this.canvas.classList.remove("hfta-dragging");
  }

  wheel(e) {
    const now = performance.now();
    if (now - wheelElsewhereMs < 350) { wheelElsewhereMs = now; return; }
    if (!this.x) return;
    const zoomed = this.zoomOf("x").x || this.zoomOf("y").y;
    if (e.deltaY > 0 && !zoomed) { wheelElsewhereMs = now; return; } // all is in sight: the page scrolls
    e.preventDefault();
    const at = this.local(e);
    const factor = Math.exp(Math.max(-60, Math.min(60, e.deltaY * (e.deltaMode ? 16 : 1))) * 0.005);
    const inside = at.x > this.margin.left && at.y < this.margin.top + this.plotHeight;
    if (at.x > this.margin.left) this.zoomBy("x", at.x, factor);
    if ((inside || at.x <= this.margin.left) && !this.panel.fixedY) this.zoomBy("y", at.y, factor);
    this.view.hover(this, at);
    this.view.redraw();
  }

  /** Zoom about a pixel; zooming out ends where all of the data is in sight. */
  zoomBy(axis, pixel, factor) {
    const { inverse, low, high, whole } = this[axis];
    const still = inverse(pixel);
    const range = [still + (low - still) * factor, still + (high - still) * factor];
    if (factor > 1 && range[0] <= whole[0] && range[1] >= whole[1]) return this.setZoom(axis, null);
    const size = range[1] - range[0];
    if (size > 1e-9 * Math.max(1e-3, Math.abs(still)) && size < 1e12) this.setZoom(axis, range);
  }

  key(e) {
    if (!this.x || e.ctrlKey || e.metaKey || e.altKey) return;
    const middle = [this.margin.left + this.plotWidth / 2, this.margin.top + this.plotHeight / 2];
    const zoom = (factor) => {
      this.zoomBy("x", middle[0], factor);
      if (!this.panel.fixedY) this.zoomBy("y", middle[1], factor);
    };
    const actions = {
      "+": () => zoom(0.8), "=": () => zoom(0.8), "-": () => zoom(1.25), 0: () => this.view.resetZoom(),
      ArrowLeft: () => this.panel.walk(this, -1, 0), ArrowRight: () => this.panel.walk(this, 1, 0),
      ArrowUp: () => this.panel.walk(this, 0, -1), ArrowDown: () => this.panel.walk(this, 0, 1),
      Enter: () => this.panel.press?.(e.shiftKey), " ": () => this.panel.press?.(e.shiftKey),
      Escape: () => this.view.unhover(),
    };
    const action = actions[e.key];
    if (!action) return;
    e.preventDefault();
    e.stopPropagation();
    action();
    this.view.redraw();
  }
}

/** A line through points; the pen lifts where a value can't be drawn, and points that share a pixel are skipped. */
function line(c, xs, ys, n, x, y) {
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

function dot(c, x, y, radius) {
  c.beginPath();
  c.arc(x, y, radius, 0, 2 * Math.PI);
  c.fill();
}

/** [low, high] with room around it; of logarithms if log. */
function pad([low, high], log, part) {
  if (!(low <= high)) return log ? [-3, 0] : [0, 1];
  const room = low < high ? (high - low) * part : log ? 0.3 : Math.abs(low) * 0.1 || 0.5;
  return [low - room, high + room];
}

/**
 * Extent of what can be drawn of some series. One member gone to 1e12 must not flatten the others: on a linear axis
 * what lies far beyond the extremes that most members reach is left out, but of every member that did not diverge
 * something stays in sight. `figures.py` does the same.
 */
function extent(series, log) {
  const ends = [];
  for (const { ys, trace, member } of series) {
    let low = Infinity, high = -Infinity;
    for (let i = 0; i < trace.n; i++) {
      const v = log ? Math.log10(ys[i]) : ys[i];
      if (v < low && v > -Infinity) low = v;
      if (v > high && v < Infinity) high = v;
    }
    if (low <= high) ends.push({ low, high, sound: member.state !== "DIVERGED" });
  }
  const lows = ends.map((e) => e.low).sort((a, b) => b - a);
  const highs = ends.map((e) => e.high).sort((a, b) => a - b);
  const all = [lows.at(-1) ?? 1, highs.at(-1) ?? 0];
  if (log || ends.length < 3) return all;
  const quarter = (ends.length - 1) >> 2;
  const sound = ends.filter((e) => e.sound);
  const top = Math.max(highs[quarter], ...sound.map((e) => e.low));
  const bottom = Math.min(lows[quarter], ...sound.map((e) => e.high));
  // Curves that cross (the losses of two networks) may have hardly anything in common: how far one of them goes counts.
  const ranges = ends.map((e) => e.high - e.low).sort((a, b) => a - b);
  const reach = 4 * (Math.max(Math.abs(top - bottom), ranges[quarter]) || Math.abs(top) || 1);
  if (all[0] >= bottom - reach && all[1] <= top + reach) return all;
  return insideExtent(series, [bottom - reach, top + reach]);
}

/** The mean distance between two points of a series; 0 where it has one. */
function spacing({ xs, trace }) {
  return trace.n > 1 ? (xs[trace.n - 1] - xs[0]) / (trace.n - 1) : 0;
}

function insideExtent(series, [least, greatest]) {
  let low = Infinity, high = -Infinity;
  for (const { ys, trace } of series) {
    for (let i = 0; i < trace.n; i++) {
      if (ys[i] >= least && ys[i] < low) low = ys[i];
      if (ys[i] <= greatest && ys[i] > high) high = ys[i];
    }
  }
  return [low, high];
}

// ---------------------------------------------------------------------------------------------- curves

const X_TITLES = { epoch: "epoch", step: "optimizer step", time: "time since the start" };

class CurvesPanel {
  constructor(view) {
    this.view = view;
    this.margin = {};
    this.near = null; // {series, index}
    this.cache = new WeakMap();
  }

  get metric() {
    const { metrics } = this.view.store.layout;
    return metrics.find((m) => m.name === this.view.get("metric")) ?? metrics[0];
  }

  /** What is to be drawn: one series per member and split that has points. */
  series() {
    const metric = this.metric;
    const split = this.view.get("split");
    // A metric that lacks the chosen split shows the one that it has.
    const shows = (part) => metric?.[part] && (split === part || split === "both" || !metric[split]);
    const wanted = ["train", "validation"].filter(shows);
    const found = [];
    for (const member of this.view.store.members.values()) {
      for (const part of wanted) {
        const trace = member.curves.get(metric[part]);
        if (!trace?.n) continue;
        const [xs, ys] = [trace[this.view.get("x_axis")], this.smoothed(trace)];
        found.push({ member, trace, part, main: part === wanted.at(-1), xs, ys });
      }
    }
    this.parts = wanted;
    return found;
  }

  smoothed(trace) {
    const weight = this.view.get("smoothing");
    if (!weight) return trace.value;
    const known = this.cache.get(trace);
    if (known?.version === trace.version && known.weight === weight) return known.values;
    const values = smooth(trace.value, trace.n, weight);
    this.cache.set(trace, { version: trace.version, weight, values });
    return values;
  }

  scene() {
    const view = this.view;
    this.shown = this.series();
    if (this.near) this.follow();
    const x_axis = view.get("x_axis"), logX = view.get("log_x"), logY = view.get("log_y");
    const format = x_axis === "time" ? formatTime : formatNumber;
    return {
      x: { extent: this.extentX(logX), log: logX, format, title: X_TITLES[x_axis], whole: x_axis !== "time" },
      y: { extent: this.extentY(logY), log: logY, format: formatNumber },
      empty: this.shown.length ? "" : this.waiting(),
    };
  }

  /** New data make new series: what the pointer is at is found again among them. */
  follow() {
    const { series: old, index } = this.near;
    const series = this.shown.find(({ member, part }) => member.id === old.member.id && part === old.part);
    this.near = series ? { series, index: Math.min(index, series.trace.n - 1) } : null;
  }

  waiting() {
    const { run, layout } = this.view.store;
    if (!layout.members.length) return "no run yet";
    if (run.state !== "RUNNING") return "no points of this metric";
    return run.phase && !run.phase.startsWith("training") ? `${run.phase} …` : "the first epoch is under way";
  }

  extentX(log) {
    if (this.view.sharesTime()) return this.view.timeExtent();
    let low = Infinity, high = -Infinity;
    for (const { xs, trace } of this.shown) {
      let first = 0;
      while (log && first < trace.n && !(xs[first] > 0)) first++;
      if (first === trace.n) continue;
      low = Math.min(low, log ? Math.log10(xs[first]) : xs[first]);
      high = Math.max(high, log ? Math.log10(xs[trace.n - 1]) : xs[trace.n - 1]);
    }
    if (!(low <= high) && !log) return [0, (this.view.get("x_axis") === "epoch" && this.view.store.layout.epochs) || 1];
    if (!log && this.view.get("x_axis") === "epoch" && high - low < 1) {
      // Epochs are whole: a single one stands between its neighbours.
      const [first, last] = [Math.floor(low), Math.ceil(high)];
      return first < last ? [first, last] : [first - 1, last + 1];
    }
    return pad([low, high], log, 0.01);
  }

  extentY(log) {
    const versions = this.shown.map((s) => s.trace.version).join();
    const traits = ["metric", "split", "smoothing"].map((name) => this.view.get(name));
    const stamp = [versions, this.view.store.fulls, log, ...traits].join();
    if (stamp !== this.stamp) {
      this.stamp = stamp;
      this.range = pad(extent(this.shown, log), log, 0.04);
    }
    return this.range;
  }

  paint(c, plot) {
    const { view } = this;
    if (view.get("x_axis") === "time") view.shadePauses(c, plot);
    const lifted = view.lifted();
    const chosen = new Set(view.get("selected"));
    // Those that stand out are drawn last, over the others.
    const rank = ({ member, main }) => 4 * Boolean(lifted?.has(member.id)) + 2 * chosen.has(member.id) + main;
    const many = this.shown.length > 80;
    for (const s of [...this.shown].sort((a, b) => rank(a) - rank(b))) {
      const up = lifted?.has(s.member.id) || (!lifted && chosen.has(s.member.id));
      const faded = lifted ? !up : chosen.size > 0 && !up;
      this.curve(c, plot, s, { up, alpha: (faded ? 0.22 : many && !up ? 0.75 : 1) * (s.main ? 1 : 0.5) });
    }
    c.globalAlpha = 1;
    this.guide(c, plot);
  }

  curve(c, plot, { member, trace, main, xs, ys }, { up, alpha }) {
    const color = this.view.colorOf(member);
    c.strokeStyle = c.fillStyle = color;
    c.lineJoin = "round";
    c.globalAlpha = alpha;
    if (up && main && ys !== trace.value) { // what smoothing hides
      c.globalAlpha = alpha * 0.35;
      c.lineWidth = 1;
      c.setLineDash([]);
      line(c, xs, trace.value, trace.n, plot.x, plot.y);
      c.globalAlpha = alpha;
    }
    c.lineWidth = (main ? 1.6 : 1.1) + (up ? 1.1 : 0);
    c.setLineDash(main ? this.view.dashOf(member) : [2, 3]);
    if (trace.n > 1) line(c, xs, ys, trace.n, plot.x, plot.y);
    else dot(c, plot.x.px(xs[0]), plot.y.px(ys[0]), main ? 3 : 2);
    c.setLineDash([]);
    if (main && ended(member)) this.cross(c, plot, xs, ys, trace.n);
  }

  cross(c, plot, xs, ys, n) {
    let last = n - 1;
    const log = plot.y.log;
    while (last >= 0 && !(Number.isFinite(ys[last]) && (!log || ys[last] > 0))) last--;
    // Without a single value that can be drawn it stands on the upper edge.
    const x = plot.x.px(xs[Math.max(0, last)]);
    const top = plot.margin.top;
    const y = last < 0 ? top + 6 : Math.max(top + 6, Math.min(top + plot.plotHeight - 6, plot.y.px(ys[last])));
    c.lineWidth = 2;
    c.beginPath();
    c.moveTo(x - 4, y - 4); c.lineTo(x + 4, y + 4);
    c.moveTo(x - 4, y + 4); c.lineTo(x + 4, y - 4);
    c.stroke();
  }

  guide(c, plot) {
    const elsewhere = this.view.get("x_axis") === "time" ? this.view.cursorTime : null;
    const x = this.near ? this.near.series.xs[this.near.index] : elsewhere;
    if (x === null) return;
    const px = Math.round(plot.x.px(x)) + 0.5;
    vertical(c, plot, px, this.view.theme.muted);
    if (!this.near) return;
    for (const s of this.shown) {
      const i = this.indexAt(s, x);
      if (i === null) continue;
      const top = s.member === this.near.series.member;
      c.globalAlpha = top ? 1 : 0.6;
      c.fillStyle = this.view.colorOf(s.member);
      dot(c, plot.x.px(s.xs[i]), plot.y.px(s.ys[i]), top && s === this.near.series ? 4.5 : 2.2);
    }
    c.globalAlpha = 1;
  }

  /** The point of a series at x; null where it has none near (it ended before, or that epoch was not validated). */
  indexAt(series, x) {
    const i = nearest(series.xs, series.trace.n, x);
    // The curve that is pointed at may have more points than this one, which then counts at its own alone.
    const gap = Math.min(spacing(series), spacing(this.near?.series ?? series));
    return Math.abs(series.xs[i] - x) <= Math.max(0.75 * gap, Math.abs(x) * 1e-9) ? i : null;
  }

  /** The series and point nearest to a place on the plot, by distance to the line in pixels. */
  probe(plot, at) {
    let best = null;
    for (const series of this.shown ?? []) {
      const { xs, ys, trace } = series;
      const x = plot.x.inverse(at.x);
      const middle = nearest(xs, trace.n, plot.x.log ? 10 ** x : x);
      for (let i = Math.max(0, middle - 1); i < Math.min(trace.n, middle + 2); i++) {
        const a = [plot.x.px(xs[i]), plot.y.px(ys[i])];
        const j = Math.min(i + 1, trace.n - 1);
        const distance = toSegment(at, a, [plot.x.px(xs[j]), plot.y.px(ys[j])]);
        if (distance < (best?.distance ?? Infinity)) best = { series, distance };
      }
      if (best?.series === series) best.index = middle;
    }
    return best;
  }

  hover(plot, at) {
    this.near = this.probe(plot, at);
    const { near } = this;
    this.view.cursorTime = near ? near.series.trace.time[near.index] : null;
    return near ? near.series.member : null;
  }

  click(plot, at, several) {
    const found = this.probe(plot, at);
    this.view.select(found && found.distance < 24 ? found.series.member.id : null, several);
  }

  press(several) {
    if (this.near) this.view.select(this.near.series.member.id, several);
  }

  /** Keyboard: to the next point, or to the member above or below. */
  walk(plot, dx, dy) {
    if (!this.shown?.length) return;
    const mains = this.shown.filter((s) => s.main);
    if (!this.near || !mains.includes(this.near.series)) {
      this.near = { series: mains[0], index: mains[0].trace.n - 1 };
    } else if (dy) {
      const x = this.near.series.xs[this.near.index];
      const order = mains.map((series) => ({ series, index: this.indexAt(series, x) })).filter((p) => p.index !== null);
      order.sort((a, b) => b.series.ys[b.index] - a.series.ys[a.index]);
      const place = order.findIndex((p) => p.series === this.near.series) + dy;
      this.near = order[Math.max(0, Math.min(order.length - 1, place))];
    } else {
      const { series, index } = this.near;
      this.near = { series, index: Math.max(0, Math.min(series.trace.n - 1, index + dx)) };
    }
    const { series, index } = this.near;
    this.view.cursorTime = series.trace.time[index];
    this.view.showHover(plot, series.member, { x: plot.x.px(series.xs[index]), y: plot.y.px(series.ys[index]) });
  }

  /** What the tooltip says: a head line, rows of the members from top to bottom, and a note on the nearest. */
  tip() {
    if (!this.near) return null;
    const { series, index } = this.near;
    const { trace, member } = series;
    const x = series.xs[index];
    const rows = new Map();
    for (const s of this.shown) {
      const i = this.indexAt(s, x);
      if (i === null) continue;
      if (!rows.has(s.member)) rows.set(s.member, { values: {}, order: 0 });
      const row = rows.get(s.member);
      row.values[s.part] = s.ys[i];
      row.order = s.ys[i]; // the main one comes last
    }
    const lost = (row) => Number.isNaN(row.order);
    const sorted = [...rows].sort(([, a], [, b]) => lost(a) - lost(b) || b.order - a.order || 0);
    const head = [`epoch ${formatNumber(trace.epoch[index])}`, `step ${trace.step[index]}`];
    if (Number.isFinite(trace.time[index])) head.push(formatTime(trace.time[index]));
    return {
      head: head.join(" · "),
      columns: this.parts.length > 1 ? ["train", "validation"] : [],
      rows: sorted.map(([m, row]) => ({
        color: this.view.colorOf(m), dash: this.view.dashOf(m), name: m.label, near: m === member,
        cells: this.parts.map((p) => (p in row.values ? formatNumber(row.values[p]) : "–")),
      })),
      notes: [member.label, ended(member) ? `${member.state}${member.reason ? ": " + member.reason : ""}` : ""],
    };
  }

  describe() {
    if (!this.shown?.length) return `Curves of the members: ${this.waiting()}`;
    let low = null, high = null;
    for (const s of this.shown) {
      const v = s.ys[s.trace.n - 1];
      if (!s.main || !Number.isFinite(v)) continue;
      if (!low || v < low.v) low = { v, name: s.member.label };
      if (!high || v > high.v) high = { v, name: s.member.label };
    }
    const { view } = this;
    const named = ({ v, name }) => `${formatNumber(v)} (${name})`;
    const range = low ? `; last values from ${named(low)} to ${named(high)}` : "";
    const what = `${this.metric.label} over ${X_TITLES[view.get("x_axis")]} for ${view.store.members.size} members`;
    return `Curves of ${what}${range}. ${view.summary()}`;
  }
}

function ended(member) {
  return ENDED.has(member.state) || (member.state === "COMPLETE" && member.reason !== "");
}

function toSegment(p, [ax, ay], [bx, by]) {
  if (!Number.isFinite(ax + ay)) return Infinity;
  if (!Number.isFinite(bx + by)) [bx, by] = [ax, ay];
  const [dx, dy] = [bx - ax, by - ay];
  const t = Math.max(0, Math.min(1, ((p.x - ax) * dx + (p.y - ay) * dy) / (dx * dx + dy * dy || 1)));
  return Math.hypot(p.x - ax - t * dx, p.y - ay - t * dy);
}

function vertical(c, plot, px, color) {
  c.strokeStyle = color;
  c.lineWidth = 1;
  c.setLineDash([3, 3]);
  c.beginPath();
  c.moveTo(px, plot.margin.top);
  c.lineTo(px, plot.margin.top + plot.plotHeight);
  c.stroke();
  c.setLineDash([]);
}

// ---------------------------------------------------------------------------------------------- device

const GIB = 2 ** 30;

class DevicePanel {
  constructor(view) {
    this.view = view;
    this.margin = { left: 44, right: 50 };
    this.fixedY = true;
    this.near = null;
    this.lifted = null; // the key of the line that its chip lifts
  }

  lines(kind) {
    const { lines, device } = this.view.store;
    return lines.filter((l) => l.kind === kind && device.get(l.key)?.n);
  }

  scene() {
    const has = this.view.store.device.size > 0;
    let most = 0;
    for (const { key } of this.lines("memory")) {
      const { value, n } = this.view.store.device.get(key);
      for (let i = 0; i < n; i++) if (value[i] > most) most = value[i];
    }
    this.memoryTop = niceCeiling((most / GIB) * 1.08 || 1);
    return {
      x: { extent: this.view.timeExtent(), log: false, format: formatTime, title: X_TITLES.time },
      y: { extent: [0, 1.02], log: false, format: (v) => `${Math.round(v * 100)}%` },
      empty: has ? "" : "no device measurements yet",
    };
  }

  paint(c, plot) {
    this.view.shadePauses(c, plot);
    const fractions = this.lines("fraction").sort((a, b) => b.faint - a.faint);
    for (const l of this.lines("memory")) this.memory(c, plot, l);
    for (const l of fractions) {
      const { time, value, n } = this.view.store.device.get(l.key);
      c.globalAlpha = this.lifted && this.lifted !== l.key ? 0.2 : l.faint ? 0.35 : 1;
      c.strokeStyle = c.fillStyle = this.view.paint(l);
      c.lineWidth = this.lifted === l.key ? 2.6 : l.faint ? 1 : 1.6;
      c.setLineDash(l.dash);
      if (n > 1) line(c, time, value, n, plot.x, plot.y);
      else dot(c, plot.x.px(time[0]), plot.y.px(value[0]), 3);
    }
    c.globalAlpha = 1;
    c.setLineDash([]);
    const { cursorTime, theme } = this.view;
    if (cursorTime !== null) vertical(c, plot, Math.round(plot.x.px(cursorTime)) + 0.5, theme.muted);
  }

  memory(c, plot, l) {
    const { time, value, n } = this.view.store.device.get(l.key);
    const y = { px: (bytes) => plot.margin.top + plot.plotHeight * (1 - bytes / GIB / this.memoryTop / 1.02) };
    const color = this.view.paint(l);
    c.globalAlpha = this.lifted && this.lifted !== l.key ? 0.25 : 1;
    c.strokeStyle = c.fillStyle = color;
    c.lineWidth = this.lifted === l.key ? 2.6 : 1.3;
    c.setLineDash(l.dash);
    if (n > 1) line(c, time, value, n, plot.x, y);
    else dot(c, plot.x.px(time[0]), y.px(value[0]), 2.5);
    if (n > 1 && !l.dash.length) {
      c.lineTo(plot.x.px(time[n - 1]), plot.margin.top + plot.plotHeight);
      c.lineTo(plot.x.px(time[0]), plot.margin.top + plot.plotHeight);
      c.globalAlpha *= 0.13;
      c.fill();
    }
    c.globalAlpha = 1;
  }

  /** The scale of memory, on the right. */
  above(c, plot) {
    if (!this.lines("memory").length) return;
    const right = plot.margin.left + plot.plotWidth;
    c.fillStyle = this.view.theme.muted;
    c.textAlign = "left";
    c.textBaseline = "middle";
    for (const { at, text } of ticks(0, this.memoryTop, false, plot.plotHeight / 48, formatNumber)) {
      c.fillText(text, right + 6, plot.margin.top + plot.plotHeight * (1 - at / this.memoryTop / 1.02));
    }
    c.save();
    c.translate(plot.width - 6, plot.margin.top + plot.plotHeight / 2);
    c.rotate(-Math.PI / 2);
    c.textAlign = "center";
    c.fillText("memory, GiB", 0, 0);
    c.restore();
  }

  hover(plot, at) {
    return this.at(plot.x.inverse(at.x));
  }

  at(time) {
    const longest = [...this.view.store.device.values()].sort((a, b) => b.n - a.n)[0];
    this.near = longest?.n ? { trace: longest, index: nearest(longest.time, longest.n, time) } : null;
    this.view.cursorTime = this.near ? longest.time[this.near.index] : null;
    return null;
  }

  walk(plot, dx) {
    if (!this.near) this.at(Infinity);
    if (!this.near) return;
    const { trace, index } = this.near;
    const to = Math.max(0, Math.min(trace.n - 1, index + dx));
    this.near = { trace, index: to };
    this.view.cursorTime = trace.time[to];
    this.view.showHover(plot, null, { x: plot.x.px(trace.time[to]), y: plot.margin.top + 20 });
  }

  tip() {
    if (!this.near) return null;
    const time = this.near.trace.time[this.near.index];
    const rows = [];
    let cores = 0;
    for (const l of this.view.store.lines) {
      const trace = this.view.store.device.get(l.key);
      if (!trace?.n) continue;
      if (l.faint) { cores++; continue; }
      const value = trace.value[nearest(trace.time, trace.n, time)];
      const color = l.kind === "other" ? "transparent" : this.view.paint(l);
      rows.push({ color, dash: l.dash, name: l.label, cells: [quantity(l, value)] });
    }
    return { head: formatTime(time), columns: [], rows, notes: [cores ? `mean of ${cores} cores` : ""] };
  }

  /** Chips under the plot, with the last value of each. */
  chips() {
    return this.view.store.lines.filter((l) => !l.faint && l.kind !== "other" && this.view.store.device.get(l.key)?.n)
      .map((l) => ({ line: l, text: this.now(l) }));
  }

  now(l) {
    const { device } = this.view.store;
    const text = quantity(l, lastOf(device.get(l.key)));
    const total = l.key === "memory_bytes" && device.get("memory_total_bytes");
    return total?.n ? `${text} of ${formatNumber(lastOf(total) / GIB, 3)}` : text;
  }

  describe() {
    const now = this.chips().map(({ line: l, text }) => `${l.label} ${text}`);
    if (!now.length) return "Utilization of the device: no measurements yet.";
    return `Utilization of the device over time; now ${now.join(", ")}.`;
  }
}

function lastOf(trace) { return trace.value[trace.n - 1]; }

function quantity({ key, kind }, value) {
  if (!Number.isFinite(value)) return "–";
  if (kind === "fraction") return `${Math.round(value * 100)}%`;
  if (key.endsWith("_bytes")) return `${formatNumber(value / GIB, 3)} GiB`;
  const unit = key.match(/_(w|c|j|s|hz|mhz)$/)?.[1];
  return `${formatNumber(value, 3)} ${{ w: "W", c: "°C", j: "J", s: "s", hz: "Hz", mhz: "MHz" }[unit] ?? ""}`.trim();
}

function niceCeiling(v) {
  const power = 10 ** Math.floor(Math.log10(v));
  return power * [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((m) => m * power >= v * 0.9999);
}

// ---------------------------------------------------------------------------------------------- page

const FOCUSABLE = new Set(["canvas", "button", "select", "input"]);

function element(tag, name = "", attributes = {}, text = "") {
  const made = document.createElement(tag);
  // JupyterLab takes keys for its own shortcuts ("d" twice deletes the cell) unless the very element that has the
  // focus says no; on an element around it this has no effect.
  if (FOCUSABLE.has(tag)) made.setAttribute("data-lm-suppress-shortcuts", "true");
  if (name) made.className = name;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

function swatch(color, dash) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const stroke = document.createElementNS("http://www.w3.org/2000/svg", "line");
  for (const [k, v] of Object.entries({ width: 18, height: 8, "aria-hidden": "true" })) svg.setAttribute(k, v);
  const line = { x1: 0, y1: 4, x2: 18, y2: 4, stroke: color, "stroke-width": 2.5, "stroke-dasharray": dash.join(" ") };
  for (const [k, v] of Object.entries(line)) stroke.setAttribute(k, v);
  svg.append(stroke);
  return svg;
}

const MAX_ROWS = 14;

class Tooltip {
  constructor(root) {
    this.root = root;
    this.box = element("div", "hfta-tip", { hidden: "" });
    root.append(this.box);
  }

  hide() { this.box.hidden = true; }

  show(content, plot, at) {
    if (!content) return this.hide();
    this.box.replaceChildren(element("div", "hfta-tip-head", {}, content.head), this.table(content));
    for (const note of content.notes) if (note) this.box.append(element("div", "hfta-tip-note", {}, note));
    this.box.hidden = false;
    const root = this.root.getBoundingClientRect();
    const canvas = plot.canvas.getBoundingClientRect();
    const [x, y] = [canvas.left - root.left + at.x, canvas.top - root.top + at.y];
    const { offsetWidth: w, offsetHeight: h } = this.box;
    const left = x + 16 + w > root.width ? x - 16 - w : x + 16;
    const top = Math.max(0, Math.min(root.height - h, y - h / 2));
    this.box.style.transform = `translate(${Math.max(0, Math.round(left))}px, ${Math.round(top)}px)`;
  }

  table({ columns, rows }) {
    // Where the members are many, those around the nearest are listed.
    const near = Math.max(0, rows.findIndex((r) => r.near));
    const first = rows.length <= MAX_ROWS ? 0 : Math.max(0, Math.min(rows.length - MAX_ROWS, near - MAX_ROWS / 2));
    const shown = rows.slice(first, first + MAX_ROWS);
    const table = element("table");
    if (columns.length) {
      const head = element("thead");
      const line = element("tr");
      line.append(...["", "", ...columns].map((text) => element("th", "", {}, text)));
      head.append(line);
      table.append(head);
    }
    const body = element("tbody");
    const more = (count, where) => {
      if (count <= 0) return;
      const line = element("tr");
      line.append(element("td"), element("td", "hfta-tip-more", {}, `${count} more ${where}`));
      body.append(line);
    };
    more(first, "above");
    for (const row of shown) {
      const line = element("tr", row.near ? "hfta-near" : "");
      const mark = element("td");
      mark.append(swatch(row.color, row.dash));
      line.append(mark, element("td", "", {}, row.name), ...row.cells.map((text) => element("td", "", {}, text)));
      body.append(line);
    }
    more(rows.length - first - shown.length, "below");
    table.append(body);
    return table;
  }
}

/** The controls above the plots, each one bound to a trait. */
class Toolbar {
  constructor(view) {
    this.view = view;
    this.box = element("div", "hfta-toolbar", { role: "toolbar", "aria-label": "What the curves show" });
    this.controls = {};
    this.choice("metric", "metric", "The metric to draw");
    const splits = [["both", "both"], ["train", "training"], ["validation", "validation"]];
    this.choice("split", "split", "Training, validation, or both", splits);
    this.choice("x_axis", "x", "Horizontal axis", ["epoch", "step", "time"].map((name) => [name, name]));
    this.toggle("log_x", "log x", "Logarithmic horizontal axis");
    this.toggle("log_y", "log y", "Logarithmic vertical axis");
    this.slider();
    this.choice("color_by", "colour by", "What colours show: members, or the values of an axis of the grid");
    const title = "Reset the zoom (also by double click)";
    const reset = element("button", "", { type: "button", title }, "reset zoom");
    reset.addEventListener("click", () => view.resetZoom(), { signal: view.signal });
    this.reset = reset;
    this.status = element("span", "hfta-status");
    this.box.append(reset, this.status);
  }

  labelled(text, title, control) {
    const label = element("label", "", { title });
    label.append(element("span", "", {}, text), control);
    this.box.append(label);
  }

  choice(trait, text, title, options = []) {
    const select = element("select", "", { title, "aria-label": text });
    this.controls[trait] = select;
    select.dataset.trait = trait;
    this.fill(trait, options);
    select.addEventListener("change", () => this.view.set(trait, select.value), { signal: this.view.signal });
    this.labelled(text, title, select);
  }

  fill(trait, options) {
    const select = this.controls[trait];
    const stamp = JSON.stringify(options);
    if (select.dataset.options !== stamp) {
      select.replaceChildren(...options.map(([value, text]) => element("option", "", { value }, text)));
      select.dataset.options = stamp;
    }
    select.value = this.view.get(trait);
  }

  toggle(trait, text, title) {
    const button = element("button", "", { type: "button", title, "aria-pressed": "false" }, text);
    button.dataset.trait = trait;
    this.controls[trait] = button;
    button.addEventListener("click", () => this.view.set(trait, !this.view.get(trait)), { signal: this.view.signal });
    this.box.append(button);
  }

  slider() {
    const title = "Exponential smoothing: the weight of the past";
    const attributes = { type: "range", min: "0", max: "0.99", step: "0.01", title, "aria-label": "smooth" };
    const range = element("input", "", attributes);
    range.dataset.trait = "smoothing";
    this.controls.smoothing = range;
    this.amount = element("output");
    const { view } = this;
    range.addEventListener("input", () => view.set("smoothing", Number(range.value)), { signal: view.signal });
    this.labelled("smooth", title, range);
    range.parentElement.append(this.amount);
  }

  refresh() {
    const { layout } = this.view.store;
    const get = (trait) => this.view.get(trait);
    this.fill("metric", layout.metrics.map((m) => [m.name, m.label]));
    const many = layout.members.length > layout.legend && layout.axes.length > 0;
    this.fill("color_by", [...(many ? [] : [["", "member"]]), ...layout.axes.map((a) => [a.name, a.name])]);
    this.controls.color_by.value = this.view.colorAxis()?.name ?? "";
    for (const trait of ["split", "x_axis"]) this.controls[trait].value = get(trait);
    for (const trait of ["log_x", "log_y"]) this.controls[trait].setAttribute("aria-pressed", String(get(trait)));
    this.controls.smoothing.value = get("smoothing");
    this.amount.textContent = get("smoothing").toFixed(2);
  }
}

const TRAITS = ["metric", "x_axis", "log_x", "log_y", "smoothing", "split", "color_by", "selected", "running"];

/** One view: toolbar, two plots, legends, tooltip; redraws when something changed and somebody can see it. */
class View {
  constructor(model, store, el, signal) {
    Object.assign(this, { model, store, el, signal });
    this.timeZoom = { x: null };
    this.cursorTime = null;
    this.hovered = null; // ids lifted by the pointer or by a focused chip
    this.dirty = false;
    this.onScreen = true;
    this.stats = { frames: 0, drawMs: [] };
    this.build();
    this.watch();
    this.changed(true);
  }

  get(trait) { return this.model.get(trait); }

  set(trait, value) {
    this.model.set(trait, value);
    this.model.save_changes();
  }

  build() {
    this.root = element("div", "hfta-live");
    this.root.hfta = this.stats; // for tests and the benchmark
    this.probe = element("span", "hfta-probe");
    this.toolbar = new Toolbar(this);
    this.announcer = element("div", "hfta-unseen", { "aria-live": "polite", role: "status" });
    this.curves = new CurvesPanel(this);
    this.device = new DevicePanel(this);
    const curvesPlot = new Plot(this, this.curves, "curves");
    const devicePlot = new Plot(this, this.device, "device");
    this.plots = [curvesPlot, devicePlot];
    this.titles = [element("div", "hfta-title"), element("div", "hfta-title")];
    this.legend = element("div", "hfta-legend", { role: "group", "aria-label": "Members" });
    this.bar = element("div", "hfta-legend hfta-scale", { role: "group", "aria-label": "Colours" });
    this.chips = element("div", "hfta-legend", { role: "group", "aria-label": "Measurements of the device" });
    const left = element("div", "hfta-curves");
    left.append(this.titles[0], curvesPlot.box, this.bar, this.legend);
    const right = element("div", "hfta-device");
    right.append(this.titles[1], devicePlot.box, this.chips);
    const panels = element("div", "hfta-panels");
    panels.append(left, right);
    this.root.append(this.probe, this.toolbar.box, panels, this.announcer);
    this.el.append(this.root);
    this.tooltip = new Tooltip(this.root);
  }

  watch() {
    const { signal } = this;
    const listener = (full) => this.changed(full);
    this.store.listeners.add(listener);
    for (const trait of TRAITS) {
      const callback = () => this.traitChanged(trait);
      this.model.on(`change:${trait}`, callback);
      signal.addEventListener("abort", () => this.model.off(`change:${trait}`, callback));
    }
    const resized = new ResizeObserver(() => this.redraw());
    for (const plot of this.plots) resized.observe(plot.box);
    const seen = new IntersectionObserver((entries) => {
      this.onScreen = entries[entries.length - 1].isIntersecting;
      if (this.onScreen && this.dirty) this.schedule();
    });
    seen.observe(this.root);
    document.addEventListener("visibilitychange", () => { if (this.dirty) this.schedule(); }, { signal });
    const scrolled = (e) => { if (!(e.target instanceof HTMLCanvasElement)) wheelElsewhereMs = performance.now(); };
    window.addEventListener("wheel", scrolled, { signal, capture: true, passive: true });
    onTheme(() => this.changed(true), signal);
    signal.addEventListener("abort", () => {
      this.store.listeners.delete(listener);
      resized.disconnect();
      seen.disconnect();
      cancelAnimationFrame(this.frame);
    });
  }

  traitChanged(trait) {
    if (trait === "metric" || trait === "log_y") this.plots[0].zoom.y = null;
    if (trait === "x_axis" || trait === "log_x") this.plots[0].zoom.x = null;
    if (trait === "x_axis" || trait === "metric" || trait === "split") this.unhover();
    if (trait === "selected") this.announceSelection();
    this.changed(true);
  }

  /** Something may look different: `whole` when more than points, so that controls and legends are made anew. */
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
      this.toolbar.refresh();
      this.legends();
      this.stale = false;
    }
    this.words();
    if (this.hovering) this.showTip();
  }

  // What is drawn in which colour.

  colorAxis() {
    const { layout } = this.store;
    const find = (name) => layout.axes.find((a) => a.name === name);
    return find(this.get("color_by")) ?? find(layout.auto) ?? null;
  }

  paint(stroke) { return this.theme.dark ? stroke.dark : stroke.light; }

  colorOf(member) {
    const axis = this.colorAxis();
    return axis ? this.paint(axis)[axis.of[member.place]] : this.paint(member);
  }

  dashOf(member) { return this.colorAxis() ? [] : member.dash; }

  /** Ids that stand out at the moment, or null. */
  lifted() { return this.hovered; }

  // Time, shared by both plots.

  sharesTime() { return this.get("x_axis") === "time" && !this.get("log_x"); }

  timeExtent() {
    let low = 0, high = 0;
    const all = [...this.store.device.values()];
    if (this.sharesTime()) for (const m of this.store.members.values()) all.push(...m.curves.values());
    for (const { time, n } of all) {
      if (n && Number.isFinite(time[n - 1])) high = Math.max(high, time[n - 1]);
      if (n && time[0] < low) low = time[0];
    }
    return [low, high > low ? high + (high - low) * 0.01 : low + 10];
  }

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

  // Pointer, focus and selection.

  hover(plot, at) {
    const member = plot.panel.hover(plot, at);
    this.showHover(plot, member, at);
  }

  showHover(plot, member, at) {
    this.hovering = { plot, at };
    this.hovered = member ? new Set([member.id]) : null;
    this.redraw();
  }

  showTip() {
    const { plot, at } = this.hovering;
    this.tooltip.show(plot.panel.tip(), plot, at);
  }

  unhover() {
    this.curves.near = this.device.near = this.hovering = this.hovered = null;
    this.cursorTime = null;
    this.tooltip.hide();
    this.redraw();
  }

  lift(ids) {
    this.hovered = ids ? new Set(ids) : null;
    this.redraw();
  }

  select(id, several) {
    const before = this.get("selected");
    let after = id === null ? [] : [id];
    if (several) after = id === null ? before : before.includes(id) ? before.filter((i) => i !== id) : [...before, id];
    else if (before.length === 1 && before[0] === id) after = [];
    if (after.length !== before.length || after.some((v, i) => v !== before[i])) this.set("selected", after);
  }

  announceSelection() {
    const names = this.get("selected").map((id) => this.store.members.get(id)?.label ?? `#${id}`);
    this.announcer.textContent = names.length ? `selected: ${names.join("; ")}` : "nothing selected";
  }

  // Legends and words.

  legends() {
    const { layout, members, generation } = this.store;
    const axis = this.colorAxis();
    const few = members.size <= layout.legend;
    // Made anew only where they must be: a button that is replaced loses the focus.
    const stamp = [generation, axis?.name, this.theme.dark].join();
    if (this.legendStamp !== stamp) {
      this.legendStamp = stamp;
      this.legend.replaceChildren(...(few ? [...members.values()].map((m) => this.chip(m)) : []));
      this.bar.replaceChildren();
      if (axis) this.scaleBar(axis);
      this.legend.hidden = !few;
      this.bar.hidden = !axis;
    }
    const chosen = new Set(this.get("selected"));
    for (const button of this.legend.children) {
      this.refreshChip(button, members.get(Number(button.dataset.member)), chosen);
    }
  }

  liftable(button, ids) {
    const { signal } = this;
    for (const type of ["pointerenter", "focus"]) button.addEventListener(type, () => this.lift(ids), { signal });
    for (const type of ["pointerleave", "blur"]) button.addEventListener(type, () => this.lift(null), { signal });
    return button;
  }

  chip(member) {
    const button = element("button", "hfta-chip", { type: "button" });
    button.dataset.member = member.id;
    const mark = swatch(this.colorOf(member), this.dashOf(member));
    button.append(mark, element("span", "", {}, member.label), element("b"));
    const select = (e) => this.select(member.id, e.shiftKey || e.ctrlKey || e.metaKey);
    button.addEventListener("click", select, { signal: this.signal });
    return this.liftable(button, [member.id]);
  }

  refreshChip(button, member, chosen) {
    const gone = ended(member);
    button.setAttribute("aria-pressed", String(chosen.has(member.id)));
    const note = gone ? `${member.state} ${member.reason}` : "click to select, with shift to add";
    button.title = `${member.label}: ${note}`;
    button.classList.toggle("hfta-ended", gone);
    button.lastChild.textContent = gone ? "×" : "";
  }

  scaleBar(axis) {
    this.bar.append(element("span", "", {}, axis.name));
    const { members } = this.store;
    const step = Math.ceil(axis.values.length / 12); // labels that would not fit are left to the tooltip
    axis.values.forEach((value, i) => {
      const ids = [...members.values()].filter((m) => axis.of[m.place] === i).map((m) => m.id);
      const text = `${axis.name} ${value}: ${ids.length} members; click to select them`;
      const button = element("button", "hfta-step", { type: "button", title: text, "aria-label": text });
      const block = element("i");
      block.style.backgroundColor = this.paint(axis)[i];
      button.append(block, element("span", "", {}, i % step ? "\u00a0" : value));
      button.addEventListener("click", () => this.set("selected", ids), { signal: this.signal });
      this.bar.append(this.liftable(button, ids));
    });
  }

  deviceChips() {
    const now = this.device.chips();
    const stamp = now.map(({ line: l }) => l.key).join() + this.theme.dark;
    if (this.chips.dataset.stamp !== stamp) {
      this.chips.dataset.stamp = stamp;
      this.chips.replaceChildren(...now.map(({ line: l }) => this.deviceChip(l)));
    }
    now.forEach(({ text }, i) => { this.chips.children[i].lastChild.textContent = text; });
  }

  deviceChip(l) {
    const button = element("button", "hfta-chip", { type: "button", title: `${l.label}: lift its line` });
    button.append(swatch(this.paint(l), l.dash), element("span", "", {}, l.label), element("b"));
    const lift = (key) => () => { this.device.lifted = key; this.redraw(); };
    for (const type of ["pointerenter", "focus"]) button.addEventListener(type, lift(l.key), { signal: this.signal });
    for (const type of ["pointerleave", "blur"]) button.addEventListener(type, lift(null), { signal: this.signal });
    return button;
  }

  summary() {
    const { members, run, layout } = this.store;
    if (!members.size) return "";
    const counts = new Map();
    for (const { state } of members.values()) counts.set(state, (counts.get(state) ?? 0) + 1);
    const states = [...counts].map(([state, count]) => `${count} ${state.toLowerCase()}`).join(", ");
    const epoch = layout.epochs ? `epoch ${formatNumber(Math.floor(run.epochs_done))} of ${layout.epochs}, ` : "";
    const some = layout.of > members.size ? `${members.size} of ${layout.of} members are drawn: ` : "";
    return `${epoch}${some}${states}`;
  }

  words() {
    const { run } = this.store;
    this.toolbar.status.textContent = this.summary();
    const zoomed = this.timeZoom.x || this.plots.some((p) => p.zoom.x || p.zoom.y);
    this.toolbar.reset.hidden = !zoomed;
    const metric = this.curves.metric;
    const parts = this.curves.parts ?? [];
    const one = parts[0] === "train" ? "training" : parts[0] ?? "";
    const how = parts.length > 1 ? "validation solid, training dotted" : one;
    this.title(0, metric ? metric.label : "curves", how);
    this.title(1, "device", run.state === "PAUSED" ? "paused" : "utilization (left), memory (right)");
    this.plots.forEach((plot) => plot.canvas.setAttribute("aria-label", plot.panel.describe()));
    this.deviceChips();
    const told = `${run.state} ${[...this.store.members.values()].filter(ended).length}`;
    if (this.told !== undefined && told !== this.told) {
      const why = run.reason ? `: ${run.reason}` : "";
      this.announcer.textContent = `run ${run.state.toLowerCase()}${why}; ${this.summary()}`;
      this.legends();
    }
    this.told = told;
  }

  title(place, text, note) {
    const box = this.titles[place];
    const stamp = text + "\n" + note;
    if (box.dataset.stamp === stamp) return;
    box.dataset.stamp = stamp;
    box.replaceChildren(element("b", "", {}, text), element("span", "", {}, note ? ` · ${note}` : ""));
  }
}

export { Trace, Store, smooth, ticks };

export default () => {
  let store = null;
  return {
    initialize({ model }) {
      store = new Store(() => model.send({ kind: "hello" }));
      model.on("msg:custom", (message, buffers) => store.take(message, buffers));
      store.ask();
    },
    render({ model, el, signal }) {
      // Older versions of anywidget give no signal but call what is returned.
      const controller = new AbortController();
      signal?.addEventListener("abort", () => controller.abort());
      new View(model, store, el, controller.signal);
      return () => controller.abort();
    },
  };
};
