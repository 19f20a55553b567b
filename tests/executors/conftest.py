"""Fixtures of the tests that start workers; the workers are shared."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import hfta_nb as hfta
from hfta_nb import executors


@pytest.fixture(autouse=True, scope="package")
def _no_worker_left() -> Iterator[None]:
    yield
    executors.close_all()


@pytest.fixture(scope="session")
def inline(tmp_path_factory: pytest.TempPathFactory) -> hfta.Study:
    """What one process makes of the study that crews train."""
    from tests.executors.test_crews import make

    study = make(tmp_path_factory.mktemp("inline") / "run")
    list(study.run())
    return study
