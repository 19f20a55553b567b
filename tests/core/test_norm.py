"""The package's own batch norm of images with channels last: compared with float64, and in place of torch's in a
step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hfta_nb.engine.kernels.native import build, norm
from hfta_nb.engine.kernels.native.norm import BatchNorm, BatchNormBackward
from hfta_nb.engine.kernels.strategy.kernel_variants import COMPILED, Operand, variants_of
from tests.core.compiled import NEEDS_COMPILER, channels_last, near, taken, train_measured

pytestmark = [NEEDS_COMPILER, pytest.mark.usefixtures("libraries_anew")]
OWN = [norm]

CPU = torch.device("cpu")
aten = torch.ops.aten
SHAPES = [(4, 3, 16, 16), (8, 24, 32, 32), (3, 5, 7, 1), (2, 1, 3, 3), (1, 200, 1, 2), (33, 6)]


def _draw(seed: int, *shape: int) -> Tensor:
    noise = 3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed)) + 5
    return channels_last(noise) if len(shape) == 4 else noise


def _doubled(values: Any) -> list[Any]:
    return [v.double() if isinstance(v, Tensor) else v for v in values]


def _near(found: Any, plain: Any, exact: Any) -> None:
    """Torch's own result is that with channels first."""
    for results in zip(found, plain, exact, strict=True):
        near(*results, times=2)


@pytest.mark.usefixtures("own_libraries")
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_forward(shape: tuple[int, ...], running: bool, affine: bool) -> None:
    own = BatchNorm(torch.native_batch_norm)
    for seed in (1, 2):  # again, in the same memory
        x, channels = _draw(seed, *shape), shape[1]
        weight, bias = (_draw(seed + k, channels) if affine else None for k in (10, 20))
        mean, variance = (_draw(seed + k, channels).abs() if running else None for k in (30, 40))
        args = [x, weight, bias, mean, variance, True, 0.1, 1e-5]
        exact = _doubled(args)
        first = [v.clone(memory_format=torch.contiguous_format) if isinstance(v, Tensor) else v for v in args]
        found, plain, true = own(*args), torch.native_batch_norm(*first), torch.native_batch_norm(*exact)
        kept = slice(3, 5 if running else 3)
        _near([*found, *args[kept]], [*plain, *first[kept]], [*true, *exact[kept]])
        assert found[0].stride() == x.stride()


@pytest.mark.usefixtures("own_libraries")
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_backward(shape: tuple[int, ...], affine: bool) -> None:
    x, grad, channels = _draw(1, *shape), _draw(2, *shape), shape[1]
    weight = _draw(3, channels) if affine else None
    _, mean, scale = torch.native_batch_norm(x, weight, None, None, None, True, 0.1, 1e-5)
    own = BatchNormBackward(aten.native_batch_norm_backward)
    for wanted in ([True, True, True], [True, False, False], [False, True, True]):
        args = [grad, x, weight, None, None, mean, scale, True, 1e-5, wanted]
        found = own(*args)
        assert [t is not None for t in found] == wanted
        every = [*args[:-1], [True] * 3]
        first = [v.contiguous() if isinstance(v, Tensor) else v for v in every]
        plain, true = aten.native_batch_norm_backward(*first), aten.native_batch_norm_backward(*_doubled(every))
        asked = [i for i in range(3) if wanted[i]]
        _near(*([values[i] for i in asked] for values in (found, plain, true)))


@pytest.mark.usefixtures("own_libraries")
def test_a_channel_that_is_not_a_number_harms_no_other() -> None:
    x = _draw(1, 4, 6, 8, 8)
    args = (torch.ones(6), torch.zeros(6), None, None, True, 0.1, 1e-5)
    before = BatchNorm(torch.native_batch_norm)(x, *args)[0]
    x[:, 2] = float("nan")
    after = BatchNorm(torch.native_batch_norm)(x, *args)[0]
    rest = [0, 1, 3, 4, 5]
    assert after[:, 2].isnan().all()
    assert torch.equal(before[:, rest], after[:, rest])


def test_without_a_library_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(build.VARIABLE, "off")
    assert not norm.usable()
    x = _draw(1, 4, 3, 16, 16)
    args = (x, None, None, None, None, True, 0.1, 1e-5)
    for got, own in zip(BatchNorm(torch.native_batch_norm)(*args), torch.native_batch_norm(*args), strict=True):
        assert torch.equal(got, own)


@pytest.mark.usefixtures("own_libraries")
def test_which_calls() -> None:
    def ways(x: Tensor, training: bool = True, weight: Tensor | None = None) -> list[str]:
        args = [x, weight, None, None, None, training, 0.1, 1e-5]
        given = [Operand(tuple(a.shape), a.stride(), a.dtype) if isinstance(a, Tensor) else a for a in args]
        return [f.name for f in variants_of(aten.native_batch_norm.default, given, CPU)]

    x = _draw(1, 4, 3, 16, 16)
    assert ways(x) == [COMPILED]
    assert ways(_draw(1, 33, 6)) == [COMPILED]
    assert not ways(x.contiguous())
    assert not ways(x, training=False)
    assert not ways(x.double())
    assert not ways(x[:, :, ::2])  # gaps
    assert not ways(x, weight=torch.ones(6)[::2])
    assert not ways(_draw(1, 4, 3, 16))


def _net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


@pytest.mark.usefixtures("own_libraries", "own_kernels_preferred")
@pytest.mark.parametrize("block_size", [1, 2])
def test_in_a_replayed_step(block_size: int) -> None:
    array = train_measured(_net, (16, 6), block_size)
    norms = array.explain()["function"].str.startswith("native_batch_norm").sum()
    assert len(taken(array, "native_batch_norm")) == norms == 2
