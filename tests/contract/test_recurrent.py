"""Recurrent layers of all members at once: all forms of torch's modules, compared with the modules alone."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.kernels.native import recurrent
from hfta_nb.engine.kernels.native.build import compiling
from hfta_nb.engine.kernels.strategy import autotune
from hfta_nb.engine.kernels.strategy.kernel_variants import COMPILED
from hfta_nb.engine.rules.gru import gru, simple
from hfta_nb.engine.rules.lstm import formula

SEEDS = [100, 101, 102]
HOW = "all members at once, step by step"
KINDS: dict[str, Callable[..., nn.Module]] = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "rnn_tanh": nn.RNN,
    "rnn_relu": lambda *a, **k: nn.RNN(*a, nonlinearity="relu", **k),
}
FORMS = [
    {"num_layers": layers, "bidirectional": both, "bias": bias, "batch_first": first, "dropout": 0.4 * (layers - 1)}
    for layers, both, bias, first in itertools.product((1, 2), (False, True), (True, False), (False, True))
]
kinds = pytest.mark.parametrize("kind", list(KINDS))


class Whole(nn.Module):
    """Of all that a recurrent layer returns."""

    def __init__(self, inner: nn.Module, start: bool = False) -> None:
        super().__init__()
        self.inner = inner
        self.start = nn.Parameter(torch.randn(inner.hidden_size)) if start else None

    def forward(self, x: Tensor) -> Tensor:
        state = None
        if self.start is not None:
            one = self.start.expand(1, x.shape[0 if self.inner.batch_first else 1], -1).contiguous()  # for cuDNN
            state = (one, one * 0.5) if isinstance(self.inner, nn.LSTM) else one
        out, last = self.inner(x, state)
        ends = last if isinstance(last, tuple) else (last,)
        return (
            out.sin().sum() + out[..., 0].square().sum() + sum((i + 1) * e.square().sum() for i, e in enumerate(ends))
        )


class Cells(nn.Module):
    """A cell, over three steps of the input."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        state: Any = None
        for step in x:
            state = self.cell(step, state)
        return torch.stack(state if isinstance(state, tuple) else (state,)).square().sum()


def _as_is(out: Tensor, y: Tensor) -> Tensor:
    return out


def _make(build: Callable[[], nn.Module], device: torch.device, dtype: torch.dtype) -> list[nn.Module]:
    made = []
    for seed in range(len(SEEDS)):
        torch.manual_seed(seed)
        made.append(build().to(device, dtype))
    return made


