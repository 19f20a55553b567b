"""A step in mixed precision: every member equals training alone with torch's autocast and gradient scaler."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import hfta_nb as hfta
from hfta_nb.engine.array import MemberGenerators
from hfta_nb.engine.members.generators import seeded_state
from hfta_nb.errors import DeviceError
from hfta_nb.models.metrics import Metric
from hfta_nb.train.step import ArrayStep, PlainStep, Precision
from hfta_nb.train.step import precision as step_precision
from hfta_nb.train.step.precision import has_lstm
from hfta_nb.train.step.step_protocol import OUTPUT
from tests.contract.serial import make

MEMBERS, STEPS = 3, 6
HALVES = ["bf16", "fp16"]
TOLERANCES = {"bf16": 2e-2, "fp16": 2e-3}
"""Of losses, relative: a product of all members may round an entry otherwise than a product of one."""
OUTPUT_TOLERANCE = 2e-2
"""Of outputs: where a gradient is little but rounding, as of a bias before a batch norm, Adam steps by its sign."""


class Words(nn.Module):
    """What follows a word: an embedding, a layer, and as many logits as words."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.embedding, self.layer, self.out = nn.Embedding(11, 8), layer, nn.Linear(width, 11)

    def forward(self, x: Tensor) -> Tensor:
        found = self.layer(self.embedding(x))
        return self.out(found[0] if isinstance(found, tuple) else found).flatten(0, 1)


class Tied(nn.Module):
    """A layer that is used three times: its weight is cast once."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.tanh(self.layer(x))
        return self.out(x)


class Exact(nn.Module):
    """A part in float32, forward and backward, whatever the rest is computed in."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.exact, self.out = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        with torch.autocast(x.device.type, enabled=False):
            x = torch.tanh(self.exact(x.float())) @ self.exact.weight
        return self.out(x)


class Pair(nn.Module):
    """An encoder, and a critic of what it encodes."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.critic = nn.Linear(6, 5), nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4))

    def forward(self, x: Tensor, phase: str = "") -> Tensor:
        made = self.encoder(x)
        return self.critic(made.detach() if phase == "criticise" else made)


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 4))


def _cnn() -> nn.Module:
    first = [nn.Conv2d(2, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*first, nn.Conv2d(8, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten(), nn.Linear(32, 4))


def _transformer() -> nn.Module:
    return Words(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 8)


def _lstm() -> nn.Module:
    return Words(nn.LSTM(8, 12, batch_first=True), 12)


MODELS: dict[str, Callable[[], nn.Module]] = {
    **{
        "mlp": _mlp,
        "cnn": _cnn,
        "transformer": _transformer,
        "lstm": _lstm,
        "tied": Tied,
        "exact": Exact,
        "phases": Pair,
    }
}
PHASES = (
    hfta.Phase("criticise", "critic", F.cross_entropy),
    hfta.Phase("deceive", ["encoder"], lambda output, y: -F.cross_entropy(output, y).clamp(max=5), every=2),
)


def _batch(name: str, device: torch.device) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    if name in ("transformer", "lstm"):
        return torch.randint(0, 11, (4, 5), device=device), torch.randint(0, 11, (20,), device=device)
    shape = (8, 2, 8, 8) if name == "cnn" else (8, 6)
    return torch.randn(shape, device=device), torch.randint(0, 4, (8,), device=device)


def _row(lr: float) -> dict[str, Any]:
    moments = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
    return {"optimizer": "adam", "lr": lr, "weight_decay": 0.0, "lr_scheduler": "none", **moments}


def _accuracy(output: Tensor, target: Tensor) -> Tensor:
    if output.dtype != torch.float32:  # an assertion as pytest rewrites it would keep steps from being recorded
        raise AssertionError(f"metrics see numbers in float32, whatever the model computes in; not {output.dtype}")
    return (output.argmax(-1) == target).float().mean()


METRICS = {"accuracy": Metric(_accuracy, maximize=True)}


def _steps(name: str, precision: str, device: torch.device, lr: float = 1e-3) -> tuple[ArrayStep, list[PlainStep]]:
    half = torch.float16 if precision == "fp16" else torch.bfloat16
    if name == "lstm" and precision in HALVES and device.type == "cpu" and not has_lstm(half):
        pytest.skip(f"this CPU has no LSTM in {precision}, for a plain module neither")
    modules = make(MODELS[name], MEMBERS, torch.float32, device)
    how, rows = Precision(precision, device), [_row(lr * (i + 1)) for i in range(MEMBERS)]
    objective = PHASES if name == "phases" else F.cross_entropy
    metrics = {} if name == "phases" else METRICS
    alone = [
        PlainStep(
            copy.deepcopy(m), row, objective, metrics, 1, MemberGenerators([seeded_state(i, device)], device), how
        )
        for i, (m, row) in enumerate(zip(modules, rows, strict=True))
    ]
    array = hfta.fuse(modules, list(range(MEMBERS)))
    return ArrayStep(array, rows, objective, metrics, 1, how), alone


@pytest.mark.pairs
@pytest.mark.each("name", "precision")
@pytest.mark.parametrize("block", [MEMBERS, 1])
@pytest.mark.parametrize("precision", HALVES)
@pytest.mark.parametrize("name", MODELS)
def test_fused_equals_serial(name: str, precision: str, block: int, device: torch.device) -> None:
    step, alone = _steps(name, precision, device)
    step.array.block_size = block
    x, y = _batch(name, device)
    for _ in range(STEPS):
        _agree(step.train(x, y), [s.train(x, y) for s in alone], precision)
    assert "recorded" in step.array._calls.steps.notes()
    _agree(step.evaluate(x, y), [s.evaluate(x, y) for s in alone], precision)
    for p in step.array.parameters():
        assert p.dtype == p.grad.dtype == torch.float32


def _agree(fused: dict[str, Tensor], serial: list[dict[str, Tensor]], precision: str) -> None:
    for key, value in fused.items():
        if key != "accuracy":  # a rounding may change which class is likeliest
            assert value.dtype == torch.float32
            off = OUTPUT_TOLERANCE if key == OUTPUT else TOLERANCES[precision]
            torch.testing.assert_close(value, torch.cat([scores[key] for scores in serial]), rtol=off, atol=off)


@pytest.mark.parametrize("precision", HALVES)
@pytest.mark.parametrize("name", MODELS)
def test_bits_of_members_that_run_one_by_one(name: str, precision: str) -> None:
    """The kernels are those of the plain module. At a learning rate of 0: torch's fused Adam rounds by place."""
    step, alone = _steps(name, precision, torch.device("cpu"), lr=0.0)
    step.array.block_size, step.array.strategy = 1, "fixed"
    x, y = _batch(name, torch.device("cpu"))
    for _ in range(STEPS):
        fused, serial = step.train(x, y), [s.train(x, y) for s in alone]
        for i, (plain, scores) in enumerate(zip(alone, serial, strict=True)):
            assert {k: v.tolist() for k, v in scores.items()} == {k: [v[i].item()] for k, v in fused.items()}
            if name == "phases":  # alone, the other phase's gradients add up meanwhile
                continue
            for (key, p), q in zip(step.array.named_parameters(), plain.module.parameters(), strict=True):
                assert torch.equal(p.grad[i], q.grad), key


