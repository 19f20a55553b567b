"""What `likelihood.c` computes, bound to the tensors that it is about, and as operators of torch to be recorded."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hfta_nb.kernels.native import binding
from hfta_nb.kernels.native.build import library
from hfta_nb.members.untraced import unseen

_COUNTS = ("members", "rows", "columns", "apart", "by_apart", "mean", "softmax")
_POINTERS = ("logs", "by", "target", "losses", "counted", "out")
_SCHEMAS = {
    "likelihood": "(Tensor logs, Tensor target, Tensor(a!) losses, Tensor(b!) counted, int ignored, bool mean) -> ()",
    "likelihood_backward": (
        "(Tensor by, Tensor logs, Tensor target, Tensor counted, Tensor(a!) out, int ignored, bool mean, bool softmax) "
        "-> ()"
    ),
}


class _Likelihood(ctypes.Structure):
    _fields_ = [
        *((n, ctypes.c_ssize_t) for n in _COUNTS),
        ("ignored", ctypes.c_int64),
        *((n, ctypes.c_void_p) for n in _POINTERS),
    ]


class Bound:
    """A function of the library on certain tensors; called, it computes.

    Args:
        name: of the function.
        logs: ``[M, N, C]`` without gaps, or ``[N, C]`` of one member.
        target: ``[M, N]``, or ``[N]`` of all members; without gaps.
        ignored: a target that does not count.
        mean: over the rows that count, else their sum.
        softmax: the gradient is that of what the log-softmax was of.
        tensors: by what they are there.

    Raises:
        IndexError: when called, where a target is no class.
    """

    def __init__(
        self,
        name: str,
        logs: Tensor,
        target: Tensor,
        ignored: int,
        mean: bool,
        softmax: bool = False,
        **tensors: Tensor,
    ) -> None:
        given = {"logs": logs, "target": target, **tensors}
        self._kept, self._target = list(given.values()), target
        members = logs.shape[0] if logs.ndim > 2 else 1
        apart = target.shape[-1] if target.ndim > 1 else 0
        by = tensors.get("by")
        by_apart = 0 if by is None or by.ndim == 0 else by.stride(0)
        self._about = _Likelihood(members, *logs.shape[-2:], apart, by_apart, mean, softmax, ignored)
        for key, tensor in given.items():
            setattr(self._about, key, tensor.data_ptr())
        self._call = getattr(_library(), name)
        self._call.restype = ctypes.c_ssize_t
        self._argument = ctypes.byref(self._about)

    def __call__(self) -> None:
        wrong = self._call(self._argument)
        if wrong:
            raise IndexError(f"Target {self._target.flatten()[wrong - 1].item()} is out of bounds.")


def usable() -> bool:
    """Whether the library is there and right. If it is not there, it is compiled for processes to come."""
    found = library("likelihood", wait=False)
    return found is not None and _is_right(found._handle)


def _library() -> ctypes.CDLL:
    found = library("likelihood", wait=False)
    if found is None:  # asked for before, and switched off since
        raise RuntimeError("the compiled likelihood has been switched off while it is in use")
    return found


_ERROR = 1e-5
"""Float32 gives errors of 1e-7 here."""


@cache
def _is_right(handle: int) -> bool:
    """Whether this library computes what it should: compares three members with torch in float64."""
    with unseen(), torch.inference_mode(False), torch.enable_grad():
        x = torch.sin(torch.arange(3 * 4 * 19, dtype=torch.float32) * 1.7).view(3, 4, 19) * 3
        target = torch.tensor([3, 18, 7, 0])
        exact = x.double().requires_grad_()
        wanted = torch.stack([F.cross_entropy(row, target, ignore_index=7) for row in exact])
        (by_x,) = torch.autograd.grad(wanted.sum(), exact)
        logs, losses, counted, out = x.log_softmax(2), torch.empty(3), torch.empty(3), torch.empty_like(x)
        Bound("hfta_likelihood", logs, target, 7, True, losses=losses, counted=counted)()
        by = torch.ones(()).expand(3)
        given = {"by": by, "counted": counted, "out": out}
        Bound("hfta_likelihood_backward", logs, target, 7, True, True, **given)()
        pairs = (losses, wanted), (out, by_x)
        return all(bool((one - two).abs().max() < _ERROR * (1 + two.abs().max())) for one, two in pairs)


# As operators.


def forward(logs: Tensor, target: Tensor, ignored: int, mean: bool) -> tuple[Tensor, Tensor]:
    """The losses ``[M]``, and how many rows of each member count.

    Args:
        logs: log-probabilities ``[M, N, C]``, float32.
        target: ``[M, N]``, or ``[N]`` of all members.
        ignored: a target that does not count.
        mean: over the rows that count, else their sum.

    Raises:
        IndexError: a target is no class.
    """
    losses, counted = logs.new_empty(len(logs)), logs.new_empty(len(logs))
    _operators().likelihood(logs, target, losses, counted, ignored, mean)
    return losses, counted


def backward(
    by: Tensor, logs: Tensor, target: Tensor, counted: Tensor, ignored: int, mean: bool, softmax: bool
) -> Tensor:
    """The gradient of what the log-softmax was of, or, unless `softmax`, of the log-probabilities.

    Args:
        by: of the losses, ``[M]``.
        logs, target, ignored, mean: of `forward`.
        counted: its second result.
    """
    out = torch.empty_like(logs)
    _operators().likelihood_backward(by, logs, target, counted, out, ignored, mean, softmax)
    return out


@cache
def _operators() -> Any:
    return binding.operators(_SCHEMAS, BOUND)


def _bound_forward(logs: Tensor, target: Tensor, losses: Tensor, counted: Tensor, ignored: int, mean: bool) -> Bound:
    return Bound("hfta_likelihood", logs, target, ignored, mean, losses=losses, counted=counted)


def _bound_backward(
    by: Tensor, logs: Tensor, target: Tensor, counted: Tensor, out: Tensor, ignored: int, mean: bool, softmax: bool
) -> Bound:
    given = {"by": by, "counted": counted, "out": out}
    return Bound("hfta_likelihood_backward", logs, target, ignored, mean, softmax, **given)


BOUND: dict[str, Callable[..., Bound]] = {
    "hfta_nb::likelihood": _bound_forward,
    "hfta_nb::likelihood_backward": _bound_backward,
}
"""By operator, what binds its arguments, so that a call of it costs little."""


# In place of torch's kernels, for one member.


def takes(logs: Any, target: Any, weight: Any, reduction: int) -> bool:
    """Whether it computes torch's ``nll_loss`` of such tensors, of which the geometry counts."""
    fits = len(logs.size) == 2 and len(target.size) == 1 and logs.size[0] > 0 and logs.size[1] > 0
    kinds = logs.dtype == torch.float32 and target.dtype == torch.int64 and logs.contiguous and target.contiguous
    wanted = fits and kinds and weight is None and reduction in (_MEAN, _SUM)
    return wanted and library("likelihood", wait=False) is not None  # who measures it sees whether it is right


_MEAN, _SUM = 1, 2
"""Torch's numbers of reductions."""


def nll_loss(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Bound:
    """As ``nll_loss_forward``."""
    logs, target, _, reduction, ignored = args
    rooms = {"losses": kwargs["output"], "counted": kwargs["total_weight"]}
    return Bound("hfta_likelihood", logs, target, ignored, reduction == _MEAN, **rooms)


def nll_loss_backward(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Bound:
    """As ``nll_loss_backward``."""
    by, logs, target, _, reduction, ignored, counted = args
    given = {"by": by, "counted": counted, "out": kwargs["grad_input"]}
    return Bound("hfta_likelihood_backward", logs, target, ignored, reduction == _MEAN, False, **given)
