"""Channels-last images: used if they are faster, with equal results; otherwise the given layout is kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.kernels.strategy import sandbox
from hfta_nb.engine.kernels.strategy.sandbox import Tried
from hfta_nb.engine.members.per_member import per_member
from hfta_nb.engine.replay import layouts
from hfta_nb.engine.replay.array_call import FORWARD
from hfta_nb.engine.replay.layouts import GIVEN, LAST
from hfta_nb.engine.replay.recorded_backward import RecordedBackward
from hfta_nb.engine.replay.trace import NotRecordableError
from tests.contract.channels_last import (
    CPU,
    MEMBERS,
    SAMPLES,
    SIDE,
    Net,
    batch,
    faster,
    fused,
    layout,
    own_times,
    same,
    trained,
)
from tests.training import train

__all__ = ["faster", "own_times"]
_BACKWARD = torch.ops.aten.convolution_backward.default


@pytest.mark.parametrize(("channels", "split"), [(1, False), (3, False), (3, True)])
@pytest.mark.parametrize("block_size", [1, MEMBERS])
def test_channels_last_give_the_same_numbers(
    block_size: int, channels: int, split: bool, faster: list[str], device: torch.device
) -> None:
    def build() -> Net:
        return Net(channels=channels)

    array, plain = fused(build, device), fused(build, device, strategy="fixed")
    array.block_size = plain.block_size = block_size
    found = [trained(one, device, channels=channels, split=split) for one in (array, plain)]
    assert torch.allclose(*found, rtol=1e-5, atol=1e-5)
    same(array, plain, 1e-4)
    call = "array(x)" if split else "backward"
    assert layout(array, call) == ["images channels last 1 ms; as given 2 ms"]
    assert not layout(plain, call)
    seen = next(iter(array._calls.caches[FORWARD] if split else array._calls.steps))
    assert seen.inputs.leaves[0].stride()[1] == 1
    if split:
        return
    images = [
        call.args[0]
        for call in seen.program.source.calls
        if "convolution" in call.function._schema.name and "backward" not in call.function._schema.name
    ]
    assert images
    assert all(image.stride[1] == 1 for image in images)


def test_what_was_measured_serves_the_next_array(faster: list[str], device: torch.device) -> None:
    for _ in range(2):
        array = fused(Net, device)
        trained(array, device)
        assert layout(array) == ["images channels last 1 ms; as given 2 ms"]
    assert len(faster) == 1


def test_fewer_members_have_the_layout_that_more_had(faster: list[str], device: torch.device) -> None:
    """Nothing is timed for an array of some of the members; its calls have the numbers of the plain modules."""
    array = hfta.fuse([Net().to(device) for _ in range(3)])
    batches = [batch(number, device, torch.float32) for number in range(8)]
    train(array, batches, [0.1, 0.05, 0.02])
    assert len(faster) == 1
    part = array.select([0, 2])
    train(part, batches, [0.1, 0.02])
    assert layout(part) == ["images channels last 1 ms; as given 2 ms"]
    assert len(faster) == 1


@pytest.mark.parametrize("stacked", [False, True])
def test_a_smaller_batch_has_the_layout_of_the_others(stacked: bool, faster: list[str], device: torch.device) -> None:
    """The last batch of an epoch is not timed; another image size is."""

    def batches(size: int, side: int = SIDE) -> list[Any]:
        full = [batch(number, device, torch.float32) for number in range(5)]
        cut = [(x[:size, :, :side, :side].contiguous(), y[:size]) for x, y in full]
        return [tuple(per_member(torch.stack([v] * MEMBERS)) for v in pair) if stacked else pair for pair in cut]

    array, plain = fused(Net, device), fused(Net, device, strategy="fixed")
    for size, side, measured in ((SAMPLES, SIDE, 1), (SAMPLES - 1, SIDE, 1), (SAMPLES, SIDE // 2, 2)):
        losses = train(array, batches(size, side), [0.1, 0.05])
        assert torch.allclose(losses, train(plain, batches(size, side), [0.1, 0.05]), rtol=1e-5, atol=1e-5)
        assert len(faster) == measured
    assert [entry.layout.chosen for entry in array._calls.steps] == [LAST] * 3


def test_what_a_smaller_batch_has_taken_over_is_what_later_runs_find(faster: list[str], device: torch.device) -> None:
    """Otherwise another run could measure that size alone, and this one would round otherwise when it is repeated."""
    full = [batch(number, device, torch.float32) for number in range(5)]
    cut = [(x[:-1].contiguous(), y[:-1]) for x, y in full]
    array, other = fused(Net, device), fused(Net, device)
    train(array, full, [0.1, 0.05])
    train(array, cut, [0.1, 0.05])
    train(other, cut, [0.1, 0.05])
    assert len(faster) == 1
    assert layout(other) == ["images channels last 1 ms; as given 2 ms"]


def test_a_known_layout_is_taken_without_a_program_of_the_other(
    faster: list[str], device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(fused(Net, device), device)
    monkeypatch.setattr(layouts, "choose", None)
    array, plain = fused(Net, device), fused(Net, device, strategy="fixed")
    assert torch.allclose(trained(array, device), trained(plain, device), rtol=1e-5, atol=1e-5)
    same(array, plain, 1e-4)
    assert layout(array) == ["images channels last 1 ms; as given 2 ms"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_known_layout_that_gives_other_numbers_is_not_taken(
    fails: bool, faster: list[str], device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(fused(Net, device), device)
    laid = RecordedBackward.turned

    def spoilt(self: RecordedBackward, *args: Any) -> Any:
        if fails:
            raise NotRecordableError("the model does something else")
        made = laid(self, *args)
        run = made.run
        made.run = lambda: [1.5 * loss for loss in run()]  # type: ignore[method-assign]
        return made

    monkeypatch.setattr(RecordedBackward, "turned", spoilt)
    array, plain = fused(Net, device), fused(Net, device, strategy="fixed")
    assert torch.allclose(trained(array, device), trained(plain, device), rtol=1e-5, atol=1e-5)
    same(array, plain, 1e-4)
    entry = next(iter(array._calls.steps))
    assert entry.ready
    assert entry.layout.chosen == GIVEN
    assert entry.inputs.leaves[0].is_contiguous()


def test_what_is_not_faster_stays_as_it_was_given(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    monkeypatch.setattr(layouts, "_timed", lambda *args: {GIVEN: 1e-3, LAST: 0.99e-3})
    array, plain = fused(Net, device), fused(Net, device, strategy="fixed")
    array.block_size = plain.block_size = 1
    assert torch.equal(trained(array, device), trained(plain, device))
    same(array, plain, 0.0)
    assert layout(array) == ["images as given 1 ms; channels last 0.99 ms"]


def test_times_without_the_compiled_libraries_do_not_count_with_them(
    faster: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for own, measured in [((), 1), ((), 1), (("conv", "images"), 2), (("conv", "images"), 2), ((), 2)]:
        monkeypatch.setattr(layouts.build, "available", lambda names, own=own: own)
        array = fused(Net, CPU)
        array.block_size = 1
        trained(array, CPU)
        assert len(faster) == measured


def test_float64_has_the_bits_of_the_plain_module(faster: list[str], device: torch.device) -> None:
    array, plain = (fused(Net, device, torch.float64, strategy) for strategy in ("measured", "fixed"))
    within = 0.0 if device.type == "cpu" else 1e-8  # cuDNN adds in any order
    found = [trained(a, device, torch.float64) for a in (array, plain)]
    torch.testing.assert_close(*found, atol=within, rtol=within)
    assert not faster
    assert not layout(array)


def _viewed(image: Tensor) -> Tensor:
    return image.view(len(image), 6, -1).mean(2) + image.view(image.numel()).sum() * 0


class Asks(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.is_contiguous() else 2 * x


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize(
    ("build", "why"),
    [
        (lambda: Net(end=_viewed), "channels last fails: "),
        (lambda: Net(between=Asks()), "channels last gives other numbers"),
        (lambda: Net(between=nn.Dropout(0.5)), "channels last gives other numbers"),
    ],
)
def test_a_model_that_minds_is_left_as_it_is(
    build: Any, why: str, split: bool, faster: list[str], device: torch.device
) -> None:
    array, plain = fused(build, device), fused(build, device, strategy="fixed")
    array.block_size = plain.block_size = 1
    assert torch.equal(trained(array, device, split=split), trained(plain, device, split=split))
    same(array, plain, 0.0)
    call = "array(x)" if split else "backward"
    assert [note.startswith(why) for note in layout(array, call)] == [True]
    again = fused(build, device)  # it is known by now
    again.block_size = 1
    trained(again, device, split=split)
    assert layout(again, call) == ["channels last failed or gave other numbers when it was tried"]


def test_no_memory_to_try_is_no_error(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    def full(*args: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(layouts, "_timed", full)
    array, plain = fused(Net, device), fused(Net, device, strategy="fixed")
    array.block_size = plain.block_size = 1
    assert torch.equal(trained(array, device), trained(plain, device))
    assert layout(array) == ["channels last fails: CUDA out of memory"]


def test_gradients_that_are_there_are_added_to(faster: list[str], device: torch.device) -> None:
    array, plain = fused(Net, device), fused(Net, device, strategy="fixed")
    for number in range(6):  # nobody forgets them in between, not while it is recorded either
        for one in (array, plain):
            one.backward(F.cross_entropy, *batch(number, device, torch.float32))
    assert layout(array)
    for p, q in zip(array.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(p.grad, q.grad, rtol=1e-4, atol=1e-5)


def test_results_lie_in_memory_as_they_did(faster: list[str], device: torch.device) -> None:
    def loss(image: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return image.square().mean(), image

    array = fused(lambda: nn.Conv2d(3, 4, 3), device)
    array.block_size = 1
    kept = []
    for number in range(6):
        _, image = array.backward(loss, *batch(number, device, torch.float32), has_aux=True)
        kept.append(image)
    assert layout(array)
    assert len({image.stride() for image in kept}) == 1
    expected = fused(lambda: nn.Conv2d(3, 4, 3), device)(batch(5, device, torch.float32)[0])
    assert torch.allclose(kept[-1], expected, atol=1e-5)


def test_images_of_the_members_own(faster: list[str], device: torch.device) -> None:
    array, plain = fused(Net, device), fused(Net, device, strategy="fixed")
    for number in range(6):
        x, y = batch(number, device, torch.float32)
        own = per_member(torch.stack([x, 2 * x]))
        losses = [one.backward(F.cross_entropy, own, y) for one in (array, plain)]
        assert torch.allclose(*losses, rtol=1e-5, atol=1e-5)
    assert layout(array)
    seen = next(iter(array._calls.steps))
    assert seen.inputs.leaves[0].stride()[2] == 1


def test_a_model_that_changes_is_recorded_on_images_as_given(faster: list[str], device: torch.device) -> None:
    array = fused(Net, device)
    array.block_size = 1
    trained(array, device)
    array._skeleton.end = _viewed  # which can't take channels last
    losses = array.backward(F.cross_entropy, *batch(9, device, torch.float32))
    for _ in range(3):
        again = array.backward(F.cross_entropy, *batch(9, device, torch.float32))
    assert torch.allclose(losses, again, rtol=1e-5)
    assert [note.startswith("channels last fails: ") for note in layout(array)] == [True]


# The split form.


def test_images_that_come_out_lie_in_memory_as_they_did(faster: list[str], device: torch.device) -> None:
    array = fused(lambda: nn.Conv2d(3, 4, 3), device)
    array.block_size = 1
    strides = set()
    for number in range(6):
        image = array(batch(number, device, torch.float32)[0])
        strides.add(image.stride())
        image.square().mean((1, 2, 3, 4)).sum().backward()
    assert layout(array, "array(x)")
    assert len(strides) == 1


@pytest.mark.filterwarnings("ignore:an input .* that requires a gradient goes to all")
def test_images_through_which_a_gradient_is_wanted_stay(faster: list[str], device: torch.device) -> None:
    array, plain = fused(Net, device), fused(Net, device, strategy="fixed")
    array.block_size = plain.block_size = 1
    for number in range(5):
        found = []
        for one in (array, plain):
            x = batch(number, device, torch.float32)[0].requires_grad_()
            one(x).square().mean((1, 2)).sum().backward()
            found.append(x.grad)
        assert torch.equal(*found)
    assert not layout(array, "array(x)")


class _Shortcut(nn.Module):
    """With 4 channels, a convolution for which oneDNN's AVX2 kernels write past their memory with channels last."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.wide, self.short = nn.Conv2d(8, channels, 3, padding=1), nn.Conv2d(channels, 8, 1, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.short(self.wide(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("channels", [4, 12])
