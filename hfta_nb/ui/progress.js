// How far the run is: a bar with its role and value, and the numbers beside and below it.

function render({ model, el }) {
  const add = (parent, css, attributes = {}) => {
    const made = document.createElement("div");
    made.className = css;
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    parent.append(made);
    return made;
  };
  const line = add(el, "hfta-progress-line");
  const track = add(line, "hfta-track", {
    role: "progressbar", "aria-label": "progress of the run", "aria-valuemin": "0", "aria-valuemax": "100",
  });
  const fill = add(track, "hfta-fill");
  const text = add(line, "hfta-progress-text");
  const details = add(el, "hfta-details");

  const draw = () => {
    const facts = model.get("facts");
    const percent = Math.round(1000 * facts.fraction) / 10;
    fill.style.width = `${percent}%`;
    track.dataset.state = facts.state;
    track.setAttribute("aria-valuenow", String(Math.round(percent)));
    track.setAttribute("aria-valuetext", facts.text || facts.state);
    text.textContent = facts.text;
    const stamp = JSON.stringify(facts.details);
    if (details.dataset.stamp === stamp) return;
    details.dataset.stamp = stamp;
    details.replaceChildren(...facts.details.map((words) => {
      const item = document.createElement("span");
      item.textContent = words;
      return item;
    }));
  };
  model.on("change:facts", draw);
  draw();
  return () => model.off("change:facts", draw);
}

export default { render };
