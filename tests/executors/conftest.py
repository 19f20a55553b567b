"""Fixtures of the tests that start workers; the workers are shared."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hfta_nb import executors


@pytest.fixture(autouse=True, scope="package")
def _no_worker_left() -> Iterator[None]:
    yield
    executors.close_all()