def _agree(
    build: Callable[[], nn.Module],
    x: Tensor,
    device: torch.device,
    function: str,
    how: str = HOW,
    dtype: torch.dtype = torch.float64,
    block_size: int = len(SEEDS),
) -> None:
    """Losses, gradients and the gradient of the shared input are those of the modules alone."""
    tolerance = 1e-10 if dtype == torch.float64 else 1e-4 if device.type == "cpu" else 1e-3
    x = x.to(device, dtype)
    modules = _make(build, device, dtype)
    array = hfta.fuse(modules, SEEDS)
    array.block_size = block_size
    given = x.clone().requires_grad_()
    losses = array.backward(_as_is, given, x)
    summed = torch.zeros_like(x)
    for i, module in enumerate(modules):
        torch.manual_seed(SEEDS[i])
        own = x.clone().requires_grad_()
        loss = module(own)
        loss.backward()
        assert own.grad is not None
        summed += own.grad
        torch.testing.assert_close(losses[i], loss.detach(), atol=tolerance, rtol=tolerance)
        for name, p in array.named_parameters():
            torch.testing.assert_close(p.grad[i], module.get_parameter(name).grad, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(given.grad, summed, atol=tolerance, rtol=tolerance)
    table = array.explain()
    assert set(table["how"][table["function"] == function]) == ({how} if block_size > 1 else set())


@pytest.mark.each("kind")
@kinds
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_every_form(kind: str, dtype: torch.dtype, device: torch.device) -> None:
    torch.manual_seed(7)
    x = torch.randn(4, 3, 5, dtype=torch.float64)
    for form in FORMS:
        if form["dropout"] and device.type != "cpu":
            continue
        _agree(lambda form=form: Whole(KINDS[kind](5, 6, **form)), x, device, kind, dtype=dtype)  # type: ignore[misc]


@pytest.mark.pairs
@pytest.mark.each("switch")
@pytest.mark.parametrize("switch", ["", "off"], ids=["compiled", "not compiled"])
@pytest.mark.parametrize("block_size", [1, len(SEEDS)])
@pytest.mark.parametrize("sizes", [(5, 16), (32, 48), (3, 64), (48, 16)], ids=str)
def test_every_form_of_whole_vectors(
    switch: str, sizes: tuple[int, int], block_size: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hidden sizes that the compiled kernel takes, where there is a compiler."""
    monkeypatch.setenv("HFTA_NB_NATIVE", switch)
    with compiling():
        compiled = recurrent.usable(torch.zeros(1), torch.zeros(1, 16))
    assert compiled == (not switch and any(map(shutil.which, ("cc", "gcc", "clang"))))
    torch.manual_seed(7)
    last: dict[str, Any] = {"dtype": torch.float32, "block_size": block_size}
    for samples, form in zip(itertools.cycle((3, 4, 9)), FORMS, strict=False):
        if form["dropout"] and device.type != "cpu":
            continue
        shape = (samples, 5, sizes[0]) if form["batch_first"] else (5, samples, sizes[0])
        build = partial(nn.LSTM, *sizes, **form)
        _agree(lambda build=build: Whole(build()), torch.randn(shape), device, "lstm", **last)  # type: ignore[misc]
    _agree(
        lambda: Whole(nn.LSTM(*sizes, batch_first=True), start=True),
        torch.randn(4, 3, sizes[0]),
        *(device, "lstm"),
        **last,
    )


@kinds
def test_given_states_learn(kind: str, device: torch.device) -> None:
    torch.manual_seed(7)
    x = torch.randn(4, 3, 5, dtype=torch.float64)
    _agree(lambda: Whole(KINDS[kind](5, 6, batch_first=True), start=True), x, device, kind)


@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell, nn.RNNCell], ids=lambda c: c.__name__)
@pytest.mark.parametrize("bias", [True, False])
def test_cells(cell: Any, bias: bool, device: torch.device) -> None:
    torch.manual_seed(7)
    function = {"LSTMCell": "lstm_cell", "GRUCell": "gru_cell", "RNNCell": "rnn_tanh_cell"}[cell.__name__]
    _agree(lambda: Cells(cell(5, 6, bias=bias)), torch.randn(3, 4, 5, dtype=torch.float64), device, function)


def test_a_projection_runs_once_per_member(device: torch.device) -> None:
    x = torch.randn(4, 3, 5, dtype=torch.float64)
    _agree(lambda: Whole(nn.LSTM(5, 6, proj_size=3)), x, device, "lstm", "torch's kernel, once per member")


@pytest.mark.each("written")
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("written", [formula, gru, simple], ids=["lstm", "gru", "simple"])
def test_gradients_can_be_differentiated(written: Callable[..., Any], backward: bool, device: torch.device) -> None:
    from hfta_nb.engine.rules.gru import GRU, Simple
    from hfta_nb.engine.rules.lstm import LSTM

    rule, gates = {formula: (LSTM, 4), gru: (GRU, 3), simple: (Simple, 1)}[written]
    torch.manual_seed(3)
    sizes = [(2, 3, 2, 3), (2, 2 * gates, 3), (2, 2 * gates, 2), (2, 2 * gates), (2, 2 * gates), (2, 2, 2), (2, 2, 2)]
    tensors = [torch.randn(s, dtype=torch.float64, device=device, requires_grad=True) for s in sizes]
    tensors = tensors if written is formula else tensors[:-1]
    rest = (backward, False) if written is simple else (backward,)

    def run(*given: Tensor) -> Any:
        return rule.apply(*given, *rest)

    for made, wanted in zip(run(*tensors), written(*tensors, *rest), strict=True):
        torch.testing.assert_close(made, wanted, atol=1e-12, rtol=1e-12)
    assert torch.autograd.gradcheck(run, tensors)
    assert torch.autograd.gradgradcheck(run, tensors)


@pytest.mark.parametrize("faster", [True, False])
def test_a_member_alone_takes_the_compiled_kernel_if_it_is_faster_and_kernels_are_not_fixed(
    faster: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autotune, "cost", lambda name, times: times[name] * ((name == COMPILED) != faster))
    with compiling():
        if not recurrent.usable(torch.zeros(1), torch.zeros(1, 16)):
            pytest.skip("no compiler")
    torch.manual_seed(7)
    module, x = nn.LSTM(5, 16, 2), torch.randn(4, 3, 5)
    array = hfta.fuse([module])

    def loss(found: Any, y: Tensor) -> Tensor:
        return found[0].square().sum()

    own, torchs = "hfta_nb::lstm", "aten::mkldnn_rnn_layer"
    for strategy, kernel in (("measured", own if faster else torchs), ("fixed", torchs)):
        array.strategy = strategy
        for _ in range(4):
            array.zero_grad()
            array.backward(loss, x, x)
        if kernel == own or torch.backends.mkldnn.is_available():
            assert any(kernel in names for names in array._calls.steps.kernels())
    module.zero_grad()
    loss(module(x), x).backward()
    for name, p in array.named_parameters():
        assert torch.equal(p.grad[0], module.get_parameter(name).grad)


@kinds
def test_a_model_may_write_into_the_output(kind: str, device: torch.device) -> None:
    class Clipped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = KINDS[kind](5, 6)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)[0].mul_(0.5).square().sum()

    if device.type == "cuda":
        pytest.skip("cuDNN's backward refuses that, for a plain module too")
    x = torch.randn(4, 3, 5, dtype=torch.float64, device=device)
    modules = _make(Clipped, device, torch.float64)
    array = hfta.fuse(modules, SEEDS)
    array.block_size = len(SEEDS)
    array.backward(_as_is, x, x)
    modules[1](x).backward()
    for name, p in array.named_parameters():
        torch.testing.assert_close(p.grad[1], modules[1].get_parameter(name).grad, atol=1e-10, rtol=1e-10)


@kinds
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_no_member_harms_another(kind: str, dtype: torch.dtype, device: torch.device) -> None:
    torch.manual_seed(7)
    x = torch.randn(4, 3, 5, dtype=dtype, device=device)
    modules = _make(lambda: Whole(KINDS[kind](5, 16)), device, dtype)
    array = hfta.fuse(modules, SEEDS)
    array.block_size = len(SEEDS)
    array.backward(_as_is, x, x)
    before = {n: p.grad.clone() for n, p in array.named_parameters()}
    with torch.no_grad():
        modules[1].inner.weight_hh_l0.fill_(float("nan"))
    other = hfta.fuse(modules, SEEDS)
    other.block_size = len(SEEDS)
    other.backward(_as_is, x, x)
    for name, p in other.named_parameters():
        assert p.grad[1].isnan().any()
        assert torch.equal(p.grad[0], before[name][0])
        assert torch.equal(p.grad[2], before[name][2])