@pytest.mark.parametrize("precision", HALVES)
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_replayed_as_not_replayed(name: str, precision: str, device: torch.device) -> None:
    found = []
    for capture in (True, False):
        step, _ = _steps(name, precision, device)
        step.array.capture = capture
        x, y = _batch(name, device)
        losses = [step.train(x, y)["loss"] for _ in range(STEPS)]
        found.append((torch.stack(losses), [p.detach().clone() for p in step.array.parameters()]))
    for one, other, near in zip(*found, (TOLERANCES[precision], OUTPUT_TOLERANCE), strict=True):
        torch.testing.assert_close(one, other, rtol=near, atol=near)


@pytest.mark.parametrize("precision", ["fp32", *HALVES])
def test_a_member_that_is_lost_harms_no_other(precision: str, device: torch.device) -> None:
    found = []
    for lost in (False, True):
        step, _ = _steps("cnn", precision, device)
        if lost:
            step.array.get_parameter("0.weight").data[1].fill_(torch.nan)
        x, y = _batch("cnn", device)
        losses = torch.stack([step.train(x, y)["loss"] for _ in range(STEPS)])
        rows = [p.detach()[[0, 2]].clone() for p in step.array.parameters()]
        found.append((losses[:, [0, 2]], rows))
        if lost:
            assert losses[:, 1].isnan().all()
    if device.type == "cuda":  # sums of atomic additions, in another order each time
        near = TOLERANCES.get(precision, 1e-4)
        torch.testing.assert_close(found[0], found[1], rtol=near, atol=near)
        return
    assert torch.equal(found[0][0], found[1][0])
    assert all(torch.equal(a, b) for a, b in zip(found[0][1], found[1][1], strict=True))