def test_what_may_end_the_process_is_asked_of_a_child_first(
    channels: int, split: bool, faster: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Tried] = []

    def child(calls: list[Tried]) -> tuple[int, list[str]]:
        asked.extend(calls)
        return (-11, ["0"]) if channels == 4 else (0, [*map(str, range(len(calls))), "end"])

    monkeypatch.setattr(sandbox, "_child", child)
    for _ in range(2):
        array = fused(lambda: Net(between=_Shortcut(channels)), CPU)
        array.block_size = 1
        losses = trained(array, CPU, split=split)
        assert losses.isfinite().all()
        (how,) = layout(array, "array(x)" if split else "backward")
        assert how.startswith("channels last not tried: torch" if channels == 4 else "images channels last 1 ms")
    backward, forward = sorted(asked, key=lambda call: call.function is not _BACKWARD)  # each once
    assert [a.size[1] for a in (*backward.args[:2], forward.args[0])] == [8, channels, channels]
    assert all(a.stride[1] == 1 for a in (*backward.args[:2], forward.args[0]))
    assert len(faster) == (channels != 4)


def test_a_layout_that_has_ended_a_process_is_not_tried_again(
    faster: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layouts, "killed", lambda known, what, way: way == LAST)
    array = fused(Net, CPU)
    trained(array, CPU)
    assert layout(array) == ["channels last not tried: torch's convolutions of these shapes may end the process"]
    assert not faster


