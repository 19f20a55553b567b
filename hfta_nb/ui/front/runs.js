// The list of runs: a table that can be sorted, filtered and chosen from. Names come from people: textContent alone.

import { element, lasting, onTraits, setText } from "./page.js";
import { Rows } from "./rows.js";

/** @import { Model, Stroke } from "./types.d.ts" */
/** @import { Key } from "./rows.js" */

/**
 * A run and a column as `run_table.py` writes them, and the elements of a run.
 * @typedef {{ id: string, state: string, cells: string[], keys: Key[], open: string, swatch: Stroke | null }} Row
 * @typedef {{ key: string, label: string, title: string, number: boolean }} Column
 * @typedef {{ tr: HTMLTableRowElement, check: HTMLInputElement, swatch: HTMLElement, open: HTMLButtonElement, cells: HTMLElement[] }} Line
 */

const HINTS = /** @type {Record<string, string>} */ ({ shown: "This run is on the screen", Reattach: "Show and steer this run, which is in progress" });

/** Its rows are known by the run's directory. @extends {Rows<string, Row, Line>} */
class Runs extends Rows {
  /** @param {Model} model @param {HTMLElement} el @param {AbortSignal} signal */
  constructor(model, el, signal) {
    const filter = element("input", "hfta-runs-filter", { type: "search", placeholder: "digits baseline" });
    super(model, signal, "hfta-runs-table", "runs", filter);
    this.columns = /** @type {Column[]} */ ([]);
    this.root = element("div", "hfta-runs-board");
    this.clear = element("button", "", { type: "button", title: "Choose no run" }, "clear choice");
    this.frame = element("div", "hfta-runs-frame");
    this.build(el);
    onTraits(model, ["table", "selected", "sort_by", "descending", "query"], signal, () => this.draw());
    this.draw();
  }

  /** @param {HTMLElement} el */
  build(el) {
    const tools = element("div", "hfta-runs-tools");
    const label = element("label", "", { title: "Show only runs whose row contains all these words" }, "filter runs ");
    label.append(this.filter);
    const again = element("button", "", { type: "button", title: "Read the folder again" }, "refresh");
    tools.append(label, this.count, this.clear, again);
    this.frame.append(this.table);
    this.root.append(tools, this.frame);
    el.append(this.root);
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
    const words = this.query().toLowerCase().split(/\s+/).filter(Boolean);
    const found = rows.filter((row) => words.every((word) => row.cells.join(" ").toLowerCase().includes(word)));
    this.place(this.sorted(found, columns));
    const several = `${rows.length} run${rows.length === 1 ? "" : "s"}`;
    this.tell(reading ? `reading ${reading} more ...` : found.length === rows.length ? several : `${found.length} of ${several}`);
    this.clear.hidden = !this.model.get("selected").length;
    this.root.dataset.empty = String(!rows.length);
  }

  drawHead() {
    if (this.head.childElementCount !== 1 || this.head.firstElementChild?.childElementCount !== this.columns.length + 2) {
      const line = element("tr");
      line.append(element("td"));
      for (const column of this.columns) {
        const th = element("th", column.number ? "hfta-number" : "", { scope: "col" });
        th.dataset.key = column.key;
        const button = element("button", "hfta-sort", { type: "button", title: `${column.title}; press to sort` }, column.label);
        this.on(button, "click", () => this.sort(column.key, column.number));
        th.append(button);
        line.append(th);
      }
      line.append(element("td", "hfta-actions"));
      this.head.replaceChildren(line);
    }
    this.markSorted();
  }

  /** @param {Row} row @param {boolean} chosen */
  refresh(row, chosen) {
    super.refresh(row, chosen);
    const line = this.line(row.id);
    row.cells.forEach((text, i) => {
      setText(line.cells[i], text);
      line.cells[i].title = text;
    });
    line.swatch.hidden = !row.swatch;
    for (const theme of /** @type {const} */ (["light", "dark"])) line.swatch.style.setProperty(`--hfta-${theme}`, row.swatch?.[theme] ?? "");
    line.tr.dataset.state = row.state;
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

  /** @param {Line} line @param {boolean} yes */
  reachable(line, yes) { line.tr.tabIndex = line.open.tabIndex = yes ? 0 : -1; }

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
    if (event.key === " " || event.key === "Enter") this.choose(id);
    else if (!this.walk(event.key, id)) return;
    event.preventDefault();
  }
}

export default { render: lasting(({ model, el, signal }) => { new Runs(model, el, signal); }) };
