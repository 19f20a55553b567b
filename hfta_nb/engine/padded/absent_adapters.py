"""Low-rank adapters of peft that some members lack: those have one of rank 0, which adds nothing.

So members that adapt other layers run as one, and a layer has one name in all of them, with an adapter or without.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_FACTORS, _NUMBERS = ("lora_A", "lora_B"), ("r", "scaling")


def is_low_rank(module: nn.Module) -> bool:
    """Whether a module is a layer of peft whose output is the plain layer's, plus a product of two linear layers."""
    if not type(module).__module__.startswith("peft.tuners.lora") or "base_layer" not in module._modules:
        return False
    own: Any = module
    factors = [layer for name in _FACTORS for layer in own._modules[name].values()]
    linear = all(type(layer) is nn.Linear and layer.bias is None for layer in factors)
    return bool(factors) and linear and not own.lora_variant


def with_rank_zero(adapter: nn.Module, plain: nn.Module) -> nn.Module:
    """A layer in the form of `adapter`, of rank 0, over a plain layer; it computes and draws what that one does."""
    shell = _copy(adapter)
    shell.training = plain.training
    shell.__dict__ |= {name: dict.fromkeys(shell.__dict__[name], 0) for name in _NUMBERS}
    for name in (*_FACTORS, "lora_dropout"):
        shell._modules[name] = parts = _copy(adapter._modules[name])
        for key, part in list(parts._modules.items()):
            parts._modules[key] = _without_draws(part) if name == "lora_dropout" else _empty(part, name == "lora_A")
    shell._modules["base_layer"] = plain
    return shell


def _empty(layer: Any, first: bool) -> nn.Module:
    """A linear layer without outputs, or without inputs."""
    new = _copy(layer)
    new.__dict__["out_features" if first else "in_features"] = 0
    shape = (0, layer.in_features) if first else (layer.out_features, 0)
    weight = torch.empty(shape, dtype=layer.weight.dtype, device="meta")
    new._parameters["weight"] = nn.Parameter(weight, requires_grad=layer.weight.requires_grad)
    return new


def _without_draws(dropout: Any) -> nn.Module:
    new = _copy(dropout)
    if isinstance(dropout, nn.Dropout):
        new.__dict__["p"] = 0.0
    return new


def _copy(module: Any) -> nn.Module:
    """The module with the same parts, in containers of its own."""
    new: nn.Module = object.__new__(type(module))
    new.__dict__.update(module.__dict__)
    for name in ("_parameters", "_buffers", "_modules"):
        new.__dict__[name] = module.__dict__[name].copy()
    return new
