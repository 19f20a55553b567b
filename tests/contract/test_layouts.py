"""Channels-last images: used if they are faster, with equal results; otherwise the given layout is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.array import FusedArray
from hfta_nb.kernels.strategy import sandbox
from hfta_nb.kernels.strategy.norms import batch_norm, in_groups
from hfta_nb.kernels.strategy.sandbox import Tried
from hfta_nb.kernels.strategy.variants import Operand
from hfta_nb.members.per_member import per_member
from hfta_nb.replay import layouts
from hfta_nb.replay.layouts import GIVEN, LAST
from hfta_nb.replay.recorded_step import RecordedStep
from hfta_nb.replay.trace import NotRecordableError
from tests.training import train

MEMBERS, SAMPLES, SIDE = 2, 4, 16
CPU = torch.device("cpu")
_BACKWARD = torch.ops.aten.convolution_backward.default


@pytest.fixture(autouse=True)
def _own_times(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HFTA_NB_CACHE", str(tmp_path))


@pytest.fixture
def faster(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Channels last are found to be faster; one entry for each time that this is measured."""
    asked: list[str] = []

    def timed(given: Any, last: Any, device: torch.device) -> dict[str, float]:
        asked.append(str(device))
        return {GIVEN: 2e-3, LAST: 1e-3}

    monkeypatch.setattr(layouts, "_timed", timed)
    return asked


