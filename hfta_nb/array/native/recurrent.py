"""The LSTM of `lstm.c` as operators of torch, so that steps which call it can be recorded and replayed."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from hfta_nb.array.capture.record import unseen
from hfta_nb.array.native.build import library, waiting

_SCHEMAS = {
    "lstm": "(Tensor x, Tensor w_x, Tensor w_h, Tensor? b_x, Tensor? b_h, Tensor(a!) gates, Tensor(b!) h, "
    "Tensor(c!) c, Tensor(d!) squashed, bool last_first) -> ()",
    "lstm_backward": "(Tensor x, Tensor w_x, Tensor w_h, Tensor gates, Tensor h, Tensor c, Tensor squashed, "
    "Tensor? by_out, Tensor(a!) dh, Tensor(b!) dc, Tensor(c!) grad, Tensor(d!)? dw_x, Tensor(e!)? dw_h, Tensor(f!) db, "
    "bool last_first, bool wants_first) -> ()",
}


def usable(x: Tensor, h: Tensor) -> bool:
    """Whether the kernel is there, and made for such tensors: float32, and a hidden size of whole vectors."""
    if x.device.type != "cpu" or x.dtype != torch.float32:
        return False
    found = _lstm()
    return found is not None and h.shape[-1] % int(found.hfta_wide()) == 0


@cache
def _operators() -> Any:
    """``torch.ops.hfta_nb``, with the kernels in it."""
    made = torch.library.Library("hfta_nb", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name, kernel in (("lstm", _forward), ("lstm_backward", _backward)):
        made.define(name + _SCHEMAS[name])  # type: ignore[no-untyped-call]
        made.impl(name, kernel, "CPU")  # type: ignore[no-untyped-call]
    _kept.append(made)
    return torch.ops.hfta_nb


_kept: list[torch.library.Library] = []


def _lstm() -> ctypes.CDLL | None:
    found = library("lstm", wait=waiting())
    if found is not None and found._handle not in _right:
        _right[found._handle] = False  # what is asked while checking is not this one
        _right[found._handle] = _is_right(found)
    return found if found is not None and _right[found._handle] else None


_right: dict[int, bool] = {}
"""By library, whether it computes what it should."""
_ERROR = 1e-4
"""Float32 gives errors of 1e-6 here."""


def _is_right(found: ctypes.CDLL) -> bool:
    """Compares two members with torch's LSTM in float64."""
    members, steps, samples, inputs, hidden = 2, 3, 5, 3, int(found.hfta_wide())
    with unseen(), torch.no_grad():
        x = _spread(members, steps, samples, inputs)
        w_x, w_h = _spread(members, 4 * hidden, inputs), _spread(members, 4 * hidden, hidden) * 0.3
        by_out = _spread(members, steps, samples, hidden)
        h, c = torch.zeros(members, steps + 1, samples, hidden), torch.zeros(members, steps + 1, samples, hidden)
        gates, squashed = x.new_empty(members, steps, samples, 4 * hidden), torch.empty_like(by_out)
        given = [x, w_x, w_h, None, None, gates, h, c, squashed]
        strides = _strides(x, w_x, w_h, None, None)
        _call(found, "hfta_lstm_forward", x, c, False, False, strides, given)
        dh, dc, grad = torch.zeros_like(h[:, 0]), torch.zeros_like(h[:, 0]), torch.empty_like(gates)
        dw_x, dw_h, db = torch.empty_like(w_x), torch.empty_like(w_h), x.new_empty(members, 4 * hidden)
        strides += [by_out.stride(i) for i in range(3)]
        given += [by_out, dh, dc, grad, dw_x, dw_h, db]
        _call(found, "hfta_lstm_backward", x, c, False, True, strides, given)
        for i in range(members):
            with torch.enable_grad():
                zeros = torch.zeros(4 * hidden, dtype=torch.float64)
                exact = [t.double().requires_grad_() for t in (w_x[i], w_h[i], torch.zeros(4 * hidden))]
                start = torch.zeros(1, samples, hidden, dtype=torch.float64)
                weights = [*exact, zeros]
                out = torch.lstm(x[i].double(), (start, start), weights, True, 1, 0.0, False, False, False)[0]
                wanted = torch.autograd.grad(out, exact, by_out[i].double())
            for a, b in zip((h[i, 1:], dw_x[i], dw_h[i], db[i]), (out, *wanted), strict=True):
                if not bool((a - b).abs().max() < _ERROR * (1 + b.abs().max())):
                    return False
    return True


def _spread(*size: int) -> Tensor:
    """Numbers between -1 and 1 that no two places share, without a random generator."""
    count = torch.Size(size).numel()
    return torch.sin(torch.arange(count, dtype=torch.float32) * 1.7 + len(size)).view(size)


