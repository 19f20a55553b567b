// The list of runs: a table that can be sorted, filtered and chosen from. Names come from people: textContent alone.

function element(tag, css = "", attributes = {}, text = "") {
  const made = document.createElement(tag);
  if (css) made.className = css;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text) made.textContent = text;
  return made;
}

/** Order of two sort keys; what is missing comes last, whichever way the column is sorted. */
function compare(a, b, sign) {
  if (a === null || a === "") return b === null || b === "" ? 0 : 1;
  if (b === null || b === "") return -1;
  if (typeof a === "number" && typeof b === "number") return sign * (a - b);
  return sign * String(a).localeCompare(String(b), undefined, { numeric: true });
}

class Runs {
  constructor(model, el, signal) {
    Object.assign(this, { model, el, signal });
    this.lines = new Map(); // by the run's directory
    this.order = [];
    this.current = null; // the row that the keyboard is on
    this.build();
    const draw = () => this.draw();
    for (const name of ["table", "selected", "sort_by", "descending", "query"]) {
      model.on(`change:${name}`, draw);
      signal.addEventListener("abort", () => model.off(`change:${name}`, draw));
    }
    this.draw();
  }

  on(node, type, listener) { node.addEventListener(type, listener, { signal: this.signal }); }

  set(changes) {
    for (const [name, value] of Object.entries(changes)) this.model.set(name, value);
    this.model.save_changes();
  }

  build() {
    this.root = element("div", "hfta-runs-board");
    const tools = element("div", "hfta-runs-tools");
    const label = element("label", "", { title: "Show only runs whose row contains all these words" }, "filter runs ");
    this.filter = element("input", "hfta-runs-filter", { type: "search", placeholder: "digits baseline" });
    label.append(this.filter);
    this.count = element("span", "", { "aria-live": "polite" });
    this.clear = element("button", "", { type: "button", title: "Choose no run" }, "clear choice");
    const again = element("button", "", { type: "button", title: "Read the folder again" }, "refresh");
    tools.append(label, this.count, this.clear, again);
    this.frame = element("div", "hfta-runs-frame");
    this.table = element("table", "hfta-runs-table", { role: "grid", "aria-multiselectable": "true", "aria-label": "runs" });
    this.head = element("thead");
    this.body = element("tbody");
    this.table.append(this.head, this.body);
    this.frame.append(this.table);
    this.root.append(tools, this.frame);
    this.el.append(this.root);
    this.on(this.filter, "input", () => this.set({ query: this.filter.value }));
    this.on(this.clear, "click", () => this.set({ selected: [] }));
    this.on(again, "click", () => this.model.send({ kind: "refresh" }));
    this.on(this.body, "click", (event) => this.clicked(event));
    this.on(this.body, "keydown", (event) => this.key(event));
  }

  // Drawing.

  draw() {
    const { columns, rows, reading = 0 } = this.model.get("table");
    this.columns = columns;
    this.drawHead();
    const query = this.model.get("query");
    if (document.activeElement !== this.filter && this.filter.value !== query) this.filter.value = query;
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    const found = rows.filter((row) => words.every((word) => row.cells.join(" ").toLowerCase().includes(word)));
    this.place(this.sorted(found));
    const several = `${rows.length} run${rows.length === 1 ? "" : "s"}`;
    const text = reading ? `reading ${reading} more ...` : found.length === rows.length ? several : `${found.length} of ${several}`;
    if (this.count.textContent !== text) this.count.textContent = text;
    this.clear.hidden = !this.model.get("selected").length;
    this.root.dataset.empty = String(!rows.length);
  }

  sorted(rows) {
    const at = this.columns.findIndex((column) => column.key === this.model.get("sort_by"));
    const sign = this.model.get("descending") ? -1 : 1;
    return at < 0 ? rows : [...rows].sort((a, b) => compare(a.keys[at], b.keys[at], sign));
  }

