"""Norms of images with subsequent operations: the library compared with float64, and in place of torch's calls in a
step."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hfta_nb.engine.array.access import fuse_preallocated
from hfta_nb.engine.kernels.native import build, images
from hfta_nb.engine.kernels.native.images import Bound, Images
from hfta_nb.engine.replay.image_norm_kernels import CHOSEN, RESULTS, Kernel
from tests.core.compiled import (
    NEEDS_COMPILER,
    channels_last,
    near,
    see_torchs_in_float64,
    taken,
    train_measured,
)

pytestmark = [NEEDS_COMPILER, pytest.mark.usefixtures("libraries_anew")]
OWN = [images]

# size, groups (0: a batch norm), channels last, ReLU, pooling, whether the gradient has channels first
CASES = [
    ((4, 16, 12, 12), 4, True, True, True, False),
    ((3, 32, 7, 5), 4, True, True, True, True),
    ((3, 6, 7, 5), 3, True, True, False, True),
    ((3, 6, 5, 6), 1, True, False, False, False),
    ((5, 20, 9, 30), 5, False, True, False, False),
    ((2, 40, 1, 70), 0, False, True, False, False),
    ((2, 3, 1, 1), 0, False, False, False, False),
    ((1, 24, 1, 2000), 0, True, True, False, False),
    ((3, 5, 7, 5), 0, True, True, True, False),
    ((40, 33, 1, 1), 0, True, False, False, False),
]


def _draw(seed: int, *shape: int) -> Tensor:
    return 2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed)) + 3


def _expected(case: Any, given: list[Any], grad: Tensor | None, dtype: torch.dtype) -> list[Tensor]:
    """Result, running statistics, gradients, by torch with channels first."""
    _, groups, _, relu, pool, _ = case
    x, weight, bias, mean, variance = [None if t is None else t.to(dtype).contiguous().clone() for t in given]
    learnt = [t.requires_grad_() for t in (x, weight, bias) if t is not None]
    if groups:
        out = F.group_norm(x, groups, weight, bias, 1e-5)
    else:
        out = F.batch_norm(x, mean, variance, weight, bias, True, 0.1, 1e-5)
    out = F.relu(out) if relu else out
    out = F.max_pool2d(out, 2) if pool else out
    grad = torch.ones_like(out) if grad is None else grad.to(dtype)
    kept = [] if groups or mean is None or variance is None else [mean, variance]
    return [out.detach(), *kept, *torch.autograd.grad(out, learnt, grad.contiguous())]


@pytest.mark.usefixtures("own_libraries")
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward_and_backward(case: Any, affine: bool) -> None:
    size, groups, last, relu, pool, turned = case
    order = torch.channels_last if last else torch.contiguous_format
    how = Images(size, groups, last, relu, pool, 1e-5, 0.0 if groups else 0.1)
    forward = Bound(how, False)
    backward = Bound(Images(**{**how.__dict__, "turned": turned}), True)
    for seed in (1, 2):  # again, in the same memory
        x = _draw(seed, *size)
        x = x.contiguous(memory_format=order) if last else x
        weight, bias = (_draw(seed + k, size[1]) if affine else None for k in (10, 20))
        statistics = [None, None] if groups else [_draw(seed + k, size[1]).abs() for k in (30, 40)]
        given = [x, weight, bias, *statistics]
        grad = _draw(seed + 50, *_expected(case, given, None, torch.float32)[0].shape) - 3
        exact, torchs = (_expected(case, given, grad, dtype) for dtype in (torch.float64, torch.float32))
        grad = grad.contiguous(memory_format=order) if last and not turned else grad
        out, dx = torch.empty_like(exact[0], dtype=torch.float32, memory_format=order), torch.empty_like(x)
        mean, scale = (torch.empty(size[0] * groups or size[1]) for _ in range(2))
        forward(
            x=x, weight=weight, bias=bias, running_mean=statistics[0], running_var=statistics[1], out=out, mean=mean,
            scale=scale,
        )  # fmt: skip
        by = [torch.empty(size[1]) for _ in range(2)] if affine else [None, None]
        backward(
            x=x, grad=grad, weight=weight, bias=bias, mean=mean, scale=scale, out=dx, weight_grad=by[0],
            bias_grad=by[1],
        )  # fmt: skip
        found = [t for t in (out, *statistics, dx, *by) if t is not None]
        for one, two, true in zip(found, torchs, exact, strict=True):
            near(one, two, true)


@pytest.mark.usefixtures("own_libraries")
@pytest.mark.parametrize("last", [False, True])
def test_a_sample_that_is_not_a_number_harms_no_other(last: bool) -> None:
    x = _draw(1, 4, 6, 8, 8)
    x = channels_last(x) if last else x
    forward = Bound(Images((4, 6, 8, 8), 3, last, True, False, 1e-5), False)
    mean, scale = torch.empty(12), torch.empty(12)

    def result() -> Tensor:
        out = torch.empty_like(x)
        forward(x=x, out=out, mean=mean, scale=scale)
        return out

    before = result()
    x[2, 0, 3, 3] = float("nan")
    after = result()
    assert after[2, :2].isnan().all()
    assert torch.equal(before[[0, 1, 3]], after[[0, 1, 3]])
    assert torch.equal(before[2, 2:], after[2, 2:])


KINDS = "relu,gelu,tanh,silu"


@pytest.mark.usefixtures("own_libraries")
@pytest.mark.parametrize(
    ("size", "last", "pool"),
    [
        ((4, 20, 6, 8), True, True),
        ((3, 52, 5, 7), True, True),
        ((3, 20, 5, 6), True, False),
        ((3, 20, 5, 6), False, False),
    ],
    ids=str,
)
def test_activations_by_member_that_change_between_runs(size: tuple[int, ...], last: bool, pool: bool) -> None:
    members, each = 4, size[1] // 4
    how = Images(size, 0, last, False, pool, 1e-5, 0.1, kinds=KINDS, members=members)
    forward = Kernel(how, False, ("x", "weight", "bias", CHOSEN), RESULTS).bind()
    names, rooms = ("grad", "x", "weight", "bias", "mean", "scale", CHOSEN), ("out", "weight_grad", "bias_grad")
    backward = Kernel(how, True, names, rooms).bind()
    x, weight, bias = _draw(1, *size), _draw(2, size[1]), _draw(3, size[1]) - 3
    x = channels_last(x) if last else x
    chosen = [torch.zeros(members, dtype=torch.bool) for _ in KINDS.split(",")]
    for order in ([0, 1, 2, 3], [1, 1, 3, 0]):
        for number, own in enumerate(chosen):
            own.copy_(torch.tensor(order) == number)
        functions = [(F.relu, F.gelu, torch.tanh, F.silu)[number] for number in order]
        grad = _draw(4, size[0], size[1], *(n // 2 if pool else n for n in size[2:])) - 3
        found: list[list[Tensor]] = []
        for dtype in (torch.float64, torch.float32):
            learnt = [t.detach().to(dtype, copy=True).contiguous().requires_grad_() for t in (x, weight, bias)]
            out = F.batch_norm(learnt[0], None, None, *learnt[1:], True, 0.1, 1e-5)
            parts = out.split(each, 1)
            out = torch.cat([f(part) for f, part in zip(functions, parts, strict=True)], 1)
            out = F.max_pool2d(out, 2) if pool else out
            found.append([out.detach(), *torch.autograd.grad(out, learnt, grad.to(dtype))])
        made = torch.empty_like(channels_last(grad) if last else grad)
        mean, scale, *by = (torch.empty(size[1]) for _ in range(4))
        forward(x, weight, bias, chosen, out=made, mean=mean, scale=scale)
        dx = torch.empty_like(x)
        given = channels_last(grad) if last else grad
        backward(given, x, weight, bias, mean, scale, chosen, out=dx, weight_grad=by[0], bias_grad=by[1])
        for own_result, true, torchs in zip((made, dx, *by), *found, strict=True):
            near(own_result, torchs, true)


@pytest.mark.usefixtures("own_libraries")
@pytest.mark.parametrize("kinds", ["", "gelu,relu"])
@pytest.mark.parametrize(
    ("size", "last", "pool"), [((3, 18, 7, 6), True, True), ((3, 18, 5, 6), True, False), ((3, 18, 5, 6), False, False)]
)
def test_by_running_statistics(size: tuple[int, ...], last: bool, pool: bool, kinds: str) -> None:
    members = 2 if kinds else 1
    how = Images(size, 0, last, not kinds, pool, 1e-5, 0.1, kinds=kinds, members=members, fixed=True)
    more = ([torch.tensor([True, False]), torch.tensor([False, True])],) if kinds else ()
    names = ("x", "weight", "bias", "running_mean", "running_var", *((CHOSEN,) if kinds else ()))
    x, (weight, bias, mean, variance) = _draw(1, *size), (_draw(seed, size[1]) for seed in (2, 3, 4, 5))
    given = [channels_last(x) if last else x, weight, bias, mean, variance.abs()]
    before = [t.clone() for t in given]
    found = []
    for dtype in (torch.float64, torch.float32):
        own = [t.to(dtype).contiguous() for t in given]
        out = F.batch_norm(own[0], own[3], own[4], own[1], own[2], False, 0.1, 1e-5)
        parts = out.split(size[1] // members, 1)
        out = torch.cat([F.gelu(parts[0]), F.relu(parts[1])], 1) if kinds else F.relu(out)
        found.append(F.max_pool2d(out, 2) if pool else out)
    out = torch.empty_like(channels_last(found[1]) if last else found[1])
    Kernel(how, False, names, RESULTS).bind()(*given, *more, out=out, mean=torch.empty(0), scale=torch.empty(0))
    near(out, found[1], found[0])
    assert all(map(torch.equal, given, before))


class _Looking(nn.Module):
    """Its result depends on what stands between a norm and its ReLU as well."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        normal = self.norm(self.first(x))
        both = torch.cat([normal.amax((-1, -2)), normal.relu().mean((-1, -2))], 1)
        return self.last(both)  # type: ignore[no-any-return]


