// The leaderboard: a table that can be sorted, filtered and selected. Names come from people: textContent alone.

const MOST_ROWS = 200; // more are shown on request: a page of ten thousand rows would stall

function element(tag, css = "", attributes = {}, text = "") {
  const made = document.createElement(tag);
  if (css) made.className = css;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text) made.textContent = text;
  return made;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Order of two sort keys; what is missing comes last, whichever way the column is sorted. */
function compare(a, b, sign) {
  if (a === null || a === undefined) return b === null || b === undefined ? 0 : 1;
  if (b === null || b === undefined) return -1;
  if (typeof a === "number" && typeof b === "number") return sign * (a - b);
  return sign * String(a).localeCompare(String(b), undefined, { numeric: true });
}

function swatch(stroke) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
  for (const [k, v] of Object.entries({ width: 18, height: 10, "aria-hidden": "true", class: "hfta-swatch" })) svg.setAttribute(k, v);
  for (const [k, v] of Object.entries({ x1: 1, x2: 17, y1: 5, y2: 5, "stroke-width": 3 })) line.setAttribute(k, v);
  svg.append(line);
  paint(svg, stroke);
  return svg;
}

function paint(svg, stroke) {
  // Both colours are given; the style sheet takes the one of the theme.
  svg.style.setProperty("--hfta-light", stroke.light);
  svg.style.setProperty("--hfta-dark", stroke.dark);
  svg.firstChild.setAttribute("stroke-dasharray", stroke.dash.map((d) => d / 1.5).join(" "));
}

class Board {
  constructor(model, el, signal) {
    Object.assign(this, { model, el, signal });
    this.rows = new Map();
    this.order = [];
    this.limit = MOST_ROWS;
    this.held = false;
    this.current = null; // the row that the keyboard is on
    this.build();
    const redraw = () => this.draw();
    for (const name of ["table", "selected", "sort_by", "descending", "query"]) {
      model.on(`change:${name}`, redraw);
      signal.addEventListener("abort", () => model.off(`change:${name}`, redraw));
    }
    this.draw();
  }

  on(node, type, listener) { node.addEventListener(type, listener, { signal: this.signal }); }

  set(changes) {
    for (const [name, value] of Object.entries(changes)) this.model.set(name, value);
    this.model.save_changes();
  }

  build() {
    this.root = element("div", "hfta-board");
    const tools = element("div", "hfta-board-tools");
    const label = element("label", "", { title: "Show only rows that contain all these words; lr=0.01 is a value of a column" }, "filter ");
    this.filter = element("input", "hfta-filter", { type: "search", placeholder: "lr=0.01 running" });
    label.append(this.filter);
    this.count = element("span", "hfta-count", { "aria-live": "polite" });
    this.clear = element("button", "hfta-clear", { type: "button", title: "Select no member" }, "clear selection");
    tools.append(label, this.count, this.clear);
    this.frame = element("div", "hfta-board-frame");
    this.table = element("table", "hfta-leaderboard", { role: "grid", "aria-multiselectable": "true", "aria-label": "leaderboard" });
    this.head = element("thead");
    this.body = element("tbody");
    this.table.append(this.head, this.body);
    this.frame.append(this.table);
    this.more = element("button", "hfta-more-rows", { type: "button" }, "show all");
    this.root.append(tools, this.frame, this.more);
    this.el.append(this.root);
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
    const { columns, rows, of = 0 } = this.model.get("table");
    this.columns = columns;
    this.drawHead();
    const query = this.model.get("query");
    if (document.activeElement !== this.filter && this.filter.value !== query) this.filter.value = query;
    const wanted = query.toLowerCase().split(/\s+/).map((word) => word.replace(/,$/, "")).filter(Boolean);
    const found = this.sorted(rows.filter((row) => wanted.every((word) => this.fits(row, word))));
    const shown = found.slice(0, this.limit);
    this.place(shown);
    const best = of > rows.length ? `, the best of ${of}: study.results() has all` : "";
    setText(this.count, rows.length ? (found.length === rows.length ? `${rows.length} members` : `${found.length} of ${rows.length} members`) + best : "no members yet");
    this.more.hidden = found.length <= shown.length;
    this.more.textContent = `show all ${found.length}`;
    this.clear.hidden = !this.model.get("selected").length;
    this.root.dataset.empty = String(!rows.length);
  }

  /** Whether a row contains a word, or has a value in a column: `lr=0.01`, as labels of members write it. */
  fits(row, word) {
    const [, name, value] = /^([^=]+)=(.*)$/.exec(word) ?? [];
    const at = this.columns.findIndex((c) => name === c.label.toLowerCase() || name === c.key.split(":").pop().toLowerCase());
    if (at < 0) return row.cells.join(" ").toLowerCase().includes(word);
    const text = row.cells[at].toLowerCase();
    return value === "" || text === value || (text !== "" && Number(text) === Number(value));
  }

