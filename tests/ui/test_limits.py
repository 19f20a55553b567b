"""Figures and the live view leave the same values out."""

from __future__ import annotations

import random

import numpy as np

from hfta_nb.figures.limits import extent
from tests.node import result

CALL = """given.map((curves) => module.extent(curves.map(({ best, values }, id) => (
  { member: { id: best ? 0 : id + 1 }, ys: values, trace: { n: values.length } })), false, 0))"""


def made_up(chance: random.Random) -> list[dict[str, object]]:
    """Curves that fall, some of which are lost, and a best one or none."""
    curves: list[dict[str, object]] = []
    best = chance.choice([None, 0, 2])
    for i in range(chance.randint(1, 12)):
        begin, factor = chance.uniform(-3, 3), chance.choice([1, 1, 1, 50, 1e5])
        values = [float(np.float32(factor * begin * chance.random())) for _ in range(chance.randint(1, 6))]
        curves.append({"best": i == best, "values": values})
    return curves


def test_both_languages_agree() -> None:
    chance = random.Random(3)
    cases = [made_up(chance) for _ in range(300)]
    found = result("limits.js", CALL, cases)
    assert [tuple(limits) for limits in found] == [extent([(c["best"], c["values"]) for c in case]) for case in cases]  # type: ignore[misc]
