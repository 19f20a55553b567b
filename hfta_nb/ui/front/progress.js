// How far the run is: a bar with its role and value, and the numbers beside and below it.

import { element, lasting, onTraits } from "./page.js";

/** @typedef {{ fraction: number, state: string, text: string, details: string[], titles?: Record<string, string> }} Facts */

export default { render: lasting(({ model, el, signal }) => {
  const line = element("div", "hfta-progress-line");
  const track = element("div", "hfta-track", {
    role: "progressbar", "aria-label": "progress of the run", "aria-valuemin": "0", "aria-valuemax": "100",
  });
  const fill = element("div", "hfta-fill");
  const text = element("div", "hfta-progress-text");
  const details = element("div", "hfta-details");
  track.append(fill);
  line.append(track, text);
  el.append(line, details);

  const draw = () => {
    const facts = /** @type {Facts} */ (model.get("facts"));
    const percent = Math.round(1000 * facts.fraction) / 10;
    fill.style.width = `${percent}%`;
    track.dataset.state = facts.state;
    track.setAttribute("aria-valuenow", String(Math.round(percent)));
    track.setAttribute("aria-valuetext", facts.text || facts.state);
    text.textContent = facts.text;
    const stamp = JSON.stringify([facts.details, facts.titles]);
    if (details.dataset.stamp === stamp) return;
    details.dataset.stamp = stamp;
    details.replaceChildren(...facts.details.map((words) => element("span", "", { title: facts.titles?.[words] ?? "" }, words)));
  };
  onTraits(model, ["facts"], signal, draw);
  draw();
}) };
