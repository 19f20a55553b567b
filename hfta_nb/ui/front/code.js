// What is taken away: code, which buttons copy and put into a cell, and files.

import { errands, inserting } from "./errands.js";
import { element, lasting, onTraits } from "./page.js";

/** @param {string} text @param {HTMLElement} box @returns {Promise<string>} */
async function copy(text, box) {
  try {
    await navigator.clipboard.writeText(text);
    return "copied";
  } catch {
    // No permission, or a page without https: select it, so that the keys for copying do the rest.
    const range = document.createRange();
    range.selectNodeContents(box);
    const selection = getSelection();
    selection?.removeAllRanges();
    selection?.addRange(range);
    return document.execCommand?.("copy") ? "copied" : "selected: press Ctrl+C or Cmd+C";
  }
}

export default { render: lasting(({ model, el, signal }) => {
  const root = element("div", "hfta-codebox");
  const head = element("div", "hfta-code-head");
  const title = element("span");
  const say = element("span", "", { role: "status" });
  const hint = "Copy the code to the clipboard";
  const take = element("button", "hfta-copy", { type: "button", title: hint }, "copy");
  const cell = element("button", "hfta-insert", { type: "button", title: "Put the code into a new cell below" }, "insert below");
  const close = element("button", "hfta-close", { type: "button", title: "Hide the code" }, "close");
  const box = element("pre", "hfta-code-text", { tabindex: "0" });
  head.append(title, take, cell, close, say);
  root.append(head, box);
  el.append(root);

  const draw = () => {
    title.textContent = model.get("title");
    box.textContent = model.get("code");
    box.setAttribute("aria-label", model.get("title") || "code");
    say.textContent = "";
    root.hidden = !model.get("code");
    for (const [name, value] of Object.entries(inserting(model.get("code")))) cell.setAttribute(name, value);
    cell.hidden = !document.querySelector(".jp-NotebookPanel"); // whose commands do it
  };
  take.addEventListener("click", async () => { say.textContent = await copy(model.get("code"), box); });
  close.addEventListener("click", () => {
    model.set("code", "");
    model.save_changes();
  });
  onTraits(model, ["title", "code"], signal, draw);
  errands(model, signal, cell);
  draw();
}) };