def _net(*between: nn.Module) -> Callable[[], nn.Module]:
    def build_one() -> nn.Module:
        middle = copy.deepcopy(between)
        return nn.Sequential(nn.Conv2d(3, 8, 3), *middle, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4))

    return build_one


# How a member is made, and its chain.
NETS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "group, ReLU, pooling": (
        _net(nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool2d(2)),
        "group_norm + relu + max_pool2d",
    ),
    "batch, ReLU, pooling": (
        _net(nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        "batch_norm + relu + max_pool2d",
    ),
    "group, ReLU": (_net(nn.GroupNorm(4, 8), nn.ReLU()), "group_norm + relu"),
    "batch": (_net(nn.BatchNorm2d(8)), "batch_norm"),
    "batch, without weights": (_net(nn.BatchNorm2d(8, affine=False), nn.ReLU()), "batch_norm + relu"),
    "ReLU in place": (_net(nn.GroupNorm(2, 8), nn.ReLU(inplace=True)), "group_norm"),
    "another window": (_net(nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool2d(3)), "group_norm + relu"),
    "another function": (_net(nn.BatchNorm2d(8), nn.SiLU(), nn.MaxPool2d(2)), "batch_norm"),
    "somebody looks": (_Looking, "group_norm"),
}


SIZE = (6, 3, 11, 13)


