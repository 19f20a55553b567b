// The list of runs: a table that can be sorted, filtered and chosen from. Names come from people: textContent alone.

import { compare } from "./compare.js";
import { element, lasting, onTraits, setText } from "./page.js";

/** @import { Model, Stroke } from "./types.d.ts" */
/** @import { Key } from "./compare.js" */

/**
 * A run and a column as `run_table.py` writes them, and the elements of a run.
 * @typedef {{ id: string, state: string, cells: string[], keys: Key[], open: string, swatch: Stroke | null }} Row
 * @typedef {{ key: string, label: string, title: string, number: boolean }} Column
 * @typedef {{ tr: HTMLTableRowElement, check: HTMLInputElement, swatch: HTMLElement, open: HTMLButtonElement, cells: HTMLElement[] }} Line
 */

const HINTS = /** @type {Record<string, string>} */ ({ shown: "This run is on the screen", Reattach: "Show and steer this run, which is in progress" });

class Runs {
  /** @param {Model} model @param {HTMLElement} el @param {AbortSignal} signal */
  constructor(model, el, signal) {
    this.model = model;
    this.signal = signal;
    this.columns = /** @type {Column[]} */ ([]);
    this.lines = /** @type {Map<string, Line>} */ (new Map()); // by the run's directory
    this.order = /** @type {string[]} */ ([]);
    this.current = /** @type {string | null} */ (null); // the row that the keyboard is on
    this.root = element("div", "hfta-runs-board");
    this.filter = element("input", "hfta-runs-filter", { type: "search", placeholder: "digits baseline" });
    this.count = element("span", "", { "aria-live": "polite" });
    this.clear = element("button", "", { type: "button", title: "Choose no run" }, "clear choice");
    this.frame = element("div", "hfta-runs-frame");
    this.table = element("table", "hfta-runs-table", { role: "grid", "aria-multiselectable": "true", "aria-label": "runs" });
    this.head = element("thead");
    this.body = element("tbody");
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
    const tools = element("div", "hfta-runs-tools");
    const label = element("label", "", { title: "Show only runs whose row contains all these words" }, "filter runs ");
    label.append(this.filter);
    const again = element("button", "", { type: "button", title: "Read the folder again" }, "refresh");
    tools.append(label, this.count, this.clear, again);
    this.table.append(this.head, this.body);
    this.frame.append(this.table);
    this.root.append(tools, this.frame);
    el.append(this.root);
    this.on(this.filter, "input", () => this.set({ query: this.filter.value }));
    this.on(this.clear, "click", () => this.set({ selected: [] }));
    this.on(again, "click", () => this.model.send({ kind: "refresh" }));
    this.on(this.body, "click", (event) => this.clicked(event));
    this.on(this.body, "keydown", (event) => this.key(event));
  }

  // Drawing.

  draw() {
    const { columns, rows, reading = 0 } = /** @type {{ columns: Column[], rows: Row[], reading?: number }} */ (this.model.get("table"));
    this.columns = columns;
    this.drawHead();
    const query = /** @type {string} */ (this.model.get("query"));
    if (document.activeElement !== this.filter && this.filter.value !== query) this.filter.value = query;
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    const found = rows.filter((row) => words.every((word) => row.cells.join(" ").toLowerCase().includes(word)));
    this.place(this.sorted(found));
    const several = `${rows.length} run${rows.length === 1 ? "" : "s"}`;
    const text = reading ? `reading ${reading} more ...` : found.length === rows.length ? several : `${found.length} of ${several}`;
    setText(this.count, text);
    this.clear.hidden = !this.model.get("selected").length;
    this.root.dataset.empty = String(!rows.length);
  }

  /** @param {Row[]} rows */
  sorted(rows) {
    const at = this.columns.findIndex((column) => column.key === this.model.get("sort_by"));
    const sign = this.model.get("descending") ? -1 : 1;
    return at < 0 ? rows : [...rows].sort((a, b) => compare(a.keys[at], b.keys[at], sign));
  }

  drawHead() {
    if (this.head.childElementCount !== 1 || this.head.firstElementChild?.childElementCount !== this.columns.length + 2) {
      const line = element("tr");
      line.append(element("td"));
      for (const column of this.columns) {
        const th = element("th", column.number ? "hfta-number" : "", { scope: "col" });
        th.dataset.key = column.key;
        const button = element("button", "hfta-sort", { type: "button", title: `${column.title}; press to sort` }, column.label);
        this.on(button, "click", () => this.sort(column));
        th.append(button);
        line.append(th);
      }
      line.append(element("td", "hfta-actions"));
      this.head.replaceChildren(line);
    }
    for (const th of /** @type {NodeListOf<HTMLElement>} */ (this.head.querySelectorAll("th[data-key]"))) {
      const sorts = th.dataset.key === this.model.get("sort_by");
      th.setAttribute("aria-sort", sorts ? (this.model.get("descending") ? "descending" : "ascending") : "none");
    }
  }

