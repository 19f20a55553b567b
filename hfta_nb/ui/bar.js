// The head of a Workbench. Names come from people: they reach the page by textContent alone.

function element(tag, css = "", attributes = {}, text = "") {
  const made = document.createElement(tag);
  if (css) made.className = css;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text) made.textContent = text;
  return made;
}

/** What the widgets around lack: keys stay with the control that has the focus, and hints for controls with a label. */
function adopt(root, hints, signal) {
  // Without the attribute JupyterLab takes keys that are pressed on a button for its own shortcuts.
  root.setAttribute("data-lm-suppress-shortcuts", "true");
  const hint = (event) => {
    const control = event.target;
    if (!(control instanceof HTMLInputElement || control instanceof HTMLSelectElement)) return;
    const label = control.closest(".jupyter-widgets")?.querySelector("label")?.textContent;
    if (label && hints()[label]) control.title = hints()[label];
  };
  root.addEventListener("pointerover", hint, { signal });
  root.addEventListener("focusin", hint, { signal });
}

/** The part of the page that scrolls, as JupyterLab has it, or the window. */
function frame(root) {
  const outer = root.closest(".jp-WindowedPanel-outer");
  return outer ? outer.getBoundingClientRect() : { top: 0, bottom: innerHeight };
}

/** Scrolls to where the run is to be watched, unless that is on the screen already. */
function scrollTo(root) {
  const train = root.querySelector(".hfta-train") ?? root;
  const seen = frame(root);
  const whole = root.getBoundingClientRect();
  const part = train.getBoundingClientRect();
  const height = Math.min(part.height + 120, seen.bottom - seen.top);
  if (part.top >= seen.top && part.top + height <= seen.bottom) return;
  (whole.height <= seen.bottom - seen.top ? root : train).scrollIntoView({ block: "start" });
}

function render({ model, el, signal }) {
  const controller = new AbortController();
  signal?.addEventListener("abort", () => controller.abort());
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
    if (status.textContent !== model.get("status")) status.textContent = model.get("status");
    status.dataset.level = model.get("level");
    device.textContent = model.get("device");
  };
  const names = ["title", "status", "level", "device"];
  for (const name of names) model.on(`change:${name}`, draw);

  // JupyterLab puts this class on every view whose kernel is gone, and takes it off when it is back.
  const connection = () => {
    const lost = Boolean(el.closest(".jupyter-widgets-disconnected"));
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
    const root = el.closest(".hfta-workbench");
    if (controller.signal.aborted || !model.get("reveal")) return;
    still = root?.offsetHeight && root.offsetHeight === height ? still + 1 : 0;
    height = root?.offsetHeight ?? -1;
    if (frames++ < 180 && still < 6) { requestAnimationFrame(settled); return; }
    model.set("reveal", false);
    model.save_changes();
    if (root) scrollTo(root);
  };
  const reveal = () => { [frames, still, height] = [0, 0, -1]; if (model.get("reveal")) requestAnimationFrame(settled); };
  model.on("change:reveal", reveal);
  const observer = new MutationObserver(connection);
  observer.observe(el, { attributes: true, attributeFilter: ["class"] });
  let tries = 0;
  const attached = () => {
    const root = el.closest(".hfta-workbench");
    if (root) {
      adopt(root, () => model.get("hints"), controller.signal);
      observer.observe(root, { attributes: true, attributeFilter: ["class"] });
      connection();
    } else if (tries++ < 300 && !controller.signal.aborted) requestAnimationFrame(attached);
  };
  attached();
  draw();
  reveal();
  controller.signal.addEventListener("abort", () => {
    observer.disconnect();
    for (const name of names) model.off(`change:${name}`, draw);
    model.off("change:reveal", reveal);
  });
  return () => controller.abort();
}

export default { render };