class Net(nn.Module):
    """Convolutions, a batch norm and a head; `end` takes the image to its features."""

    def __init__(self, end: Any = None, between: nn.Module | None = None, channels: int = 3) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(channels, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.between = between or nn.Identity()
        self.second, self.head = nn.Conv2d(8, 6, 3, 2, 1), nn.Linear(6, 5)
        self.end = end or (lambda image: image.mean((2, 3)))

    def forward(self, x: Tensor) -> Tensor:
        x = self.between(self.norm(self.first(x)).relu())
        return self.head(self.end(self.second(x).relu()))


def _array(build: Any, device: torch.device, dtype: torch.dtype = torch.float32, strategy: str = "measured") -> Any:
    torch.manual_seed(0)
    array = hfta.fuse([build().to(device, dtype) for _ in range(MEMBERS)], [1, 2])
    array.strategy = strategy
    return array


def _batch(number: int, device: torch.device, dtype: torch.dtype, channels: int = 3) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(number)
    x = torch.randn(SAMPLES, channels, SIDE, SIDE, generator=draw, dtype=dtype)
    return x.to(device), torch.randint(0, 5, (SAMPLES,), generator=draw).to(device)


def _train(
    array: FusedArray, device: torch.device, dtype: torch.dtype = torch.float32, channels: int = 3, split: bool = False
) -> Tensor:
    return train(array, [_batch(number, device, dtype, channels) for number in range(8)], [0.1, 0.05], split)


def _layout(array: FusedArray, what: str = "backward") -> list[str]:
    table = array.explain()
    return [how for how in table["how"][table["function"] == what] if LAST in how]


def _same(one: FusedArray, two: FusedArray, tolerance: float) -> None:
    for (name, a), b in zip(one.state_dict().items(), two.state_dict().values(), strict=True):
        assert torch.allclose(a.double(), b.double(), rtol=tolerance, atol=tolerance), name


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("block_size", [1, MEMBERS])
def test_channels_last_give_the_same_numbers(
    block_size: int, channels: int, faster: list[str], device: torch.device
) -> None:
    def build() -> Net:
        return Net(channels=channels)

    array, plain = _array(build, device), _array(build, device, strategy="fixed")
    array.block_size = plain.block_size = block_size
    losses = _train(array, device, channels=channels)
    assert torch.allclose(losses, _train(plain, device, channels=channels), rtol=1e-5, atol=1e-5)
    _same(array, plain, 1e-4)
    assert _layout(array) == ["images channels last 1 ms; as given 2 ms"]
    assert not _layout(plain)
    seen = next(iter(array._steps.cache))
    assert seen.inputs.leaves[0].stride()[1] == 1
    images = [
        call.args[0]
        for call in seen.program.source.calls
        if "convolution" in call.function._schema.name and "backward" not in call.function._schema.name
    ]
    assert images
    assert all(image.stride[1] == 1 for image in images)


def test_what_was_measured_serves_the_next_array(faster: list[str], device: torch.device) -> None:
    for _ in range(2):
        array = _array(Net, device)
        _train(array, device)
        assert _layout(array) == ["images channels last 1 ms; as given 2 ms"]
    assert len(faster) == 1


def test_fewer_members_have_the_layout_that_more_had(faster: list[str], device: torch.device) -> None:
    """Nothing is timed for an array of some of the members; its calls have the numbers of the plain modules."""
    array = hfta.fuse([Net().to(device) for _ in range(3)])
    batches = [_batch(number, device, torch.float32) for number in range(8)]
    train(array, batches, [0.1, 0.05, 0.02])
    assert len(faster) == 1
    part = array.select([0, 2])
    train(part, batches, [0.1, 0.02])
    assert _layout(part) == ["images channels last 1 ms; as given 2 ms"]
    assert len(faster) == 1


@pytest.mark.parametrize("stacked", [False, True])
def test_a_smaller_batch_has_the_layout_of_the_others(stacked: bool, faster: list[str], device: torch.device) -> None:
    """The last batch of an epoch is not timed; another image size is."""

    def batches(size: int, side: int = SIDE) -> list[Any]:
        full = [_batch(number, device, torch.float32) for number in range(5)]
        cut = [(x[:size, :, :side, :side].contiguous(), y[:size]) for x, y in full]
        return [tuple(per_member(torch.stack([v] * MEMBERS)) for v in pair) if stacked else pair for pair in cut]

    array, plain = _array(Net, device), _array(Net, device, strategy="fixed")
    for size, side, measured in ((SAMPLES, SIDE, 1), (SAMPLES - 1, SIDE, 1), (SAMPLES, SIDE // 2, 2)):
        losses = train(array, batches(size, side), [0.1, 0.05])
        assert torch.allclose(losses, train(plain, batches(size, side), [0.1, 0.05]), rtol=1e-5, atol=1e-5)
        assert len(faster) == measured
    assert [entry.layout.chosen for entry in array._steps.cache] == [LAST] * 3


def test_a_known_layout_is_taken_without_a_program_of_the_other(
    faster: list[str], device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    _train(_array(Net, device), device)
    monkeypatch.setattr(layouts, "choose", None)
    array, plain = _array(Net, device), _array(Net, device, strategy="fixed")
    assert torch.allclose(_train(array, device), _train(plain, device), rtol=1e-5, atol=1e-5)
    _same(array, plain, 1e-4)
    assert _layout(array) == ["images channels last 1 ms; as given 2 ms"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_known_layout_that_gives_other_numbers_is_not_taken(
    fails: bool, faster: list[str], device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    _train(_array(Net, device), device)
    laid = RecordedStep._laid

    def spoilt(self: RecordedStep, *args: Any) -> Any:
        if fails:
            raise NotRecordableError("the model does something else")
        made = laid(self, *args)
        run = made.run
        made.run = lambda: [1.5 * loss for loss in run()]  # type: ignore[method-assign]
        return made

    monkeypatch.setattr(RecordedStep, "_laid", spoilt)
    array, plain = _array(Net, device), _array(Net, device, strategy="fixed")
    assert torch.allclose(_train(array, device), _train(plain, device), rtol=1e-5, atol=1e-5)
    _same(array, plain, 1e-4)
    entry = next(iter(array._steps.cache))
    assert entry.ready
    assert entry.layout.chosen == GIVEN
    assert entry.inputs.leaves[0].is_contiguous()


def test_what_is_not_faster_stays_as_it_was_given(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    monkeypatch.setattr(layouts, "_timed", lambda *args: {GIVEN: 1e-3, LAST: 0.99e-3})
    array, plain = _array(Net, device), _array(Net, device, strategy="fixed")
    array.block_size = plain.block_size = 1
    assert torch.equal(_train(array, device), _train(plain, device))
    _same(array, plain, 0.0)
    assert _layout(array) == ["images as given 1 ms; channels last 0.99 ms"]


def test_float64_has_the_bits_of_the_plain_module(faster: list[str], device: torch.device) -> None:
    array, plain = (_array(Net, device, torch.float64, strategy) for strategy in ("measured", "fixed"))
    assert torch.equal(_train(array, device, torch.float64), _train(plain, device, torch.float64))
    assert not faster
    assert not _layout(array)


def _viewed(image: Tensor) -> Tensor:
    return image.view(len(image), 6, -1).mean(2) + image.view(image.numel()).sum() * 0


class Asks(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.is_contiguous() else 2 * x


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (lambda: Net(end=_viewed), "channels last fails: "),
        (lambda: Net(between=Asks()), "channels last gives other numbers"),
        (lambda: Net(between=nn.Dropout(0.5)), "channels last gives other numbers"),
    ],
)
def test_a_model_that_minds_is_left_as_it_is(build: Any, why: str, faster: list[str], device: torch.device) -> None:
    array, plain = _array(build, device), _array(build, device, strategy="fixed")
    array.block_size = plain.block_size = 1
    assert torch.equal(_train(array, device), _train(plain, device))
    _same(array, plain, 0.0)
    assert [note.startswith(why) for note in _layout(array)] == [True]
    again = _array(build, device)  # it is known by now
    again.block_size = 1
    _train(again, device)
    assert _layout(again) == ["channels last failed or gave other numbers when it was tried"]


def test_no_memory_to_try_is_no_error(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    def full(*args: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(layouts, "_timed", full)
    array, plain = _array(Net, device), _array(Net, device, strategy="fixed")
    array.block_size = plain.block_size = 1
    assert torch.equal(_train(array, device), _train(plain, device))
    assert _layout(array) == ["channels last fails: CUDA out of memory"]


def test_gradients_that_are_there_are_added_to(faster: list[str], device: torch.device) -> None:
    array, plain = _array(Net, device), _array(Net, device, strategy="fixed")
    for number in range(6):  # nobody forgets them in between, not while it is recorded either
        for one in (array, plain):
            one.backward(F.cross_entropy, *_batch(number, device, torch.float32))
    assert _layout(array)
    for p, q in zip(array.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(p.grad, q.grad, rtol=1e-4, atol=1e-5)


def test_results_lie_in_memory_as_they_did(faster: list[str], device: torch.device) -> None:
    def loss(image: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return image.square().mean(), image

    array = _array(lambda: nn.Conv2d(3, 4, 3), device)
    array.block_size = 1
    kept = []
    for number in range(6):
        _, image = array.backward(loss, *_batch(number, device, torch.float32), has_aux=True)
        kept.append(image)
    assert _layout(array)
    assert len({image.stride() for image in kept}) == 1
    expected = _array(lambda: nn.Conv2d(3, 4, 3), device)(_batch(5, device, torch.float32)[0])
    assert torch.allclose(kept[-1], expected, atol=1e-5)


def test_images_of_the_members_own(faster: list[str], device: torch.device) -> None:
    array, plain = _array(Net, device), _array(Net, device, strategy="fixed")
    for number in range(6):
        x, y = _batch(number, device, torch.float32)
        own = per_member(torch.stack([x, 2 * x]))
        losses = [one.backward(F.cross_entropy, own, y) for one in (array, plain)]
        assert torch.allclose(*losses, rtol=1e-5, atol=1e-5)
    assert _layout(array)
    seen = next(iter(array._steps.cache))
    assert seen.inputs.leaves[0].stride()[2] == 1


def test_a_model_that_changes_is_recorded_on_images_as_given(faster: list[str], device: torch.device) -> None:
    array = _array(Net, device)
    array.block_size = 1
    _train(array, device)
    array._skeleton.end = _viewed  # which can't take channels last
    losses = array.backward(F.cross_entropy, *_batch(9, device, torch.float32))
    for _ in range(3):
        again = array.backward(F.cross_entropy, *_batch(9, device, torch.float32))
    assert torch.allclose(losses, again, rtol=1e-5)
    assert [note.startswith("channels last fails: ") for note in _layout(array)] == [True]


# The split form.


@pytest.mark.parametrize("block_size", [1, MEMBERS])
def test_the_split_form_too(block_size: int, faster: list[str], device: torch.device) -> None:
    array, plain = _array(Net, device), _array(Net, device, strategy="fixed")
    array.block_size = plain.block_size = block_size
    losses = _train(array, device, split=True)
    assert torch.allclose(losses, _train(plain, device, split=True), rtol=1e-5, atol=1e-5)
    _same(array, plain, 1e-4)
    assert _layout(array, "array(x)") == ["images channels last 1 ms; as given 2 ms"]
    seen = next(iter(array._calls.forwards.cache))
    assert seen.inputs.leaves[0].stride()[1] == 1


@pytest.mark.parametrize("build", [lambda: Net(end=_viewed), lambda: Net(between=nn.Dropout(0.5))])
def test_the_split_form_of_a_model_that_minds(build: Any, faster: list[str], device: torch.device) -> None:
    array, plain = _array(build, device), _array(build, device, strategy="fixed")
    array.block_size = plain.block_size = 1
    assert torch.equal(_train(array, device, split=True), _train(plain, device, split=True))
    _same(array, plain, 0.0)
    assert [note.startswith("channels last ") for note in _layout(array, "array(x)")] == [True]


def test_images_that_come_out_lie_in_memory_as_they_did(faster: list[str], device: torch.device) -> None:
    array = _array(lambda: nn.Conv2d(3, 4, 3), device)
    array.block_size = 1
    strides = set()
    for number in range(6):
        image = array(_batch(number, device, torch.float32)[0])
        strides.add(image.stride())
        image.square().mean((1, 2, 3, 4)).sum().backward()
    assert _layout(array, "array(x)")
    assert len(strides) == 1


def test_images_through_which_a_gradient_is_wanted_stay(faster: list[str], device: torch.device) -> None:
    array, plain = _array(Net, device), _array(Net, device, strategy="fixed")
    array.block_size = plain.block_size = 1
    for number in range(5):
        found = []
        for one in (array, plain):
            x = _batch(number, device, torch.float32)[0].requires_grad_()
            one(x).square().mean((1, 2)).sum().backward()
            found.append(x.grad)
        assert torch.equal(*found)
    assert not _layout(array, "array(x)")


# Batch norm of such images.


def _operand(value: Any) -> Any:
    return Operand(tuple(value.shape), value.stride(), value.dtype) if isinstance(value, Tensor) else value


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("shape", [(4, 3, 16, 16), (8, 24, 32, 32), (1, 2, 64, 32)])
def test_batch_norm_in_groups_is_exact(shape: tuple[int, ...], running: bool, affine: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    x = (3 * torch.randn(shape, generator=draw) + 5).contiguous(memory_format=torch.channels_last)
    channels = shape[1]
    weight, bias = (torch.rand(channels, generator=draw) if affine else None for _ in range(2))
    mean, variance = (torch.rand(channels, generator=draw) if running else None for _ in range(2))
    args = (x, weight, bias, mean, variance, True, 0.1, 1e-5)
    assert in_groups([_operand(a) for a in args], CPU)
    exact = [a.double() if isinstance(a, Tensor) else a for a in args]
    own = [a.clone() if isinstance(a, Tensor) else a for a in args]
    first = [a.contiguous() if isinstance(a, Tensor) else a for a in own]
    expected, plain, found = torch.native_batch_norm(*exact), torch.native_batch_norm(*first), batch_norm(*args)
    assert found[0].stride() == x.stride()
    for got, torchs, true in zip(
        [*found, *(t for t in args[3:5] if running)],
        [*plain, *(t for t in first[3:5] if running)],
        [*expected, *(t for t in exact[3:5] if running)],
        strict=True,
    ):
        least = torch.finfo(torch.float32).eps * float(true.abs().max())
        assert float((got - true).abs().max()) <= 4 * max(float((torchs - true).abs().max()), least)


def test_other_batch_norms_are_torchs() -> None:
    x = torch.randn(4, 3, 16, 16)
    last, ones = x.contiguous(memory_format=torch.channels_last), torch.ones(3)

    def asked(x: Tensor, training: bool = True, device: torch.device = CPU) -> bool:
        args = (x, ones.to(x.dtype), ones.to(x.dtype), None, None, training, 0.1, 1e-5)
        return in_groups([_operand(a) for a in args], device)

    assert asked(last)
    assert not asked(x)
    assert not asked(last, training=False)
    assert not asked(last.double())
    assert not asked(last[:2])  # few pixels: torch's own is exact enough
    assert not asked(last.flatten(2))
    assert not asked(last, device=torch.device("cuda"))


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
        array = _array(lambda: Net(between=_Shortcut(channels)), CPU)
        array.block_size = 1
        losses = _train(array, CPU, split=split)
        assert losses.isfinite().all()
        (how,) = _layout(array, "array(x)" if split else "backward")
        assert how.startswith("channels last not tried: torch" if channels == 4 else "images channels last 1 ms")
    backward, forward = sorted(asked, key=lambda call: call.function is not _BACKWARD)  # each once
    assert [a.size[1] for a in (*backward.args[:2], forward.args[0])] == [8, channels, channels]
    assert all(a.stride[1] == 1 for a in (*backward.args[:2], forward.args[0]))
    assert len(faster) == (channels != 4)


def test_a_layout_that_has_ended_a_process_is_not_tried_again(
    faster: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layouts, "killed", lambda known, what: {LAST})
    array = _array(Net, CPU)
    _train(array, CPU)
    assert _layout(array) == ["channels last not tried: torch's convolutions of these shapes may end the process"]
    assert not faster


def test_evaluations_have_the_layout_of_training_steps(faster: list[str], device: torch.device) -> None:
    def scores(out: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(out, y)

    array, plain = _array(Net, device), _array(Net, device, strategy="fixed")
    _train(array, device)
    plain.load_state_dict(array.state_dict())
    for number in range(5):
        x, y = _batch(number, device, torch.float32)
        losses, wanted = (one.eval().evaluate(scores, x, y) for one in (array, plain))
        assert torch.allclose(losses, wanted, rtol=1e-5, atol=1e-5)
        assert losses.shape == (MEMBERS,)
    assert _layout(array, "without gradients") == ["images channels last, as in training"]
    assert not _layout(plain, "without gradients")
    assert len(faster) == 1


def test_images_that_an_evaluation_returns_are_stored_as_before(faster: list[str], device: torch.device) -> None:
    def loss(out: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(out.mean((2, 3)), y)

    def both(out: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return loss(out, y), out

    def build() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 5, 3))

    array, plain = _array(build, device), _array(build, device, strategy="fixed")
    for number in range(5):
        array.backward(loss, *_batch(number, device, torch.float32))
    assert _layout(array)
    plain.load_state_dict(array.state_dict())
    for number in range(5):
        (found, images), (wanted, given) = (
            one.eval().evaluate(both, *_batch(number, device, torch.float32)) for one in (array, plain)
        )
        assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-5)
        assert torch.allclose(images, given, rtol=1e-4, atol=1e-5)
        assert images.stride() == given.stride()
    assert not _layout(array, "without gradients")
    assert "replayed from a recording" in list(array.explain()["how"])
