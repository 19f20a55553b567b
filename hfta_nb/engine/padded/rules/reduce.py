"""Sums, means and softmax over padded dimensions, with the true numbers of entries."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from hfta_nb.engine.padded.mode import PaddedMode, Rule, varied
from hfta_nb.engine.padded.rules.elementwise import named
from hfta_nb.engine.padded.tags import Tag, box, full
from hfta_nb.engine.rules.rule_mode import arguments


def _dims(x: Tensor, given: dict[str, Any]) -> list[int] | None:
    """The dimensions to reduce; None if the call has other arguments."""
    dim = given.pop("dim", None)
    given.pop("keepdim", None)
    if any(v is not None for v in given.values()) or varied(dim):
        return None
    if dim is None or dim in ((), []):
        return list(range(x.ndim))
    return sorted({d % x.ndim for d in ([dim] if isinstance(dim, int) else dim)})


def _without(tag: Tag, dims: list[int], keepdim: bool) -> Tag:
    return tuple(None if d in dims else c for d, c in enumerate(tag) if keepdim or d not in dims)


def _arguments(args: Any, kwargs: Any) -> dict[str, Any]:
    return arguments(("input", "dim", "keepdim"), args, kwargs)


def _sum(mode: PaddedMode, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    given = _arguments(args, kwargs)
    x, keepdim = given.pop("input"), bool(given.get("keepdim"))
    dims = _dims(x, given)
    if dims is None:
        return NotImplemented
    return mode.result(function(*args, **kwargs), _without(full(x), dims, keepdim))


def _mean(mode: PaddedMode, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    given = _arguments(args, kwargs)
    x, keepdim = given.pop("input"), bool(given.get("keepdim"))
    dims = _dims(x, given)
    if dims is None:
        return NotImplemented
    out = function(*args, **kwargs)
    if any(full(x)[d] for d in dims):
        # The mean over the padded size, times the padded size divided by the true one.
        padded = math.prod(x.shape[d] for d in dims)
        true = [math.prod(box(x.shape, full(x), row)[d] for d in dims) for row in range(mode.context.members)]
        out = out * mode.numbers([padded / n for n in true], out)
    return mode.result(out, _without(full(x), dims, keepdim))


def _softmax(mode: PaddedMode, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    given = dict(zip(("input", "dim"), args, strict=False)) | kwargs
    x, dim = given.pop("input"), given.pop("dim", None)
    if dim is None or varied(dim) or len(args) > 2 or not set(given) <= {"dtype", "_stacklevel"}:
        return NotImplemented
    tag, dim = full(x), dim % x.ndim
    only = tuple(c if d == dim else None for d, c in enumerate(tag))
    out = function(mode.filled(x, only, -math.inf), dim, **given)
    return mode.result(out, tag, zero=True)


RULES: dict[object, Rule] = {
    **dict.fromkeys(named("sum"), _sum),
    **dict.fromkeys(named("mean"), _mean),
    **dict.fromkeys(named("softmax", "log_softmax"), _softmax),
}
