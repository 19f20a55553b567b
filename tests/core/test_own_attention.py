"""The package's own attention: compared with float64, and in replayed steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hfta_nb.engine.kernels.native import attention, product
from hfta_nb.engine.kernels.native.binding import Binding
from hfta_nb.engine.kernels.strategy.kernel_variants import COMPILED
from tests.core.compiled import NEEDS_COMPILER, close, train_beside

pytestmark = [
    NEEDS_COMPILER,
    pytest.mark.skipif(
        not hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu"), reason="another torch"
    ),
    pytest.mark.usefixtures("own_libraries"),
]
OWN = [attention, product]


def _heads(layout: str, samples: int, heads: int, length: int, wide: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if layout == "length first":
        return torch.randn(length, samples, heads, wide, generator=generator).permute(1, 2, 0, 3)
    return torch.randn(samples, length, heads, wide, generator=generator).transpose(1, 2)


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
    assert close(out, wanted[0])
    assert close(logs, wanted[1])
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


@pytest.mark.usefixtures("own_kernels_preferred")
@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("split", [False, True])
def test_a_network_replayed_with_it_trains_as_its_members_do(members: int, split: bool) -> None:
    torch.manual_seed(1)
    batches = [
        (torch.randn(4, 7, 5, generator=torch.Generator().manual_seed(i)), torch.arange(4) % 3) for i in range(8)
    ]
    array = train_beside(_Net, members, batches, split)
    told = array.explain().to_string()
    assert "attention_for_cpu_backward" in told
    assert f"{COMPILED} " in told
