import assert from "node:assert/strict";
import { test } from "node:test";

import { placed } from "../../../hfta_nb/ui/front/tooltip.js";

test("the tooltip is never under the pointer", () => {
  for (const width of [300, 600, 1400]) {
    for (const box of [{ width: 120, height: 60 }, { width: 280, height: 180 }]) {
      for (let x = 0; x <= width; x += 20) {
        for (let y = 0; y <= 300; y += 20) {
          const { left, top } = placed({ x, y }, box, { width, height: 300 });
          const under = left <= x && x <= left + box.width && top <= y && y <= top + box.height;
          assert.ok(!under, `${[x, y]} lies under ${[left, top]}`);
          assert.ok(left >= 0 && left + box.width <= width);
        }
      }
    }
  }
});
