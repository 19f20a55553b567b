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
  const args = JSON.stringify({ commands: COMMANDS, args: { text: code }, errorIfNotEnabled: true });
  return { "data-commandlinker-command": "apputils:run-all-enabled", "data-commandlinker-args": args };
}

/** @param {string} code */
function insert(code) {
  const button = element("button", "", { ...inserting(code), hidden: "" });
  document.body.append(button);
  button.click();
  button.remove();
}

/** What anywidget calls once per page, however many views there are: each errand is done once. @param {{ model: Model }} place */
export function errands({ model }) {
  const take = (/** @type {any} */ message, /** @type {DataView[]} */ buffers) => {
    if (message.kind === "download") save(message.name, message.type, buffers[0]);
    if (message.kind === "insert") insert(message.code);
  };
  model.on("msg:custom", take);
  return () => model.off("msg:custom", take);
}
