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
    const directory = model.get("directory");
    const saved = directory
      ? ` The run is saved in ${directory}. To go on from there: Workbench.reattach(${JSON.stringify(directory)})`
      : " Run the cell again.";
    gone.textContent = lost ? `Disconnected: the kernel was restarted or has ended.${saved}` : "";
  };
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
  controller.signal.addEventListener("abort", () => {
    observer.disconnect();
    for (const name of names) model.off(`change:${name}`, draw);
  });
  return () => controller.abort();
}

export default { render };
