import assert from "node:assert/strict";
import { test } from "node:test";

import { extent, offScale, pad, settledEnd, wholeExtent } from "../../../hfta_nb/ui/front/limits.js";
import { Trace } from "../../../hfta_nb/ui/front/trace.js";

/** One series of each row of values; ids are the rows' numbers. */
function series(...rows) {
  return rows.map((values, id) => {
    const trace = new Trace();
    values.forEach((v, i) => trace.add(i + 1, i + 1, i, v));
    return { member: { id }, trace, ys: trace.value, xs: trace.epoch };
  });
}

const near = (got, wanted) => got.forEach((v, i) => assert.ok(Math.abs(v - wanted[i]) < 1e-5, `${got} is not ${wanted}`));

test("hopeless members do not squash the others", () => {
  const good = [[2.3, 1, 0.5], [2.4, 0.8, 0.2], [2.2, 1.5, 1.1]];
  near(extent(series(...good, [1e5, 2e5, 3e5]), false, 1), [0.2, 2.4]);
  near(extent(series(...good, [1e5, 2e5, 3e5], [2.3, 900, 1e6], [7e4, 7e4, 7e4]), false, 1), [0.2, 2.4]);
  near(extent(series(...good, [-1e5, -2e5, -3e5]), false, 1), [0.2, 2.4]);
});

test("the best member is never cut, however it began", () => {
  near(extent(series([2, 1, 0.5], [900, 5, 0.1], [2, 1, 0.6], [2, 1, 0.7]), false, 1), [0.1, 900]);
});

test("members that merely lie apart are all shown", () => {
  near(extent(series([1, 1], [2, 2], [3, 3], [4, 4]), false, 0), [1, 4]);
  near(extent(series(...Array.from({ length: 40 }, (_, i) => [i + 1, i + 1])), false, 0), [1, 40]);
  near(extent(series([0.1, 0.98], [0.1, 0.1], [0.5, 0.6]), false, 0), [0.1, 0.98]);
});

test("before anyone is the best, the middle one is", () => {
  near(extent(series([2.3, 2.2], [2.4, 2.1], [1e5, 1e6]), false, null), [2.1, 2.4]);
});

test("a logarithmic axis has limits as well", () => {
  near(extent(series([1, 0.1, 0.01], [1, 0.2, 0.1], [1, 1e5, 1e30]), true, 0), [-2, 0]);
  near(extent(series([1, 0.1, 0.01], [1, 0.2, 0.1], [1, 10, 100]), true, 0), [-2, 2]);
});

test("what can't be drawn counts for nothing", () => {
  near(extent(series([NaN, 1, 2], [Infinity, 1, NaN]), false, 0), [1, 2]);
  assert.deepEqual(pad(extent(series([NaN]), false, 0), false, 0.04), [0, 1]);
  assert.deepEqual(pad(extent([], true, null), true, 0.04), [-3, 0]);
});

test("what is off scale is counted by member", () => {
  const found = offScale(series([1, 2], [1, 1e5], [3, 2e5], [-9, 1]), [0, 4], false);
  assert.deepEqual(found, { above: { count: 2, far: 2e5 }, below: { count: 1, far: -9 } });
});

test("a selection is shown whole", () => {
  near(wholeExtent(series([1, 2], [5, 1e5]), false), [1, 1e5]);
});

test("an axis of time ends where it can stay for a while", () => {
  assert.deepEqual([10, 10.1, 61, 100].map(settledEnd), [10, 12.5, 80, 100]);
});
