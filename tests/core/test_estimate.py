"""Activations are counted by calls with few samples for small modules, and without memory for large ones."""

from __future__ import annotations

import pytest

import hfta_nb as hfta
from hfta_nb.train.plan import Group, estimate, reckoned


def _member_bytes(name: str, batch_size: int) -> int:
    family = hfta.family(name)
    study = hfta.Study(family, {"lr": [1e-3]}, batch_size=batch_size, device="cpu")
    group: Group = reckoned(study.plan_groups[0], family, study.data)
    assert group.memory_bytes > study.plan_groups[0].memory_bytes
    return group.memory_bytes


@pytest.mark.parametrize("name", ["mlp", "cnn", "dcgan", "dlrm"])
def test_both_ways_count_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    few = _member_bytes(name, 32)
    monkeypatch.setattr(estimate, "SMALL", -1)
    assert few == _member_bytes(name, 32)


def test_twice_the_batch_keeps_twice_the_activations() -> None:
    first, second, third = (_member_bytes("mlp", n) for n in (8, 16, 32))
    assert third - second == 2 * (second - first) > 0
