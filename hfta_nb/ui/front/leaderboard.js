// The leaderboard: a table that can be sorted, filtered and selected. Names come from people: textContent alone.

const MOST_ROWS = 200; // more are shown on request: a page of ten thousand rows would stall

import { Columns } from "./columns.js";
import { fits, parsed } from "./filter.js";
import { picked } from "./groups.js";
import { element, lasting, onTraits, setText, strokeMark } from "./page.js";
import { adds } from "./pointer.js";
import { RowTools } from "./row_tools.js";
import { Rows } from "./rows.js";

/** @import { Column, Drawn } from "./columns.js" */
/** @import { Action } from "./row_tools.js" */
/** @import { Key } from "./rows.js" */
/** @import { Model, Stroke } from "./types.d.ts" */

/**
 * A member as the kernel describes it; `leaderboard.py` writes these.
 * @typedef {{ id: number, state: string, reason: string, cells: string[], keys: Key[], swatch: Stroke, now: string,
 *   take: boolean, best: boolean }} Row
 * A member's elements.
 * @typedef {{ tr: HTMLElement, cells: HTMLElement[], mark: ReturnType<typeof strokeMark> }} Line
 */

/** @param {ReturnType<typeof strokeMark>} mark @param {Stroke} stroke */
function paint({ svg, stroke: line }, stroke) {
  // Both colours are given; the style sheet takes the one of the theme.
  svg.style.setProperty("--hfta-light", stroke.light);
  svg.style.setProperty("--hfta-dark", stroke.dark);
  line.setAttribute("stroke-dasharray", stroke.dash.map((d) => d / 1.5).join(" "));
}

/** @param {HTMLElement} cell @param {number} [width] */
function size(cell, width) {
  for (const name of /** @type {const} */ (["width", "minWidth", "maxWidth"])) cell.style[name] = width ? `${width}px` : "";
}

/** @extends {Rows<number, Row, Line>} */
class Board extends Rows {
  /** @param {Model} model @param {HTMLElement} el @param {AbortSignal} signal */
  constructor(model, el, signal) {
    const filter = element("input", "hfta-filter", { type: "search", placeholder: "lr>0.01 state:RUNNING" });
    super(model, signal, "hfta-leaderboard", "leaderboard", filter);
    this.all = /** @type {Column[]} */ ([]);
    this.columns = /** @type {Drawn[]} */ ([]);
    this.limit = MOST_ROWS;
    this.held = false;
    this.stamp = "";
    this.root = element("div", "hfta-board");
    this.arrangement = new Columns(model, (key, width) => {
      const cells = /** @type {NodeListOf<HTMLElement>} */ (this.table.querySelectorAll(`[data-key="${CSS.escape(key)}"]`));
      for (const cell of cells) size(cell, width);
    });
    this.tools = new RowTools(model, (first, last) => this.reveal(first, last), (id) => this.focus(id));
    this.frame = element("div", "hfta-board-frame");
    this.more = element("button", "hfta-more-rows", { type: "button" }, "show all");
    this.build(el);
    onTraits(model, ["table", "selected", "sort_by", "descending", "query", "arranged"], signal, () => this.draw());
    this.draw();
  }

  /** @param {HTMLElement} el */
  build(el) {
    const tools = element("div", "hfta-board-tools");
    const label = element("label", "", { title: "Show only rows with all of this: words, or lr>0.05, state:RUNNING, width in 8,16" }, "filter ");
    label.append(this.filter);
    tools.append(label, this.count, this.arrangement.menu);
    this.frame.append(this.table);
    this.root.append(tools, this.frame, this.more);
    el.append(this.root);
    this.on(this.more, "click", () => { this.limit = Infinity; this.draw(); });
    this.on(this.body, "click", (event) => this.clicked(event));
    this.on(this.body, "keydown", (event) => this.key(event));
    // Rows keep their places while somebody aims at one: a button that moves away is pressed in the wrong row.
    this.on(this.body, "pointerenter", () => { this.held = true; });
    this.on(this.body, "pointerleave", () => { this.held = false; this.draw(); });
  }

  /** Scrolls the table, not the page, so that these rows are seen. @param {HTMLElement} first @param {HTMLElement} last */
  reveal(first, last) {
    const { frame } = this;
    frame.scrollTop = Math.max(frame.scrollTop, last.offsetTop + last.offsetHeight - frame.clientHeight);
    frame.scrollTop = Math.min(frame.scrollTop, first.offsetTop - this.head.offsetHeight);
  }

  // Drawing.

