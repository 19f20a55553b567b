"""Expresses batch norm by overloads that declare what they write, which a compiler supports on any device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from hfta_nb.engine.replay.trace import Instruction, places

_aten = torch.ops.aten
_NATIVE, _NATIVE_BACKWARD = _aten.native_batch_norm.default, _aten.native_batch_norm_backward.default
_CUDNN, _CUDNN_BACKWARD = _aten.cudnn_batch_norm.default, _aten.cudnn_batch_norm_backward.default


def unsaid(call: Instruction) -> bool:
    """True if a call may write to running statistics undeclared by its schema, and `said` cannot express it."""
    known = _NATIVE, _NATIVE_BACKWARD, _CUDNN, _CUDNN_BACKWARD
    return "batch_norm" in call.function._schema.name and call.function not in known


def said(calls: Sequence[Instruction]) -> list[Instruction]:
    """The same calls; the `writes` of batch norms are complete."""
    return [_said(call) for call in calls]


def _said(call: Instruction) -> Instruction:
    if call.function in (_NATIVE, _CUDNN):
        function, args = _forward(*call.args)
        written = places(call.args[3:5]) if call.args[5] else []
        call = replace(call, function=function, args=args, writes=call.writes | {p.storage for p in written})
    elif call.function is _CUDNN_BACKWARD:
        x, grad, weight, mean, var, batch_mean, batch_scale, eps, _ = call.args
        args = grad, x, weight, mean, var, batch_mean, batch_scale, True, eps, [True, True, True]
        call = replace(call, function=_NATIVE_BACKWARD, args=args)
    else:
        return call
    results = call.results[:3]  # cuDNN keeps further results for its own backward
    made = {r.storage for r in results if r is not None}
    return replace(call, results=results, makes=tuple(s for s in call.makes if s in made))


def _forward(x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float) -> Any:
    if not training:
        return _aten._native_batch_norm_legit_no_training.default, (x, weight, bias, mean, var, momentum, eps)
    if mean is None:
        return _aten._native_batch_norm_legit.no_stats, (x, weight, bias, training, momentum, eps)
    return _aten._native_batch_norm_legit.default, (x, weight, bias, mean, var, training, momentum, eps)
