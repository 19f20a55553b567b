// Code to take away: shown as text, copied by a button.

async function copy(text, box) {
  try {
    await navigator.clipboard.writeText(text);
    return "copied";
  } catch {
    // No permission, or a page without https: select it, so that the keys for copying do the rest.
    const range = document.createRange();
    range.selectNodeContents(box);
    const selection = getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
    return document.execCommand?.("copy") ? "copied" : "selected: press Ctrl+C or Cmd+C";
  }
}

function render({ model, el }) {
  const root = document.createElement("div");
  root.className = "hfta-codebox";
  const head = document.createElement("div");
  head.className = "hfta-code-head";
  const title = document.createElement("span");
  const say = document.createElement("span");
  say.setAttribute("role", "status");
  const make = (text, css, hint) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = css;
    button.textContent = text;
    button.title = hint;
    return button;
  };
  const take = make("copy", "hfta-copy", "Copy the code to the clipboard");
  const close = make("close", "hfta-close", "Hide the code");
  const box = document.createElement("pre");
  box.className = "hfta-code-text";
  box.tabIndex = 0;
  head.append(title, take, close, say);
  root.append(head, box);
  el.append(root);

  const draw = () => {
    title.textContent = model.get("title");
    box.textContent = model.get("code");
    box.setAttribute("aria-label", model.get("title") || "code");
    say.textContent = "";
    root.hidden = !model.get("code");
  };
  take.addEventListener("click", async () => { say.textContent = await copy(model.get("code"), box); });
  close.addEventListener("click", () => {
    model.set("code", "");
    model.save_changes();
  });
  const names = ["title", "code"];
  for (const name of names) model.on(`change:${name}`, draw);
  draw();
  return () => { for (const name of names) model.off(`change:${name}`, draw); };
}

export default { render };
