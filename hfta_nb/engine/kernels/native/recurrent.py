"""The LSTM of `lstm.c` as operators of torch, so that steps that call it can be recorded and replayed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.comparison import compare
from hfta_nb.engine.kernels.native import binding
from hfta_nb.engine.kernels.native.build import library
from hfta_nb.engine.members.untraced import untraced

_FORWARD = "Tensor x, Tensor w_x, Tensor w_h, Tensor? b_x, Tensor? b_h, Tensor(a!) gates, Tensor(b!) h, Tensor(c!) c"
_BACKWARD = (
    "Tensor x, Tensor w_x, Tensor w_h, Tensor gates, Tensor h, Tensor c, Tensor? by_out, Tensor(a!) dh, Tensor(b!) dc, "
    "Tensor(c!)? dx, Tensor(d!)? dw_x, Tensor(e!)? dw_h, Tensor(f!) db"
)
_SCHEMAS = {
    "lstm": f"({_FORWARD}, bool last_first) -> ()",
    "lstm_backward": f"({_BACKWARD}, bool last_first, bool wants_first) -> ()",
}


def usable(x: Tensor, h: Tensor) -> bool:
    """True if the kernel is available and supports such tensors: float32, and a hidden size of whole vectors."""
    if x.device.type != "cpu" or x.dtype != torch.float32:
        return False
    found = _lstm()
    return found is not None and h.shape[-1] % int(found.hfta_wide()) == 0


@cache
def _operators() -> Any:
    return binding.operators(_SCHEMAS, BOUND)


def _lstm() -> ctypes.CDLL | None:
    found = library("lstm")
    if found is not None and found._handle not in _right:
        _right[found._handle] = False  # calls during the check use torch's LSTM
        _right[found._handle] = _is_right(found)
    return found if found is not None and _right[found._handle] else None


_right: dict[int, bool] = {}
"""By library, whether its results are correct."""
_ERROR = 1e-4
"""Tolerance relative to the largest value; the typical error in float32 is 1e-6."""


def _is_right(found: ctypes.CDLL) -> bool:
    """Compare two members with torch's LSTM in float64."""
    members, steps, samples, inputs, hidden = 2, 3, 5, 3, int(found.hfta_wide())
    with untraced(), torch.no_grad():
        x = _spread(members, steps, samples, inputs)
        w_x, w_h = _spread(members, 4 * hidden, inputs), _spread(members, 4 * hidden, hidden) * 0.3
        by_out = _spread(members, steps, samples, hidden)
        h, c = torch.zeros(members, steps + 1, samples, hidden), torch.zeros(members, steps + 1, samples, hidden)
        gates = x.new_empty(members, steps, samples, 4 * hidden)
        Bound(found, (x, w_x, w_h, None, None, gates, h, c), x, False)()
        dh, dc, dx = torch.zeros_like(h[:, 0]), torch.zeros_like(h[:, 0]), torch.empty_like(x)
        dw_x, dw_h, db = torch.empty_like(w_x), torch.empty_like(w_h), x.new_empty(members, 4 * hidden)
        Bound(found, (x, w_x, w_h, None, None, gates, h, c, by_out, dh, dc, dx, dw_x, dw_h, db), x, False, True)()
        for i in range(members):
            with torch.enable_grad():
                zeros = torch.zeros(4 * hidden, dtype=torch.float64)
                given = x[i], w_x[i], w_h[i], torch.zeros(4 * hidden)
                exact = [t.double().requires_grad_() for t in given]
                start = torch.zeros(1, samples, hidden, dtype=torch.float64)
                out = torch.lstm(exact[0], (start, start), [*exact[1:], zeros], True, 1, 0.0, False, False, False)[0]
                wanted = torch.autograd.grad((out * by_out[i].double()).sum(), exact)
            results = {str(k): t.double() for k, t in enumerate((h[i, 1:], dx[i], dw_x[i], dw_h[i], db[i]))}
            if compare(results, {str(k): t for k, t in enumerate((out, *wanted))}, lambda _: _ERROR):
                return False
    return True


def _spread(*size: int) -> Tensor:
    """Distinct numbers between -1 and 1, without a random generator."""
    count = torch.Size(size).numel()
    return torch.sin(torch.arange(count, dtype=torch.float32) * 1.7 + len(size)).view(size)


