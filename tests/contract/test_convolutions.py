"""Convolutions and group norm of several members at once, compared with the modules alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import hfta_nb as hfta
from hfta_nb.engine.rules import convolution
from hfta_nb.engine.rules.rule_mode import memory_order

PRODUCT = "batched matrix product"
GROUPED = "vmap, a grouped convolution"
CONVOLUTIONS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "1d": (lambda: nn.Conv1d(4, 6, 1), (3, 4, 5), PRODUCT),
    "2d": (lambda: nn.Conv2d(4, 6, 1), (3, 4, 5, 2), PRODUCT),
    "2d, no bias": (lambda: nn.Conv2d(4, 6, 1, bias=False), (3, 4, 5, 2), PRODUCT),
    "3d": (lambda: nn.Conv3d(4, 2, (1, 1, 1)), (2, 4, 3, 2, 2), PRODUCT),
    "2d, padded": (lambda: nn.Conv2d(4, 6, 1, padding=1), (3, 4, 5, 2), GROUPED),
    "2d, strided": (lambda: nn.Conv2d(4, 6, 1, stride=2), (3, 4, 5, 3), GROUPED),
    "2d, groups": (lambda: nn.Conv2d(4, 6, 1, groups=2), (3, 4, 5, 2), GROUPED),
    "2d, of three": (lambda: nn.Conv2d(4, 6, (1, 3)), (3, 4, 5, 4), GROUPED),
    "one sample without a batch": (lambda: nn.Conv1d(4, 6, 1), (4, 5), GROUPED),
}
NORMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "2d": (lambda: nn.GroupNorm(2, 4), (3, 4, 5, 2)),
    "no affine part": (lambda: nn.GroupNorm(2, 4, affine=False), (3, 4, 5)),
    "vectors": (lambda: nn.GroupNorm(4, 8), (3, 8)),
    "one group": (lambda: nn.GroupNorm(1, 4, eps=1e-2), (3, 4, 5)),
}
dtypes = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)


class After(nn.Module):
    """A module whose input the members do not share."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.scale = nn.Parameter(torch.rand(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x * self.scale)


def _loss(out: Tensor, y: Tensor) -> Tensor:
    return (out.sin() + out.square()).mean()


def _agree(build: Callable[[], nn.Module], x: Tensor, own: bool, dtype: torch.dtype) -> list[str]:
    """Losses, gradients and order in memory are those of the modules alone; tells how functions are fused."""
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    torch.manual_seed(5)
    modules = [(After(build()) if own else nn.Sequential(build())).to(x.device, dtype) for _ in range(3)]
    x = x.to(dtype)
    array = hfta.fuse(modules)
    array.block_size = 3
    losses = array.backward(_loss, x, x)
    outs = array(x)
    for i, module in enumerate(modules):
        out = module(x)
        _loss(out, x).backward()
        assert memory_order(outs[i].unsqueeze(0)) == memory_order(out.unsqueeze(0))
        torch.testing.assert_close(outs[i], out, atol=tolerance, rtol=tolerance)
        torch.testing.assert_close(losses[i], _loss(out, x).detach(), atol=tolerance, rtol=tolerance)
        for name, p in array.named_parameters():
            torch.testing.assert_close(p.grad[i], module.get_parameter(name).grad, atol=tolerance, rtol=tolerance)
    return list(array.explain()["how"])


@pytest.mark.each("name")
@dtypes
@pytest.mark.parametrize("own", [True, False], ids=["own input", "shared input"])
@pytest.mark.parametrize("name", list(CONVOLUTIONS))
def test_convolutions(name: str, own: bool, dtype: torch.dtype, device: torch.device) -> None:
    build, shape, how = CONVOLUTIONS[name]
    torch.manual_seed(1)
    kept = dtype == torch.float64 or not own  # float64 keeps the bits of the plain convolution
    assert (GROUPED if kept else how) in _agree(build, torch.randn(shape, device=device), own, dtype)


