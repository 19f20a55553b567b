// The box beside the pointer.

import { element, swatch } from "./page.js";

/** @import { Point, Tip } from "./types.d.ts" */

const MAX_ROWS = 7;
const GAP = 16;

/**
 * Where a box goes so that it is not under the pointer: beside it, or above or below where there is no room for that.
 * @param {Point} at the pointer
 * @param {{ width: number, height: number }} box
 * @param {{ width: number, height: number }} room
 */
export function placed({ x, y }, { width, height }, room) {
  const within = (/** @type {number} */ v, /** @type {number} */ most) => Math.round(Math.max(0, Math.min(most, v)));
  const left = [x + GAP, x - GAP - width].find((v) => v >= 0 && v + width <= room.width);
  if (left !== undefined) return { left: Math.round(left), top: within(y - height / 2, room.height - height) };
  const top = y - GAP - height >= 0 ? y - GAP - height : y + GAP;
  return { left: within(x - width / 2, room.width - width), top: Math.round(top) };
}

export class Tooltip {
  /** @param {HTMLElement} root */
  constructor(root) {
    this.root = root;
    this.box = element("div", "hfta-tip", { hidden: "" });
    root.append(this.box);
  }

  hide() { this.box.hidden = true; }

  /** @param {Tip | null} content @param {{ canvas: Element }} plot @param {Point} at */
  show(content, plot, at) {
    if (!content) return this.hide();
    this.box.replaceChildren(element("div", "hfta-tip-head", {}, content.head), this.table(content));
    for (const note of content.notes) if (note) this.box.append(element("div", "hfta-tip-note", {}, note));
    this.box.hidden = false;
    const root = this.root.getBoundingClientRect();
    const canvas = plot.canvas.getBoundingClientRect();
    const pointer = { x: canvas.left - root.left + at.x, y: canvas.top - root.top + at.y };
    const { left, top } = placed(pointer, { width: this.box.offsetWidth, height: this.box.offsetHeight }, root);
    this.box.style.transform = `translate(${left}px, ${top}px)`;
  }

  /** @param {Tip} content */
  table({ columns, rows }) {
    // Where the members are many, those around the nearest are listed.
    const near = Math.max(0, rows.findIndex((r) => r.near));
    const first = rows.length <= MAX_ROWS ? 0 : Math.max(0, Math.min(rows.length - MAX_ROWS, near - (MAX_ROWS >> 1)));
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
    const more = (/** @type {number} */ count, /** @type {string} */ where) => {
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