class Bound:
    """All steps of an LSTM bound to certain tensors; a call computes them.

    Args:
        found: the library.
        tensors: in the library's order: those of `forward`, and for a backward pass those of `backward`.
        x: the input.
        last_first: the last time step comes first.
        wants_first: in a backward pass, whether dh of the first step is needed.

    Raises:
        MemoryError: in a call, if the weights of a member cannot be allocated.
    """

    def __init__(
        self,
        found: ctypes.CDLL,
        tensors: Sequence[Tensor | None],
        x: Tensor,
        last_first: bool,
        wants_first: bool = False,
    ) -> None:
        self._call = found.hfta_lstm_forward if len(tensors) == _PLACES else found.hfta_lstm_backward
        self._kept = tensors
        hidden = tensors[_H].shape[-1]  # type: ignore[union-attr]
        self._sizes = (ctypes.c_ssize_t * 8)(*x.shape, hidden, last_first, 1, wants_first)
        strides = [0 if t is None else t.stride(0) for t in tensors]
        by_out = tensors[_PLACES] if len(tensors) > _PLACES else None
        steps = (0, 0) if by_out is None else (by_out.stride(1), by_out.stride(2))
        self._strides = (ctypes.c_ssize_t * (len(strides) + 2))(*strides, *steps)
        self._memory = (ctypes.c_void_p * len(tensors))(*(None if t is None else t.data_ptr() for t in tensors))

    def __call__(self) -> None:
        self._sizes[_THREADS] = torch.get_num_threads()
        if self._call(self._sizes, self._strides, self._memory):
            raise MemoryError("no memory for the weights of a member of an LSTM")


_PLACES, _H, _THREADS = 8, 6, 6
"""The number of tensors of a forward pass, the index of h, and the index of the number of threads among the sizes."""


def forward(
    x: Tensor,
    w_x: Tensor,
    w_h: Tensor,
    b_x: Tensor | None,
    b_h: Tensor | None,
    gates: Tensor,
    h: Tensor,
    c: Tensor,
    last_first: bool,
) -> None:
    """All steps of a layer in one direction, as in `rules.lstm.LSTM`; writes to the memory passed.

    Args:
        x, w_x, w_h, b_x, b_h: as in `rules.lstm.LSTM`.
        gates: ``[M, T, N, 4H]`` for i, f, g, o.
        h, c: ``[M, T + 1, N, H]``; the states before the first step are input.
        last_first: the last time step comes first.
    """
    _operators().lstm(_whole(x), _whole(w_x), _whole(w_h), _maybe(b_x), _maybe(b_h), gates, h, c, last_first)


def backward(
    x: Tensor,
    w_x: Tensor,
    w_h: Tensor,
    gates: Tensor,
    h: Tensor,
    c: Tensor,
    by_out: Tensor | None,
    dh: Tensor,
    dc: Tensor,
    dx: Tensor | None,
    dw_x: Tensor | None,
    dw_h: Tensor | None,
    db: Tensor,
    last_first: bool,
    wants_first: bool,
) -> None:
    """Gradients of `forward`.

    Args:
        x, w_x, w_h, gates, h, c, last_first: as in `forward`.
        by_out: gradient of h after each step.
        dh, dc: ``[M, N, H]``: gradients of the last states; afterwards of the first ones, dh if `wants_first`.
        dx, dw_x, dw_h, db: gradients of the input, the weights and each of the biases, where needed.
    """
    if by_out is not None and (by_out.stride(-1) != 1 and by_out.shape[-1] != 1):
        by_out = by_out.contiguous()
    _operators().lstm_backward(
        *(_whole(x), _whole(w_x), _whole(w_h), gates, h, c, by_out, dh, dc, dx, dw_x, dw_h, db),
        *(last_first, wants_first),
    )


def _whole(tensor: Tensor) -> Tensor:
    """The tensor with contiguous members; members themselves may be apart in memory."""
    return tensor if tensor[0].is_contiguous() else tensor.contiguous()


def _maybe(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else _whole(tensor)


def bound_forward(*args: Any) -> Bound:
    """Bind the arguments of the operator ``lstm``."""
    *tensors, last_first = args
    return Bound(_there(), tensors, tensors[0], last_first)


def bound_backward(*args: Any) -> Bound:
    """Bind the arguments of the operator ``lstm_backward``."""
    x, w_x, w_h, *rest, last_first, wants_first = args
    return Bound(_there(), [x, w_x, w_h, None, None, *rest], x, last_first, wants_first)


def _there() -> ctypes.CDLL:
    found = _lstm()
    if found is None:  # it was available, and has been switched off since
        raise RuntimeError("the compiled LSTM has been switched off between a forward and a backward pass")
    return found


BOUND: dict[str, Callable[..., Bound]] = {"hfta_nb::lstm": bound_forward, "hfta_nb::lstm_backward": bound_backward}
"""By operator, the function that binds its arguments, which makes later calls cheap."""
