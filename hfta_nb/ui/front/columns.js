// The columns of the leaderboard as a person arranges them: in which order, how wide, and which are shown.

import { element } from "./page.js";

/** @import { Model } from "./types.d.ts" */

/** @typedef {{ key: string, label: string, title: string, number: boolean, constant: boolean }} Column */
/** A column that is drawn: where it stands in the cells of a row, and its width where it has one. @typedef {Column & { at: number, width?: number }} Drawn */
/** As the trait `arranged` has it: keys in order, whether a column is hidden, and widths in pixels. @typedef {{ order?: string[], hidden?: Record<string, boolean>, widths?: Record<string, number> }} Arranged */

const MOVES = /** @type {Record<string, number>} */ ({ ArrowLeft: -1, ArrowRight: 1 });
const STEPS = /** @type {Record<string, number>} */ ({ "+": 16, "-": -16 }); // pixels
const NARROWEST = 36;

export class Columns {
  /** @param {Model} model @param {(key: string, width: number) => void} widen shows a column at a width */
  constructor(model, widen) {
    this.model = model;
    this.showWidth = widen;
    this.all = /** @type {Column[]} */ ([]);
    this.widening = this.filling = false;
    this.menu = element("details", "hfta-columns");
    const title = "Which columns are shown; drag the head of one to another place, or its edge";
    this.title = element("summary", "", { title, "data-lm-suppress-shortcuts": "true" });
    this.list = element("div", "hfta-columns-list", { role: "group", "aria-label": "columns" });
    this.menu.append(this.title, this.list);
    this.menu.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !this.menu.open) return;
      this.menu.open = false;
      this.title.focus();
    });
    this.menu.addEventListener("focusout", (event) => {
      if (!this.filling && !this.menu.contains(/** @type {Node | null} */ (event.relatedTarget))) this.menu.open = false;
    });
  }

  /** @returns {Arranged} */
  get arranged() { return this.model.get("arranged"); }

  /** @param {Arranged} arranged */
  arrange(arranged) {
    this.model.set("arranged", arranged);
    this.model.save_changes();
  }

  /** All columns in the person's order; one that has no place in it stands behind the one that it follows by itself. */
  ordered() {
    const { order = [] } = this.arranged;
    const placed = order.flatMap((key) => this.all.filter((c) => c.key === key));
    this.all.forEach((column, i) => {
      if (!order.includes(column.key)) placed.splice(i ? placed.indexOf(this.all[i - 1]) + 1 : 0, 0, column);
    });
    return placed;
  }

  /** @param {Column} column */
  hides(column) { return this.arranged.hidden?.[column.key] ?? column.constant; }

  /** The columns to draw. @param {Column[]} all @returns {Drawn[]} */
  shown(all) {
    this.all = all;
    const { widths = {} } = this.arranged;
    return this.ordered().filter((c) => !this.hides(c)).map((c) => ({ ...c, at: all.indexOf(c), width: widths[c.key] }));
  }

  /** @param {string} key @param {boolean} hidden */
  hide(key, hidden) { this.arrange({ ...this.arranged, hidden: { ...this.arranged.hidden, [key]: hidden } }); }

  /** @param {string} key @param {number} width */
  widen(key, width) {
    this.arrange({ ...this.arranged, widths: { ...this.arranged.widths, [key]: Math.max(NARROWEST, Math.round(width)) } });
  }

  /** Puts a column where another one stands. @param {string} key @param {string} target */
  place(key, target) {
    const order = this.ordered().map((c) => c.key);
    const to = order.indexOf(target);
    order.splice(order.indexOf(key), 1);
    order.splice(to, 0, key);
    this.arrange({ ...this.arranged, order });
  }

  /** Lists the columns in the menu. */
  fill() {
    const hidden = this.all.filter((c) => this.hides(c)).length;
    this.title.textContent = hidden ? `columns (${hidden} hidden)` : "columns";
    this.menu.hidden = !this.all.length;
    const boxes = this.ordered().map((column) => {
      const label = element("label", "", { title: column.title });
      const box = element("input", "", { type: "checkbox" });
      box.checked = !this.hides(column);
      box.dataset.key = column.key;
      box.addEventListener("change", () => this.hide(column.key, !box.checked));
      label.append(box, column.label);
      return label;
    });
    const usual = element("button", "", { type: "button", title: "All columns as at first" }, "as at first");
    usual.addEventListener("click", () => this.arrange({}));
    const at = document.activeElement;
    const key = at instanceof HTMLElement && this.list.contains(at) ? at.dataset.key : undefined;
    this.filling = true; // the box that is pressed is replaced, and the menu stays open
    this.list.replaceChildren(...boxes, usual);
    this.filling = false;
    if (key) /** @type {HTMLElement | null} */ (this.list.querySelector(`input[data-key="${CSS.escape(key)}"]`))?.focus();
  }

  /** Lets the head of a column be dragged, its edge as well; and the same by keys. @param {HTMLElement} th @param {HTMLElement} button @param {string} key */
  adopt(th, button, key) {
    th.draggable = true;
    th.addEventListener("dragstart", (event) => {
      if (this.widening) event.preventDefault();
      else event.dataTransfer?.setData("text/plain", key);
    });
    th.addEventListener("dragover", (event) => event.preventDefault());
    th.addEventListener("drop", (event) => {
      event.preventDefault();
      const dropped = event.dataTransfer?.getData("text/plain");
      if (dropped && dropped !== key && this.all.some((c) => c.key === dropped)) this.place(dropped, key);
    });
    const edge = element("span", "hfta-edge", { "aria-hidden": "true" });
    edge.addEventListener("pointerdown", (event) => this.drag(event, th, edge, key));
    th.append(edge);
    button.addEventListener("keydown", (event) => this.key(event, th, key));
  }

  /** @param {PointerEvent} event @param {HTMLElement} th @param {HTMLElement} edge @param {string} key */
  drag(event, th, edge, key) {
    this.widening = true;
    edge.setPointerCapture(event.pointerId);
    const begin = th.offsetWidth - event.clientX;
    const move = (/** @type {PointerEvent} */ moved) => this.showWidth(key, Math.max(NARROWEST, begin + moved.clientX));
    const end = (/** @type {PointerEvent} */ moved) => {
      this.widening = false;
      edge.removeEventListener("pointermove", move);
      this.widen(key, begin + moved.clientX);
    };
    edge.addEventListener("pointermove", move);
    edge.addEventListener("pointerup", end, { once: true });
  }

  /** @param {KeyboardEvent} event @param {HTMLElement} th @param {string} key */
  key(event, th, key) {
    const shown = this.ordered().filter((c) => !this.hides(c)).map((c) => c.key);
    const beside = event.shiftKey ? shown[shown.indexOf(key) + MOVES[event.key]] : undefined;
    if (beside) this.place(key, beside);
    else if (event.key in STEPS) this.widen(key, th.offsetWidth + STEPS[event.key]);
    else if (event.key === "Delete" && shown.length > 1) this.hide(key, true);
    else return;
    event.preventDefault();
  }
}