def test_evaluations_have_the_layout_of_training_steps(faster: list[str], device: torch.device) -> None:
    def scores(out: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(out, y)

    array, plain = fused(Net, device), fused(Net, device, strategy="fixed")
    trained(array, device)
    plain.load_state_dict(array.state_dict())
    for number in range(5):
        x, y = batch(number, device, torch.float32)
        losses, wanted = (one.eval().evaluate(scores, x, y) for one in (array, plain))
        assert torch.allclose(losses, wanted, rtol=1e-5, atol=1e-5)
        assert losses.shape == (MEMBERS,)
    assert layout(array, "without gradients") == ["images channels last, as in training"]
    assert not layout(plain, "without gradients")
    assert len(faster) == 1


def test_images_that_an_evaluation_returns_are_stored_as_before(faster: list[str], device: torch.device) -> None:
    def loss(out: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(out.mean((2, 3)), y)

    def both(out: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return loss(out, y), out

    def build() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 5, 3))

    array, plain = fused(build, device), fused(build, device, strategy="fixed")
    for number in range(5):
        array.backward(loss, *batch(number, device, torch.float32))
    assert layout(array)
    plain.load_state_dict(array.state_dict())
    for number in range(5):
        (found, images), (wanted, given) = (
            one.eval().evaluate(both, *batch(number, device, torch.float32)) for one in (array, plain)
        )
        assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-5)
        assert torch.allclose(images, given, rtol=1e-4, atol=1e-5)
        assert images.stride() == given.stride()
    assert not layout(array, "without gradients")
    assert "recorded" in list(array.explain()["how"])
