import assert from "node:assert/strict";
import { test } from "node:test";

import { moved, nearestLine, picked, withinAll } from "../../../hfta_nb/ui/front/groups.js";
import { rulerTicks } from "../../../hfta_nb/ui/front/parallel.js";

test("members that are pressed are selected alone, or join the others and leave them", () => {
  assert.deepEqual(picked([], [1, 2], false), [1, 2]);
  assert.deepEqual(picked([7, 1], [1, 2], false), [1, 2]);
  assert.deepEqual(picked([2, 1], [1, 2], false), []);
  assert.deepEqual(picked([7, 1], [1, 2], true), [7, 1, 2]);
  assert.deepEqual(picked([7, 1, 2], [1, 2], true), [7]);
  assert.deepEqual(picked([7], [], false), []);
  assert.deepEqual(picked([7], [], true), [7]);
});

test("a line is selected where it lies within all brushes", () => {
  const brushes = new Map([[0, [0.2, 0.5]], [2, [0.9, 1]]]);
  assert.ok(withinAll([0.3, 0, 0.95], brushes));
  assert.ok(withinAll([0.3, 0, 1.000001], brushes)); // the end of a ruler, as it is computed
  assert.ok(!withinAll([0.3, 0, 0.8], brushes));
  assert.ok(!withinAll([0.6, 0, 0.95], brushes));
  assert.ok(!withinAll([null, 0, 0.95], brushes)); // it has no such axis
});

test("a brush that is moved by keys stays on its ruler", () => {
  const near = (got, wanted) => got.forEach((v, i) => assert.ok(Math.abs(v - wanted[i]) < 1e-9, `${got}`));
  near(moved([0.1, 0.3], 0.1, false), [0.2, 0.4]);
  near(moved([0.75, 0.95], 0.1, false), [0.8, 1]);
  near(moved([0.05, 0.25], -0.1, false), [0, 0.2]);
  near(moved([0.1, 0.3], 0.1, true), [0.1, 0.4]);
  near(moved([0.1, 0.15], -0.1, true), [0.1, 0.15]); // never empty
});

test("the pointer finds the line between two rulers", () => {
  const lines = [{ at: [0, 1, 0.2] }, { at: [1, 0, 0.2] }, { at: [null, 0.5, 0.5] }];
  const y = (share) => 100 * (1 - share);
  const found = (x, at) => lines.indexOf(nearestLine(lines, [0, 100, 200], y, { x, y: at }, 8));
  assert.equal(found(20, 80), 0);
  assert.equal(found(20, 20), 1);
  assert.equal(found(20, 50), -1);
  assert.equal(found(150, 50), 2);
});

test("a ruler has its values as ticks where they are few, and round numbers otherwise", () => {
  const few = [...Array(30).keys()].map((i) => [i / 29, `v${i}`]);
  assert.equal(rulerTicks({ low: 0, high: 29, log: false, few }).length, 15);
  const close = [[0, "0.1"], [0.3, "0.2"], [0.31, "0.21"], [1, "0.4"]];
  assert.deepEqual(rulerTicks({ low: 0.1, high: 0.4, log: false, few: close }).map(([, text]) => text), ["0.1", "0.2", "0.4"]);
  const found = rulerTicks({ low: -4, high: -1, log: true, few: [] }).filter(([, text]) => text);
  assert.deepEqual(found.map(([, text]) => text), ["1e-4", "0.001", "0.01", "0.1"]);
  assert.ok(Math.abs(found[1][0] - 1 / 3) < 1e-9);
});