def test_a_member_that_overflows_skips_its_step_only(device: torch.device) -> None:
    """Its scale halves until its gradients are finite; the others go on as if nothing had been."""
    scales = [65536.0, 2.0**110, 1024.0]
    undisturbed, _ = _steps("tied", "fp16", device)
    step, alone = _steps("tied", "fp16", device)
    for own, values in ((undisturbed, [scales[0], scales[0], scales[2]]), (step, scales)):
        own.scaler.update(values)
    for plain, value in zip(alone, scales, strict=True):
        plain.scaler.load_state_dict(plain.scaler.state_dict() | {"scale": value})
    x, y = _batch("tied", device)
    before = [p.detach()[1].clone() for p in step.array.parameters()]
    for number in range(STEPS):
        step.train(x, y)
        undisturbed.train(x, y)
        for plain in alone:
            plain.train(x, y)
        assert step.scaler.get_scale() == [scales[0], 2.0 ** (109 - number), scales[2]]
        assert step.scaler.get_scale() == [plain.scaler.get_scale() for plain in alone]
    assert all(torch.equal(p[1], q) for p, q in zip(step.array.parameters(), before, strict=True))
    for p, q in zip(step.array.parameters(), undisturbed.array.parameters(), strict=True):
        assert torch.equal(p[[0, 2]], q[[0, 2]])
    saved = step.state()["optimizers"][0]["state"]
    assert all(entry["steps"] == [STEPS, 0, STEPS] for entry in saved.values())


class Calls(TorchDispatchMode):
    """Counts reads of values, which wait for the device, and casts of what lies in an arena."""

    def __init__(self, array: hfta.FusedArray) -> None:
        super().__init__()
        self.arenas = [a.data.untyped_storage().data_ptr() for a in array.arenas]
        self.reads: list[str] = []
        self.casts: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        if name in ("aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::is_nonzero"):
            self.reads.append(name)
        if name == "aten::_to_copy" and args[0].untyped_storage().data_ptr() in self.arenas:
            self.casts[args[0].data_ptr()] = self.casts.get(args[0].data_ptr(), 0) + 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("block", [MEMBERS, 1])
@pytest.mark.parametrize("precision", ["fp32", *HALVES])
def test_a_step_reads_no_value_and_casts_each_weight_once(precision: str, block: int, device: torch.device) -> None:
    step, _ = _steps("tied", precision, device)
    step.array.block_size = block
    x, y = _batch("tied", device)
    for _ in range(2):  # the first step prepares the optimizer
        with Calls(step.array) as calls:
            step.train(x, y)
    assert calls.reads == []
    tensors = 4 * MEMBERS // block  # weight and bias of two layers
    assert calls.casts == {} if precision == "fp32" else list(calls.casts.values()) == [1] * tensors


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_tf32_equals_serial() -> None:
    device = torch.device("cuda")
    if torch.cuda.get_device_capability(device) < (8, 0):
        pytest.skip("no TF32")
    step, alone = _steps("cnn", "tf32", device)
    x, y = _batch("cnn", device)
    for _ in range(STEPS):
        fused, serial = step.train(x, y)["loss"], torch.cat([s.train(x, y)["loss"] for s in alone])
        torch.testing.assert_close(fused, serial, rtol=5e-3, atol=5e-3)


def test_state_and_surgery_take_the_scales_along(device: torch.device) -> None:
    step, _ = _steps("mlp", "fp16", device)
    x, y = _batch("mlp", device)
    step.scaler.update([8.0, 4.0, 2.0])
    step.train(x, y)
    step.scaler._streak += 5
    other, _ = _steps("mlp", "fp16", device)
    other.load_state(step.state())
    assert other.scaler.state_dict() == step.scaler.state_dict()
    assert torch.equal(other.train(x, y)["loss"], step.train(x, y)["loss"])
    assert step.select([2, 0]).scaler.get_scale() == [2.0, 8.0]
    step.array.copy_member(0, 1)
    assert step.scaler.get_scale() == [8.0, 8.0, 2.0]


@pytest.mark.parametrize(
    ("name", "has", "message"),
    [
        ("fp16", {torch.bfloat16}, "layer: this CPU has no float16 LSTM; got 'fp16'; use precision='bf16'"),
        ("fp16", set(), "layer: this CPU has no float16 LSTM; got 'fp16'; use precision='fp32'"),
        ("bf16", set(), "layer: this CPU has no bfloat16 LSTM; got 'bf16'; use precision='fp32'"),
    ],
)
def test_a_module_that_the_cpu_can_not_run_is_named(
    name: str, has: set[torch.dtype], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_precision, "has_lstm", lambda half: half in has)
    precision = Precision(name, torch.device("cpu"))
    precision.check_modules([_mlp()])
    for able in [*(["bf16"] if has else []), "fp32"]:
        Precision(able, torch.device("cpu")).check_modules([_lstm()])
    with pytest.raises(DeviceError, match=re.escape(message)):
        precision.check_modules([_mlp(), _lstm()])


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_what_a_cpu_has_is_what_a_plain_module_can(half: torch.dtype) -> None:
    x, works = torch.randn(5, 4, 8), True
    try:
        with torch.autocast("cpu", half):
            nn.LSTM(8, 12)(x)
    except RuntimeError:
        works = False
    assert has_lstm(half) == works
