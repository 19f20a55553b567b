"""Which of the package's compiled libraries replayed steps of an array may use."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.kernels.native import build

_OF_ALL = "product", "rows"
_OF_MODULES: tuple[tuple[type[nn.Module] | tuple[type[nn.Module], ...], tuple[str, ...]], ...] = (
    ((nn.LSTM, nn.LSTMCell), ("lstm",)),
    (nn.MultiheadAttention, ("attention",)),
    ((nn.Conv2d, nn.ConvTranspose2d), ("conv", "images", "norm")),
    ((_BatchNorm, nn.GroupNorm), ("images", "norm")),
)
"""Kinds of modules and the libraries of what they compute."""


def libraries_of(state: ArrayState) -> tuple[str, ...]:
    """Names of the libraries; none where kernels are not measured, on a GPU, and without parameters in float32."""
    if state.settings.strategy != "measured" or state.generators.device.type != "cpu":
        return ()
    if not any(p.dtype == torch.float32 for p in state.tensors.parameters()):
        return ()
    modules = list(state.skeleton.modules())
    own = [names for kinds, names in _OF_MODULES if any(isinstance(m, kinds) for m in modules)]
    return tuple(sorted({*_OF_ALL, *(name for names in own for name in names)}))


def available(state: ArrayState) -> tuple[str, ...]:
    """Those that there are; missing ones are compiled first; see `build.library`."""
    return build.available(libraries_of(state))