def forward(
    x: Tensor,
    w_x: Tensor,
    w_h: Tensor,
    b_x: Tensor | None,
    b_h: Tensor | None,
    gates: Tensor,
    h: Tensor,
    c: Tensor,
    squashed: Tensor,
    last_first: bool,
) -> None:
    """All steps of a layer in one direction; as `rules.lstm.LSTM`, into memory given.

    Args:
        x, w_x, w_h, b_x, b_h: as there.
        gates: ``[M, T, N, 4H]`` for i, f, g, o.
        h, c: ``[M, T + 1, N, H]`` with the states before the first step in place.
        squashed: ``[M, T, N, H]`` for tanh(c).
        last_first: the last time step comes first.
    """
    _operators().lstm(_whole(x), _whole(w_x), _whole(w_h), _maybe(b_x), _maybe(b_h), gates, h, c, squashed, last_first)


def backward(
    x: Tensor,
    w_x: Tensor,
    w_h: Tensor,
    gates: Tensor,
    h: Tensor,
    c: Tensor,
    squashed: Tensor,
    by_out: Tensor | None,
    dh: Tensor,
    dc: Tensor,
    grad: Tensor,
    dw_x: Tensor | None,
    dw_h: Tensor | None,
    db: Tensor,
    last_first: bool,
    wants_first: bool,
) -> None:
    """Gradients of what `forward` has computed.

    Args:
        x, w_x, w_h, gates, h, c, squashed, last_first: as there.
        by_out: gradient of h after each step.
        dh, dc: ``[M, N, H]`` of the last states; afterwards of the first ones, dh where `wants_first`.
        grad: ``[M, T, N, 4H]``, of the gates' sums.
        dw_x, dw_h, db: of the weights, and of each of the biases.
    """
    if by_out is not None and (by_out.stride(-1) != 1 and by_out.shape[-1] != 1):
        by_out = by_out.contiguous()
    _operators().lstm_backward(
        *(_whole(x), _whole(w_x), _whole(w_h), gates, h, c, squashed, by_out),
        *(dh, dc, grad, dw_x, dw_h, db, last_first, wants_first),
    )


def _whole(tensor: Tensor) -> Tensor:
    """Without gaps within a member; members may lie apart, or be one."""
    return tensor if tensor[0].is_contiguous() else tensor.contiguous()


def _maybe(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else _whole(tensor)


def _forward(
    x: Tensor,
    w_x: Tensor,
    w_h: Tensor,
    b_x: Tensor | None,
    b_h: Tensor | None,
    gates: Tensor,
    h: Tensor,
    c: Tensor,
    squashed: Tensor,
    last_first: bool,
) -> None:
    given = (x, w_x, w_h, b_x, b_h, gates, h, c, squashed)
    _call(_lstm(), "hfta_lstm_forward", x, c, last_first, False, _strides(x, w_x, w_h, b_x, b_h), given)


def _backward(
    x: Tensor,
    w_x: Tensor,
    w_h: Tensor,
    gates: Tensor,
    h: Tensor,
    c: Tensor,
    squashed: Tensor,
    by_out: Tensor | None,
    dh: Tensor,
    dc: Tensor,
    grad: Tensor,
    dw_x: Tensor | None,
    dw_h: Tensor | None,
    db: Tensor,
    last_first: bool,
    wants_first: bool,
) -> None:
    strides = _strides(x, w_x, w_h, None, None) + ([] if by_out is None else [by_out.stride(i) for i in range(3)])
    given = (x, w_x, w_h, None, None, gates, h, c, squashed, by_out, dh, dc, grad, dw_x, dw_h, db)
    _call(_lstm(), "hfta_lstm_backward", x, c, last_first, wants_first, strides, given)


def _strides(*tensors: Tensor | None) -> list[int]:
    return [0 if t is None else t.stride(0) for t in tensors]


def _call(
    found: ctypes.CDLL | None,
    name: str,
    x: Tensor,
    c: Tensor,
    last_first: bool,
    wants_first: bool,
    strides: Sequence[int],
    given: Sequence[Tensor | None],
) -> None:
    if found is None:  # asked for before, and switched off since
        raise RuntimeError("the compiled LSTM has been switched off between a forward and a backward pass")
    members, steps, samples, inputs = x.shape
    sizes = (members, steps, samples, inputs, c.shape[-1], last_first, torch.get_num_threads(), wants_first)
    failed = getattr(found, name)(
        (ctypes.c_ssize_t * 8)(*sizes),
        (ctypes.c_ssize_t * 8)(*strides),
        (ctypes.c_void_p * len(given))(*(None if t is None else t.data_ptr() for t in given)),
    )
    if failed:
        raise MemoryError(f"{name}: no memory for the weights of a member")
