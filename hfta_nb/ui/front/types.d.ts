/** What passes between the modules of the front end; only `tsc` reads this file. */

import type { Plot } from "./plot.js";
import type { Trace } from "./trace.js";

/** The part of an anywidget model that is used. */
export interface Model {
  get(name: string): any;
  set(name: string, value: unknown): void;
  save_changes(): void;
  widget_manager?: any; // in JupyterLab, of its own kind
  send(message: object): void;
  on(name: string, callback: (...values: any[]) => void): void;
  off(name: string, callback: (...values: any[]) => void): void;
}

/** What anywidget hands to `render`. */
export interface Place { model: Model; el: HTMLElement; signal?: AbortSignal }

/** A colour for each theme, and the lengths of a dashed line. */
export interface Stroke { light: string; dark: string; dash: number[] }

/** A member as the kernel lays it out; `live_state.py` writes these. */
export interface MemberLayout extends Stroke {
  id: number;
  label: string;
  config: [string, string][];
  marks: [epoch: number, what: string][]; // when it became a copy, or was given other values
}

export interface Member extends MemberLayout {
  place: number; // in the layout
  state: string;
  reason: string;
  curves: Map<string, Trace>;
}

/** An axis of the grid: its values, a colour of each, and which of them each member has. */
export interface Axis {
  name: string;
  numeric: boolean;
  values: string[];
  light: string[];
  dark: string[];
  of: number[];
}

/** A metric, and its curves by split. */
export interface Metric { name: string; label: string; train?: string; validation?: string }

export interface Layout {
  t0: number | null;
  device: string;
  epochs: number;
  metrics: Metric[];
  members: MemberLayout[];
  of: number; // how many members there are, of which these are drawn
  axes: Axis[];
  auto: string; // the axis that sets colours where none is chosen
  legend: number; // with more members than this the legend shows the axis
}

export interface Run {
  state: string;
  reason: string;
  phase: string;
  epochs_done: number;
  best: number | null; // the leaderboard's first member
  blown: [id: number, why: string][]; // members whose loss is finite and hopeless
}

/** A measurement of a device. */
export interface DeviceLine extends Stroke {
  key: string; // of its trace
  device: string; // another one than the run's; empty for that
  measurement: string; // what was measured, without the device
  label: string;
  kind: "fraction" | "spread" | "power" | "memory" | "other";
}

/** A message of the kernel. */
export interface Update {
  kind: "update" | "nothing";
  serial: number;
  answer: boolean;
  full: boolean;
  layout?: Layout;
  device?: DeviceLine[];
  run: Run;
  pauses: [number, number | null][];
  states: [number, string, string][];
  curves: [owner: number, name: string, count: number][];
}

export type Interval = [low: number, high: number];
export type Point = { x: number; y: number };
export type Format = (value: number, digits?: number) => string;
export type Values = Float32Array | Float64Array;
export type Split = "train" | "validation";
export type TimeAxis = "epoch" | "step" | "time";

export interface Tick { at: number; text: string }

/** An axis of a plot as its panel wants it: extents are of logarithms if `log`. */
export interface AxisSpec { extent: Interval; log: boolean; format: Format; title?: string; whole?: boolean }

export interface Scene { x: AxisSpec; y: AxisSpec; empty: string }

/** An axis of a plot as it is drawn: values to pixels and back. */
export interface Scale {
  low: number;
  high: number;
  log: boolean;
  per: number; // pixels per unit
  whole: Interval; // all of the data
  px(value: number): number;
  at(value: number): number; // of a logarithm already taken
  inverse(px: number): number;
}

/** A curve that is drawn: of one member and split. */
export interface Series { member: Member; trace: Trace; part: Split; main: boolean; xs: Values; ys: Values }

/** A point of a curve. */
export interface Spot { series: Series; index: number }

export interface TipRow { color: string; dash: number[]; name: string; near?: boolean; cells: string[] }

export interface Tip { head: string; columns: string[]; rows: TipRow[]; notes: string[] }

export interface Theme {
  dark: boolean;
  paper: string;
  ink: string;
  font: string;
  muted: string;
  line: string;
  accent: string;
}

/** What a plot stands in. */
export interface PlotView {
  signal: AbortSignal;
  theme: Theme;
  timeZoom: { x: Interval | null; y: Interval | null }; // of the plots that share a time axis
  sharesTime(): boolean;
  hover(plot: Plot, at: Point): void;
  unhover(): void;
  redraw(): void;
  resetZoom(): void;
}

/** What fills a plot. */
export interface Panel {
  margin: { left?: number; right?: number; top?: number; bottom?: number };
  fixedY: boolean;
  scene(): Scene;
  paint(c: CanvasRenderingContext2D, plot: Plot): void;
  above?(c: CanvasRenderingContext2D, plot: Plot): void;
  hover(plot: Plot, at: Point): Member | null;
  click?(plot: Plot, at: Point, several: boolean): void;
  press?(several: boolean): void;
  walk(plot: Plot, dx: number, dy: number): void;
  forget(): void;
  tip(): Tip | null;
  describe(): string;
}

// The linked figures; `linked_data.py` writes these.

/** Members that are selected together, as a block in a colour. */
export interface Block { ids: number[]; title: string; light: string; dark: string; best?: boolean }

/** An axis of parallel coordinates: its ends, of logarithms if `log`, and the places of its values where they are few. */
export interface Ruler { name: string; log: boolean; low: number; high: number; few: [share: number, text: string][] }

/** A configuration, and where it crosses each ruler, from 0 to 1. */
export interface ParallelLine extends Stroke {
  ids: number[];
  label: string;
  value: string;
  at: (number | null)[];
  best: boolean;
}

export interface ParallelData { rulers: Ruler[]; lines: ParallelLine[] }

export interface ImportanceData { axes: { name: string; share: number; values: (Block & { label: string })[] }[] }

export interface HeatMapData {
  metric: string;
  x: string;
  y: string;
  columns: string[];
  rows: string[];
  cells: (Block & { column: number; row: number; text: string })[];
}

/** Mean and standard deviation of a configuration's curve over its seeds. */
export interface Band extends Stroke {
  ids: number[];
  label: string;
  of: number;
  epochs: number[];
  means: number[];
  deviations: number[];
}

export interface SeedsData { metric: string; bands: Band[] }
