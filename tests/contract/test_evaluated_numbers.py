"""What `array.evaluate` makes of the numbers that a function returns, and of numbers in outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.errors import FusionError
from tests.contract.handed_over import Regressor, macro_f1, numbers

Y = torch.randint(3, (24,), generator=torch.Generator().manual_seed(1))


def members(count: int = 4) -> list[nn.Module]:
    made = []
    for seed in range(count):
        torch.manual_seed(seed)
        made.append(Regressor(3).double())
    return made


RETURNED: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "item": lambda o, y: (o.argmax(-1) == y).double().mean().item(),
    "numpy": lambda o, y: (o.argmax(-1).numpy() == y.numpy()).mean(),
    "whole": lambda o, y: int((o.argmax(-1) == y).sum()),
    "truth": lambda o, y: bool(o.mean() > 0),
    "dict": lambda o, y: {"a": o.mean().item(), "b": np.float64(o.std().item()), "c": o.sum()},
    "list": lambda o, y: o.mean(0).tolist(),
    "array": lambda o, y: o.mean(0).numpy(),
    "constant": lambda o, y: 0.1,
    "f1": macro_f1,
}


@pytest.mark.parametrize("verify", ["first", "never"])
@pytest.mark.parametrize("name", RETURNED)
def test_evaluate_gives_each_member_its_own_number(name: str, verify: str) -> None:
    function, array = RETURNED[name], hfta.fuse(members(), verify=verify)
    for seed in range(4):  # the later ones may be replayed
        x = numbers(24, 4, seed=seed)
        with torch.no_grad():
            apart = [function(member(x), Y) for member in members()]
        found = array.evaluate(function, x, Y)
        for i, own in enumerate(apart):
            row = {k: v[i] for k, v in found.items()} if isinstance(found, dict) else found
            row = [v[i] for v in row] if isinstance(row, list) else row[i] if isinstance(row, Tensor) else row
            same: Any = own if isinstance(own, dict | list) else [own]
            mine: Any = row if isinstance(row, dict | list) else [row]
            pairs = [(mine[k], same[k]) for k in same] if isinstance(same, dict) else zip(mine, same, strict=True)
            for a, b in pairs:
                torch.testing.assert_close(a.double(), torch.as_tensor(b, dtype=torch.float64), rtol=1e-10, atol=1e-10)


class Telling(nn.Module):
    """Returns a number of Python beside its output."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Regressor(3)

    def forward(self, x: Tensor) -> tuple[Tensor, float]:
        found = self.inner(x)
        return found, float(found.detach().mean())


@pytest.mark.parametrize("verify", ["first", "never"])
def test_numbers_in_outputs_are_an_error(verify: str) -> None:
    torch.manual_seed(0)
    array = hfta.fuse([Telling().double() for _ in range(3)], verify=verify)
    for _ in range(2):
        with pytest.raises(FusionError, match=r"array\.evaluate"):
            array(numbers(5, 4))
    assert array.evaluate(lambda o, y: o[1], numbers(5, 4)).shape == (3,)
