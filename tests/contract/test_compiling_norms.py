"""Batch norms of recordings on a GPU, in graphs for a compiler."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from hfta_nb.engine.replay.inductor import compile as compiling
from hfta_nb.engine.replay.inductor.norm_overloads import said, unsaid
from hfta_nb.engine.replay.inductor.to_fx import Graph
from hfta_nb.engine.replay.trace import BufferView, Instruction
from tests.contract.test_compiling import _array, _norms, _train


def _place(number: int, tensor: torch.Tensor) -> BufferView:
    return BufferView(number, tuple(tensor.shape), tensor.stride(), 0, tensor.dtype)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_of_cudnn_is_written_as_one_that_says_what_it_writes(training: bool) -> None:
    """As a GPU records it; the graph is for any device."""
    generator = torch.Generator().manual_seed(0)
    x, grad = (torch.randn(4, 3, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    weight, bias, mean = (torch.randn(3, generator=generator, dtype=torch.float64) for _ in range(3))
    var = torch.rand(3, generator=generator, dtype=torch.float64) + 0.5
    there = dict(enumerate((x, grad, weight, bias, mean, var)))
    given = [_place(number, tensor) for number, tensor in there.items()]
    out, by_x, by_weight, by_bias = _place(6, x), _place(10, x), _place(11, weight), _place(12, weight)
    saved = [_place(number, weight if training else torch.empty(0).double()) for number in (7, 8)]
    reserve = BufferView(9, (0,), (1,), 0, torch.uint8)
    inputs = given[0], *given[2:], training, 0.1, 1e-5
    calls = [
        Instruction(
            torch.ops.aten.cudnn_batch_norm.default, inputs, {}, (out, *saved, reserve), (6, 7, 8, 9), frozenset()
        )
    ]
    results = [out]
    if training:
        back = given[0], given[1], given[2], given[4], given[5], *saved, 1e-5, reserve
        results += [by_x, by_weight, by_bias]
        function = torch.ops.aten.cudnn_batch_norm_backward.default
        calls.append(Instruction(function, back, {}, tuple(results[1:]), (10, 11, 12), frozenset()))
    graph = Graph(said(calls), there, {}, results)
    statistics = mean.clone(), var.clone()
    found = [*graph.module(*graph.inputs), *((mean, var) if training else ())]
    leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
    expected = nn.functional.batch_norm(leaves[0], *statistics, *leaves[1:], training, 0.1, 1e-5)
    wanted = [expected, *(torch.autograd.grad(expected, leaves, grad) if training else ())]
    wanted += statistics if training else ()
    for value, other in zip(found, wanted, strict=True):
        assert torch.allclose(value, other, rtol=0, atol=1e-12)


def test_a_batch_norm_that_nobody_knows_is_not_compiled() -> None:
    array = _array(_norms)
    _train(array, 4)
    source = next(iter(array._calls.steps)).program.source
    assert not any(map(unsaid, source.calls))
    call = Instruction(torch.ops.aten.miopen_batch_norm.default, (), {}, (), (), frozenset())
    other = replace(source, calls=[*source.calls, call])
    assert compiling.why_not(other, source.device) == "its batch norm writes running statistics without saying so"
