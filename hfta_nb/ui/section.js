// The head of a section. The fold is made here and linked to the body in the front end: it works while the kernel is busy.

let made = 0;

function render({ model, el }) {
  const head = document.createElement("h3");
  head.className = "hfta-head";
  const button = document.createElement("button");
  button.type = "button";
  button.className = "hfta-fold";
  const title = document.createElement("span");
  title.className = "hfta-title-text";
  const summary = document.createElement("span");
  summary.className = "hfta-summary";
  summary.id = `hfta-summary-${++made}`;
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
  const names = ["title", "summary", "unfolded"];
  for (const name of names) model.on(`change:${name}`, draw);
  draw();
  return () => { for (const name of names) model.off(`change:${name}`, draw); };
}

export default { render };