  drawHead() {
    if (this.head.childElementCount !== 1 || this.head.firstChild.childElementCount !== this.columns.length + 2) {
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
    for (const th of this.head.querySelectorAll("th[data-key]")) {
      const sorts = th.dataset.key === this.model.get("sort_by");
      th.setAttribute("aria-sort", sorts ? (this.model.get("descending") ? "descending" : "ascending") : "none");
    }
  }

  sort(column) {
    const again = this.model.get("sort_by") === column.key;
    this.set({ sort_by: column.key, descending: again ? !this.model.get("descending") : column.number });
  }

  place(rows) {
    const ids = rows.map((row) => row.id);
    const kept = new Set(ids);
    for (const [id, line] of this.lines) if (!kept.has(id)) { line.tr.remove(); this.lines.delete(id); }
    const selected = new Set(this.model.get("selected"));
    for (const row of rows) this.refresh(row, selected.has(row.id));
    if (this.order.length !== ids.length || this.order.some((id, i) => id !== ids[i])) {
      const focused = this.body.contains(document.activeElement) ? document.activeElement : null;
      this.body.append(...ids.map((id) => this.lines.get(id).tr));
      focused?.focus({ preventScroll: true }); // a node that is moved loses the focus
      this.order = ids;
    }
    if (!this.lines.has(this.current)) this.current = this.order[0] ?? null;
    this.reach();
  }

  refresh(row, chosen) {
    let line = this.lines.get(row.id);
    if (!line) this.lines.set(row.id, (line = this.make(row.id)));
    row.cells.forEach((text, i) => { if (line.cells[i].textContent !== text) line.cells[i].textContent = line.cells[i].parentNode.title = text; });
    line.swatch.hidden = !row.swatch;
    for (const theme of ["light", "dark"]) line.swatch.style.setProperty(`--hfta-${theme}`, row.swatch?.[theme] ?? "");
    line.tr.dataset.state = row.state;
    line.tr.setAttribute("aria-selected", String(chosen));
    line.check.checked = chosen;
    line.open.textContent = row.open;
    line.open.setAttribute("aria-label", `${row.open} ${line.tr.dataset.run}`);
    if (row.open === "shown" && document.activeElement === line.open) line.tr.focus({ preventScroll: true });
    line.open.disabled = row.open === "shown";
    line.open.title = { shown: "This run is on the screen", Reattach: "Show and steer this run, which is in progress" }[row.open] ?? "Show this run, with curves, results and definition";
  }

  make(id) {
    const name = id.split(/[/\\]/).pop();
    const tr = element("tr");
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
    return { tr, check, swatch, open, cells: cells.map((td) => td.firstChild) };
  }

  // Choosing, by pointer and by keyboard.

  reach() {
    for (const [id, { tr, open }] of this.lines) tr.tabIndex = open.tabIndex = id === this.current ? 0 : -1;
  }

  clicked(event) {
    const tr = event.target.closest("tr");
    if (tr && !event.target.closest("button")) this.choose(tr.dataset.id);
  }

  choose(id) {
    this.current = id;
    const before = this.model.get("selected");
    this.set({ selected: before.includes(id) ? before.filter((other) => other !== id) : [...before, id] });
  }

  key(event) {
    const tr = event.target.closest("tr");
    if (!tr || event.target !== tr) return;
    const at = this.order.indexOf(tr.dataset.id);
    const moves = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: this.order.length - 1 };
    if (event.key === " " || event.key === "Enter") this.choose(tr.dataset.id);
    else if (event.key in moves) {
      this.current = this.order[Math.min(this.order.length - 1, Math.max(0, moves[event.key]))];
      this.reach();
      this.lines.get(this.current).tr.focus();
    } else return;
    event.preventDefault();
  }
}

export default {
  render({ model, el, signal }) {
    // Older versions of anywidget give no signal but call what is returned.
    const controller = new AbortController();
    signal?.addEventListener("abort", () => controller.abort());
    new Runs(model, el, controller.signal);
    return () => controller.abort();
  },
};
