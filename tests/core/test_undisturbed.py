"""The settings with which a generator runs, and what is left of them outside of it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from hfta_nb.models.recipes.preserve_rng import apart


def _settings() -> tuple[bool, ...]:
    on, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    return on, warns, torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark


def _told() -> Iterator[tuple[bool, ...]]:
    while True:
        yield _settings()


@pytest.mark.parametrize("benchmark", [False, True])
def test_kernels_of_a_run_that_repeats_are_deterministic(benchmark: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", benchmark)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    before = _settings()
    events = apart(_told(), repeats=True)
    for _ in range(2):
        assert next(events) == (True, True, True, False)
        assert _settings() == before
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert next(apart(_told())) == before


def test_errors_stay_errors_where_someone_has_asked_for_them() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        assert next(apart(_told(), repeats=True)) == (True, False, True, False)
        assert _settings()[:2] == (True, False)
    finally:
        torch.use_deterministic_algorithms(False)


def test_an_error_of_the_generator_restores_them() -> None:
    def fails() -> Iterator[None]:
        yield None
        raise KeyError("x")

    before, events = _settings(), apart(fails(), repeats=True)
    next(events)
    with pytest.raises(KeyError):
        next(events)
    assert _settings() == before
