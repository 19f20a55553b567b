"""LSTM, GRU and simple recurrent layers: all members of a block at once, step by step.

What is not done this way runs once per member, by torch's own kernel: packed sequences, projections, 16-bit numbers and
autocast, and dropout between layers on an accelerator, whose kernels draw otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hfta_nb.array.rules.base import Context, Rule
from hfta_nb.array.rules.gru import GRU, Simple
from hfta_nb.array.rules.lstm import LSTM
from hfta_nb.array.rules.members import member_by_member

_HOW = "all members at once, step by step"

Run = Callable[..., Sequence[Tensor]]
"""Of one direction of one layer: x, two weights, two biases, states, last step first; h at all steps, last states."""


def _lstm(*given: Any) -> Sequence[Tensor]:
    return LSTM.apply(*given)  # type: ignore[no-any-return, no-untyped-call]


def _gru(*given: Any) -> Sequence[Tensor]:
    return GRU.apply(*given)  # type: ignore[no-any-return, no-untyped-call]


def _simple(relu: bool, *given: Any) -> Sequence[Tensor]:
    return Simple.apply(*given, relu)  # type: ignore[no-any-return, no-untyped-call]


def _once_each(context: Context, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return member_by_member(context, function, args, kwargs, "torch's kernel, once per member")


def _sequences(run: Run) -> Rule:
    def rule(context: Context, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if kwargs or len(args) != 9 or isinstance(args[3], list | tuple):  # packed
            return _once_each(context, function, args, kwargs)
        x, given, weights, biased, layers, dropout, train, both, batch_first = args
        states = list(given) if isinstance(given, list | tuple) else [given]
        drops = float(dropout) if train and layers > 1 else 0.0
        per = 4 if biased else 2
        projected = len(weights) != layers * per * (2 if both else 1)
        if projected or not _fits(context, [x, *states, *weights]) or x.numel() == 0 or (drops and not x.is_cpu):
            return _once_each(context, function, args, kwargs)
        context.note(function, _HOW)
        last: list[Sequence[Tensor]] = []
        for layer in range(layers):
            with context.outside():
                data = _steps_first(context, x, batch_first and layer == 0)
                own = [context.stacked(s) for s in states]
                made = []
                for direction in range(2 if both else 1):
                    k = layer * (2 if both else 1) + direction
                    parameters = [context.stacked(w) for w in weights[k * per : (k + 1) * per]]
                    none = [] if biased else [None, None]
                    made.append(run(data, *parameters, *none, *(s[:, k].contiguous() for s in own), direction == 1))
                last += [parts[1:] for parts in made]
                x = context.wrapped(torch.cat([m[0] for m in made], -1) if both else made[0][0])
            if drops and layer < layers - 1:
                x = member_by_member(context, torch.dropout, (x, drops, True), {}, _HOW)
        with context.outside():
            ends = [context.wrapped(torch.stack(part, 1)) for part in zip(*last, strict=True)]
        return (x.transpose(0, 1) if batch_first else x, *ends)

    return rule


def _cell(run: Run, lstm: bool) -> Rule:
    def rule(context: Context, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if kwargs or len(args) < 4:
            return _once_each(context, function, args, kwargs)
        x, given, *parameters = args
        states = list(given) if lstm else [given]
        parameters += [None] * (4 - len(parameters))
        known = [p for p in parameters if p is not None]
        if len(known) % 2 or x.ndim != 2 or x.numel() == 0 or not _fits(context, [x, *states, *known]):
            return _once_each(context, function, args, kwargs)
        context.note(function, _HOW)
        with context.outside():
            stacked = [None if p is None else context.stacked(p) for p in parameters]
            own = [context.stacked(s).contiguous() for s in states]
            ends = run(context.stacked(x).unsqueeze(1), *stacked, *own, False)[1:]
            wrapped = tuple(context.wrapped(e) for e in ends)
        return wrapped if lstm else wrapped[0]

    return rule


def _fits(context: Context, tensors: Sequence[Tensor]) -> bool:
    """Whether this is worth while and the same as alone."""
    plain = tensors[0].dtype in (torch.float32, torch.float64) and len({t.dtype for t in tensors}) == 1
    several = context.members > 1 and any(context.batched(t) for t in tensors)
    return plain and several and not torch._C._is_any_autocast_enabled()


def _steps_first(context: Context, x: Tensor, batch_first: bool) -> Tensor:
    """``[M, T, N, in]``; what the members share stays one."""
    if not context.batched(x):
        return (x.transpose(0, 1) if batch_first else x).contiguous().expand(context.members, -1, -1, -1)
    whole = context.stacked(x)
    return (whole.transpose(1, 2) if batch_first else whole).contiguous()


RULES: dict[object, Rule] = {
    torch.lstm: _sequences(_lstm),
    torch.gru: _sequences(_gru),
    torch.rnn_tanh: _sequences(partial(_simple, False)),
    torch.rnn_relu: _sequences(partial(_simple, True)),
    torch.lstm_cell: _cell(_lstm, True),
    torch.gru_cell: _cell(_gru, False),
    torch.rnn_tanh_cell: _cell(partial(_simple, False), False),
    torch.rnn_relu_cell: _cell(partial(_simple, True), False),
}
