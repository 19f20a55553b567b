"""The package's own Adam, compared with torch's in float64, and in an array's optimizer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.kernels.native import adam
from tests.core.compiled import NEEDS_COMPILER, misread

pytestmark = [NEEDS_COMPILER, pytest.mark.usefixtures("own_libraries")]
OWN = [adam]


def _noise(size: int, seed: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.5)])
def test_steps_of_tensors_of_any_size(decay: float, apart: bool, betas: tuple[float, float]) -> None:
    sizes = (1, 15, 16, 17, 200)
    exact = [nn.Parameter(_noise(n, n).double()) for n in sizes]
    kind = torch.optim.AdamW if apart else torch.optim.Adam
    by = kind(exact, lr=0.02, betas=betas, eps=1e-6, weight_decay=decay)
    values = [p.detach().float() for p in exact]
    gradients, means, squares = ([torch.zeros_like(v) for v in values] for _ in range(3))
    counts = [torch.zeros(()) for _ in values]
    numbers = (0.02, *betas, 1e-6, decay)
    step = adam.Bound([values, gradients, means, squares], counts, numbers, apart)
    for i in range(20):
        for p, g, count in zip(exact, gradients, counts, strict=True):
            g.copy_(_noise(len(g), 100 * i + len(g)))
            p.grad = g.double()
            count += 1
        by.step()
        step()
    for value, p in zip(values, exact, strict=True):
        assert (value - p).abs().max() <= 2e-6 * max(1.0, float(p.detach().abs().max()))


def _arrays(**kwargs: object) -> tuple[hfta.FusedArray, list[nn.Module], hfta.optim.Adam, list[torch.optim.Optimizer]]:
    torch.manual_seed(2)
    plain: list[nn.Module] = [nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)) for _ in range(3)]
    array = hfta.fuse(plain)
    rates = [1e-3, 1e-2, 1e-2]
    optimizer = hfta.optim.Adam(array, lr=rates, fused=True, **kwargs)
    single = [torch.optim.Adam(m.parameters(), lr=lr, fused=True, **kwargs) for m, lr in zip(plain, rates, strict=True)]  # type: ignore[arg-type]
    return array, plain, optimizer, single  # type: ignore[return-value]


@pytest.mark.parametrize("kwargs", [{}, {"weight_decay": 0.1}, {"amsgrad": True}, {"maximize": True}])
def test_an_array_trains_with_it_as_its_members_do(kwargs: dict[str, object]) -> None:
    array, plain, optimizer, single = _arrays(**kwargs)
    x, y = torch.randn(9, 5), torch.arange(9) % 3
    for step in range(12):
        optimizer.zero_grad()
        array.backward(nn.functional.cross_entropy, x, y)
        if step == 6:  # another learning rate, and a member left out
            optimizer.param_groups[0]["lr"] = [1e-2, 1e-3, 1e-3]
            for by, lr in zip(single, [1e-2, 1e-3, 1e-3], strict=True):
                by.param_groups[0]["lr"] = lr
        optimizer.step(skip=[1] if step == 8 else [])
        for i, (module, by) in enumerate(zip(plain, single, strict=True)):
            by.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
            if step != 8 or i != 1:
                by.step()
    for i, module in enumerate(plain):
        for p, q in zip(array[i].parameters(), module.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-4, atol=2e-6)
    calls = [call for s in optimizer._segments if s.fused is not None for call in s.fused._together or ()]
    assert any(isinstance(call, adam.Bound) for call in calls) == (not {"amsgrad", "maximize"} & kwargs.keys())


def test_float64_and_what_lies_otherwise_are_torchs() -> None:
    tensors = [[torch.zeros(3)] for _ in range(4)]
    assert adam.usable(tensors)
    assert not adam.usable([[t.double() for t in column] for column in tensors])
    assert not adam.usable([[torch.zeros(3, 2).t()] for _ in range(4)])


@pytest.mark.usefixtures("two_threads")
def test_several_threads_are_torchs() -> None:
    assert not adam.usable([[torch.zeros(3)] for _ in range(4)])


@pytest.mark.usefixtures("libraries_anew")
def test_a_library_with_wrong_numbers_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = misread("adam", "rest2 * g * g", "rest2 * g", tmp_path, monkeypatch)
    monkeypatch.setattr(adam, "library", lambda name, wait=True: wrong)
    assert not adam.usable([[torch.zeros(3)] for _ in range(4)])
