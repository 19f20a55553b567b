"""Random modules whose parts change their own state: never silently wrong."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from hfta_nb.errors import FusionError
from tests.contract.states.random_modules import build, plans
from tests.contract.test_states import compare

EXPLORED = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


def check(plan: list[tuple[str, str | None]], members: int, split: bool) -> None:
    """Members are as alone, or the array says that it can't have them so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compare(lambda: build(plan), members, split, 4)
        except FusionError as error:
            if "than alone" not in str(error):
                raise


@settings(EXPLORED, max_examples=12)
@given(plan=plans(), members=st.integers(2, 4), split=st.booleans())
def test_twelve(plan: list[tuple[str, str | None]], members: int, split: bool, verified: None) -> None:
    check(plan, members, split)


@pytest.mark.long
@pytest.mark.parametrize("part", range(4))
def test_three_hundred(part: int, verified: None) -> None:
    explore = given(plan=plans(), members=st.integers(2, 4), split=st.booleans())(check)
    seed(part)(settings(EXPLORED, max_examples=75)(explore))()
