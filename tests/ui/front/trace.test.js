import assert from "node:assert/strict";
import { test } from "node:test";

import { nearest, smooth, Trace } from "../../../hfta_nb/ui/front/trace.js";

test("a resumed run drops the points after its checkpoint", () => {
  const trace = new Trace();
  for (const step of [1, 2, 3, 4, 5, 3, 4]) trace.add(step, step, step, step);
  assert.deepEqual([...trace.step.subarray(0, trace.n)], [1, 2, 3, 4]);
});

test("a curve grows and keeps its points", () => {
  const trace = new Trace();
  for (let i = 0; i < 1000; i++) trace.add(i, i, i / 2, -i);
  assert.equal(trace.n, 1000);
  assert.deepEqual([trace.epoch[999], trace.step[500], trace.time[999], trace.value[1]], [999, 500, 499.5, -1]);
});

test("smoothing starts unbiased and skips nan", () => {
  assert.deepEqual([...smooth([4, NaN, 2], 3, 0.5)], [4, NaN, (0.5 * 0.5 * 4 + 0.5 * 2) / 0.75]);
});

test("the nearest point is found", () => {
  const xs = Float64Array.of(0, 1, 4, 9);
  assert.deepEqual([-5, 0.4, 0.6, 2.6, 7, 99].map((x) => nearest(xs, 4, x)), [0, 0, 1, 2, 3, 3]);
  assert.equal(nearest(xs, 2, 99), 1);
});
