// A figure whose members are those of the curves and the rows: `selected` is linked with theirs.

import { HeatMap, Importance } from "./blocks.js";
import { picked } from "./groups.js";
import { element, lasting, onTraits, setText } from "./page.js";
import { Parallel } from "./parallel.js";
import { Seeds } from "./seeds.js";
import { onTheme, readTheme } from "./theme.js";
import { Tooltip } from "./tooltip.js";

/** @import { Model, Stroke } from "./types.d.ts" */

/** @typedef {{ draw(data: any): void }} Kind */
const KINDS = /** @type {Record<string, new (figure: Figure, box: HTMLElement) => Kind>} */ (
  { parallel: Parallel, importance: Importance, heat_map: HeatMap, seeds: Seeds });
const HINTS = /** @type {Record<string, string>} */ ({
  parallel: "drag along an axis to select, click a line to select it",
  importance: "share in what makes a configuration one of the best; click a value to select its members",
  heat_map: "click a cell to select its members, with shift to add",
  seeds: "mean and one standard deviation over seeds; click a curve to select its members",
});

/** One view of it: draws what the kernel sent, and what is selected. */
export class Figure {
  /** @param {Model} model @param {HTMLElement} el @param {AbortSignal} signal */
  constructor(model, el, signal) {
    this.model = model;
    this.signal = signal;
    this.kind = "";
    this.shown = /** @type {Kind | null} */ (null);
    this.frame = 0;
    this.root = element("div", "hfta-live hfta-linked");
    const probe = element("span", "hfta-probe");
    this.hint = element("div", "hfta-title");
    this.box = element("div");
    this.note = element("div", "hfta-linked-note");
    this.root.append(probe, this.hint, this.box, this.note);
    this.tooltip = new Tooltip(this.root);
    el.append(this.root);
    this.theme = readTheme(probe);
    onTraits(model, ["data", "selected"], signal, () => this.redraw());
    onTheme(() => { this.theme = readTheme(probe); this.redraw(); }, signal);
    const resized = new ResizeObserver(() => this.redraw());
    resized.observe(this.box);
    signal.addEventListener("abort", () => { resized.disconnect(); cancelAnimationFrame(this.frame); });
    this.redraw();
  }

  redraw() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => { this.frame = 0; this.draw(); });
  }

  draw() {
    const data = this.model.get("data");
    const made = KINDS[data.kind];
    if (this.kind !== data.kind) {
      this.kind = data.kind;
      this.box.replaceChildren();
      this.tooltip.hide();
      this.shown = made ? new made(this, this.box) : null;
    }
    if (!this.shown || !this.root.clientWidth) return;
    setText(this.hint, [data.metric, HINTS[data.kind]].filter(Boolean).join(" · "));
    setText(this.note, data.note);
    this.shown.draw(data);
  }

  /** @param {Stroke | { light: string, dark: string }} stroke */
  paint({ light, dark }) { return this.theme.dark ? dark : light; }

  /** The selected members. @returns {Set<number>} */
  get chosen() { return new Set(this.model.get("selected")); }

  /** Whether any of these members is selected. @param {number[]} ids */
  holds(ids) {
    const { chosen } = this;
    return ids.some((id) => chosen.has(id));
  }

  /** @param {number[]} ids @param {boolean} several whether others stay selected */
  choose(ids, several) { this.set(picked(this.model.get("selected"), ids, several)); }

  /** @param {number[]} ids */
  set(ids) {
    if (ids.join() === this.model.get("selected").join()) return;
    this.model.set("selected", ids);
    this.model.save_changes();
  }
}

export default { render: lasting(({ model, el, signal }) => { new Figure(model, el, signal); }) };