  sorted(rows) {
    const at = this.columns.findIndex((c) => c.key === this.model.get("sort_by"));
    if (at < 0) return rows;
    const sign = this.model.get("descending") ? -1 : 1;
    return rows.map((row, i) => [row, i]).sort(([a, i], [b, j]) => compare(a.keys[at], b.keys[at], sign) || i - j).map(([row]) => row);
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
    for (const th of this.head.querySelectorAll("th[data-key]")) {
      const sorts = th.dataset.key === this.model.get("sort_by");
      th.setAttribute("aria-sort", sorts ? (this.model.get("descending") ? "descending" : "ascending") : "none");
    }
  }

  sort(key) {
    const again = this.model.get("sort_by") === key;
    // Scores are looked at from the largest down, the rest from the smallest up.
    const first = /accuracy|r2/.test(key);
    this.set({ sort_by: key, descending: again ? !this.model.get("descending") : first });
  }

  place(shown) {
    const ids = shown.map((row) => row.id);
    const kept = new Set(ids);
    for (const [id, line] of this.rows) if (!kept.has(id)) { line.tr.remove(); this.rows.delete(id); }
    const selected = new Set(this.model.get("selected"));
    for (const row of shown) this.refresh(row, selected);
    const hold = this.held && this.order.length === ids.length && this.order.every((id) => kept.has(id));
    if (!hold && (this.order.length !== ids.length || this.order.some((id, i) => id !== ids[i]))) {
      const focused = this.body.contains(document.activeElement) ? document.activeElement : null;
      this.body.append(...ids.map((id) => this.rows.get(id).tr));
      focused?.focus({ preventScroll: true }); // a node that is moved loses the focus
      this.order = ids;
    }
    if (!this.rows.has(this.current)) this.current = this.order[0] ?? null;
    for (const [id, line] of this.rows) this.reachable(line, id === this.current);
  }

  refresh(row, selected) {
    let line = this.rows.get(row.id);
    if (!line) {
      line = this.make(row.id, row);
      this.rows.set(row.id, line);
    }
    row.cells.forEach((text, i) => setText(line.cells[i], text));
    paint(line.swatch, row.swatch);
    line.tr.dataset.state = row.state;
    line.tr.title = row.reason ? `${row.state}: ${row.reason}` : "";
    line.tr.setAttribute("aria-selected", String(selected.has(row.id)));
    line.stop.disabled = !row.stop;
    line.take.disabled = !row.take;
  }

  make(id, row) {
    const tr = element("tr");
    tr.dataset.member = String(id);
    const marks = [];
    const cells = this.columns.map((column) => {
      const td = element("td", column.number ? "hfta-number" : "");
      td.dataset.key = column.key;
      const text = element("span");
      if (column.key === "member") {
        marks.push(swatch(row.swatch));
        td.append(marks[0]);
      }
      td.append(text);
      tr.append(td);
      return text;
    });
    const actions = element("td", "hfta-actions");
    const button = (kind, text, label, title) => {
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
    return { tr, cells, stop, take, swatch: marks[0] };
  }

  // Selection, by pointer and by keyboard.

  reachable(line, yes) {
    for (const node of [line.tr, line.stop, line.take]) node.tabIndex = yes ? 0 : -1;
  }

  clicked(event) {
    const tr = event.target.closest("tr");
    if (tr && !event.target.closest("button")) this.select(Number(tr.dataset.member), event.shiftKey || event.ctrlKey || event.metaKey);
  }

  select(id, several) {
    this.current = id;
    const before = this.model.get("selected");
    let after = before.length === 1 && before[0] === id ? [] : [id];
    if (several) after = before.includes(id) ? before.filter((i) => i !== id) : [...before, id];
    this.set({ selected: after });
  }

  key(event) {
    const tr = event.target.closest("tr");
    if (!tr || event.target !== tr) return;
    const id = Number(tr.dataset.member);
    const at = this.order.indexOf(id);
    const moves = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: this.order.length - 1 };
    if (event.key === " " || event.key === "Enter") this.select(id, event.shiftKey || event.ctrlKey || event.metaKey);
    else if (event.key in moves) this.focus(this.order[Math.min(this.order.length - 1, Math.max(0, moves[event.key]))]);
    else return;
    event.preventDefault();
  }

  focus(id) {
    this.current = id;
    for (const [other, line] of this.rows) this.reachable(line, other === id);
    this.rows.get(id)?.tr.focus();
  }
}

export { compare };

export default {
  render({ model, el, signal }) {
    // Older versions of anywidget give no signal but call what is returned.
    const controller = new AbortController();
    signal?.addEventListener("abort", () => controller.abort());
    new Board(model, el, controller.signal);
    return () => controller.abort();
  },
};
