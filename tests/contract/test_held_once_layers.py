"""Layers whose frozen parameters are held once: each kind, how many products there are, and the memory."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import hfta_nb as hfta
from hfta_nb.train.memory import Meter
from tests.contract.frozen_bases import (
    SEEDS,
    WIDTH,
    Alone,
    Codes,
    X,
    Y,
    adam,
    backward,
    held,
    members,
)


class Embedded(nn.Module):
    """A frozen table of which members look up their own rows."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.table = nn.Embedding(64, WIDTH, **options)

    def forward(self, x: Tensor) -> Tensor:
        return self.table((x * 9).long().abs() % 64).mean(1)  # type: ignore[no-any-return]


class Attending(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        found = self.layer(x.view(4, 6, WIDTH))
        rows: Tensor = found[0] if isinstance(found, tuple) else found
        return rows.reshape(24, WIDTH)


class Imaging(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.view(24, 2, 4, 4)).flatten(1)[:, :WIDTH]  # type: ignore[no-any-return]


KINDS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "bilinear form": lambda: Codes("data", late=True).eval(),
    "embedding": Embedded,
    "embedding with padding": lambda: Embedded(padding_idx=3),
    "convolution": lambda: Imaging(nn.Conv2d(2, 64, 3, padding=1)),
    "transposed convolution": lambda: Imaging(nn.ConvTranspose2d(2, 64, 3)),
    "pointwise convolutions": lambda: Imaging(nn.Conv2d(2, 64, 3), nn.Conv2d(64, 64, 1)),
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "batch norm": lambda: nn.BatchNorm1d(WIDTH),
    "lstm": lambda: Attending(nn.LSTM(WIDTH, WIDTH, batch_first=True)),
    "transformer": lambda: Attending(nn.TransformerEncoderLayer(WIDTH, 4, 64, batch_first=True)),
}


@pytest.mark.each("kind")
@pytest.mark.parametrize("after", [False, True], ids=["first", "after what is trained"])
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_frozen_layers(kind: str, after: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hfta_nb.engine.members.in_common.LEAST_BYTES", 0)
    torch.manual_seed(100)
    frozen = KINDS[kind]().double().requires_grad_(False)
    modules = []
    for i in range(3):
        torch.manual_seed(i)
        first = nn.Linear(WIDTH, WIDTH) if after else nn.Identity()
        own = copy.deepcopy(frozen) if kind == "batch norm" else frozen
        modules.append(nn.Sequential(first, own, nn.Linear(WIDTH, 3)).double())
    array, alone = hfta.fuse(modules, SEEDS), Alone(modules)
    assert held(array)
    backward(array, adam(array), 5)
    alone.train(5).equals(array)
    given = X.repeat(3, 1, 1).requires_grad_()
    found = array.eval()(hfta.per_member(given))
    found.square().sum().backward()
    for i, module in enumerate(alone.modules):
        x = X.clone().requires_grad_()
        expected = module.eval()(x)
        expected.square().sum().backward()
        torch.testing.assert_close(found[i], expected, atol=1e-10, rtol=0)
        torch.testing.assert_close(array(X)[i], expected, atol=1e-10, rtol=0)
        if x.grad is not None and given.grad is not None:
            torch.testing.assert_close(given.grad[i], x.grad, atol=1e-10, rtol=0)
    assert held(array)


class Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The shapes of the matrix products that run."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm, torch.ops.aten.baddbmm):
            self.found.append(tuple(args[-2].shape))
        return func(*args, **(kwargs or {}))


def test_a_frozen_layer_is_one_product_and_a_frozen_prefix_is_computed_once() -> None:
    array = hfta.fuse(members(), SEEDS, verify="never")
    array.capture = False
    with Products() as products:
        array.backward(F.cross_entropy, X, Y)
    assert products.found.count((24, WIDTH)) == 2  # the first layer and that in the adapter, of one input for all
    assert products.found.count((3 * 24, WIDTH)) == 2  # forward and backward of the layer after the adapters
    frozen = [shape for shape in products.found if len(shape) == 3 and shape[1:] == (WIDTH, WIDTH)]
    assert frozen == []


def test_memory_is_that_of_one_base() -> None:
    torch.manual_seed(0)
    base = nn.Sequential(*[nn.Linear(256, 256) for _ in range(6)]).requires_grad_(False)
    size = sum(p.nbytes for p in base.parameters())
    modules = [nn.Sequential(base, nn.Linear(256, 4)) for _ in range(8)]
    meter = Meter(torch.device("cpu"))
    with meter:
        array = hfta.fuse(modules, range(8), verify="never")
    assert meter.peak_bytes < 1.2 * size
    meter = Meter(torch.device("cpu"))
    x, y = torch.randn(16, 256), torch.arange(16) % 4
    optimizer = hfta.optim.Adam(array, lr=1e-3)
    with meter:
        for _ in range(6):
            optimizer.zero_grad()
            array.backward(F.cross_entropy, x, y)
            optimizer.step()
    assert meter.peak_bytes < 1.7 * size


def test_explain_tells_of_it() -> None:
    rows = hfta.fuse(members(), SEEDS).explain()
    assert "6 of 10 parameters are frozen and equal, and held once: 0.0242 MiB" in set(rows["how"])
