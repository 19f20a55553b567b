"""The package's own attention: against float64, and in steps that are replayed."""

from __future__ import annotations

import ctypes
import shutil
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.array.native import attention, build, product
from hfta_nb.array.native.binding import Binding
from hfta_nb.array.strategy import measuring
from hfta_nb.array.strategy.formulations import COMPILED

pytestmark = [
    pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no compiler"),
    pytest.mark.skipif(
        not hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu"), reason="another torch"
    ),
]


@pytest.fixture(scope="module")
def made() -> dict[str, ctypes.CDLL]:
    before = dict(build._loaded)
    build._loaded.clear()
    with build.compiling():
        found = {name: build.library(name) for name in ("attention", "product")}
    build._loaded.clear()
    build._loaded.update(before)
    assert all(library is not None for library in found.values())
    return found  # type: ignore[return-value]


@pytest.fixture(autouse=True)
def _compiled(made: dict[str, ctypes.CDLL], monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (attention, product):
        monkeypatch.setattr(module, "library", lambda name, wait=True: made[name])


def _heads(layout: str, samples: int, heads: int, length: int, wide: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if layout == "length first":
        return torch.randn(length, samples, heads, wide, generator=generator).permute(1, 2, 0, 3)
    return torch.randn(samples, length, heads, wide, generator=generator).transpose(1, 2)


def _close(found: Tensor, wanted: Tensor) -> bool:
    return bool((found - wanted).abs().max() <= 1e-5 * wanted.abs().max())


@pytest.mark.parametrize(
    ("samples", "heads", "queries", "keys", "wide"),
    [(1, 1, 1, 1, 1), (2, 3, 5, 5, 8), (3, 2, 32, 32, 32), (2, 1, 17, 40, 20), (1, 2, 70, 33, 65)],
)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("layout", ["length first", "samples first"])
def test_attention_and_its_gradients(
    samples: int, heads: int, queries: int, keys: int, wide: int, causal: bool, scale: float | None, layout: str
) -> None:
    q, by = (_heads(layout, samples, heads, queries, wide, i) for i in (0, 1))
    k, v = (_heads(layout, samples, heads, keys, wide, i) for i in (2, 3))
    forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    wanted = forward(q.double(), k.double(), v.double(), 0.0, causal, scale=scale)
    out, logs = torch.full_like(q, torch.nan), torch.full((samples, queries, heads), torch.nan).transpose(1, 2)
    Binding(attention.forward)(q, k, v, 0.0, causal, scale=scale, out=out, logs=logs)
    assert _close(out, wanted[0])
    assert _close(logs, wanted[1])
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    exact = backward(*(t.double() for t in (by, q, k, v)), *wanted, 0.0, causal, scale=scale)
    found = [torch.full_like(t, torch.nan) for t in (q, k, v)]
    rooms: dict[str, Any] = dict(zip(("dq", "dk", "dv"), found, strict=True))
    Binding(attention.backward)(by, q, k, v, out, logs, 0.0, causal, scale=scale, **rooms)
    largest = max(float(e.abs().max()) for e in exact)
    for one, other in zip(found, exact, strict=True):
        assert (one - other).abs().max() <= 1e-5 * max(largest, 1.0)


def test_what_is_no_number_stays_with_its_sample_and_head() -> None:
    q, k, v = (_heads("samples first", 2, 2, 6, 4, i) for i in range(3))
    k[0, 1, 3, 2] = torch.nan
    q[1, 0, 2] = torch.inf
    out, logs = torch.empty_like(q), torch.empty(2, 2, 6)
    Binding(attention.forward)(q, k, v, 0.0, False, out=out, logs=logs)
    assert out[0, 1].isnan().all()
    assert not out[0, 0].isnan().any()
    assert out[1, 0, 2].isnan().all()
    assert not out[1, 0, [0, 1, 3, 4, 5]].isnan().any()
    assert not out[1, 1].isnan().any()


@pytest.mark.parametrize(
    ("rest", "kwargs"),
    [((0.1, False), {}), ((0.0, False), {"attn_mask": object()})],
)
def test_dropout_and_masks_are_left_to_torch(rest: Any, kwargs: Any) -> None:
    sizes = [(2, 2, 6, 4)] * 3
    assert attention.takes(sizes, (0.0, True), {})
    assert not attention.takes(sizes, rest, kwargs)
    assert not attention.takes([(2, 2, 6, 4), (2, 1, 6, 4), (2, 1, 6, 4)], (0.0, False), {})
    assert not attention.takes([(2, 2, attention.LONGEST + 1, 4)] * 3, (0.0, False), {})


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.attention = nn.Linear(5, 16), nn.MultiheadAttention(16, 2, batch_first=True)
        self.last = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(x + self.attention(x, x, x, need_weights=False)[0]).mean(1)  # type: ignore[no-any-return]


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("split", [False, True])
def test_a_network_replayed_with_it_trains_as_its_members_do(
    members: int, split: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cost = measuring._cost
    monkeypatch.setattr(measuring, "_cost", lambda name, times: cost(name, times) / (1e6 if name == COMPILED else 1))
    torch.manual_seed(1)
    plain = [_Net() for _ in range(members)]
    array = hfta.fuse(plain)
    rates = [1e-2 * (i + 1) for i in range(members)]
    optimizer = hfta.optim.SGD(array, lr=rates)
    single = [torch.optim.SGD(net.parameters(), lr=lr) for net, lr in zip(plain, rates, strict=True)]
    for step in range(8):
        x, y = torch.randn(4, 7, 5, generator=torch.Generator().manual_seed(step)), torch.arange(4) % 3
        optimizer.zero_grad()
        if split:
            losses = torch.stack([F.cross_entropy(out, y) for out in array(x)])
            losses.sum().backward()
        else:
            losses = array.backward(F.cross_entropy, x, y)
        optimizer.step()
        for loss, net, by in zip(losses, plain, single, strict=True):
            by.zero_grad()
            wanted = F.cross_entropy(net(x), y)
            wanted.backward()
            by.step()
            torch.testing.assert_close(loss, wanted, rtol=1e-5, atol=1e-6)
    told = array.explain().to_string()
    assert "attention_for_cpu_backward" in told
    assert f"{COMPILED} " in told