  /** @param {Column} column */
  sort(column) {
    const again = this.model.get("sort_by") === column.key;
    this.set({ sort_by: column.key, descending: again ? !this.model.get("descending") : column.number });
  }

  /** @param {Row[]} rows */
  place(rows) {
    const ids = rows.map((row) => row.id);
    const kept = new Set(ids);
    for (const [id, line] of this.lines) if (!kept.has(id)) { line.tr.remove(); this.lines.delete(id); }
    const selected = /** @type {Set<string>} */ (new Set(this.model.get("selected")));
    for (const row of rows) this.refresh(row, selected.has(row.id));
    if (this.order.length !== ids.length || this.order.some((id, i) => id !== ids[i])) {
      const focused = this.body.contains(document.activeElement) ? document.activeElement : null;
      this.body.append(...ids.map((id) => this.line(id).tr));
      if (focused instanceof HTMLElement) focused.focus({ preventScroll: true }); // a node that is moved loses the focus
      this.order = ids;
    }
    if (this.current === null || !this.lines.has(this.current)) this.current = this.order[0] ?? null;
    this.reach();
  }

  /** What stands for a run that is shown. @param {string} id */
  line(id) {
    const line = this.lines.get(id) ?? this.make(id);
    this.lines.set(id, line);
    return line;
  }

  /** @param {Row} row @param {boolean} chosen */
  refresh(row, chosen) {
    const line = this.line(row.id);
    row.cells.forEach((text, i) => {
      setText(line.cells[i], text);
      line.cells[i].title = text;
    });
    line.swatch.hidden = !row.swatch;
    for (const theme of /** @type {const} */ (["light", "dark"])) line.swatch.style.setProperty(`--hfta-${theme}`, row.swatch?.[theme] ?? "");
    line.tr.dataset.state = row.state;
    line.tr.setAttribute("aria-selected", String(chosen));
    line.check.checked = chosen;
    line.open.textContent = row.open;
    line.open.setAttribute("aria-label", `${row.open} ${line.tr.dataset.run}`);
    if (row.open === "shown" && document.activeElement === line.open) line.tr.focus({ preventScroll: true });
    line.open.disabled = row.open === "shown";
    line.open.title = HINTS[row.open] ?? "Show this run, with curves, results and definition";
  }

  /** @param {string} id @returns {Line} */
  make(id) {
    const name = id.split(/[/\\]/).pop() ?? id;
    const tr = element("tr", "", { "data-lm-suppress-shortcuts": "true" });
    tr.dataset.run = name;
    const check = element("input", "", { type: "checkbox", "aria-label": `choose ${name}`, tabindex: "-1" });
    const swatch = element("i", "hfta-runs-swatch");
    const first = element("td");
    first.append(check, swatch);
    const cells = this.columns.map((column) => {
      const td = element("td", column.number ? "hfta-number" : "");
      td.dataset.key = column.key;
      td.append(element("span"));
      return td;
    });
    const open = element("button", "", { type: "button" });
    this.on(open, "click", () => this.model.send({ kind: "open", id }));
    const actions = element("td", "hfta-actions");
    actions.append(open);
    tr.append(first, ...cells, actions);
    tr.dataset.id = id;
    return { tr, check, swatch, open, cells: cells.map((td) => /** @type {HTMLElement} */ (td.firstChild)) };
  }

  // Choosing, by pointer and by keyboard.

  reach() {
    for (const [id, { tr, open }] of this.lines) tr.tabIndex = open.tabIndex = id === this.current ? 0 : -1;
  }

  /** @param {MouseEvent} event */
  clicked(event) {
    const target = /** @type {Element} */ (event.target);
    const id = target.closest("tr")?.dataset.id;
    if (id && !target.closest("button")) this.choose(id);
  }

  /** @param {string} id */
  choose(id) {
    this.current = id;
    const before = /** @type {string[]} */ (this.model.get("selected"));
    this.set({ selected: before.includes(id) ? before.filter((other) => other !== id) : [...before, id] });
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const tr = event.target;
    const id = tr instanceof HTMLTableRowElement && tr.dataset.id;
    if (!id) return;
    const at = this.order.indexOf(id);
    const moves = /** @type {Record<string, number>} */ ({ ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: this.order.length - 1 });
    if (event.key === " " || event.key === "Enter") this.choose(id);
    else if (event.key in moves) {
      this.current = this.order[Math.min(this.order.length - 1, Math.max(0, moves[event.key]))];
      this.reach();
      this.line(this.current).tr.focus();
    } else return;
    event.preventDefault();
  }
}

export default { render: lasting(({ model, el, signal }) => { new Runs(model, el, signal); }) };
