"""docs/coverage.md agrees with the code."""

from __future__ import annotations

import re

import pytest
import torch

from tests import coverage_page


@pytest.mark.long
def test_the_page_is_up_to_date() -> None:
    kept = coverage_page.PAGE.read_text(encoding="utf-8")
    made = re.search(r"Made with torch (\S+) ", kept)
    assert made is not None
    if made[1] != torch.__version__.partition("+")[0]:
        pytest.skip(f"the page was made with torch {made[1]}")
    assert coverage_page.page() == kept, "run `make coverage-page`"


def test_the_page_has_every_row() -> None:
    kept = coverage_page.PAGE.read_text(encoding="utf-8")
    names = [*(f"`{kind.name}`" for kind in coverage_page.KINDS), *(model.name for model in coverage_page.MODELS)]
    assert [name for name in names if f"\n| {name} |" not in kept] == []
