"""Whatever a user hands over beside the model, members are as in the user's own loop; see `handed_over`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.handed_over import SEEDS, Situation, alone, by_array, by_study, compare, situations


def _cases(number: int, row: Situation) -> Iterator[Any]:
    """In the default tier the first form, one of the others in turn, and those that are refused."""
    first, *others = [form for form in row.forms if form not in row.long]
    kept = {first, *(set(row.refused) - set(row.long)), *([others[number % len(others)]] if others else [])}
    for form in row.forms:
        yield pytest.param(row, form, id=f"{row}-{form}", marks=[] if form in kept else [pytest.mark.long])


CASES = [case for number, row in enumerate(situations()) for case in _cases(number, row)]
EXPECTED: dict[tuple[str, bool], list] = {}


@pytest.mark.usefixtures("verified")
@pytest.mark.parametrize(("row", "form"), CASES)
def test_members_are_as_in_the_users_own_loop(row: Situation, form: str, tmp_path: Path) -> None:
    """And a study's own check, which trains the first member again, says that it is equal."""

    def trained() -> list:
        if form != "study":
            return by_array(row, form)
        study, found = by_study(row, tmp_path)
        assert study.check(members=[0])["equal"].all()
        return found

    if form in row.refused:
        kind, message = row.refused[form]
        with pytest.raises(kind, match=message):
            trained()
        return
    key = repr(row), form == "study"
    if key not in EXPECTED:
        EXPECTED[key] = [alone(row, seed, validated=key[1]) for seed in SEEDS]
    for found, expected in zip(trained(), EXPECTED[key], strict=True):
        compare(found, expected)
