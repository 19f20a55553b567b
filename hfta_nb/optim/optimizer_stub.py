"""A stand-in for one member's optimizer, for torch's lr schedulers; see `stub_values`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from hfta_nb.errors import OptimError
from hfta_nb.optim.without_compiler import without_compiler

_KNOWN: Any = (Tensor.is_leaf.__get__, Tensor.__repr__)  # type: ignore[attr-defined]
"""What constructing an optimizer asks of a parameter, and a person's debugger."""


def _refuse(what: str) -> NoReturn:
    raise OptimError(
        f"an lr scheduler that {what}",
        where="lr scheduler",
        accepted="one that reads and writes values of the groups (lr, momentum, ...) and what step() is given",
        remedy='compute the values in your own loop and assign them: optimizer.param_groups[0]["lr"] = [...], one per '
        "member",
    )


class _Unread(nn.Parameter):
    """In place of the parameters, which a schedule has no part in."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _KNOWN:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        return _refuse("reads the optimizer's parameters or gradients")


class _NoState(dict[Any, Any]):
    """In place of the state."""

    def __missing__(self, key: Any) -> NoReturn:
        _refuse("reads the optimizer's state")

    def get(self, key: Any, default: Any = None) -> NoReturn:
        _refuse("reads the optimizer's state")

    def __contains__(self, key: Any) -> bool:
        _refuse("reads the optimizer's state")


class OptimizerStub(without_compiler(torch.optim.Optimizer)):  # type: ignore[misc]
    """Groups of values without parameters that learn."""

    _opt_called = True  # torch warns where a scheduler outruns its optimizer, which never steps here

    def __init__(self, groups: list[dict[str, Any]], defaults: dict[str, Any]) -> None:
        super().__init__([{"params": [parameter()], **g} for g in groups], dict(defaults))
        self.state = _NoState()

    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """There is nothing to do: a schedule that steps its optimizer is refused."""
        _refuse("steps the optimizer")

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # so that no scheduler wraps it, once for each copy


def parameter() -> nn.Parameter:
    """What a group of a stub has for its parameters."""
    return _Unread(torch.zeros(()))
