// Files that the kernel hands to the browser.

/** @import { Model } from "./types.d.ts" */

/** @param {string} name @param {string} type @param {DataView} data */
function save(name, type, { buffer, byteOffset, byteLength }) {
  const address = URL.createObjectURL(new Blob([new Uint8Array(buffer, byteOffset, byteLength).slice()], { type }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000); // some browsers begin to read it later
}

/** What anywidget calls once per page, however many views there are: a file is to come once. @param {{ model: Model }} place */
export function downloads({ model }) {
  const take = (/** @type {{ kind?: string, name: string, type: string }} */ message, /** @type {DataView[]} */ buffers) => {
    if (message.kind === "download") save(message.name, message.type, buffers[0]);
  };
  model.on("msg:custom", take);
  return () => model.off("msg:custom", take);
}
