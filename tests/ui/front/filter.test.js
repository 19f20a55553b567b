import assert from "node:assert/strict";
import { test } from "node:test";

import { fits, parsed } from "../../../hfta_nb/ui/front/filter.js";

const columns = [
  { key: "member", label: "member" },
  { key: "state", label: "state" },
  { key: "metric:val_accuracy", label: "val accuracy" },
  { key: "axis:lr", label: "lr" },
  { key: "axis:width", label: "width" },
  { key: "axis:act", label: "act" },
];
const rows = [
  { cells: ["#0", "RUNNING", "0.9001", "0.001", "8", "relu"], keys: [0, "RUNNING", 0.90012, 0.001, 8, "relu"] },
  { cells: ["#1", "DIVERGED", "nan", "0.1", "16", "relu"], keys: [1, "DIVERGED", null, 0.1, 16, "relu"] },
  { cells: ["#2", "RUNNING", "0.9512", "0.05", "16", "tanh"], keys: [2, "RUNNING", 0.95121, 0.05, 16, "tanh"] },
  { cells: ["#3", "STOPPED", "-", "0.06", "32", "in:out"], keys: [3, "STOPPED", null, 0.06, 32, "in:out"] },
];

function found(query) {
  const { terms, problem } = parsed(query, columns, rows);
  const ids = rows.filter((row) => fits(row, terms)).map((row) => row.keys[0]);
  return problem ? [ids, problem] : ids;
}

test("numbers of a column are compared", () => {
  assert.deepEqual(found("lr>0.05"), [1, 3]);
  assert.deepEqual(found("lr >= 5e-2"), [1, 2, 3]);
  assert.deepEqual(found("lr<0.05"), [0]);
  assert.deepEqual(found("val_accuracy<=0.96, width<=16"), [0, 2]); // what has no value is neither more nor less
  assert.deepEqual(found("val accuracy > 0.95"), [2]);
  assert.deepEqual(found("LR=1e-1"), [1]);
  assert.deepEqual(found("width!=16"), [0, 3]);
  assert.deepEqual(found("member=#2"), [2]);
  assert.deepEqual(found("member:2"), [2]);
});

test("words of a column are whole, case does not matter", () => {
  assert.deepEqual(found("state:running"), [0, 2]);
  assert.deepEqual(found("state = RUNNING act=tanh"), [2]);
  assert.deepEqual(found("act=rel"), []);
});

test("one of several values", () => {
  assert.deepEqual(found("width in 8,16"), [0, 1, 2]);
  assert.deepEqual(found("width in 8, 32 state:running"), [0]);
  assert.deepEqual(found("state in stopped,diverged lr<0.1"), [3]);
});

test("plain words stand in any cell", () => {
  assert.deepEqual(found("relu 0.1"), [1]);
  assert.deepEqual(found("  RELU,  running "), [0]);
  assert.deepEqual(found("in:out"), [3]);
  assert.deepEqual(found(""), [0, 1, 2, 3]);
  assert.deepEqual(found("(a|b)+["), []);
});

test("a condition that is being typed asks for nothing", () => {
  for (const query of ["lr>", "lr >= ", "width in", "width in "]) assert.deepEqual(found(query), [0, 1, 2, 3], query);
});

test("what can't be meant is said", () => {
  const all = "member, state, val accuracy, lr, width, act";
  assert.deepEqual(found("wdth=8"), [[], `no column wdth; there are ${all}`]);
  assert.deepEqual(found("decay in 1,2"), [[], `no column decay; there are ${all}`]);
  assert.deepEqual(found("lr>high"), [[], "high is not a number"]);
  assert.equal(parsed("lr=1", [], []).problem, "no column lr; there are ");
});
