"""LSTM, GRU and simple recurrent layers: all members of a block at once, step by step.

Some cases run once per member by torch's own kernel: packed sequences, projections, 16-bit numbers and autocast, and
dropout between layers on an accelerator, whose kernels draw differently.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.kernels.native import recurrent as native
from hfta_nb.engine.rules.alone import own_is_faster
from hfta_nb.engine.rules.gru import GRU, Simple
from hfta_nb.engine.rules.lstm import LSTM, TorchLSTM
from hfta_nb.engine.rules.member_by_member import each_member, torch_kernel_per_member
from hfta_nb.engine.rules.rule_mode import Context, Rule, function_name, vmap_level

_HOW = "all members at once, step by step"

LayerFunction = Callable[..., Sequence[Tensor]]
"""One direction of one layer: from x, two weights, two biases, states and `last_first` to h at all steps and the last
states."""


def _lstm(*given: Any) -> Sequence[Tensor]:
    return LSTM.apply(*given)  # type: ignore[no-any-return, no-untyped-call]


def _lstm_of_torch(*given: Any) -> Sequence[Tensor]:
    return TorchLSTM.apply(*given)  # type: ignore[no-any-return, no-untyped-call]


def _gru(*given: Any) -> Sequence[Tensor]:
    return GRU.apply(*given)  # type: ignore[no-any-return, no-untyped-call]


def _simple(relu: bool, *given: Any) -> Sequence[Tensor]:
    return Simple.apply(*given, relu)  # type: ignore[no-any-return, no-untyped-call]


@dataclass(frozen=True)
class _Call:
    """The arguments of a call that runs along time steps, for all members or for one."""

    x: Tensor
    states: list[Tensor]
    weights: Sequence[Tensor]
    biased: bool
    layers: int
    dropout: float
    both: bool
    batch_first: bool

    @classmethod
    def of(cls, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Call | None:
        """None for packed sequences and for projections."""
        if kwargs or len(args) != 9 or isinstance(args[3], list | tuple):  # packed
            return None
        x, given, weights, biased, layers, dropout, train, both, batch_first = args
        states = list(given) if isinstance(given, list | tuple) else [given]
        drops = float(dropout) if train and layers > 1 else 0.0
        if len(weights) != layers * (4 if biased else 2) * (2 if both else 1):  # projected
            return None
        return cls(x, states, weights, bool(biased), layers, drops, bool(both), bool(batch_first))

    def through(
        self, run: LayerFunction, x: Tensor, stacked: Callable[[Tensor], Tensor], drop: Callable[[Tensor], Tensor]
    ) -> list[Tensor]:
        """The last layer's output at all time steps ``[M, T, N, H]``, and the last states ``[M, layers, N, H]``.

        Args:
            run: a direction of a layer.
            x: ``[M, T, N, in]``.
            stacked: gives a tensor its member axis.
            drop: dropout between layers.
        """
        weights, states = [stacked(w) for w in self.weights], [stacked(s) for s in self.states]
        directions, per = 2 if self.both else 1, 4 if self.biased else 2
        last: list[Sequence[Tensor]] = []
        for layer in range(self.layers):
            made = []
            for k in range(layer * directions, (layer + 1) * directions):
                parameters = [*weights[k * per : (k + 1) * per], *([] if self.biased else [None, None])]
                own = (s[:, k].contiguous() for s in states)
                made.append(run(x, *parameters, *own, k % directions == 1))
            last += [parts[1:] for parts in made]
            x = torch.cat([m[0] for m in made], -1) if self.both else made[0][0]
            if self.dropout and layer < self.layers - 1:
                x = drop(x)
        return [x, *(torch.stack(part, 1) for part in zip(*last, strict=True))]


def _sequences(run: LayerFunction) -> Rule:
    def rule(context: Context, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        call = _Call.of(args, kwargs)
        if call is None or not _fits(context, [call.x, *call.states, *call.weights]) or call.x.numel() == 0:
            return _torch_kernel(context, function, args, kwargs)
        if call.dropout and not call.x.is_cpu:
            return _torch_kernel(context, function, args, kwargs)
        context.note(function, _HOW)

        def drop(x: Tensor) -> Tensor:
            return torch.stack(each_member(context, torch.dropout, (context.wrapped(x), call.dropout, True), {}))

        with context.outside():
            x = _steps_first(context, call.x, call.batch_first)
            out, *ends = map(context.wrapped, call.through(_taken(run, context), x, context.stacked, drop))
        return (out.transpose(0, 1) if call.batch_first else out, *ends)

    return rule


def _torch_kernel(context: Context, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The rule for a layer that runs as torch's own kernel, once per member."""

    def call(*given: Any, **named: Any) -> Any:
        return function(*weights_apart(given), **named)

    call.__name__ = function_name(function)
    return torch_kernel_per_member(context, call, args, kwargs)


