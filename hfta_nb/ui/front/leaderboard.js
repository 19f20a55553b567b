// The leaderboard: a table that can be sorted, filtered and selected. Names come from people: textContent alone.

const MOST_ROWS = 200; // more are shown on request: a page of ten thousand rows would stall

import { fits, parsed } from "./filter.js";
import { element, lasting, onTraits, setText, strokeMark } from "./page.js";
import { adds } from "./pointer.js";

/** @import { Model, Stroke } from "./types.d.ts" */

/** @typedef {string | number | null} Key */
/** @typedef {{ key: string, label: string, title: string, number: boolean }} Column */
/**
 * A member as the kernel describes it; `leaderboard.py` writes these.
 * @typedef {{ id: number, state: string, reason: string, cells: string[], keys: Key[], swatch: Stroke, stop: boolean,
 *   take: boolean }} Row
 * A member's elements.
 * @typedef {{ tr: HTMLElement, cells: HTMLElement[], stop: HTMLButtonElement, take: HTMLButtonElement,
 *   mark: ReturnType<typeof strokeMark> }} Line
 */

/** Order of two sort keys; what is missing comes last, whichever way the column is sorted. @param {Key | undefined} a @param {Key | undefined} b @param {number} sign */
export function compare(a, b, sign) {
  if (a === null || a === undefined) return b === null || b === undefined ? 0 : 1;
  if (b === null || b === undefined) return -1;
  if (typeof a === "number" && typeof b === "number") return sign * (a - b);
  return sign * String(a).localeCompare(String(b), undefined, { numeric: true });
}

/** @param {ReturnType<typeof strokeMark>} mark @param {Stroke} stroke */
function paint({ svg, stroke: line }, stroke) {
  // Both colours are given; the style sheet takes the one of the theme.
  svg.style.setProperty("--hfta-light", stroke.light);
  svg.style.setProperty("--hfta-dark", stroke.dark);
  line.setAttribute("stroke-dasharray", stroke.dash.map((d) => d / 1.5).join(" "));
}

class Board {
  /** @param {Model} model @param {HTMLElement} el @param {AbortSignal} signal */
  constructor(model, el, signal) {
    this.model = model;
    this.signal = signal;
    this.columns = /** @type {Column[]} */ ([]);
    this.rows = /** @type {Map<number, Line>} */ (new Map());
    this.order = /** @type {number[]} */ ([]);
    this.limit = MOST_ROWS;
    this.held = false;
    this.current = /** @type {number | null} */ (null); // the row that the keyboard is on
    this.stamp = "";
    this.root = element("div", "hfta-board");
    this.filter = element("input", "hfta-filter", { type: "search", placeholder: "lr>0.01 state:RUNNING" });
    this.count = element("span", "hfta-count", { "aria-live": "polite" });
    this.clear = element("button", "hfta-clear", { type: "button", title: "Select no member" }, "clear selection");
    this.frame = element("div", "hfta-board-frame");
    this.table = element("table", "hfta-leaderboard", { role: "grid", "aria-multiselectable": "true", "aria-label": "leaderboard" });
    this.head = element("thead");
    this.body = element("tbody");
    this.more = element("button", "hfta-more-rows", { type: "button" }, "show all");
    this.build(el);
    onTraits(model, ["table", "selected", "sort_by", "descending", "query"], signal, () => this.draw());
    this.draw();
  }

  /**
   * @template {keyof HTMLElementEventMap} T
   * @param {HTMLElement} node
   * @param {T} type
   * @param {(event: HTMLElementEventMap[T]) => void} listener
   */
  on(node, type, listener) { node.addEventListener(type, listener, { signal: this.signal }); }

  /** @param {Record<string, unknown>} changes */
  set(changes) {
    for (const [name, value] of Object.entries(changes)) this.model.set(name, value);
    this.model.save_changes();
  }

