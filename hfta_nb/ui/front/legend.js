// Which line is which, under the plots: members or the values of an axis, and the device's measurements.

import { element, refill, swatch } from "./page.js";
import { adds } from "./pointer.js";
import { ended } from "./store.js";

/** @import { Store } from "./store.js" */
/** @import { Axis, DeviceLine, Member } from "./types.d.ts" */
/** @import { View } from "./view.js" */

export class Legend {
  /** @param {View} view */
  constructor(view) {
    this.view = view;
    this.members = element("div", "hfta-legend", { role: "group", "aria-label": "Members" });
    this.bar = element("div", "hfta-legend hfta-scale", { role: "group", "aria-label": "Colours" });
    this.device = element("div", "hfta-legend", { role: "group", "aria-label": "Measurements of the device" });
    this.stamp = "";
  }

  refresh() {
    const { view } = this;
    const { layout, members, generation } = view.store;
    const axis = view.colorAxis();
    const few = members.size <= layout.legend;
    // Made anew only where they must be: a button that is replaced loses the focus.
    const stamp = [generation, axis?.name, view.theme.dark].join();
    if (this.stamp !== stamp) {
      this.stamp = stamp;
      this.members.replaceChildren(...(few ? [...members.values()].map((m) => this.chip(m)) : []));
      this.bar.replaceChildren();
      if (axis) this.scaleBar(axis);
      this.members.hidden = !few;
      this.bar.hidden = !axis;
    }
    const chosen = new Set(view.get("selected"));
    for (const button of /** @type {Iterable<HTMLElement>} */ (this.members.children)) {
      const member = members.get(Number(button.dataset.member));
      if (member) refreshChip(button, member, chosen.has(member.id), view.store);
    }
  }

  /**
   * Calls back with what a button stands for while the pointer or the focus is on it, and with null after that.
   * @template T
   * @param {HTMLElement} button
   * @param {T} what
   * @param {(what: T | null) => void} lift
   */
  liftable(button, what, lift) {
    const { signal } = this.view;
    for (const type of ["pointerenter", "focus"]) button.addEventListener(type, () => lift(what), { signal });
    for (const type of ["pointerleave", "blur"]) button.addEventListener(type, () => lift(null), { signal });
    return button;
  }

  /** @param {Member} member */
  chip(member) {
    const { view } = this;
    const button = element("button", "hfta-chip", { type: "button" });
    button.dataset.member = String(member.id);
    const mark = swatch(view.colorOf(member), view.dashOf(member));
    button.append(mark, element("span", "", {}, member.label), element("b"));
    button.addEventListener("click", (e) => view.select(member.id, adds(e)), { signal: view.signal });
    return this.liftable(button, [member.id], (ids) => view.lift(ids));
  }

  /** @param {Axis} axis */
  scaleBar(axis) {
    const { view } = this;
    this.bar.append(element("span", "", {}, axis.name));
    const { members } = view.store;
    // Labels that would not fit are left to the tooltip: some 72 letters have room, and the values drawn from an interval
    // have many.
    const letters = axis.numeric ? 1 + Math.max(0, ...axis.values.map((value) => value.length)) : 0;
    const step = Math.ceil(axis.values.length / Math.min(12, 72 / letters));
    axis.values.forEach((value, i) => {
      const ids = [...members.values()].filter((m) => axis.of[m.place] === i).map((m) => m.id);
      const text = `${axis.name} ${value}: ${ids.length} members; click to select them`;
      const button = element("button", step > 1 ? "hfta-step hfta-wide" : "hfta-step", { type: "button", title: text, "aria-label": text });
      const block = element("i");
      block.style.backgroundColor = view.shades(axis)[i];
      button.append(block, element("span", "", {}, i % step ? "\u00a0" : value));
      button.addEventListener("click", () => view.set("selected", ids), { signal: view.signal });
      this.bar.append(this.liftable(button, ids, (lifted) => view.lift(lifted)));
    });
  }

  refreshDevice() {
    const { device: panel, theme } = this.view;
    const now = panel.chips();
    const devices = panel.devices.length > 1 ? panel.devices : [];
    const stamp = [...devices, panel.shown.length, ...now.map(({ line: l }) => l.measurement), theme.dark].join();
    if (this.device.dataset.stamp !== stamp) {
      this.device.dataset.stamp = stamp;
      refill(this.device, [...devices.map((device) => this.oneDevice(device)), ...now.map(({ line: l }) => this.deviceChip(l))]);
    }
    devices.forEach((device, i) => this.device.children[i].setAttribute("aria-pressed", String(panel.chosen === device)));
    now.forEach(({ text }, i) => {
      const value = this.device.children[devices.length + i].lastChild;
      if (value) value.textContent = text;
    });
  }

  /** A chip that shows one of several devices alone. @param {string} device */
  oneDevice(device) {
    const { view } = this;
    const panel = view.device;
    const name = panel.nameOf(device);
    const button = element("button", "hfta-chip", { type: "button", title: `${name}: click to show it alone, or all again` });
    button.append(swatch(view.theme.muted, panel.dashOfDevice(device)), element("span", "", {}, name));
    button.addEventListener("click", () => {
      panel.chosen = panel.chosen === device ? null : device;
      view.redraw();
    }, { signal: view.signal });
    return this.liftable(button, device, (lifted) => { panel.lifted.device = lifted; view.redraw(); });
  }

  /** @param {DeviceLine} l */
  deviceChip(l) {
    const { view } = this;
    const button = element("button", "hfta-chip", { type: "button", title: `${l.label}: lift its line` });
    button.append(swatch(view.paint(l), view.device.together ? [] : l.dash), element("span", "", {}, l.label), element("b"));
    return this.liftable(button, l.measurement, (key) => { view.device.lifted.measurement = key; view.redraw(); });
  }
}

/** @param {HTMLElement} button @param {Member} member @param {boolean} chosen @param {Store} store */
function refreshChip(button, member, chosen, store) {
  const gone = ended(member), blown = store.blown(member), best = store.run.best === member.id;
  button.setAttribute("aria-pressed", String(chosen));
  const note = gone ? `${member.state} ${member.reason}` : blown || "click to select, with shift to add";
  button.title = `${member.label}: ${note}`;
  button.classList.toggle("hfta-ended", gone);
  button.classList.toggle("hfta-best", best);
  if (button.lastChild) button.lastChild.textContent = gone ? "×" : blown ? "blown up" : best ? "best" : "";
}
