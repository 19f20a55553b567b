// The controls above the plots, each one bound to a trait.

import { element } from "./page.js";

/** @import { View } from "./view.js" */

/** @typedef {[value: string, text: string][]} Options */

export class Toolbar {
  /** @param {View} view */
  constructor(view) {
    this.view = view;
    this.box = element("div", "hfta-toolbar", { role: "toolbar", "aria-label": "What the curves show" });
    this.choices = /** @type {Map<string, HTMLSelectElement>} */ (new Map());
    this.toggles = /** @type {Map<string, HTMLButtonElement>} */ (new Map());
    this.choice("metric", "metric", "The metric to draw");
    /** @type {Options} */
    const splits = [["both", "both"], ["train", "training"], ["validation", "validation"]];
    this.choice("split", "show", "Curves of training, of validation, or both", splits);
    this.choice("x_axis", "x", "Horizontal axis", [["epoch", "epoch"], ["step", "step"], ["time", "time"]]);
    this.toggle("log_x", "log x", "Logarithmic horizontal axis");
    this.toggle("log_y", "log y", "Logarithmic vertical axis");
    this.range = this.slider();
    this.amount = element("output");
    this.range.parentElement?.append(this.amount);
    this.choice("color_by", "colour by", "What colours show: members, or the values of an axis of the grid");
    const title = "Reset the zoom (also by double click)";
    const reset = element("button", "", { type: "button", title }, "reset zoom");
    reset.addEventListener("click", () => view.resetZoom(), { signal: view.signal });
    this.reset = reset;
    const whole = "Let the vertical axis show all of the selected members' curves";
    this.fit = element("button", "", { type: "button", title: whole }, "fit to selection");
    this.fit.addEventListener("click", () => view.fitSelection(), { signal: view.signal });
    this.status = element("span", "hfta-status");
    this.box.append(this.fit, reset, this.status);
  }

  /** @param {string} text @param {string} title @param {HTMLElement} control */
  labelled(text, title, control) {
    const label = element("label", "", { title });
    label.append(element("span", "", {}, text), control);
    this.box.append(label);
  }

  /** @param {string} trait @param {string} text @param {string} title @param {Options} [options] */
  choice(trait, text, title, options = []) {
    const select = element("select", "", { title, "aria-label": text });
    this.choices.set(trait, select);
    select.dataset.trait = trait;
    this.fill(trait, options);
    select.addEventListener("change", () => this.view.set(trait, select.value), { signal: this.view.signal });
    this.labelled(text, title, select);
  }

  /** @param {string} trait @param {Options} options */
  fill(trait, options) {
    const select = this.choices.get(trait);
    if (!select) return;
    const stamp = JSON.stringify(options);
    if (select.dataset.options !== stamp) {
      select.replaceChildren(...options.map(([value, text]) => element("option", "", { value }, text)));
      select.dataset.options = stamp;
    }
    select.value = this.view.get(trait);
  }

  /** @param {string} trait @param {string} text @param {string} title */
  toggle(trait, text, title) {
    const button = element("button", "", { type: "button", title, "aria-pressed": "false" }, text);
    button.dataset.trait = trait;
    this.toggles.set(trait, button);
    button.addEventListener("click", () => this.view.set(trait, !this.view.get(trait)), { signal: this.view.signal });
    this.box.append(button);
  }

  slider() {
    const title = "Exponential smoothing: the weight of the past";
    const attributes = { type: "range", min: "0", max: "0.99", step: "0.01", title, "aria-label": "smooth" };
    const range = element("input", "", attributes);
    range.dataset.trait = "smoothing";
    const { view } = this;
    range.addEventListener("input", () => view.set("smoothing", Number(range.value)), { signal: view.signal });
    this.labelled("smooth", title, range);
    return range;
  }

  refresh() {
    const { view } = this;
    const { layout } = view.store;
    this.fill("metric", layout.metrics.map((m) => [m.name, m.label]));
    const many = layout.members.length > layout.legend && layout.axes.length > 0;
    /** @type {Options} */
    const axes = layout.axes.map((a) => [a.name, a.name]);
    this.fill("color_by", many ? axes : [["", "member"], ...axes]);
    for (const [trait, select] of this.choices) {
      select.value = trait === "color_by" ? view.colorAxis()?.name ?? "" : view.get(trait);
    }
    for (const [trait, button] of this.toggles) button.setAttribute("aria-pressed", String(view.get(trait)));
    this.fit.hidden = !view.get("selected").length;
    this.range.value = view.get("smoothing");
    this.amount.textContent = view.get("smoothing").toFixed(2);
  }
}
