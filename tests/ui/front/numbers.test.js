import assert from "node:assert/strict";
import { test } from "node:test";

import { formatNumber, formatTime, niceCeiling, quantity } from "../../../hfta_nb/ui/front/numbers.js";

test("numbers keep the digits that matter", () => {
  const texts = [0, 0.123456, 1234.56, 1e-4, 0.00012345, 1.5e7, 123456, NaN, -Infinity].map((v) => formatNumber(v));
  assert.deepEqual(texts, ["0", "0.1235", "1235", "1e-4", "1.23e-4", "1.5e7", "123500", "nan", "-inf"]);
});

test("times are minutes and seconds, and hours where there are", () => {
  assert.deepEqual([0, 0.5, 59.94, 60, 3599.6, 3661, -2].map(formatTime),
    ["0:00", "0:00.5", "0:59.9", "1:00", "1:00:00", "1:01:01", "-0:02"]);
});

test("an axis ends at a round number above", () => {
  assert.deepEqual([1, 1.1, 7, 9, 120].map(niceCeiling), [1, 1.5, 8, 10, 150]);
});

test("measurements have units", () => {
  const say = (key, kind, value) => quantity({ key, kind }, value);
  assert.equal(say("sm_active", "fraction", 0.954), "95%");
  assert.equal(say("memory_bytes", "memory", 41 * 2 ** 30), "41 GiB");
  assert.equal(say("power_w", "other", 612.3), "612 W");
  assert.equal(say("clock_mhz", "other", 1980), "1980 MHz");
  assert.equal(say("other", "other", 2), "2");
  assert.equal(say("power_w", "other", NaN), "–");
});
