// The head of a section. The fold is made here and linked to the body in the front end: it works while the kernel is busy.

import { element, lasting, onTraits } from "./page.js";

let made = 0;

export default { render: lasting(({ model, el, signal }) => {
  const head = element("h3", "hfta-head");
  const button = element("button", "hfta-fold", { type: "button" });
  const title = element("span", "hfta-title-text");
  const summary = element("span", "hfta-summary", { id: `hfta-summary-${++made}` });
  button.setAttribute("aria-describedby", summary.id);
  button.append(title);
  head.append(button);
  el.classList.add("hfta-section-head");
  el.append(head, summary);

  const draw = () => {
    const open = model.get("unfolded");
    title.textContent = model.get("title");
    // Not its bare title: the section Train is not the button Train.
    button.setAttribute("aria-label", `${model.get("title")} section`);
    button.setAttribute("aria-expanded", String(open));
    button.title = open ? "Fold this section to one line" : "Unfold this section";
    summary.textContent = model.get("summary");
    summary.title = model.get("summary");
    summary.hidden = open;
    el.dataset.open = String(open);
  };
  const fold = () => {
    const open = !model.get("unfolded");
    model.set("unfolded", open);
    model.set("body_display", open ? "" : "none");
    model.save_changes();
  };
  button.addEventListener("click", fold);
  summary.addEventListener("click", () => { if (!String(getSelection())) fold(); });
  onTraits(model, ["title", "summary", "unfolded"], signal, draw);
  draw();
}) };
