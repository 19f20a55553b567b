"""Which axes decide."""

from __future__ import annotations

import math
import random

import pytest

from hfta_nb.errors import SearchError
from hfta_nb.search import importances


def tried(count: int = 120) -> list[tuple[dict[str, object], float]]:
    draw = random.Random(3)
    found: list[tuple[dict[str, object], float]] = []
    for _ in range(count):
        config = {"lr": 10 ** draw.uniform(-4, -1), "width": draw.randint(8, 64), "activation": draw.choice(["a", "b"])}
        found.append((config, (math.log10(config["lr"]) + 2) ** 2 + 0.001 * config["width"]))  # type: ignore[arg-type, operator]
    return found


@pytest.mark.parametrize("maximize", [False, True])
def test_the_axis_that_decides_comes_first(maximize: bool) -> None:
    found = importances([(c, -v if maximize else v) for c, v in tried()], maximize, {"lr"})  # type: ignore[misc]
    assert next(iter(found)) == "lr"
    assert found["lr"] > 0.5
    assert sum(found.values()) == pytest.approx(1)
    assert found.keys() == {"lr", "width", "activation"}


def test_what_is_not_finite_or_does_not_vary_or_is_not_everywhere_is_left_out() -> None:
    rows = [(config | {"depth": 2, "dropout": 0.1}, value) for config, value in tried(30)]
    rows += [({"lr": 1.0, "width": 8, "activation": "c", "depth": 2, "dropout": 0.2}, math.nan)]
    rows += [({"lr": 1e-2, "width": 8, "activation": "a", "depth": 2}, 0.3)]
    assert importances(rows, False).keys() == {"lr", "width", "activation"}  # type: ignore[arg-type]
    one = [({"lr": 10.0**-k}, float(k)) for k in range(6)]
    assert importances(one, False) == {"lr": 1.0}


def test_where_nothing_can_be_said() -> None:
    with pytest.raises(SearchError, match="too few configurations have a finite value; got 3; accepted: 4 or more"):
        importances([({"lr": float(k)}, 1.0) for k in range(3)], False)
    with pytest.raises(SearchError, match="no axis varies"):
        importances([({"lr": 0.1}, float(k)) for k in range(6)], False)


def test_values_that_are_all_equal() -> None:
    found = importances([({"lr": float(k), "width": k % 3}, 1.0) for k in range(12)], False)
    assert found.keys() == {"lr", "width"}
    assert all(share == share and 0 <= share <= 1 for share in found.values())
