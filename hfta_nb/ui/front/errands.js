// What the kernel asks of the page around a widget: to save a file, or to put code into a cell.

import { element } from "./page.js";

/** @import { Model } from "./types.d.ts" */

const COMMANDS = ["notebook:insert-cell-below", "notebook:replace-selection"];

/** @param {string} name @param {string} type @param {DataView} data */
function save(name, type, { buffer, byteOffset, byteLength }) {
  const address = URL.createObjectURL(new Blob([new Uint8Array(buffer, byteOffset, byteLength).slice()], { type }));
  element("a", "", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000); // some browsers begin to read it later
}

/** The attributes by which JupyterLab puts code into a new cell below when an element is clicked. @param {string} code */
export function inserting(code) {
  const args = JSON.stringify({ commands: COMMANDS, args: { text: code.trimEnd() }, errorIfNotEnabled: true });
  return { "data-commandlinker-command": "apputils:run-all-enabled", "data-commandlinker-args": args };
}

/**
 * Does what the kernel asks for, once, however many views there are.
 * @param {Model} model
 * @param {AbortSignal} signal
 * @param {HTMLElement} cell what inserts the code when it is clicked: JupyterLab asks first where that is no part of the notebook
 */
export function errands(model, signal, cell) {
  const take = (/** @type {any} */ message, /** @type {DataView[]} */ buffers) => {
    if (message.done) return; // by another view, which gets the same message
    message.done = true;
    if (message.kind === "download") save(message.name, message.type, buffers[0]);
    if (message.kind === "insert") cell.click();
  };
  model.on("msg:custom", take);
  signal.addEventListener("abort", () => model.off("msg:custom", take));
}