  draw() {
    const { columns, rows, of = 0, actions = [] } = /** @type {{ columns: Column[], rows: Row[], of?: number, actions?: Action[] }} */ (this.model.get("table"));
    this.all = columns;
    this.columns = this.arrangement.shown(columns);
    const had = document.activeElement instanceof HTMLTableRowElement && this.body.contains(document.activeElement);
    this.drawHead();
    const { terms, problem } = parsed(this.query(), columns, rows);
    const found = this.sorted(rows.filter((row) => fits(row, terms)), columns);
    const shown = found.slice(0, this.limit);
    this.place(shown, this.held || this.tools.tr.contains(document.activeElement));
    this.tools.draw(this.lines, rows, actions, this.columns.length);
    // A row that was made anew, or has left with the focus.
    if (had && this.current !== null && !this.body.contains(document.activeElement)) this.focus(this.current);
    const best = of > rows.length ? `, the best of ${of}: study.results() has all` : "";
    this.tell(rows.length ? (found.length === rows.length ? `${rows.length} members` : `${found.length || "none"} of ${rows.length} members${problem && ": "}${problem}`) + best : "no members yet");
    this.more.hidden = found.length <= shown.length;
    this.more.textContent = `show all ${found.length}`;
    this.root.dataset.empty = String(!rows.length);
  }

  drawHead() {
    const stamp = JSON.stringify([this.columns, this.all]);
    if (this.stamp !== stamp) {
      this.stamp = stamp;
      const at = document.activeElement;
      const key = at && this.head.contains(at) ? at.closest("th")?.dataset.key : undefined;
      const line = element("tr");
      for (const column of this.columns) {
        const th = element("th", column.number ? "hfta-number" : "", { scope: "col" });
        th.dataset.key = column.key;
        const title = `${column.title}; press to sort; Shift with ← or → moves the column, + and - set its width, Delete hides it`;
        const button = element("button", "hfta-sort", { type: "button", title }, column.label);
        // Scores are looked at from the largest down, the rest from the smallest up.
        this.on(button, "click", () => this.sort(column.key, /accuracy|r2/.test(column.key)));
        th.append(button);
        this.arrangement.adopt(th, button, column.key);
        size(th, column.width);
        line.append(th);
      }
      this.head.replaceChildren(line);
      if (key) /** @type {HTMLElement | null} */ (line.querySelector(`th[data-key="${CSS.escape(key)}"] button`))?.focus();
      this.arrangement.fill();
      this.lines.clear();
      this.order = [];
      this.body.replaceChildren();
    }
    this.markSorted();
  }

  /** @param {Row} row @param {boolean} selected */
  refresh(row, selected) {
    super.refresh(row, selected);
    const line = this.line(row.id);
    this.columns.forEach((column, i) => setText(line.cells[i], row.cells[column.at]));
    paint(line.mark, row.swatch);
    line.tr.dataset.state = row.state;
    line.tr.dataset.best = String(row.best);
    line.tr.title = row.reason ? `${row.state}: ${row.reason}` : "";
  }

  /** @param {number} id @returns {Line} */
  make(id) {
    const tr = element("tr", "", { "data-lm-suppress-shortcuts": "true" });
    tr.dataset.member = String(id);
    const mark = strokeMark("hfta-swatch");
    const cells = this.columns.map((column) => {
      const td = element("td", column.number ? "hfta-number" : "");
      td.dataset.key = column.key;
      const text = element("span");
      if (column.key === "member") td.append(mark.svg);
      td.append(text);
      size(td, column.width);
      tr.append(td);
      return text;
    });
    return { tr, cells, mark };
  }

  // Selection, by pointer and by keyboard.

  /** @param {MouseEvent} event */
  clicked(event) {
    const tr = /** @type {Element} */ (event.target).closest("tr");
    if (tr?.dataset.member) this.select(Number(tr.dataset.member), adds(event));
  }

  /** @param {number} id @param {boolean} several */
  select(id, several) {
    this.current = id;
    const before = /** @type {number[]} */ (this.model.get("selected"));
    this.set({ selected: picked(before, [id], several) });
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const tr = event.target;
    if (!(tr instanceof HTMLTableRowElement)) return;
    const id = Number(tr.dataset.member);
    if (event.key === "a" && (event.ctrlKey || event.metaKey)) this.set({ selected: [...this.order] });
    else if (event.key === "Escape") this.set({ selected: [] });
    else if (event.key === " " || event.key === "Enter") this.select(id, adds(event));
    else if (!this.walk(event.key, id)) return;
    event.preventDefault();
  }
}

export default { render: lasting(({ model, el, signal }) => { new Board(model, el, signal); }) };
