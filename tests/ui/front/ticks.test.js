import assert from "node:assert/strict";
import { test } from "node:test";

import { formatTime } from "../../../hfta_nb/ui/front/numbers.js";
import { ticks } from "../../../hfta_nb/ui/front/ticks.js";

const texts = (...of) => ticks(...of).map((t) => t.text).filter(Boolean);

test("ticks are round numbers", () => {
  assert.deepEqual(texts(0, 1, false, 5, String), ["0", "0.2", "0.4", "0.6", "0.8", "1"]);
  assert.deepEqual(texts(1, 3, false, 5, String, true), ["1", "2", "3"]);
  assert.deepEqual(texts(0, 300, false, 4, formatTime), ["0:00", "2:00", "4:00"]);
});

test("ticks of logarithms are powers of ten, and more where there is room", () => {
  assert.deepEqual(texts(-4, 0, true, 5, (v) => v.toExponential()), ["1e-4", "1e-3", "1e-2", "1e-1", "1e+0"]);
  assert.deepEqual(texts(0, 1.2, true, 5, String), ["1", "2", "5", "10"]);
  assert.deepEqual(texts(-20, 20, true, 4, String), ["1e-20", "1e-10", "1", "10000000000", "100000000000000000000"]);
});
