"""Settings that can be trained with, but do not do what they seem to, are said beside the fields."""

from __future__ import annotations

from typing import Any

import pytest
from ui.bench import Make, Runs

from hfta_nb.study import Study
from hfta_nb.ui.notices import notices


@pytest.mark.parametrize(
    ("options", "patience", "said"),
    [
        ({}, None, []),
        ({"batch_size": 120}, 9, []),
        ({"batch_size": 121}, None, ["batch size: 121 is more than the 120 samples of training, so an epoch is one"]),
        ({"grid": {"batch_size": [16, 400]}}, None, ["batch size: 400 is more"]),
        ({"batch_size": 121, "steps_per_epoch": 5}, None, []),
        ({"validate_every": 10}, None, []),
        ({"validate_every": 11}, None, ["validate every: 11 is more than 10 epochs, so the only validation is after"]),
        ({}, 0, ["patience: 0 means never"]),
        ({}, 10, ["patience: 10 is not less than the 10 validations of the run, so no variant stops early"]),
        ({"validate_every": 4}, 3, ["patience: 3 is not less than the 3 validations"]),
        ({"validate_every": 4}, 2, []),
    ],
)
def test_they_are_said(options: dict[str, Any], patience: int | None, said: list[str]) -> None:
    grid = options.pop("grid", {"lr": [1e-3]})
    found = notices(Study("mlp", grid, "iris", epochs=10, device="cpu", **options), patience)
    assert len(found) == len(said)
    for text, begins in zip(found, said, strict=True):
        assert text.startswith(begins)


def test_the_workbench_says_them_below_the_fields_and_trains_nevertheless(make: Make, runs: Runs) -> None:
    bench = make()
    assert bench.define.notices.value == ""
    bench.define.fields["patience"].value = "0"
    bench.planned()
    assert bench.define.notices.value.startswith('<div role="status">patience: 0 means never')
    assert not bench.train_view.buttons["train"].disabled
    bench.define.fields["patience"].value = "x"
    bench.planned()
    assert bench.define.notices.value == ""  # there is an error to look at
