"""Images between products of channels are stored channel by channel, without copies, and equal each member alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.replay import build_program
from hfta_nb.engine.replay.channel_major import channel_major
from hfta_nb.engine.replay.fused_kernel import Uses
from hfta_nb.engine.replay.restride import entries, layout_of, moved
from hfta_nb.engine.replay.trace import BufferView, Instruction

MEMBERS, SAMPLES, POINTS = 3, 4, 6
_aten = torch.ops.aten


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Uses, Sequence[Instruction]]]:
    """What each program's pass was given, and made of it."""
    found: list[tuple[Uses, Sequence[Instruction]]] = []

    def spied(uses: Uses) -> Any:
        made = channel_major(uses)
        found.append((uses, made[0]))
        return made

    monkeypatch.setattr(build_program, "channel_major", spied)
    return found


def _points(channels: int, out: int) -> list[nn.Module]:
    return [nn.Conv1d(channels, out, 1, bias=False), nn.BatchNorm1d(out), nn.ReLU()]


class Points(nn.Module):
    """PointNet's way: the same layers for every point, then the largest of all points."""

    def __init__(self, *between: nn.Module) -> None:
        super().__init__()
        self.each = nn.Sequential(*_points(3, 5), *_points(5, 7), *between, nn.Conv1d(7, 6, 1), nn.BatchNorm1d(6))

    def forward(self, x: Tensor) -> Tensor:
        return self.each(x).amax(2)  # type: ignore[no-any-return]


class Residual(nn.Module):
    """Features that one branch uses as they are, with a mean over each sample in between."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(*_points(3, 5))
        self.inner, self.last = nn.Sequential(*_points(5, 5), nn.Conv1d(5, 5, 1)), nn.Conv1d(5, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = x + self.inner(x) * torch.sigmoid(x.mean(2, keepdim=True))
        return self.last(x).mean(2)  # type: ignore[no-any-return]


class Images(nn.Module):
    """Convolutions of 1 x 1 before and after one of 3 x 3, which takes torch's order only."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 6, 1), nn.BatchNorm2d(6)
        self.wide, self.last = (
            nn.Conv2d(6, 6, 3, padding=1),
            nn.Sequential(nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 1)),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.unflatten(2, (2, 3)).tanh())
        return self.last(self.wide(self.norm(x).relu())).mean((2, 3))  # type: ignore[no-any-return]


BUILDS: dict[str, Callable[[], nn.Module]] = {
    "points": Points,
    "dropout": lambda: Points(nn.Dropout(0.4), nn.Conv1d(7, 7, 1), nn.Dropout1d(0.3)),
    "statistics kept": lambda: Points(nn.Conv1d(7, 7, 1), nn.BatchNorm1d(7, momentum=0.3, affine=False), nn.GELU()),
    "group norm": lambda: Points(nn.Conv1d(7, 6, 1), nn.GroupNorm(3, 6), nn.Conv1d(6, 7, 1)),
    "residual": Residual,
    "images": Images,
}


def _target(out: Tensor, y: Tensor) -> Tensor:
    return ((out - y) ** 2).mean()


def _steps(
    build: Callable[[], nn.Module], dtype: torch.dtype, block: int = MEMBERS, count: int = 6
) -> tuple[Any, list[nn.Module], list[Tensor], list[Tensor]]:
    """An array and its members alone after some steps, and the last losses of both."""
    torch.manual_seed(0)
    modules = [build().to(dtype) for _ in range(MEMBERS)]
    seeds = list(range(MEMBERS))
    array = hfta.fuse(modules, seeds)
    array.block_size, array.self_tuning = block, False
    x, y = torch.randn(SAMPLES, 3, POINTS, dtype=dtype), torch.randn(SAMPLES, 6, dtype=dtype)
    for _ in range(count):
        array.zero_grad()
        losses = array.backward(_target, x, y)
    alone = []
    for module, seed in zip(modules, seeds, strict=True):
        torch.manual_seed(seed)
        for _ in range(count):
            module.zero_grad()
            loss = _target(module(x), y)
            loss.backward()
        alone.append(loss.detach())
    return array, modules, list(losses), alone


def _equal(array: Any, modules: list[nn.Module], losses: list[Tensor], alone: list[Tensor], off: float) -> None:
    for i, module in enumerate(modules):
        torch.testing.assert_close(losses[i], alone[i], rtol=off, atol=off)
        for name, p in module.named_parameters():
            assert p.grad is not None
            torch.testing.assert_close(array.get_parameter(name).grad[i], p.grad, rtol=off, atol=off)
        for name, buffer in module.named_buffers():
            torch.testing.assert_close(array.get_buffer(name)[i], buffer, rtol=off, atol=off)


def _copied(calls: Sequence[Instruction]) -> int:
    """Copies of images of two members or more."""
    least = 2 * SAMPLES * POINTS * 5
    places = [c.results[0] for c in calls if c.function is _aten.clone.default]
    return sum(p is not None and torch.Size(p.size).numel() >= least for p in places)


