// Elements of the page, and how long a view lasts. Names come from people: they reach the page by textContent alone.

/** @import { Model, Place } from "./types.d.ts" */

const FOCUSABLE = new Set(["canvas", "button", "select", "input"]);

/**
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {string} [css]
 * @param {Record<string, string>} [attributes]
 * @param {string} [text]
 * @returns {HTMLElementTagNameMap[T]}
 */
export function element(tag, css = "", attributes = {}, text = "") {
  const made = document.createElement(tag);
  // JupyterLab takes keys for its own shortcuts ("d" twice deletes the cell) unless the very element that has the
  // focus says no; on an element around it this has no effect.
  if (FOCUSABLE.has(tag)) made.setAttribute("data-lm-suppress-shortcuts", "true");
  if (css) made.className = css;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

/** A short stroke, as in a legend: its line and all; `css` names its class. @param {string} css */
export function strokeMark(css = "") {
  const svg = drawn("svg", { width: "18", height: "8", "aria-hidden": "true", ...(css && { class: css }) });
  const stroke = drawn("line", { x1: "0", y1: "4", x2: "18", y2: "4", "stroke-width": "2.5" });
  svg.append(stroke);
  return { svg, stroke };
}

/** A stroke of this colour. @param {string} color @param {number[]} dash */
export function swatch(color, dash) {
  const { svg, stroke } = strokeMark();
  stroke.setAttribute("stroke", color);
  stroke.setAttribute("stroke-dasharray", dash.join(" "));
  return svg;
}

/**
 * An element of a drawing.
 * @template {keyof SVGElementTagNameMap} T
 * @param {T} tag
 * @param {Record<string, string>} [attributes]
 * @param {string} [text]
 * @returns {SVGElementTagNameMap[T]}
 */
export function drawn(tag, attributes = {}, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

/** Other children; the button that has the focus keeps it, by its place. @param {HTMLElement} box @param {HTMLElement[]} children */
export function refill(box, children) {
  const buttons = () => [...box.querySelectorAll("button")];
  const focused = buttons().findIndex((button) => button === document.activeElement);
  box.replaceChildren(...children);
  buttons()[focused]?.focus({ preventScroll: true });
}

/** Writes a text, unless it stands there already. @param {Node} node @param {string} text */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/**
 * Calls back when one of these traits changes, until the view ends.
 * @param {Model} model
 * @param {string[]} names
 * @param {AbortSignal} signal
 * @param {(name: string) => void} callback
 */
export function onTraits(model, names, signal, callback) {
  for (const name of names) {
    const changed = () => callback(name);
    model.on(`change:${name}`, changed);
    signal.addEventListener("abort", () => model.off(`change:${name}`, changed));
  }
}

/**
 * What anywidget calls for each view. Older versions of it give no signal but call what is returned.
 * @param {(place: { model: Model, el: HTMLElement, signal: AbortSignal }) => void} show
 */
export function lasting(show) {
  return (/** @type {Place} */ { model, el, signal }) => {
    const controller = new AbortController();
    signal?.addEventListener("abort", () => controller.abort());
    show({ model, el, signal: controller.signal });
    return () => controller.abort();
  };
}
