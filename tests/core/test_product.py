"""The package's own matrix products: compared with float64, with fused operations, and compiled in the background."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.array import FusedArray
from hfta_nb.engine.kernels.native import background, build, product
from hfta_nb.engine.kernels.strategy import autotune
from hfta_nb.engine.kernels.strategy.kernel_variants import COMPILED, PLAIN
from tests.core.compiled import NEEDS_COMPILER, close, train_beside

pytestmark = [NEEDS_COMPILER, pytest.mark.usefixtures("libraries_anew")]
OWN = [product]


def _noise(*size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(math.prod(size)))


def _turned(*size: int) -> Tensor:
    members, rows, columns = size
    return _noise(members, columns, rows).transpose(1, 2)


@pytest.mark.usefixtures("own_libraries")
@pytest.mark.parametrize("rows", [1, 5, 6, 7, 8, 13, 64])
@pytest.mark.parametrize(("inner", "columns"), [(1, 1), (3, 16), (10, 17), (64, 33), (16, 48), (128, 64), (530, 130)])
@pytest.mark.parametrize("turned", [False, True])
def test_products_of_any_size(rows: int, inner: int, columns: int, turned: bool) -> None:
    order = _turned if turned else _noise
    a, b, bias = order(3, rows, inner), order(3, inner, columns), _noise(3, 1, columns)
    out = torch.full((3, rows, columns), torch.nan)
    product.Compiled(torch.bmm, adds=False)(a, b, out=out)
    assert close(out, a.double() @ b.double())
    product.Compiled(torch.baddbmm, adds=True)(bias, a, b, out=out)
    assert close(out, bias.double() + a.double() @ b.double())
    product.Compiled(torch.addmm, adds=True)(bias[0, 0], a[1], b[2], out=out[0])
    assert close(out[0], bias[0, 0].double() + a[1].double() @ b[2].double())


@pytest.mark.usefixtures("own_libraries")
def test_factors_may_lie_apart_or_be_shared_and_nothing_beside_the_result_is_written() -> None:
    memory, weights = torch.zeros(2, 5, 40), _noise(2, 700)
    shared, b = _noise(5, 7).expand(2, 5, 7), weights[:, 3:143].view(2, 20, 7).transpose(1, 2)
    out = memory[:, :, 10:30]
    product.Compiled(torch.bmm, adds=False)(shared, b, out=out)
    assert close(out, shared.double() @ b.double())
    assert not memory[:, :, :10].any()
    assert not memory[:, :, 30:].any()


@pytest.mark.usefixtures("own_libraries")
def test_the_same_object_may_be_called_with_other_tensors() -> None:
    call = product.Compiled(torch.mm, adds=False)
    for size in (4, 4, 9):
        for turned in (False, True):
            a, b, out = _noise(size, 5), _noise(5, size), torch.empty(size, size)
            call(b.t() if turned else a, b, out=out)
            assert close(out, (b.t() if turned else a).double() @ b.double())


@pytest.mark.usefixtures("own_libraries")
def test_what_it_does_not_take_torch_computes() -> None:
    a, b = _noise(4, 5), _noise(5, 6)
    turned = torch.empty(6, 4).t()
    assert product.Compiled(torch.mm, adds=False).bound((a, b), turned) is None
    product.Compiled(torch.mm, adds=False)(a, b, out=turned)
    assert close(turned, a.double() @ b.double())
    exact = torch.empty(4, 6, dtype=torch.float64)
    product.Compiled(torch.mm, adds=False)(a.double(), b.double(), out=exact)
    torch.testing.assert_close(exact, a.double() @ b.double())


@pytest.mark.usefixtures("own_libraries")
@pytest.mark.parametrize("columns", [16, 64, 71])
def test_a_relu_and_its_mask_are_those_of_torch_also_for_what_is_no_number(columns: int) -> None:
    a, b, by = _noise(2, 7, 9), _noise(2, 9, columns), _noise(2, 7, columns)
    a[0, 3, 2] = by[1, 2, 3] = torch.nan
    by[0, 0] = 0.0
    plain = torch.empty(2, 7, columns)
    plain = product.Compiled(torch.bmm, adds=False)(a, b, out=plain) or plain
    bound = product.Compiled(torch.bmm, adds=False).bound((a, b), torch.empty(2, 7, columns))
    assert bound is not None
    bound.then_relu()
    bound()
    torch.testing.assert_close(bound.out, plain.relu(), rtol=0, atol=0, equal_nan=True)
    bound = product.Compiled(torch.bmm, adds=False).bound((a, b), torch.empty(2, 7, columns))
    assert bound is not None
    assert bound.then_mask(by)
    bound()
    wanted = torch.ops.aten.threshold_backward(plain, by, 0)
    torch.testing.assert_close(bound.out, wanted, rtol=0, atol=0, equal_nan=True)
    assert not bound.then_mask(by[:, :, :1])


class _Net(nn.Module):
    """Sums before and after their ReLU are used, and one of them twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(12, 20), nn.Linear(20, 20), nn.Linear(20, 20), nn.Linear(20, 5)])

    def forward(self, x: Tensor) -> Tensor:
        first = self.layers[0](x)
        second = self.layers[1](first.relu())
        third = self.layers[2](second.relu() + first)
        return self.layers[3](F.relu(third).flatten(1))  # type: ignore[no-any-return]


