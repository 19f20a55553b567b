"""Searches on which random operations fall always end, and each member is what it would have been alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from search.random_operations import Search, accounted_for, differences

TOLERANCE = 1e-8


def holds(seed: int, directory: Path, kills: bool) -> bool:
    search = Search(seed, directory, kills)
    study = search.run()
    assert accounted_for(study, search.given["trials"])
    found = differences(study)
    assert max(found.values()) < TOLERANCE, (found, search.told)
    return True


@pytest.mark.parametrize("seed", range(4))
def test_a_search_under_random_operations(seed: int, tmp_path: Path) -> None:
    assert holds(seed, tmp_path / "run", kills=False)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 1030))
def test_many_searches_under_random_operations(seed: int, tmp_path: Path) -> None:
    assert holds(seed, tmp_path / "run", kills=True)
