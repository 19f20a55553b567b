import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { DevicePanel } from "../../../hfta_nb/ui/front/device.js";
import { Trace } from "../../../hfta_nb/ui/front/trace.js";

const KINDS = { memory_bytes: "memory", process_memory_bytes: "memory", memory_total_bytes: "other", power_w: "power" };

/** The panel of a view that has taken the samples of two GPUs. */
function panel() {
  const device = new Map(), lines = [];
  const samples = readFileSync(new URL("two_gpus.jsonl", import.meta.url), "utf8").trim().split("\n");
  for (const { device: name, time_s: time, values } of samples.map((line) => JSON.parse(line))) {
    for (const [measurement, value] of Object.entries(values)) {
      const further = name === "cuda:0" ? "" : name;
      const key = further ? `${further}/${measurement}` : measurement;
      if (!device.has(key)) {
        device.set(key, new Trace());
        lines.push({ key, device: further, measurement, kind: KINDS[measurement] ?? "fraction", label: measurement, dash: [] });
      }
      device.get(key).add(NaN, device.get(key).n + 1, time - 1_700_000_000, value);
    }
  }
  const store = { device, lines, layout: { device: "cuda:0" } };
  return new DevicePanel({ store, paint: () => "", timeExtent: () => [0, 30], cursorTime: null });
}

test("several devices are drawn together, each with a dash of its own", () => {
  const shown = panel();
  assert.deepEqual(shown.devices, ["", "cuda:1"]);
  assert.equal(shown.lines("fraction").length, 8);
  const dashes = shown.lines("power").map(({ l }) => shown.dashOf(l).join());
  assert.equal(new Set(dashes).size, 2);
  assert.ok(!shown.lines("memory").some(({ l }) => l.measurement === "process_memory_bytes"));
});

test("a chip has the range of several devices, and the value of one that is chosen", () => {
  const shown = panel();
  const text = (name) => shown.chips().find(({ line }) => line.measurement === name).text;
  assert.match(text("sm_active"), /^60% to 96%$/);
  assert.match(text("power_w"), /^3\d\d W to 4\d\d W$/);
  assert.equal(shown.describe().includes("cuda:0, cuda:1"), true);
  shown.chosen = "cuda:1";
  assert.match(text("sm_active"), /^60%$/);
  assert.match(text("memory_bytes"), /^27 GiB of 139$/);
  shown.chosen = "cuda:7"; // a run that has no such device
  assert.equal(shown.chips().length, 6);
});

test("the tooltip has a column per device", () => {
  const shown = panel();
  shown.pointAt(15);
  const { columns, rows } = shown.tip();
  assert.deepEqual(columns, ["cuda:0", "cuda:1"]);
  assert.ok(rows.every(({ cells }) => cells.length === 2));
  assert.deepEqual(rows.find(({ name }) => name === "process_memory_bytes").cells[1], "–");
});

test("power has a strip of its own, where it was measured", () => {
  const shown = panel();
  shown.scene();
  assert.equal(shown.powerTop, 600);
  assert.ok(shown.margin.top > 60);
  shown.view.store.lines = shown.view.store.lines.filter(({ kind }) => kind !== "power");
  shown.scene();
  assert.ok(shown.margin.top < 10);
});
