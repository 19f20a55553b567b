"""Fixtures of the tests that start workers; the workers are shared."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import hfta_nb as hfta
from hfta_nb.study import executors
from tests.forked import forked as forked


@pytest.fixture(autouse=True, scope="package")
def _no_worker_left() -> Iterator[None]:
    yield
    executors.close_all()


@pytest.fixture(scope="session")
def inline(tmp_path_factory: pytest.TempPathFactory) -> hfta.Study:
    """What one process makes of the study that pools train."""
    from tests.executors.test_pools import make

    study = make(tmp_path_factory.mktemp("inline") / "run")
    list(study.run())
    return study


@pytest.fixture(scope="package")
def _how_made() -> list[bool]:
    """Whether the workers that wait for a job are forked."""
    return []


@pytest.fixture(autouse=True)
def _workers_are_forked(request: pytest.FixtureRequest, _how_made: list[bool]) -> None:
    """Processes that import torch take seconds each; ``as_started`` marks tests of such as users have them."""
    wanted = not request.node.get_closest_marker("as_started")
    if _how_made != [wanted]:
        executors.close_all()
        _how_made[:] = [wanted]
    if wanted:
        request.getfixturevalue("forked")
