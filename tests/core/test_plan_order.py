"""The order in which a plan groups variants: equal architectures first, then those that can be padded."""

from __future__ import annotations

from typing import Any

import pytest

import hfta_nb as hfta


@pytest.mark.parametrize("grid", [{"lr": [1e-3, 1e-2], "width": [16, 32]}, {"width": [16, 32], "lr": [1e-3, 1e-2]}])
def test_architectures_are_whole_before_any_is_padded(grid: dict[str, Any]) -> None:
    """Variant by variant, two of the wider one would leave no room for the second of the narrower one."""
    together = hfta.Study("cnn", grid, "digits", padding=0.4)
    assert [len(g.variants) for g in together.plan_groups] == [4]
    assert together.plan_groups[0].padding == pytest.approx(0.37, abs=0.01)
    apart = hfta.Study("cnn", grid, "digits", padding=0.35)
    assert [[v.config["width"] for v in g.variants] for g in apart.plan_groups] == [[16, 16], [32, 32]]
    assert "37% of the parameters would be padding, more than 35%" in apart.plan_groups[1].reason


def test_members_are_in_the_order_of_the_grid() -> None:
    study = hfta.Study("mlp", {"dropout": [0.0, 0.1], "width": [30, 32], "lr": [1e-3, 1e-2]}, "digits", padding=0.5)
    [group] = study.plan_groups
    assert list(group.ids) == list(range(8))
    for variant, row, arguments in zip(group.variants, group.rows, group.arguments, strict=True):
        assert (row["lr"], arguments["width"]) == (variant.config["lr"], variant.config["width"])


def test_sizes_that_differ_in_more_are_padded_as_the_one_of_their_size() -> None:
    """Modules of one size that differ otherwise (dropout) are compared with that one alone."""
    study = hfta.Study("mlp", {"width": [30, 32], "dropout": [0.1, 0.2, 0.3]}, "digits", padding=0.5)
    [group] = study.plan_groups
    only = hfta.Study("mlp", {"width": [30, 32]}, "digits", padding=0.5, dropout=0.1).plan_groups[0]
    assert group.padding == pytest.approx(only.padding)
    assert group.parameters == only.parameters
