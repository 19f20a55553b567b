// The head of a section. The fold is made here and linked to the body in the front end: it works while the kernel is busy.

import { element, lasting, onTraits, setText } from "./page.js";

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
  const note = element("span", "hfta-since", { role: "status" });
  const actions = element("span", "hfta-head-actions");
  el.append(head, summary, note, actions);

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
    setText(note, model.get("note"));
    const labels = /** @type {string[]} */ (model.get("actions"));
    if (String(labels) !== String([...actions.children].map((made) => made.textContent))) actions.replaceChildren(...labels.map(action));
  };
  const action = (/** @type {string} */ label) => {
    const made = element("button", "", { type: "button" }, label);
    made.addEventListener("click", () => model.send({ action: label }));
    return made;
  };
  const fold = () => {
    const open = !model.get("unfolded");
    model.set("unfolded", open);
    model.set("body_display", open ? "" : "none");
    model.save_changes();
  };
  button.addEventListener("click", fold);
  summary.addEventListener("click", () => { if (!String(getSelection())) fold(); });
  onTraits(model, ["title", "summary", "note", "actions", "unfolded"], signal, draw);
  draw();
}) };