@pytest.mark.usefixtures("own_libraries", "own_kernels_preferred")
@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("split", [False, True])
def test_a_network_replayed_with_them_trains_as_its_members_do(members: int, split: bool) -> None:
    torch.manual_seed(5)
    batches = [(_noise(step + 9, 12)[:9], torch.arange(9) % 5) for step in range(8)]
    array = train_beside(_Net, members, batches, split)
    told = array.explain().to_string()
    assert "recorded" in set(array.explain()["how"])
    assert f"{COMPILED} " in told


def _replayed(array: FusedArray) -> None:
    for _ in range(4):
        array.zero_grad()
        array.backward(F.cross_entropy, _noise(6, 8), torch.arange(6) % 4)


@pytest.mark.usefixtures("own_libraries")
@pytest.mark.parametrize("members", [1, 3])
def test_what_is_folded_counts_where_a_product_is_hardly_slower_than_torchs(
    members: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of eight products four have a ReLU or a mask after them."""
    costs = {PLAIN: 5.0e-6, COMPILED: 5.5e-6}
    monkeypatch.setattr(autotune, "cost", lambda name, times: costs.get(name, 1.0))
    array = hfta.fuse([nn.Sequential(*(nn.Linear(8, 8), nn.ReLU()) * 2, nn.Linear(8, 4)) for _ in range(members)])
    _replayed(array)
    (seen,) = array._calls.steps
    assert seen.program is not None
    assert sum(isinstance(step, product.Bound) for step in seen.program.steps) == 4


@pytest.mark.usefixtures("own_libraries", "own_kernels_preferred")
@pytest.mark.parametrize("members", [1, 3])
def test_relus_and_their_masks_are_folded_into_products(members: int) -> None:
    def build_one() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))

    array = hfta.fuse([build_one() for _ in range(members)])
    _replayed(array)
    (seen,) = array._calls.steps
    assert seen.program is not None
    products = [step for step in seen.program.steps if isinstance(step, product.Bound)]
    assert len(products) == 8
    assert sum(step._product.relu for step in products) == 2
    assert sum(step._product.mask is not None for step in products) == 2
    names = [getattr(getattr(step, "func", None), "__name__", "") for step in seen.program.steps]
    assert not any("relu" in name or "threshold" in name for name in names)


def test_it_is_compiled_first_and_there_for_the_next_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HFTA_NB_CACHE", str(tmp_path))
    monkeypatch.delenv("HFTA_NB_NATIVE", raising=False)
    assert product.usable()
    build._loaded.clear()
    monkeypatch.setattr(background, "compile_into", None)
    assert product.usable()


def test_a_compiler_that_fails_is_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, cache = tmp_path / "cc", tmp_path / "cache"
    broken.write_text(f"#!/bin/sh\necho x >> {tmp_path / 'asked'}\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    monkeypatch.setenv("HFTA_NB_CACHE", str(cache))
    monkeypatch.delenv("HFTA_NB_NATIVE", raising=False)
    assert not product.usable()
    deadline = time.monotonic() + 60
    while not (list(cache.glob("*.failed")) and not list(cache.glob("*.making"))):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    asked = (tmp_path / "asked").read_text()
    build._loaded.clear()
    assert not product.usable()
    assert not list(cache.glob("*.making"))
    assert (tmp_path / "asked").read_text() == asked
