"""Members of different architectures: replayed steps equal eager ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import hfta_nb as hfta
from hfta_nb.engine.array import FusedArray
from tests.contract.across_rows import ROWS, AcrossRow
from tests.contract.replay import REPLAYED, forget, same
from tests.contract.serial import loss_of, target_for

TIGHT = {"atol": 1e-13, "rtol": 1e-13}


def _pair(row: AcrossRow, block: Any, device: torch.device) -> tuple[FusedArray, FusedArray, Tensor]:
    """The same array twice, of which the first may replay, and a target."""
    modules = row.modules(device)
    arrays = [hfta.fuse(modules, row.seeds) for _ in range(2)]
    arrays[1].capture = False
    for array in arrays:
        array.block_size = len(modules) if block == "all" else block
    return arrays[0], arrays[1], target_for(modules[0], row.x().to(device))


def _how(array: FusedArray) -> dict[str, set[str]]:
    table = array.explain()
    found: dict[str, set[str]] = {}
    for what, how in zip(table["function"], table["how"], strict=True):
        found.setdefault(what, set()).add(how)
    return found


@pytest.mark.each("row", every=2, begin=1)
@pytest.mark.parametrize("block", ["all", 2, 1])
@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.name)
def test_members_of_other_architectures_are_replayed(row: AcrossRow, block: Any, device: torch.device) -> None:
    array, other, y = _pair(row, block, device)
    for step in range(6):
        x = row.x().to(device)
        told = []
        for a in (array, other):
            forget(a)
            losses = a.backward(loss_of, x, y + step)
            if step > 4:
                a.backward(loss_of, x, y)  # added to what is there
            told.append((losses, a.evaluate(loss_of, x, y)))
        torch.testing.assert_close(*told, **TIGHT)
        same(array, other)
        assert array.missing_grads == other.missing_grads
    if device.type == "cuda" and row.name == "lstm, hidden size" and block == 1:
        return  # cuDNN is not always called alike, for a reason that is not known; then nothing is replayed
    for what in ("backward", "without gradients"):
        assert REPLAYED in _how(array)[what], _how(array)[what]


@pytest.mark.long
@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.name)
def test_and_so_is_their_split_form(row: AcrossRow, device: torch.device) -> None:
    array, other, y = _pair(row, "all", device)
    for step in range(6):
        x = row.x().to(device)
        for a in (array, other):
            forget(a)
            torch.func.vmap(loss_of, (0, None))(a(x), y + step).sum().backward()
        same(array, other)
        assert array.missing_grads == other.missing_grads
    assert REPLAYED in _how(array)["array(x)"], _how(array)["array(x)"]
