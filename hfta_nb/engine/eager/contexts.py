"""Calls within `torch.inference_mode`, `torch.jit.trace`, `torch.compile` and `torch.export`."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any, TypeVar, cast

import torch

from hfta_nb.errors import FusionError, TransformError

F = TypeVar("F", bound=Callable[..., Any])

inference = ContextVar("inference", default=False)
"""Whether an array's function was called in inference mode, which it has left; see `own_execution`."""


def not_compiled(function: F) -> F:
    """Let `torch.compile` leave a function as it is, with all that it calls.

    Code that is compiled around it breaks there. As `torch.compiler.disable`, which imports the compiler (a second).
    """
    marked: Any = function
    marked._torchdynamo_disable = True
    marked._torchdynamo_disable_msg = "an array runs without torch.compile; compile a member, array[i]"
    frames = torch._C._dynamo.eval_frame
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(marked.__code__, frames._FrameExecStrategy(skip, skip))
    return function


def own_execution(function: F) -> F:
    """Let a function of an array run as it is within contexts of torch that would change how.

    In inference mode it runs under `torch.no_grad`: tensors that are created in that mode count no versions, which
    tell whether a model writes into its inputs. `torch.compile` leaves it as it is.

    Raises:
        FusionError: from the function, while `torch.jit.trace` or `torch.export` runs it, which would note its tensors
            as constants.
        TransformError: from the function, within a transform of `torch.func`.
    """

    @not_compiled
    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if torch._C._get_tracing_state() is not None:
            raise _refused("torch.jit.trace", function, "trace")
        if torch.compiler._is_exporting_flag:
            raise _refused("torch.export", function, "export")
        if torch._C._functorch.maybe_current_level() is not None:
            raise TransformError(
                "a transform of torch.func can't follow an array",
                where=function.__name__,
                remedy="transform a member, array[i], or differentiate the array by autograd",
            )
        if not torch.is_inference_mode_enabled():
            return function(*args, **kwargs)
        token = inference.set(True)
        try:
            with torch.inference_mode(False), torch.no_grad():
                return function(*args, **kwargs)
        finally:
            inference.reset(token)

    return cast(F, run)


def _refused(what: str, function: Callable[..., Any], verb: str) -> FusionError:
    return FusionError(f"{what} can't follow an array", where=function.__name__, remedy=f"{verb} a member, array[i]")