@pytest.mark.usefixtures("own_libraries", "own_kernels_preferred")
@pytest.mark.each("name")
@pytest.mark.parametrize("block_size", [1, 2])
@pytest.mark.parametrize("name", NETS)
def test_in_a_replayed_step(name: str, block_size: int) -> None:
    kind, chain = NETS[name]
    # Without a pooling as given or not, whatever is faster.
    array = train_measured(kind, SIZE, block_size, last="pooling" in name)
    (found,) = set(taken(array, "_norm"))
    assert found == chain


@pytest.mark.usefixtures("own_libraries", "own_kernels_preferred")
@pytest.mark.parametrize(
    ("pooling", "chain"),
    [(nn.MaxPool2d(2), "batch_norm + relu or gelu + max_pool2d"), (nn.MaxPool2d(3), "batch_norm + relu or gelu")],
    ids=["2 x 2", "3 x 3"],
)
def test_members_of_several_activations_in_a_replayed_step(pooling: nn.Module, chain: str) -> None:
    """Also of several sizes, whose running statistics are copied to their places after the norm."""
    kinds = itertools.cycle([(nn.ReLU, 8), (nn.GELU, 5)])

    def build_one() -> nn.Module:
        act, width = next(kinds)
        after = copy.deepcopy(pooling), nn.AdaptiveAvgPool2d(2), nn.Flatten()
        return nn.Sequential(nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), act(), *after, nn.Linear(4 * width, 4))

    array = train_measured(
        build_one, SIZE, 2, last=True, fuse=lambda given, seeds: fuse_preallocated(given, seeds, "first")
    )
    assert taken(array, "_norm") == [chain]


@pytest.mark.usefixtures("own_libraries", "own_kernels_preferred")
@pytest.mark.parametrize("name", ["batch, ReLU, pooling", "batch, without weights"])
def test_large_batches_are_measured_by_some_of_their_samples(name: str) -> None:
    kind, chain = NETS[name]
    array = train_measured(kind, (400, 3, 9, 9), 2, last=True)
    table = array.explain()
    (shape,) = [f for f in table["function"] if f.startswith(f"{chain} [")]
    assert f"{chain} [{2**18 // (16 * 7 * 7)}, 16, 7, 7] x" in shape


@pytest.mark.usefixtures("own_libraries", "own_kernels_preferred")
@pytest.mark.parametrize("size", [(6, 3, 10, 8), (6, 3, 11, 8)], ids=["whole windows", "part of a window"])
def test_a_pooling_that_rounds_up(size: tuple[int, ...]) -> None:
    kind = _net(nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True))
    (found,) = taken(train_measured(kind, size, 2, last=True), "_norm")
    assert found == ("batch_norm + relu + max_pool2d" if size[2] % 2 == 0 else "batch_norm + relu")


@pytest.mark.usefixtures("own_libraries", "own_kernels_preferred")
def test_in_float64_torchs() -> None:
    see_torchs_in_float64(NETS["group, ReLU, pooling"][0], SIZE, 1, among="_norm")


@pytest.mark.usefixtures("own_kernels_preferred")
def test_without_a_library_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(build.VARIABLE, "off")
    assert not images.usable()
    assert not taken(train_measured(NETS["group, ReLU"][0], SIZE, 1))
