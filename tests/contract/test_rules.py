"""Every function with a rule, called by a small module: fused equals serial. A new rule is one row here."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import hfta_nb as hfta
from hfta_nb.engine.rules import RULES

SEEDS = [11, 12, 13]
Body = Callable[["Calls", Tensor], Any]


class Calls(nn.Module):
    """A layer, and what is called on its output of 6 samples with 8 features."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.linear, self.more, self.body = nn.Linear(5, 8), nn.Parameter(torch.randn(400)), body

    def weight(self, *size: int) -> Tensor:
        """A parameter of this size."""
        return self.more[: math.prod(size)].view(size)

    def forward(self, x: Tensor) -> Any:
        return self.body(self, self.linear(x))


class Seen(TorchFunctionMode):
    """Notes the functions that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.functions: set[Any] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.functions.add(func)
        return func(*args, **(kwargs or {}))


def _shaped(*size: int) -> Callable[[Tensor], Tensor]:
    return lambda h: h.reshape(6, *size)


_1d, _2d, _3d = _shaped(2, 4), _shaped(2, 2, 2), _shaped(1, 2, 2, 2)
_larger_3d: Callable[[Tensor], Tensor] = lambda h: _3d(h).repeat(1, 1, 2, 2, 2)  # noqa: E731
_larger_2d: Callable[[Tensor], Tensor] = lambda h: _2d(h).repeat(1, 1, 2, 2)  # noqa: E731


def _lstm(m: Calls, h: Tensor) -> Tensor:
    weights = [m.weight(12, 4), m.weight(12, 3), m.weight(12), m.weight(12)]
    zeros = torch.zeros(1, 6, 3, dtype=h.dtype)
    return torch.lstm(_1d(h), [zeros, zeros], weights, True, 1, 0.0, m.training, False, True)[0]


def _sequences(function: Any, gates: int) -> Body:
    def body(m: Calls, h: Tensor) -> Tensor:
        weights = [m.weight(gates * 3, 4), m.weight(gates * 3, 3), m.weight(gates * 3), m.weight(gates * 3)]
        zeros = torch.zeros(1, 6, 3, dtype=h.dtype)
        return function(_1d(h), zeros, weights, True, 1, 0.0, m.training, False, True)[0]  # type: ignore[no-any-return]

    return body


def _cell(function: Any, gates: int, with_cell: bool = False) -> Body:
    def body(m: Calls, h: Tensor) -> Tensor:
        zeros = torch.zeros(6, 3, dtype=h.dtype)
        state = (zeros, zeros) if with_cell else zeros
        weights = m.weight(gates * 3, 8), m.weight(gates * 3, 3), m.weight(gates * 3), m.weight(gates * 3)
        found = function(h, state, *weights)
        return found[0] if with_cell else found  # type: ignore[no-any-return]

    return body


def _multi_head(m: Calls, h: Tensor) -> Tensor:
    x = h.reshape(6, 2, 4)
    given = 4, 2, m.weight(12, 4), m.weight(12), None, None, False, 0.0, m.weight(4, 4), m.weight(4)
    return F.multi_head_attention_forward(x, x, x, *given)[0]


def _likelihood(function: Any) -> Body:
    return lambda m, h: function(F.log_softmax(h, -1), torch.arange(6) % 8)


def _pool(function: Any, shape: Callable[[Tensor], Tensor], size: Any = 2, **more: Any) -> Body:
    def body(m: Calls, h: Tensor) -> Tensor:
        found = function(shape(h), size, **more)
        return found[0] if isinstance(found, tuple) else found

    return body


def _fractional(function: Any, shape: Callable[[Tensor], Tensor], indices: bool) -> Body:
    def body(m: Calls, h: Tensor) -> Tensor:
        found = function(shape(h), 2, output_size=2)
        return found[0] if indices else found  # type: ignore[no-any-return]

    return body


def _made(make: Callable[[Tensor], Tensor]) -> Body:
    """What makes a tensor, which members then write into."""

    def body(m: Calls, h: Tensor) -> Tensor:
        room = make(h)
        room.fill_(1.0)
        room.mul_(h.detach())
        return h * room

    return body


def _like(h: Tensor) -> Tensor:
    """A tensor that members share, as the output is."""
    return torch.ones(6, 8, dtype=h.dtype)


def _drawn(draw: Callable[[Tensor], Tensor]) -> Body:
    return lambda m, h: h * draw(h.detach()).to(h.dtype)


def _in_place(name: str, *args: Any) -> Body:
    return _drawn(lambda h: getattr(h.clone(), name)(*args).clamp(-3, 3))


def _read(read: Callable[[Tensor], Any]) -> Body:
    """What reads a value, the same for all members: how many outputs are beyond all bounds."""
    return lambda m, h: h * (2.0 if read((h.detach() > 1e9).sum()) else 3.0)


def _conv(function: Any, dims: int, *size: int) -> Body:
    shape = {1: _1d, 2: _2d, 3: _3d}[dims]
    return lambda m, h: function(shape(h), m.weight(*size), padding=1)


CASES: dict[object, Body] = {
    torch._C._nn.linear: lambda m, h: F.linear(h, m.weight(3, 8)),
    F.batch_norm: lambda m, h: F.batch_norm(h, None, None, m.weight(8), m.weight(8), training=True),
    F.group_norm: lambda m, h: F.group_norm(h, 2, m.weight(8), m.weight(8)),
    F.layer_norm: lambda m, h: F.layer_norm(h, [8], m.weight(8), m.weight(8)),
    F.rms_norm: lambda m, h: F.rms_norm(h, [8], m.weight(8)),
    F.instance_norm: lambda m, h: F.instance_norm(_1d(h), weight=m.weight(2), bias=m.weight(2)),
    torch.avg_pool1d: _pool(F.avg_pool1d, _1d),
    F.max_pool1d: _pool(F.max_pool1d, _1d),
    F.max_pool1d_with_indices: _pool(F.max_pool1d, _1d, return_indices=True),
    torch.max_pool1d: _pool(torch.max_pool1d, _1d),
    torch.adaptive_avg_pool1d: _pool(F.adaptive_avg_pool1d, _1d),
    F.adaptive_max_pool1d: _pool(F.adaptive_max_pool1d, _1d),
    F.adaptive_max_pool1d_with_indices: _pool(F.adaptive_max_pool1d, _1d, return_indices=True),
    torch._C._nn.avg_pool2d: _pool(F.avg_pool2d, _2d),
    F.max_pool2d: _pool(F.max_pool2d, _2d),
    F.max_pool2d_with_indices: _pool(F.max_pool2d, _2d, return_indices=True),
    torch.max_pool2d: _pool(torch.max_pool2d, _2d),
    F.adaptive_avg_pool2d: _pool(F.adaptive_avg_pool2d, _2d, 1),
    F.adaptive_max_pool2d: _pool(F.adaptive_max_pool2d, _2d, 1),
    F.adaptive_max_pool2d_with_indices: _pool(F.adaptive_max_pool2d, _2d, 1, return_indices=True),
    torch._C._nn.avg_pool3d: _pool(F.avg_pool3d, _3d),
    F.max_pool3d: _pool(F.max_pool3d, _3d),
    F.max_pool3d_with_indices: _pool(F.max_pool3d, _3d, return_indices=True),
    torch.max_pool3d: _pool(torch.max_pool3d, _3d),
    F.adaptive_avg_pool3d: _pool(F.adaptive_avg_pool3d, _3d, 1),
    F.adaptive_max_pool3d: _pool(F.adaptive_max_pool3d, _3d, 1),
    F.adaptive_max_pool3d_with_indices: _pool(F.adaptive_max_pool3d, _3d, 1, return_indices=True),
    F.scaled_dot_product_attention: lambda m, h: F.scaled_dot_product_attention(_1d(h), _1d(h).sin(), _1d(h).cos()),
    F.multi_head_attention_forward: _multi_head,
    torch.conv1d: _conv(F.conv1d, 1, 3, 2, 3),
    torch.conv2d: _conv(F.conv2d, 2, 3, 2, 3, 3),
    torch.conv3d: _conv(F.conv3d, 3, 2, 1, 3, 3, 3),
    torch.conv_transpose2d: _conv(F.conv_transpose2d, 2, 2, 3, 3, 3),
    torch.conv_transpose3d: _conv(F.conv_transpose3d, 3, 1, 2, 3, 3, 3),
    F.embedding_bag: lambda m, h: h * F.embedding_bag(torch.arange(12).view(6, 2) % 4, m.weight(4, 8), mode="sum"),
    F.embedding: lambda m, h: h * F.embedding(torch.arange(6) % 4, m.weight(4, 8)),
    F.linear_cross_entropy: lambda m, h: F.linear_cross_entropy(h, m.weight(5, 8), torch.arange(6) % 5),
    torch.lstm: _lstm,
    torch.gru: _sequences(torch.gru, 3),
    torch.rnn_tanh: _sequences(torch.rnn_tanh, 1),
    torch.rnn_relu: _sequences(torch.rnn_relu, 1),
    torch.lstm_cell: _cell(torch.lstm_cell, 4, with_cell=True),
    torch.gru_cell: _cell(torch.gru_cell, 3),
    torch.rnn_tanh_cell: _cell(torch.rnn_tanh_cell, 1),
    torch.rnn_relu_cell: _cell(torch.rnn_relu_cell, 1),
    F.cross_entropy: lambda m, h: F.cross_entropy(h, torch.arange(6) % 8),
    F.nll_loss: _likelihood(F.nll_loss),
    torch.zeros: _made(lambda h: torch.zeros(6, 8, dtype=h.dtype)),
    torch.ones: _made(lambda h: torch.ones(6, 8, dtype=h.dtype)),
    torch.empty: _made(lambda h: torch.empty(6, 8, dtype=h.dtype)),
    torch.full: _made(lambda h: torch.full((6, 8), 2.0, dtype=h.dtype)),
    torch.clone: _made(lambda h: torch.clone(_like(h))),
    Tensor.clone: _made(lambda h: _like(h).clone()),
    torch.zeros_like: _made(lambda h: torch.zeros_like(_like(h))),
    torch.ones_like: _made(lambda h: torch.ones_like(_like(h))),
    torch.empty_like: _made(lambda h: torch.empty_like(_like(h))),
    torch.full_like: _made(lambda h: torch.full_like(_like(h), 2.0)),
    Tensor.new_zeros: _made(lambda h: _like(h).new_zeros(6, 8)),
    Tensor.new_ones: _made(lambda h: _like(h).new_ones(6, 8)),
    Tensor.new_empty: _made(lambda h: _like(h).new_empty(6, 8)),
    Tensor.new_full: _made(lambda h: _like(h).new_full((6, 8), 2.0)),
    Tensor.new_tensor: _made(lambda h: _like(h).new_tensor([[2.0] * 8] * 6)),
    F.dropout: lambda m, h: F.dropout(h, 0.4),
    F.dropout1d: lambda m, h: F.dropout1d(_1d(h), 0.4),
    F.dropout2d: lambda m, h: F.dropout2d(_2d(h), 0.4),
    F.dropout3d: lambda m, h: F.dropout3d(_3d(h), 0.4),
    F.alpha_dropout: lambda m, h: F.alpha_dropout(h, 0.4, training=True),
    F.feature_alpha_dropout: lambda m, h: F.feature_alpha_dropout(_1d(h), 0.4, training=True),
    torch.dropout: lambda m, h: torch.dropout(h, 0.4, True),
    torch.alpha_dropout: lambda m, h: torch.alpha_dropout(h, 0.4, True),
    torch.feature_dropout: lambda m, h: torch.feature_dropout(_1d(h), 0.4, True),
    torch.feature_alpha_dropout: lambda m, h: torch.feature_alpha_dropout(_1d(h), 0.4, True),
    torch.rand: _drawn(lambda h: torch.rand(6, 8)),
    torch.randn: _drawn(lambda h: torch.randn(6, 8)),
    torch.randint: _drawn(lambda h: torch.randint(0, 9, (6, 8))),
    torch.randperm: _drawn(lambda h: torch.randperm(8)),
    torch.normal: _drawn(lambda h: torch.normal(h, 1.0)),
    torch.bernoulli: _drawn(lambda h: torch.bernoulli(h.sigmoid())),
    torch.poisson: _drawn(lambda h: torch.poisson(h.exp())),
    torch.rand_like: _drawn(torch.rand_like),
    torch.randn_like: _drawn(torch.randn_like),
    torch.randint_like: _drawn(lambda h: torch.randint_like(h, 9)),
    torch.multinomial: _drawn(lambda h: torch.multinomial(h.exp(), 8)),
    torch.binomial: _drawn(lambda h: torch.binomial(torch.full_like(h, 7.0), h.sigmoid())),
    Tensor.bernoulli: _drawn(lambda h: h.sigmoid().bernoulli()),
    Tensor.multinomial: _drawn(lambda h: h.exp().multinomial(8)),
    F.gumbel_softmax: lambda m, h: F.gumbel_softmax(h),
    F.rrelu: lambda m, h: F.rrelu(h, training=True),
    torch.rrelu: lambda m, h: torch.rrelu(h, 0.1, 0.3, True),
    F.fractional_max_pool2d: _fractional(F.fractional_max_pool2d, _larger_2d, indices=False),
    F.fractional_max_pool3d: _fractional(F.fractional_max_pool3d, _larger_3d, indices=False),
    F.fractional_max_pool2d_with_indices: _fractional(F.fractional_max_pool2d_with_indices, _larger_2d, indices=True),
    F.fractional_max_pool3d_with_indices: _fractional(F.fractional_max_pool3d_with_indices, _larger_3d, indices=True),
    Tensor.bernoulli_: _in_place("bernoulli_", 0.4),
    Tensor.uniform_: _in_place("uniform_"),
    Tensor.normal_: _in_place("normal_"),
    Tensor.exponential_: _in_place("exponential_"),
    Tensor.geometric_: _in_place("geometric_", 0.4),
    Tensor.log_normal_: _in_place("log_normal_"),
    Tensor.cauchy_: _in_place("cauchy_"),
    Tensor.random_: _in_place("random_", 0, 9),
    Tensor.item: _read(Tensor.item),
    Tensor.__bool__: _read(bool),
    Tensor.__float__: _read(float),
    Tensor.__int__: _read(int),
    Tensor.__index__: _read(lambda v: range(5)[v]),
    Tensor.__complex__: _read(complex),
    Tensor.tolist: _read(Tensor.tolist),
    Tensor.numpy: _read(Tensor.numpy),
    Tensor.is_nonzero: _read(Tensor.is_nonzero),
    Tensor.__contains__: _read(lambda v: 1 in v.view(1)),
    Tensor.equal: _read(lambda v: v.equal(torch.tensor(1))),
    torch.equal: _read(lambda v: torch.equal(v, torch.tensor(1))),
    torch.allclose: _read(lambda v: torch.allclose(v, torch.tensor(1))),
    Tensor.allclose: _read(lambda v: v.allclose(torch.tensor(1))),
    Tensor.__array__: _read(lambda v: v.__array__()),
    torch.is_nonzero: _read(torch.is_nonzero),
}


def test_every_rule_has_a_row() -> None:
    assert set(CASES) == set(RULES)


def name_of(function: Any) -> str:
    shared = [name for name in dir(F) if getattr(F, name) is function]  # several are made by one function of torch's
    return f"F.{shared[0]}" if shared else getattr(function, "__qualname__", str(function))


@pytest.mark.parametrize("function", CASES, ids=name_of)
def test_equals_serial(function: Any) -> None:
    modules = []
    for seed in SEEDS:
        torch.manual_seed(seed)
        modules.append(Calls(CASES[function]).double())
    x = torch.randn(6, 5, dtype=torch.float64)
    array = hfta.fuse(modules, seeds=SEEDS)
    fused = array(x)
    fused.square().sum().backward()
    with Seen() as seen:
        for i, (seed, module) in enumerate(zip(SEEDS, modules, strict=True)):
            torch.manual_seed(seed)
            alone = module(x)
            alone.square().sum().backward()
            torch.testing.assert_close(fused[i], alone, rtol=1e-10, atol=1e-12)
            for name, parameter in module.named_parameters():
                if parameter.grad is not None:
                    found = array.get_parameter(name).grad[i]
                    torch.testing.assert_close(found, parameter.grad, rtol=1e-10, atol=1e-12)
    assert function in seen.functions
    assert not [row for row in array.explain().itertuples(index=False) if row[0].startswith("submodule")]
