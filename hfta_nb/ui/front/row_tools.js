// The tools of the selected rows: they stand below the one that was selected last.

import { element, setText } from "./page.js";

/** @import { Model } from "./types.d.ts" */

/** A button that steers; `steer.py` writes these. @typedef {{ name: string, label: string, title: string, field: string, states: string[], question: string }} Action */
/** The part of a row that is used. @typedef {{ id: number, now: string, take: boolean }} Chosen */

export class RowTools {
  /**
   * @param {Model} model
   * @param {(first: HTMLElement, last: HTMLElement) => void} reveal scrolls the table to rows
   * @param {(id: number) => void} leave gives the focus back to a row
   */
  constructor(model, reveal, leave) {
    this.model = model;
    this.reveal = reveal;
    this.asking = /** @type {Action | null} */ (null); // whose question is shown
    this.asked = ""; // of which members
    this.typed = /** @type {Record<string, string>} */ ({ values: "", epochs: "10" });
    this.buttons = /** @type {[Action, HTMLButtonElement][]} */ ([]);
    this.stamp = "";
    this.anchor = -1;
    this.below = /** @type {HTMLElement | null} */ (null);
    this.who = element("b");
    this.take = this.button("take home", "take", () => model.send({ kind: "take", id: this.selected[0] }));
    this.take.title = "Its best weights as a plain module, and the code that gets them";
    this.refine = this.button("refine", "refine", () => model.send({ kind: "refine", id: this.selected[0] }));
    this.clear = this.button("×", "clear", () => {
      model.set("selected", []);
      model.save_changes();
    });
    this.clear.title = "Select no member";
    this.clear.setAttribute("aria-label", "clear selection");
    this.tr = element("tr", "hfta-row-tools");
    this.td = element("td");
    this.bar = element("div", "", { role: "toolbar", "aria-label": "selected members" });
    this.question = element("div", "hfta-row-question", { role: "alert" });
    this.td.append(this.bar, this.question);
    this.tr.append(this.td);
    this.tr.addEventListener("keydown", (event) => { if (event.key === "Escape") this.asking ? this.confirm(null) : leave(this.anchor); });
    this.confirm(null);
  }

  /** @returns {number[]} */
  get selected() { return this.model.get("selected"); }

  /**
   * Draws them for the selected members, and puts them below their row.
   * @param {Map<number, { tr: HTMLElement }>} lines that are shown
   * @param {Chosen[]} rows
   * @param {Action[]} actions
   * @param {number} columns how many there are
   */
  draw(lines, rows, actions, columns) {
    const chosen = rows.filter((row) => this.selected.includes(row.id));
    const below = lines.get(this.selected.filter((id) => lines.has(id)).at(-1) ?? NaN)?.tr;
    if (!below) {
      this.tr.remove();
      this.below = null;
      return;
    }
    this.anchor = Number(below.dataset.member);
    if (this.asking && this.asked !== String(this.selected)) this.confirm(null);
    this.td.colSpan = Math.max(1, columns);
    this.build(actions);
    setText(this.who, this.names());
    for (const [{ states, title }, button] of this.buttons) {
      button.disabled = !chosen.some((row) => states.includes(row.now));
      const are = [...new Set(chosen.map((row) => row.now.toLowerCase()))].join(", ");
      button.title = button.disabled ? `Not now: ${chosen.length > 1 ? "the selected are" : "it is"} ${are}` : title;
    }
    this.take.disabled = chosen.length !== 1 || !chosen[0].take;
    this.refine.disabled = chosen.length !== 1;
    this.refine.title = this.refine.disabled ? "Not now: select one member" : "Put a finer grid around its values into Define";
    this.take.setAttribute("aria-label", chosen.length === 1 ? `take #${chosen[0].id} home` : "take home");
    this.move(below);
  }

  /** @param {HTMLElement} below */
  move(below) {
    if (below.nextSibling === this.tr) return;
    const focused = this.tr.contains(document.activeElement) ? document.activeElement : null;
    below.after(this.tr);
    if (focused instanceof HTMLElement) focused.focus({ preventScroll: true }); // a node that is moved loses the focus
    if (this.below !== below) this.reveal(below, this.tr);
    this.below = below;
  }

  /** @param {Action[]} actions */
  build(actions) {
    const stamp = JSON.stringify(actions);
    if (this.stamp === stamp) return;
    this.stamp = stamp;
    const button = (/** @type {Action} */ action) => this.button(action.label, action.name, () => this.ask(action));
    this.buttons = actions.map((action) => /** @type {[Action, HTMLButtonElement]} */ ([action, button(action)]));
    const part = (/** @type {string} */ field, /** @type {Node[]} */ ...before) => {
      const made = element("span");
      made.append(...before, ...this.buttons.filter(([action]) => action.field === field).map(([, button]) => button));
      return made;
    };
    const values = this.field("values", { type: "text", placeholder: "lr=3e-4", title: "Values for set and clone: lr=3e-4, weight_decay=0.01" });
    const epochs = this.field("epochs", { type: "number", min: "1", title: "How many more epochs extend gives" });
    const steering = actions.length ? [part("values", values), part("epochs", epochs)] : [];
    this.bar.replaceChildren(part("", this.who), ...steering, part("none", this.take, this.refine, this.clear));
  }

  /** @param {string} label @param {string} name @param {() => void} pressed */
  button(label, name, pressed) {
    const made = element("button", `hfta-row-${name}`, { type: "button" }, label);
    made.addEventListener("click", pressed);
    return made;
  }

  /** @param {string} name @param {Record<string, string>} attributes */
  field(name, attributes) {
    const label = element("label", "", {}, `${name} `);
    const input = element("input", `hfta-row-${name}`, attributes);
    input.value = this.typed[name];
    input.addEventListener("input", () => { this.typed[name] = input.value; });
    label.append(input);
    return label;
  }

  names() { return this.selected.slice(0, 8).map((id) => `#${id}`).join(", ") + (this.selected.length > 8 ? ", ..." : ""); }

  /** Asks a button's question in place of the tools; none where there is none. @param {Action | null} action */
  confirm(action) {
    const before = this.asking;
    this.asking = action;
    this.asked = String(this.selected);
    this.bar.hidden = action !== null;
    this.question.hidden = action === null;
    this.question.replaceChildren();
    if (!action) {
      this.buttons.find(([{ name }]) => name === before?.name)?.[1].focus({ preventScroll: true });
      return;
    }
    const no = this.button("keep", "no", () => this.confirm(null));
    const yes = this.button(action.label, "yes", () => {
      this.confirm(null);
      this.send(action);
    });
    this.question.append(action.question.replace("{members}", this.names()), yes, no);
    no.focus({ preventScroll: true });
  }

  /** @param {Action} action */
  ask(action) { action.question ? this.confirm(action) : this.send(action); }

  /** @param {Action} action */
  send({ name, field }) {
    this.model.send({ kind: "steer", name, members: this.selected, text: this.typed[field] ?? "" });
  }
}
