// The head of a Workbench. Names come from people: they reach the page by textContent alone.

import { keepFocus } from "./focus.js";
import { element, lasting, onTraits, setText } from "./page.js";

/**
 * What the widgets around lack: keys stay with the control that has the focus, and hints for controls with a label.
 * @param {HTMLElement} root
 * @param {() => Record<string, string>} hints
 * @param {AbortSignal} signal
 */
function adopt(root, hints, signal) {
  // Without the attribute JupyterLab takes keys that are pressed on a button for its own shortcuts.
  root.setAttribute("data-lm-suppress-shortcuts", "true");
  const hint = (/** @type {Event} */ event) => {
    const control = event.target;
    if (!(control instanceof HTMLInputElement || control instanceof HTMLSelectElement)) return;
    const label = control.closest(".jupyter-widgets")?.querySelector("label")?.textContent;
    if (label && hints()[label]) control.title = hints()[label];
  };
  root.addEventListener("pointerover", hint, { signal });
  root.addEventListener("focusin", hint, { signal });
}

/** The part of the page that scrolls, as JupyterLab has it, or the window. @param {Element} root */
function frame(root) {
  const outer = root.closest(".jp-WindowedPanel-outer");
  return outer ? outer.getBoundingClientRect() : { top: 0, bottom: innerHeight };
}

const WHOLE = 740; // pixels: a run without its figures, as style.css lays it out

/** Scrolls to the run, all of which is to be seen; where the window is too low, from Train on. @param {Element} root */
function scrollTo(root) {
  const { top, bottom } = frame(root);
  const first = bottom - top >= WHOLE ? root : root.querySelector(".hfta-train") ?? root;
  first.scrollIntoView({ block: "start" });
}

export default { render: lasting(({ model, el, signal }) => {
  const bar = element("div", "hfta-bar");
  const title = element("strong", "hfta-name");
  const status = element("span", "hfta-status", { role: "status", "aria-live": "polite" });
  const device = element("span", "hfta-device-name");
  const link = element("span", "hfta-connection", { title: "Whether this screen still has its kernel" });
  bar.append(title, status, device, link);
  const gone = element("div", "hfta-gone", { role: "alert" });
  el.append(bar, gone);

  const draw = () => {
    title.textContent = model.get("title");
    setText(status, model.get("status"));
    status.dataset.level = model.get("level");
    device.textContent = model.get("device");
  };
  onTraits(model, ["title", "status", "level", "device"], signal, draw);

  // JupyterLab puts this class on every view whose kernel restarts. Of one that was shut down, only its session knows.
  const session = model.widget_manager?.context?.sessionContext;
  const kernel = () => session?.session?.kernel?.id;
  const own = kernel();
  const connection = () => {
    const lost = Boolean(el.closest(".jupyter-widgets-disconnected")) || Boolean(own && kernel() !== own);
    link.textContent = lost ? "disconnected" : "connected";
    link.dataset.lost = String(lost);
    el.closest(".hfta-workbench")?.classList.toggle("hfta-lost", lost);
    if (lost !== Boolean(gone.firstChild)) gone.replaceChildren(...(lost ? farewell() : []));
  };
  const farewell = () => {
    const [directory, [command, args]] = [model.get("directory"), model.get("way_back")];
    const words = "Disconnected: the kernel was restarted or has ended.";
    if (!directory) return [element("span", "", {}, `${words} Run the cell again.`)];
    const call = `Workbench.reattach(${JSON.stringify(directory)})`;
    const kept = model.get("goes_on") ? `goes on without it, unless it had ended, in ${directory}` : `is saved in ${directory}`;
    const saved = element("span", "", {}, `${words} The run ${kept}. To show it again: ${call} `);
    if (!command || !el.closest(".jp-NotebookPanel")) return [saved];
    // A command of JupyterLab's own, as there is no kernel here to ask.
    const attributes = { type: "button", "data-commandlinker-command": command, "data-commandlinker-args": args };
    const title = "Bring the Workbench back with this run, in a cell below";
    return [saved, element("button", "hfta-way-back", { ...attributes, title }, "Reattach")];
  };
  // Once the sections above and below have found their places.
  let [frames, still, height] = [0, 0, -1];
  const settled = () => {
    const root = /** @type {HTMLElement | null} */ (el.closest(".hfta-workbench"));
    if (signal.aborted || !model.get("reveal")) return;
    still = root?.offsetHeight && root.offsetHeight === height ? still + 1 : 0;
    height = root?.offsetHeight ?? -1;
    if (frames++ < 180 && still < 6) { requestAnimationFrame(settled); return; }
    model.set("reveal", false);
    model.save_changes();
    if (root) scrollTo(root);
  };
  const reveal = () => { [frames, still, height] = [0, 0, -1]; if (model.get("reveal")) requestAnimationFrame(settled); };
  onTraits(model, ["reveal"], signal, reveal);
  const observer = new MutationObserver(connection);
  observer.observe(el, { attributes: true, attributeFilter: ["class"] });
  let tries = 0;
  const attached = () => {
    const root = /** @type {HTMLElement | null} */ (el.closest(".hfta-workbench"));
    if (root) {
      adopt(root, () => model.get("hints"), signal);
      keepFocus(root, signal);
      observer.observe(root, { attributes: true, attributeFilter: ["class"] });
      connection();
    } else if (tries++ < 300 && !signal.aborted) requestAnimationFrame(attached);
  };
  attached();
  draw();
  reveal();
  session?.kernelChanged.connect(connection);
  signal.addEventListener("abort", () => {
    observer.disconnect();
    session?.kernelChanged.disconnect(connection);
  });
}) };