@pytest.mark.parametrize("kind", BUILDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_steps_are_those_of_each_member_alone(kind: str, dtype: torch.dtype, passes: Any) -> None:
    found = _steps(BUILDS[kind], dtype)
    _equal(*found, off=1e-12 if dtype is torch.float64 else 2e-5)
    [(given, made)] = passes
    if dtype is torch.float64:  # for comparisons: as recorded, to the bit
        assert list(made) == list(given.calls)
    else:
        assert _copied(made) < _copied(given.calls)
    assert "recorded" in set(found[0].explain()["how"])


def test_points_are_not_copied_at_all(passes: Any) -> None:
    """Fails if a batch norm, a ReLU, a maximum or a gradient of these leaves the order of the products."""
    _steps(Points, torch.float32)
    [(given, made)] = passes
    assert _copied(given.calls) == 7
    assert _copied(made) == 0
    norms = [c for c in made if "native_batch_norm" in c.function._schema.name]
    assert [c.args[0].size[0] for c in norms] == [SAMPLES, 1, 1, 1, 1, SAMPLES]  # the first one's input is shared


def test_blocks_of_members(passes: Any) -> None:
    _equal(*_steps(Points, torch.float32, block=2), off=2e-5)
    [(given, made)] = passes
    assert _copied(made) < _copied(given.calls)


@pytest.mark.parametrize("training", [True, False])
def test_halves_and_evaluation(training: bool) -> None:
    torch.manual_seed(0)
    modules = [Points() for _ in range(MEMBERS)]
    array = hfta.fuse(modules)
    x = torch.randn(SAMPLES, 3, POINTS)
    for module in (array, *modules):
        module.train(training)
    for _ in range(5):
        array.zero_grad()
        out = array(x)
        out.square().sum().backward()
    for i, module in enumerate(modules):
        for _ in range(5):
            module.zero_grad()
            alone = module(x)
            alone.square().sum().backward()
        torch.testing.assert_close(out[i], alone, rtol=1e-4, atol=1e-4)
        for name, p in module.named_parameters():
            torch.testing.assert_close(array.get_parameter(name).grad[i], p.grad, rtol=1e-3, atol=1e-3)


def test_a_member_that_is_not_finite_stays_alone() -> None:
    torch.manual_seed(0)
    modules = [Points() for _ in range(MEMBERS)]
    with torch.no_grad():
        modules[1].get_parameter("each.3.weight")[0, 0] = float("nan")
    x, y = torch.randn(SAMPLES, 3, POINTS), torch.randn(SAMPLES, 6)
    array, rest = hfta.fuse(modules), hfta.fuse([modules[0], modules[2]])
    for each in (array, rest):
        each.block_size, each.self_tuning = len(each), False
        for _ in range(5):
            each.zero_grad()
            each.backward(_target, x, y)
    for name, p in rest.named_parameters():
        assert p.grad is not None
        torch.testing.assert_close(array.get_parameter(name).grad[[0, 2]], p.grad, rtol=1e-5, atol=1e-6)


# Layouts.


def _view(tensor: Tensor) -> BufferView:
    return BufferView(0, tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype)


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "all": lambda t: t,
    "channels of all members": lambda t: t.flatten(1, 2),
    "another order": lambda t: t.permute(2, 0, 3, 1),
    "one member": lambda t: t[:, 1],
    "some points": lambda t: t[:, :, 1:4, 1::2],
    "broadcast": lambda t: t[:, :1, :, :1].expand(-1, 3, -1, 6),
    "a row of all": lambda t: t[1:, 2:, 3:, 4:].squeeze(),
    "pairs of samples": lambda t: t.unflatten(0, (2, 2)),
}


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_follows_the_layout_of_its_storage(view: str) -> None:
    x = torch.arange(4 * 3 * 5 * 6.0).view(4, 3, 5, 6)  # [N, M, C, P]
    other = x.permute(1, 2, 0, 3).contiguous()
    layout = layout_of(x.shape, x.stride(), other.permute(2, 0, 1, 3).stride())
    assert layout is not None
    assert entries(layout) == x.numel()
    seen = VIEWS[view](x)
    there = moved(_view(seen), layout)
    assert there is not None
    assert torch.equal(other.as_strided(there.size, there.stride, there.offset), seen)


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.flatten(),
        lambda t: t.flatten(0, 1),
        lambda t: t.flatten(2, 3),
        lambda t: t.view(-1)[3:].unfold(0, 7, 7),
    ],
    ids=["flat", "samples and members", "channels and points", "windows"],
)
def test_a_view_across_axes_that_part_does_not(view: Callable[[Tensor], Tensor]) -> None:
    x = torch.arange(4 * 3 * 5 * 6.0).view(4, 3, 5, 6)
    layout = layout_of(x.shape, x.stride(), x.permute(1, 2, 0, 3).contiguous().permute(2, 0, 1, 3).stride())
    assert layout is not None
    assert moved(_view(view(x)), layout) is None


def test_what_is_no_layout() -> None:
    assert layout_of((4, 6), (6, 1), (6, 1)) is None  # nothing changes
    assert layout_of((4, 6), (8, 1), (1, 4)) is None  # rows have gaps already
    assert layout_of((4, 6), (6, 1), (1, 1)) is None  # entries would share memory
    assert layout_of((4, 6), (6, 1), (0, 1)) is None
