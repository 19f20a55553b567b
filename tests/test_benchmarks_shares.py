"""Shares of a step's time: kernels that torch's profiler does not know are reported to it."""

from __future__ import annotations

import functools

import pytest
import torch

from benchmarks.suite import shares
from benchmarks.suite.job import Job
from benchmarks.suite.modes.base import Mode
from benchmarks.suite.shares import Spent
from hfta_nb.engine.kernels.native.norm import BatchNorm


def test_kernels_of_the_own_library_are_seen_while_a_step_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HFTA_NB_NATIVE", "off")  # torch's runs within, and is a part of it
    x = torch.randn(4, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    run = functools.partial(BatchNorm(torch.native_batch_norm), x, None, None, None, None, True, 0.1, 1e-5)

    class Plain(Mode):
        def train(self, steps: int) -> list[torch.Tensor]:
            return [run()[0].sum() for _ in range(steps)]

        def losses(self, held: list[torch.Tensor]) -> list[list[float]]:
            return [[float(loss)] for loss in held]

    call = BatchNorm.__call__
    with shares._marked(Plain(Job("mlp", 1, quick=True))), torch.profiler.profile() as seen:
        run()
    assert BatchNorm.__call__ is call
    counted = [e for e in seen.events() if shares._operator(e) and not shares._operator(e.cpu_parent)]
    assert [e.name for e in counted] == ["hfta_nb::batch_norm"]
    spent = dict.fromkeys(("products", "others", "optimizer", "data"), Spent())
    shares._count(counted[0], spent)
    assert spent["others"].seconds > 0
    assert spent["products"].seconds == 0


def test_the_longest_kernels_are_listed_by_name() -> None:
    class Products(Mode):
        def train(self, steps: int) -> list[torch.Tensor]:
            x = torch.ones(64, 64)
            return [((x @ x @ x) + 1).sum() for _ in range(steps)]

        def losses(self, held: list[torch.Tensor]) -> list[list[float]]:
            return [[float(loss)] for loss in held]

    seen = shares.profiled(Products(Job("mlp", 1, quick=True)), 1e-4)
    assert seen is not None
    calls = {name: each for name, _, each in seen.longest}
    assert calls["aten::matmul"] == 2
    assert calls["aten::sum"] == 1
    seconds = [taken for _, taken, _ in seen.longest]
    assert seconds == sorted(seconds, reverse=True)
    assert 0 < len(seconds) <= shares.LONGEST
