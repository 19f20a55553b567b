"""Members are selected by numbers and by truth values; a mean over losses is told."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import hfta_nb as hfta
from hfta_nb.errors import ArrayWarning, FusionError

from .serial import make, plain
from .test_verification import CPU

DOUBLE = torch.float64


def four() -> Any:
    return hfta.fuse(make(plain, 4, DOUBLE, CPU))


@pytest.mark.parametrize(
    ("index", "members"),
    [
        ([0, 2], [0, 2]),
        ([-1, 0], [3, 0]),
        ((3, 1), [3, 1]),
        (slice(1, 3), [1, 2]),
        ([True, False, False, True], [0, 3]),
        (torch.tensor([True, False, True, True]), [0, 2, 3]),
        (torch.tensor([2, -1]), [2, 3]),
        (np.array([False, True, False, False]), [1]),
        (np.array([1, 2]), [1, 2]),
    ],
)
def test_numbers_and_truth_values_select(index: Any, members: list[int]) -> None:
    array = four()
    chosen = array[index]
    assert len(chosen) == len(members)
    for i, member in enumerate(members):
        torch.testing.assert_close(chosen[i].state_dict(), array[member].state_dict(), rtol=0, atol=0)
    if not isinstance(index, slice) and not any(int(i) < 0 for i in index):
        torch.testing.assert_close(array.select(index).state_dict(), chosen.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("index", [torch.tensor(1), np.int64(1), True])
def test_one_number_takes_a_member_out(index: Any) -> None:
    array = four()
    torch.testing.assert_close(array[index].state_dict(), array[1].state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize(
    "wrong",
    [
        [True, False],
        torch.ones(5, dtype=torch.bool),
        [False] * 4,
        [4],
        [0.5],
        [[0, 1]],
        torch.tensor([[0], [1]]),
        ["a"],
    ],
)
def test_what_selects_nothing_is_refused(wrong: Any) -> None:
    array = four()
    with pytest.raises(FusionError, match=r"truth value per member|not members of this array"):
        array[wrong]


def losses_of(array: Any) -> Tensor:
    x, y = torch.randn(6, 5, dtype=DOUBLE), torch.randint(0, 3, (6,))
    return array.losses(F.cross_entropy, array(x), y)  # type: ignore[no-any-return]


def test_a_mean_over_members_is_told_once() -> None:
    array = four()
    with pytest.warns(
        ArrayWarning, match=r"each of the 4 members' losses is divided by 4.*take losses\.sum\(\)"
    ) as told:
        losses_of(array).mean().backward()
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        losses_of(array).mean().backward()


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_a_sum_over_members_is_not_told(factor: float) -> None:
    array = four()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(5):
            (losses_of(array).sum() * factor).backward()
