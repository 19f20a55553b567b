"""The package's own layer norm and log-softmax: compared with float64, and in replayed steps."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hfta_nb.engine.kernels.native import product, rows
from hfta_nb.engine.kernels.native.binding import Binding
from hfta_nb.engine.kernels.strategy.kernel_variants import Operand, variants_of
from tests.core.compiled import NEEDS_COMPILER, close, train_beside

pytestmark = [NEEDS_COMPILER, pytest.mark.usefixtures("own_libraries")]
OWN = [rows, product]
_aten = torch.ops.aten


def _noise(*size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(sum(size)))


_close = partial(close, within=2e-6, least=1.0)

_SIZES = [(1, 1), (3, 2), (64, 10), (5, 16), (7, 37), (33, 64), (2, 300)]


@pytest.mark.parametrize(("height", "columns"), _SIZES)
def test_the_gradient_of_log_softmax(height: int, columns: int) -> None:
    x, by = 5 * _noise(height, columns), _noise(columns, height).t().contiguous()
    wanted = x.double().log_softmax(1)
    exact = _aten._log_softmax_backward_data(by.double(), wanted, 1, torch.float64)
    found = torch.full_like(x, torch.nan)
    Binding(rows.log_softmax_backward)(by, wanted.float(), 1, torch.float32, out=found)
    assert _close(found, exact)


@pytest.mark.parametrize("columns", [1, 10, 16, 70])
@pytest.mark.parametrize("padding", [-1, 2])
@pytest.mark.parametrize("turned", [False, True])
def test_the_gradient_of_a_table_has_torchs_bits(columns: int, padding: int, turned: bool) -> None:
    index = torch.randint(0, 5, (7, 6), generator=torch.Generator().manual_seed(columns))
    index, by = index.t() if turned else index, _noise(*(index.t() if turned else index).shape, columns)
    out = torch.full((5, columns), torch.nan)
    Binding(rows.embedding_backward)(by, index, 5, padding, False, out=out)
    assert torch.equal(out, _aten.embedding_dense_backward(by, index, 5, padding, False))


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize(
    ("size", "dims"),
    [
        *(((height, columns), [0]) for height, columns in _SIZES),
        ((3, 5, 17), [1]),
        ((3, 5, 17), [-2, 0]),
        ((2, 3, 600, 7), [2, 1]),
        ((2, 600, 3, 70), [0, 1, 2]),
    ],
)
def test_sums_of_rows(size: tuple[int, ...], dims: list[int], keep: bool) -> None:
    x = _noise(*size) + 1
    wanted = x.double().sum(dims, keep)
    out = torch.full(wanted.shape, torch.nan)
    Binding(rows.column_sums)(x, dims, keep, out=out)
    assert _close(out, wanted)


@pytest.mark.parametrize("dims", [[1], [0, 2], [2], None])
def test_other_sums_are_torchs(dims: list[int] | None) -> None:
    given = [Operand((2, 3, 4), (12, 4, 1), torch.float32), dims]
    found = variants_of(_aten.sum.dim_IntList, given, torch.device("cpu"))
    assert [way.name for way in found] == (["own kernel"] if dims == [1] else [])
    turned = [Operand((2, 3, 4), (12, 1, 3), torch.float32), [1]]
    assert not variants_of(_aten.sum.dim_IntList, turned, torch.device("cpu"))


@pytest.mark.parametrize(("height", "columns"), _SIZES)
@pytest.mark.parametrize("affine", [False, True])
def test_layer_norm_and_its_gradients(height: int, columns: int, affine: bool) -> None:
    x, by = _noise(height, columns) + 3, _noise(columns, height).t().contiguous()
    weight, bias = (_noise(columns), _noise(columns) - 1) if affine else (None, None)
    shape = [columns]

    def exact(t: Any) -> Any:
        return t.double() if isinstance(t, Tensor) else t

    wanted = _aten.native_layer_norm(*map(exact, (x, shape, weight, bias, 1e-3)))
    out, mean, scale = torch.full_like(x, torch.nan), torch.empty(height, 1), torch.empty(height, 1)
    Binding(rows.layer_norm)(x, shape, weight, bias, 1e-3, out=out, mean=mean, scale=scale)
    assert all(map(_close, (out, mean, scale), wanted))
    mask = [True, affine, affine]
    grads = _aten.native_layer_norm_backward(*map(exact, (by, x, shape)), *wanted[1:], exact(weight), exact(bias), mask)
    rooms = {"out": torch.full_like(x, torch.nan)}
    if affine:
        rooms |= {"by_weight": torch.full((columns,), torch.nan), "by_bias": torch.full((columns,), torch.nan)}
    Binding(rows.layer_norm_backward)(by, x, shape, mean, scale, weight, bias, mask, **rooms)
    for found, true in zip(rooms.values(), grads, strict=False):
        assert (found - true).abs().max() <= 1e-5 * max(1.0, float(true.abs().max()))


def test_a_binding_follows_its_tensors() -> None:
    call = Binding(rows.column_sums)
    for size in ((4, 5), (4, 5), (3, 20)):
        x, out = _noise(*size), torch.empty(size[1])
        call(x, [0], False, out=out)
        assert _close(out, x.double().sum(0))
        x += 1.0
        call(x, [0], False, out=out)
        assert _close(out, x.double().sum(0))


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(5, 12), nn.LayerNorm(12), nn.Linear(12, 3)
        self.plain = nn.LayerNorm(12, elementwise_affine=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.plain(x := self.norm(self.first(x)).relu()) + x)  # type: ignore[no-any-return]


@pytest.mark.usefixtures("own_kernels_preferred")
@pytest.mark.parametrize("members", [1, 3])
def test_a_network_replayed_with_them_trains_as_its_members_do(members: int) -> None:
    torch.manual_seed(1)
    batches = [(_noise(step + 9, 5)[:9], torch.arange(9) % 3) for step in range(8)]
    array = train_beside(_Net, members, batches)
    (seen,) = array._calls.steps
    assert seen.program is not None, seen.reason
    kinds = [step for step in seen.program.steps if isinstance(step, rows.Bound)]
    assert len(kinds) == (7 if members == 1 else 9)  # sums of rows are gradients of biases
