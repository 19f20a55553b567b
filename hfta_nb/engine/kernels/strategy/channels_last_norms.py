"""Batch norm of images with channels last, as exact as with channels first.

For that layout, torch's kernel adds all pixels of a channel one after another in float32, which loses a digit over 8
images of 32 x 32. Means and variances of groups of pixels, combined afterwards, lose no digit and take the same two
passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.kernels.strategy.kernel_variants import Operand

_native = torch.native_batch_norm
_statistics = torch.ops.aten.batch_norm_update_stats.default
BATCH_NORM = torch.ops.aten.native_batch_norm.default
_FEW, _GROUP = 1024, 256
"""From the first number of pixels per channel on, pixels are grouped; a group has the second number of pixels."""


def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """`torch.native_batch_norm` of float32 images ``[N, C, H, W]`` with channels last, in training."""
    channels = x.shape[1]
    count = x.numel() // channels
    groups = count // _GROUP
    wide = groups * channels  # consecutive pixels become separate channels
    apart = x.as_strided((1, wide, _GROUP, 1), (x.numel(), 1, wide, wide), x.storage_offset())
    means, variances = (t.view(groups, channels) for t in _statistics(apart, None, None, 0.0))
    mean = means.sum(0).div_(groups)
    means.sub_(mean)
    variance = torch.addcmul(variances, means, means, out=variances).sum(0).div_(groups)
    out = _native(x, weight, bias, mean, variance, False, 0.0, eps)[0]
    if running_mean is not None:
        running_mean.mul_(1 - momentum).add_(mean, alpha=momentum)
    if running_var is not None:
        running_var.mul_(1 - momentum).add_(variance, alpha=momentum * count / (count - 1))
    return out, mean, variance.add_(eps).rsqrt_()


def in_groups(args: Sequence[Any], device: torch.device) -> bool:
    """True if `batch_norm` should compute this call of `torch.native_batch_norm`.

    Args:
        args: with an `Operand` in place of each tensor.
        device: of the tensors.
    """
    x = args[0]
    if device.type != "cpu" or not isinstance(x, Operand) or len(x.size) != 4 or not args[5]:
        return False
    samples, channels, height, width = x.size
    last = x.stride == (height * width * channels, 1, width * channels, channels)
    count = samples * height * width
    dtypes = {a.dtype for a in args if isinstance(a, Operand)}
    return last and channels > 1 and count >= _FEW and not count % _GROUP and dtypes == {torch.float32}