def weights_apart(args: Sequence[Any]) -> Sequence[Any]:
    """The arguments of a recurrent layer with its weights in memory of their own, if it may be cuDNN's.

    cuDNN takes weights that are adjacent in memory as one block of weights and biases. In an array, what follows the
    weights of a layer without biases are other parameters; those of a narrow member have gaps.
    """
    pairs = enumerate(itertools.pairwise(args))
    at = next((i for i, (v, biased) in pairs if isinstance(v, list | tuple) and isinstance(biased, bool)), None)
    if at is None or not all(w.is_cuda for w in args[at]):
        return args
    own = [w.contiguous() if args[at + 1] else w.clone(memory_format=torch.contiguous_format) for w in args[at]]
    return [*args[:at], own, *args[at + 1 :]]


def alone(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Tensor] | None:
    """The LSTM of a member that runs as its plain module, by this package's kernel; None if that does not support it.

    Args:
        function: the function that the model calls.
        args, kwargs: its arguments.
    """
    call = _Call.of(args, kwargs) if function is torch.lstm else None
    if call is None or call.x.ndim != 3 or call.x.numel() == 0:
        return None
    if torch._C._is_any_autocast_enabled() or vmap_level():
        return None
    tensors = [call.x, *call.states, *call.weights]
    if any(t.dtype != torch.float32 for t in tensors) or not native.usable(call.x, call.states[0]):
        return None
    first, second = (1, 0) if call.batch_first else (0, 1)
    sizes = call.x.shape[first], call.x.shape[second], call.x.shape[2], call.states[0].shape[-1]
    if not own_is_faster(_one, sizes, call.biased):
        return None

    def drop(x: Tensor) -> Tensor:
        return torch.dropout(x.squeeze(0), call.dropout, True).unsqueeze(0)

    x = (call.x.transpose(0, 1) if call.batch_first else call.x).contiguous().unsqueeze(0)
    out, *ends = (t.squeeze(0) for t in call.through(_lstm, x, lambda t: t.unsqueeze(0), drop))
    if not (torch.backends.mkldnn.enabled and torch.backends.mkldnn.is_available()):  # type: ignore[no-untyped-call]
        out = out.clone()  # the model may write into it, which oneDNN's backward forbids
    return (out.transpose(0, 1) if call.batch_first else out, *ends)


def _one(given: Sequence[Tensor], parameters: Sequence[Tensor | None]) -> Tensor:
    """h at all time steps of one member's layer."""
    x, *states = (t.unsqueeze(0) for t in given)
    return _lstm(x, *(None if p is None else p.unsqueeze(0) for p in parameters), *states, False)[0].squeeze(0)


def _cell(run: LayerFunction, lstm: bool) -> Rule:
    def rule(context: Context, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if kwargs or len(args) < 4:
            return torch_kernel_per_member(context, function, args, kwargs)
        x, given, *parameters = args
        states = list(given) if lstm else [given]
        parameters += [None] * (4 - len(parameters))
        known = [p for p in parameters if p is not None]
        if len(known) % 2 or x.ndim != 2 or x.numel() == 0 or not _fits(context, [x, *states, *known]):
            return torch_kernel_per_member(context, function, args, kwargs)
        context.note(function, _HOW)
        with context.outside():
            stacked = [None if p is None else context.stacked(p) for p in parameters]
            own = [context.stacked(s).contiguous() for s in states]
            ends = _taken(run, context)(context.stacked(x).unsqueeze(1), *stacked, *own, False)[1:]
            wrapped = tuple(context.wrapped(e) for e in ends)
        return wrapped if lstm else wrapped[0]

    return rule


def _taken(run: LayerFunction, context: Context) -> LayerFunction:
    """The same without this package's kernels, if the plain module's are required."""
    return _lstm_of_torch if run is _lstm and context.plain else run


def _fits(context: Context, tensors: Sequence[Tensor]) -> bool:
    """True if this is faster than `vmap`, with results equal to the plain module's."""
    plain = tensors[0].dtype in (torch.float32, torch.float64) and len({t.dtype for t in tensors}) == 1
    several = context.members > 1 and any(context.batched(t) for t in tensors)
    return plain and several and not torch._C._is_any_autocast_enabled()


def _steps_first(context: Context, x: Tensor, batch_first: bool) -> Tensor:
    """``[M, T, N, in]``; shared inputs are not copied."""
    if not context.batched(x):
        return (x.transpose(0, 1) if batch_first else x).contiguous().expand(context.members, -1, -1, -1)
    whole = context.stacked(x)
    return (whole.transpose(1, 2) if batch_first else whole).contiguous()


LAYERS = frozenset({torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu})
"""Functions that may be cuDNN's."""
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