@pytest.mark.parametrize("own", [True, False], ids=["own input", "shared input"])
@pytest.mark.parametrize("name", ["2d, padded", "2d, of three", "2d, groups", "transposed"])
def test_more_elements_than_a_library_takes_are_several_convolutions(
    name: str, own: bool, monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    torch.manual_seed(1)
    transposed = lambda: nn.ConvTranspose2d(4, 6, 2, 3, 1, 2, 2, dilation=2)  # noqa: E731
    build, shape, _ = CONVOLUTIONS.get(name, (transposed, (3, 4, 5, 2), GROUPED))
    x = torch.randn(shape, device=device)
    elements = max(x.numel(), build().to(device)(x).numel())
    seen: list[int] = []
    monkeypatch.setattr(convolution, "_most", lambda device: 2 * elements + 1)
    convolved = torch.ops.aten.convolution.default

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            out = func(*args, **(kwargs or {}))
            if func is convolved and out.device.type != "meta":
                seen.append(max(out.numel(), args[0].numel()))
            return out

    with Sizes():
        how = _agree(build, x, own, torch.float64)
    assert "vmap, grouped convolutions of 2 members each, for more elements are too many" in how
    assert max(seen) <= 2 * elements + 1
    monkeypatch.setattr(convolution, "_most", lambda device: 1)  # not even one member's: as it is alone
    assert "vmap, grouped convolutions of 1 members each, for more elements are too many" in _agree(
        build, x, own, torch.float64
    )


def test_a_cpu_takes_any_number_of_elements() -> None:
    assert convolution._most(torch.device("cpu")) is None
    assert convolution._most(torch.device("cuda", 0)) == 2**31 - 1


@dtypes
def test_channels_last_stay_last(dtype: torch.dtype, device: torch.device) -> None:
    torch.manual_seed(1)
    x = torch.randn(3, 4, 5, 2, device=device).to(memory_format=torch.channels_last)
    assert GROUPED in _agree(lambda: nn.Conv2d(4, 6, 1), x, True, dtype)


@pytest.mark.each("dtype")
@dtypes
@pytest.mark.parametrize("own", [True, False], ids=["own input", "shared input"])
@pytest.mark.parametrize("name", list(NORMS))
def test_group_norm(name: str, own: bool, dtype: torch.dtype, device: torch.device) -> None:
    build, shape = NORMS[name]
    own = own or name == "no affine part"  # else there is nothing of a member's own
    torch.manual_seed(1)
    made = _agree(build, torch.randn(shape, device=device), own, dtype)
    assert "one group norm over the channels of all members" in made


def test_group_norm_tells_what_torch_tells(device: torch.device) -> None:
    modules = [After(nn.GroupNorm(2, 4)).to(device) for _ in range(2)]
    array = hfta.fuse(modules)
    array.block_size = 2
    with pytest.raises(hfta.errors.MemberError, match="channels"):
        array(torch.randn(3, 6, 5, device=device))


@dtypes
@pytest.mark.parametrize("own", [True, False], ids=["own input", "shared input"])
@pytest.mark.parametrize("last", [True, False], ids=["channels last", "contiguous"])
def test_images_of_one_channel_are_stored_as_torch_stores_them(
    last: bool, own: bool, dtype: torch.dtype, device: torch.device
) -> None:
    """Their stride of the channel alone tells the two layouts apart."""
    x = torch.randn(3, 5, 4, 1, device=device).permute(0, 3, 1, 2)
    x = x if last else torch.randn(3, 1, 5, 4, device=device)
    _agree(lambda: nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.MaxPool2d(2)), x, own, dtype)


def test_channels_last_images_of_several_members_are_not_copied_between_layers() -> None:
    """Convolution, norm and pooling take what the one before gives: all members' channels beside each other."""
    torch.manual_seed(0)
    modules = [
        nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 3))
        for _ in range(3)
    ]
    array = hfta.fuse(modules)
    array.block_size, array.capture = 3, False
    given = torch.randn(3, 2, 8, 8, 3).permute(0, 1, 4, 2, 3)
    x = hfta.per_member(given)
    array.backward(_loss, x, x)  # verified with copies
    seen = _Calls()
    with torch.no_grad():
        array(x)  # the first of its kind, likewise
        with seen:
            array(x)
    copies = [shape for name, shape in seen.found if name in ("aten::clone", "aten::copy_")]
    assert [name for name, _ in seen.found].count("aten::convolution") == 2
    images = [shape for shape in copies if shape.numel() >= given.numel() and len(shape) > 2]  # not the saved state
    assert images == [torch.Size((2, 8, 8, 3, 3))]  # the input, once


class _Calls(TorchDispatchMode):
    """The calls, by name, with the shape of what each gives."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, torch.Size]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor):
            self.found.append((func._schema.name, out.shape))
        return out
