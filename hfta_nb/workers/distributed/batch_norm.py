"""Batch norm with the statistics of all ranks' samples: what one device would compute of the whole mini-batch.

Source: Ioffe and Szegedy, 2015, as torch's `nn.SyncBatchNorm` computes it. The variance is taken around the common
mean, in two exchanges, as one device does it. An array's rule makes one batch norm of all members, and so the members
share the exchanges.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hfta_nb.errors import DistributedError
from hfta_nb.workers.distributed.ranks import Ranks

_NAMES = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
_KERNELS = (torch.batch_norm, torch.native_batch_norm)


class Noticed(TorchFunctionMode):
    """Within, batch norms that take statistics of the batch are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.batch_norm:
            self.count += bool((dict(zip(_NAMES, args, strict=False)) | kwargs).get("training"))
        elif func in _KERNELS:
            self.count += _of_training(args, kwargs)
        return func(*args, **kwargs)


class Synced(TorchFunctionMode):
    """Within, batch norms take the statistics of all ranks' samples.

    Args:
        ranks: this one among the others.
        samples: of the mini-batch, on all ranks together.
        own: how many of them this rank has; 0 where its row does not count.
    """

    def __init__(self, ranks: Ranks, samples: int, own: int) -> None:
        super().__init__()
        self.ranks, self.samples, self.own = ranks, samples, own

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.batch_norm and self.samples > 1:
            given = dict(zip(_NAMES, args, strict=False)) | kwargs
            if given.get("training"):
                return self._normed(given)
        elif func in _KERNELS and _of_training(args, kwargs):
            raise DistributedError(
                f"`torch.{func.__name__}` takes the statistics of one rank's samples",
                where="batch norm",
                remedy='call torch.nn.functional.batch_norm or a module, or use batch_norm="local"',
            )
        return func(*args, **kwargs)

    def _normed(self, given: dict[str, Any]) -> Tensor:
        if torch._C._functorch.maybe_current_level() is not None:
            raise DistributedError(
                "a batch norm within a transform of the model's own can't exchange its statistics",
                where="batch norm",
                remedy='use batch_norm="local"',
            )
        x, eps, momentum = given["input"], given.get("eps", 1e-5), given.get("momentum", 0.1)
        out, mean, variance, count = _SyncedNorm.apply(  # type: ignore[no-untyped-call]
            x, given.get("weight"), given.get("bias"), eps, self.ranks, bool(self.own)
        )
        with torch.no_grad():
            unbiased = variance * (count / (count - 1))
            for kept, new in ((given.get("running_mean"), mean), (given.get("running_var"), unbiased)):
                if kept is not None:
                    kept.mul_(1 - momentum).add_(new.to(kept.dtype), alpha=momentum)
        return out  # type: ignore[no-any-return]


def _of_training(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Of torch's kernels, whose arguments are in another order."""
    return bool(kwargs["training"] if "training" in kwargs else len(args) > 5 and args[5])


class _SyncedNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, ranks: Ranks, counts: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        others = [axis for axis in range(x.ndim) if axis != 1]
        part = torch.cat([wide.sum(others), wide.new_full((1,), x.numel() / max(1, x.shape[1]))])
        whole = ranks.total(part if counts else torch.zeros_like(part))
        mean, count = whole[:-1] / whole[-1], whole[-1]
        centred = wide - _over(mean, x)
        squares = (centred * centred).sum(others)
        variance = ranks.total(squares if counts else torch.zeros_like(squares)) / count
        scale = torch.rsqrt(variance + eps)
        normed = centred * _over(scale, x)
        out = normed if weight is None else normed * _over(weight.to(wide.dtype), x)
        out = out if bias is None else out + _over(bias.to(wide.dtype), x)
        ctx.save_for_backward(normed, scale, weight, count)
        ctx.ranks, ctx.counts, ctx.dtype = ranks, counts, x.dtype
        ctx.bias = None if bias is None else bias.dtype
        ctx.mark_non_differentiable(mean, variance, count)
        return out.to(x.dtype), mean, variance, count

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        normed, scale, weight, count = ctx.saved_tensors
        wide = grad.to(normed.dtype)
        others = [axis for axis in range(grad.ndim) if axis != 1]
        sums = torch.stack([wide.sum(others), (wide * normed).sum(others)])
        whole = ctx.ranks.total(sums if ctx.counts else torch.zeros_like(sums)) / count
        inner = wide - _over(whole[0], grad) - normed * _over(whole[1], grad)
        factor = scale if weight is None else scale * weight.to(scale.dtype)
        # Where the row does not count, nothing depends on it but through the statistics, which it is not in.
        back = (inner * _over(factor, grad)).to(ctx.dtype) if ctx.counts else torch.zeros_like(grad)
        to_weight = None if weight is None else sums[1].to(weight.dtype)
        to_bias = None if ctx.bias is None else sums[0].to(ctx.bias)
        return back, to_weight, to_bias, None, None, None


def _over(values: Tensor, like: Tensor) -> Tensor:
    """One value per channel, so that it multiplies a tensor with the channels in the second axis."""
    return values.view(1, -1, *[1] * (like.ndim - 2))
