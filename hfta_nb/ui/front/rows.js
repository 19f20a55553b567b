// A table of rows that are sorted, filtered, and walked through by keys: the leaderboard, and the list of runs.

import { element, setText } from "./page.js";

/** @import { Model } from "./types.d.ts" */

/** @typedef {string | number | null} Key */

/** @param {Key | undefined} key @returns {key is null | undefined | ""} */
const missing = (key) => key === null || key === undefined || key === "";

/** Order of two sort keys; what is missing comes last, whichever way the column is sorted. @param {Key | undefined} a @param {Key | undefined} b @param {number} sign */
export function compare(a, b, sign) {
  if (missing(a)) return missing(b) ? 0 : 1;
  if (missing(b)) return -1;
  if (typeof a === "number" && typeof b === "number") return sign * (a - b);
  return sign * String(a).localeCompare(String(b), undefined, { numeric: true });
}

/**
 * What both tables do. Which elements a row has, and what they show, is theirs: `make` and `refresh`.
 * @template {string | number} Id
 * @template {{ id: Id, keys: Key[] }} R
 * @template {{ tr: HTMLElement }} L
 */
export class Rows {
  /** @param {Model} model @param {AbortSignal} signal @param {string} css @param {string} name @param {HTMLInputElement} filter */
  constructor(model, signal, css, name, filter) {
    this.model = model;
    this.signal = signal;
    this.lines = /** @type {Map<Id, L>} */ (new Map());
    this.order = /** @type {Id[]} */ ([]);
    this.current = /** @type {Id | null} */ (null); // the row that the keyboard is on
    this.filter = filter;
    this.count = element("span", "hfta-count", { "aria-live": "polite" });
    this.table = element("table", css, { role: "grid", "aria-multiselectable": "true", "aria-label": name });
    this.head = element("thead");
    this.body = element("tbody");
    this.table.append(this.head, this.body);
    this.on(filter, "input", () => this.set({ query: filter.value }));
  }

  /** The elements of a row that is shown for the first time. @param {Id} id @returns {L} */
  make(id) { throw new Error(`no elements for ${id}`); }

  /** Shows what a row has now. @param {R} row @param {boolean} selected */
  refresh(row, selected) { this.line(row.id).tr.setAttribute("aria-selected", String(selected)); }

  /** Whether Tab leads to a row. @param {L} line @param {boolean} yes */
  reachable(line, yes) { line.tr.tabIndex = yes ? 0 : -1; }

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

  /** The filter's text, which another view may have typed. */
  query() {
    const query = /** @type {string} */ (this.model.get("query"));
    if (document.activeElement !== this.filter && this.filter.value !== query) this.filter.value = query;
    return query;
  }

  /** The rows by the column that sorts them; equal ones keep their places. @param {R[]} rows @param {{ key: string }[]} columns */
  sorted(rows, columns) {
    const at = columns.findIndex((column) => column.key === this.model.get("sort_by"));
    const sign = this.model.get("descending") ? -1 : 1;
    return at < 0 ? rows : [...rows].sort((a, b) => compare(a.keys[at], b.keys[at], sign));
  }

  /** Sorts by a column, or the other way round. @param {string} key @param {boolean} largestFirst */
  sort(key, largestFirst) {
    const again = this.model.get("sort_by") === key;
    this.set({ sort_by: key, descending: again ? !this.model.get("descending") : largestFirst });
  }

  /** Says in the head which column sorts. */
  markSorted() {
    for (const th of /** @type {NodeListOf<HTMLElement>} */ (this.head.querySelectorAll("th[data-key]"))) {
      const sorts = th.dataset.key === this.model.get("sort_by");
      th.setAttribute("aria-sort", sorts ? (this.model.get("descending") ? "descending" : "ascending") : "none");
    }
  }

  /** Shows these rows in this order; `held`: in the order that they have, if they are the same. @param {R[]} rows @param {boolean} [held] */
  place(rows, held = false) {
    const ids = rows.map((row) => row.id);
    const kept = new Set(ids);
    for (const [id, line] of this.lines) if (!kept.has(id)) { line.tr.remove(); this.lines.delete(id); }
    const selected = /** @type {Set<Id>} */ (new Set(this.model.get("selected")));
    for (const row of rows) this.refresh(row, selected.has(row.id));
    const hold = held && this.order.length === ids.length && this.order.every((id) => kept.has(id));
    if (!hold && (this.order.length !== ids.length || this.order.some((id, i) => id !== ids[i]))) {
      const focused = this.body.contains(document.activeElement) ? document.activeElement : null;
      this.body.append(...ids.map((id) => this.line(id).tr));
      if (focused instanceof HTMLElement) focused.focus({ preventScroll: true }); // a node that is moved loses the focus
      this.order = ids;
    }
    if (this.current === null || !this.lines.has(this.current)) this.current = this.order[0] ?? null;
    this.reach();
  }

  /** What stands for a row that is shown. @param {Id} id */
  line(id) {
    const line = this.lines.get(id) ?? this.make(id);
    this.lines.set(id, line);
    return line;
  }

  reach() {
    for (const [id, line] of this.lines) this.reachable(line, id === this.current);
  }

  /** Goes to another row, if the key says so. @param {string} key @param {Id} from */
  walk(key, from) {
    const at = this.order.indexOf(from);
    const last = this.order.length - 1;
    const moves = /** @type {Record<string, number>} */ ({ ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: last });
    if (!(key in moves)) return false;
    this.focus(this.order[Math.min(last, Math.max(0, moves[key]))]);
    return true;
  }

  /** @param {Id} id */
  focus(id) {
    this.current = id;
    this.reach();
    this.lines.get(id)?.tr.focus();
  }

  /** @param {string} text */
  tell(text) { setText(this.count, text); }
}
