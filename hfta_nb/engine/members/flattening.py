"""Recurrent modules whose weights are not gathered into one block of memory.

`torch.nn.RNNBase` moves its weights into one block for cuDNN (`flatten_parameters`) whenever they are other objects
than before: when it is copied, moved, or called with other weights. A module that represents the members of an array,
or that runs one of them on views of the array's memory, has other weights in every call, and they must stay where
they are.
"""

from __future__ import annotations

from torch import nn

NAME = "flatten_parameters"


def _do_nothing() -> None:
    """Stands in place of `torch.nn.RNNBase.flatten_parameters`."""


def prevent_flattening(root: nn.Module) -> nn.Module:
    """Let the recurrent modules within a module leave their weights where they are; copies of it do not."""
    for module in root.modules():
        if isinstance(module, nn.RNNBase):
            module.__dict__[NAME] = _do_nothing
    return root


def restore_flattening(module: nn.Module) -> None:
    """Undo `prevent_flattening` for one module; weights without a member axis are gathered, as in any plain module."""
    if isinstance(module, nn.RNNBase) and module.__dict__.get(NAME) is _do_nothing:
        del module.__dict__[NAME]
        if all(w is None or w.dim() < 3 for w in module._flat_weights):
            module.flatten_parameters()
