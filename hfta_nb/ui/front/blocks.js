// Importances and heat maps: values of axes as blocks in the colour of what they have come to; each selects its members.

import { element, refill } from "./page.js";
import { adds } from "./pointer.js";
import { inkOn } from "./theme.js";

/** @import { Figure } from "./linked_figure.js" */
/** @import { Block, HeatMapData, ImportanceData } from "./types.d.ts" */

/**
 * A button for a group of members.
 * @param {Figure} figure
 * @param {Block} group
 * @param {string} text
 */
function block(figure, group, text) {
  const button = element("button", "hfta-block", { type: "button", title: `${group.title}; click to select them` }, text);
  const color = figure.paint(group);
  button.style.backgroundColor = color;
  button.style.color = inkOn(color);
  button.classList.toggle("hfta-best", Boolean(group.best));
  button.setAttribute("aria-label", group.title);
  button.setAttribute("aria-pressed", String(group.ids.every((id) => figure.chosen.has(id))));
  button.addEventListener("click", (e) => figure.choose(group.ids, adds(e)), { signal: figure.signal });
  return button;
}

/** One row for each axis: its share as a bar, and its values. */
export class Importance {
  /** @param {Figure} figure @param {HTMLElement} box */
  constructor(figure, box) {
    this.figure = figure;
    this.box = element("div", "hfta-importances", { role: "group", "aria-label": "Importances" });
    box.append(this.box);
  }

  /** @param {ImportanceData} data */
  draw({ axes }) {
    refill(this.box, axes.map(({ name, share, values }) => {
      const line = element("div", "hfta-importance");
      const track = element("span", "hfta-share");
      const bar = element("i");
      bar.style.width = `${100 * share}%`;
      track.append(bar);
      const blocks = element("span", "hfta-blocks");
      blocks.append(...values.map((value) => block(this.figure, value, value.label)));
      line.append(element("b", "", { title: name }, name), track, element("span", "hfta-percent", {}, `${Math.round(100 * share)}%`), blocks);
      return line;
    }));
  }
}

/** A cell for each pair of values of two axes. */
export class HeatMap {
  /** @param {Figure} figure @param {HTMLElement} box */
  constructor(figure, box) {
    this.figure = figure;
    this.box = element("div", "hfta-heat-map", { role: "group" });
    box.append(this.box);
  }

  /** @param {HeatMapData} data */
  draw({ metric, x, y, columns, rows, cells }) {
    this.box.setAttribute("aria-label", `${metric} over ${x} and ${y}`);
    this.box.style.gridTemplateColumns = `auto auto repeat(${columns.length}, minmax(34px, 84px))`;
    const placed = (/** @type {HTMLElement} */ node, /** @type {string} */ column, /** @type {string} */ row) => {
      node.style.gridColumn = column;
      node.style.gridRow = row;
      return node;
    };
    const high = rows.length;
    const up = placed(element("span", "hfta-up", {}, y), "1", `1 / ${high + 1}`);
    const across = placed(element("span", "hfta-across", {}, x), `3 / ${columns.length + 3}`, String(high + 2));
    const left = rows.map((text, i) => placed(element("span", "hfta-left", {}, text), "2", String(high - i)));
    const below = columns.map((text, i) => placed(element("span", "hfta-below", {}, text), String(i + 3), String(high + 1)));
    // From top to bottom and from left to right, as the keyboard goes.
    const order = [...cells].sort((a, b) => b.row - a.row || a.column - b.column);
    const blocks = order.map((cell) => placed(block(this.figure, cell, cell.text), String(cell.column + 3), String(high - cell.row)));
    refill(this.box, [up, ...left, ...blocks, ...below, across]);
  }
}