  /** @param {HTMLElement} el */
  build(el) {
    const tools = element("div", "hfta-board-tools");
    const label = element("label", "", { title: "Show only rows with all of this: words, or lr>0.05, state:RUNNING, width in 8,16" }, "filter ");
    label.append(this.filter);
    tools.append(label, this.count, this.clear);
    this.table.append(this.head, this.body);
    this.frame.append(this.table);
    this.root.append(tools, this.frame, this.more);
    el.append(this.root);
    this.on(this.filter, "input", () => this.set({ query: this.filter.value }));
    this.on(this.clear, "click", () => this.set({ selected: [] }));
    this.on(this.more, "click", () => { this.limit = Infinity; this.draw(); });
    this.on(this.body, "click", (event) => this.clicked(event));
    this.on(this.body, "keydown", (event) => this.key(event));
    // Rows keep their places while somebody aims at one: a button that moves away is pressed in the wrong row.
    this.on(this.body, "pointerenter", () => { this.held = true; });
    this.on(this.body, "pointerleave", () => { this.held = false; this.draw(); });
    this.on(this.frame, "scroll", () => this.overflow());
    const sized = new ResizeObserver(() => this.overflow());
    sized.observe(this.frame);
    sized.observe(this.table);
    this.signal.addEventListener("abort", () => sized.disconnect());
  }

  /** Whether columns lie under the buttons of the rows, which stay on the screen. */
  overflow() {
    const { scrollLeft, scrollWidth, clientWidth } = this.frame;
    this.frame.dataset.more = String(scrollLeft + clientWidth < scrollWidth - 1);
  }

  // Drawing.

  draw() {
    const { columns, rows, of = 0 } = /** @type {{ columns: Column[], rows: Row[], of?: number }} */ (this.model.get("table"));
    this.columns = columns;
    this.drawHead();
    const query = /** @type {string} */ (this.model.get("query"));
    if (document.activeElement !== this.filter && this.filter.value !== query) this.filter.value = query;
    const { terms, problem } = parsed(query, columns, rows);
    const found = this.sorted(rows.filter((row) => fits(row, terms)));
    const shown = found.slice(0, this.limit);
    this.place(shown);
    const best = of > rows.length ? `, the best of ${of}: study.results() has all` : "";
    setText(this.count, rows.length ? (found.length === rows.length ? `${rows.length} members` : `${found.length || "none"} of ${rows.length} members${problem && ": "}${problem}`) + best : "no members yet");
    this.more.hidden = found.length <= shown.length;
    this.more.textContent = `show all ${found.length}`;
    this.clear.hidden = !this.model.get("selected").length;
    this.root.dataset.empty = String(!rows.length);
  }

  /** @param {Row[]} rows */
  sorted(rows) {
    const at = this.columns.findIndex((c) => c.key === this.model.get("sort_by"));
    if (at < 0) return rows;
    const sign = this.model.get("descending") ? -1 : 1;
    return [...rows].sort((a, b) => compare(a.keys[at], b.keys[at], sign)); // equal ones keep their places
  }

  drawHead() {
    const stamp = JSON.stringify(this.columns);
    if (this.stamp !== stamp) {
      this.stamp = stamp;
      const line = element("tr");
      for (const column of this.columns) {
        const th = element("th", column.number ? "hfta-number" : "", { scope: "col" });
        th.dataset.key = column.key;
        const button = element("button", "hfta-sort", { type: "button", title: `${column.title}; press to sort` }, column.label);
        this.on(button, "click", () => this.sort(column.key));
        th.append(button);
        line.append(th);
      }
      line.append(element("th", "hfta-actions", { scope: "col" }, this.columns.length ? "actions" : ""));
      this.head.replaceChildren(line);
      this.rows.clear();
      this.order = [];
      this.body.replaceChildren();
    }
    for (const th of /** @type {NodeListOf<HTMLElement>} */ (this.head.querySelectorAll("th[data-key]"))) {
      const sorts = th.dataset.key === this.model.get("sort_by");
      th.setAttribute("aria-sort", sorts ? (this.model.get("descending") ? "descending" : "ascending") : "none");
    }
  }

  /** @param {string} key */
  sort(key) {
    const again = this.model.get("sort_by") === key;
    // Scores are looked at from the largest down, the rest from the smallest up.
    const first = /accuracy|r2/.test(key);
    this.set({ sort_by: key, descending: again ? !this.model.get("descending") : first });
  }

  /** @param {Row[]} shown */
  place(shown) {
    const ids = shown.map((row) => row.id);
    const kept = new Set(ids);
    for (const [id, line] of this.rows) if (!kept.has(id)) { line.tr.remove(); this.rows.delete(id); }
    const selected = /** @type {Set<number>} */ (new Set(this.model.get("selected")));
    for (const row of shown) this.refresh(row, selected);
    const hold = this.held && this.order.length === ids.length && this.order.every((id) => kept.has(id));
    if (!hold && (this.order.length !== ids.length || this.order.some((id, i) => id !== ids[i]))) {
      const focused = this.body.contains(document.activeElement) ? document.activeElement : null;
      for (const id of ids) this.body.append(this.line(id).tr);
      if (focused instanceof HTMLElement) focused.focus({ preventScroll: true }); // a node that is moved loses the focus
      this.order = ids;
    }
    if (this.current === null || !this.rows.has(this.current)) this.current = this.order[0] ?? null;
    for (const [id, line] of this.rows) this.reachable(line, id === this.current);
  }

  /** What stands for a member that is shown. @param {number} id */
  line(id) {
    const line = this.rows.get(id) ?? this.make(id);
    this.rows.set(id, line);
    return line;
  }

  /** @param {Row} row @param {Set<number>} selected */
  refresh(row, selected) {
    const line = this.line(row.id);
    row.cells.forEach((text, i) => setText(line.cells[i], text));
    paint(line.mark, row.swatch);
    line.tr.dataset.state = row.state;
    line.tr.title = row.reason ? `${row.state}: ${row.reason}` : "";
    line.tr.setAttribute("aria-selected", String(selected.has(row.id)));
    line.stop.disabled = !row.stop;
    line.take.disabled = !row.take;
  }

  /** @param {number} id @returns {Line} */
  make(id) {
    const tr = element("tr");
    tr.dataset.member = String(id);
    const mark = strokeMark("hfta-swatch");
    const cells = this.columns.map((column) => {
      const td = element("td", column.number ? "hfta-number" : "");
      td.dataset.key = column.key;
      const text = element("span");
      if (column.key === "member") td.append(mark.svg);
      td.append(text);
      tr.append(td);
      return text;
    });
    const actions = element("td", "hfta-actions");
    const button = (/** @type {string[]} */ ...[kind, text, label, title]) => {
      const made = element("button", `hfta-row-${kind}`, { type: "button", "aria-label": label, title }, text);
      this.on(made, "click", (event) => {
        event.stopPropagation();
        this.model.send({ kind, id });
      });
      actions.append(made);
      return made;
    };
    const stop = button("stop", "Stop", `stop #${id}`, "Stop this member; the others continue");
    const take = button("take", "Take home", `take #${id} home`, "Its best weights as a plain module, and the code that gets them");
    tr.append(actions);
    return { tr, cells, stop, take, mark };
  }

  // Selection, by pointer and by keyboard.

  /** @param {Line} line @param {boolean} yes */
  reachable(line, yes) {
    for (const node of [line.tr, line.stop, line.take]) node.tabIndex = yes ? 0 : -1;
  }

  /** @param {MouseEvent} event */
  clicked(event) {
    const target = /** @type {Element} */ (event.target);
    const tr = target.closest("tr");
    if (tr && !target.closest("button")) this.select(Number(tr.dataset.member), adds(event));
  }

  /** @param {number} id @param {boolean} several */
  select(id, several) {
    this.current = id;
    const before = /** @type {number[]} */ (this.model.get("selected"));
    let after = before.length === 1 && before[0] === id ? [] : [id];
    if (several) after = before.includes(id) ? before.filter((i) => i !== id) : [...before, id];
    this.set({ selected: after });
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const tr = event.target;
    if (!(tr instanceof HTMLTableRowElement)) return;
    const id = Number(tr.dataset.member);
    const at = this.order.indexOf(id);
    const moves = /** @type {Record<string, number>} */ ({ ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: this.order.length - 1 });
    if (event.key === " " || event.key === "Enter") this.select(id, adds(event));
    else if (event.key in moves) this.focus(this.order[Math.min(this.order.length - 1, Math.max(0, moves[event.key]))]);
    else return;
    event.preventDefault();
  }

  /** @param {number} id */
  focus(id) {
    this.current = id;
    for (const [other, line] of this.rows) this.reachable(line, other === id);
    this.rows.get(id)?.tr.focus();
  }
}

export default { render: lasting(({ model, el, signal }) => { new Board(model, el, signal); }) };
