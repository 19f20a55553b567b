"""Compares two outcomes of a call: a member's in the array, and its plain module's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hfta_nb.engine.eager.divergence import Mismatch
from hfta_nb.engine.eager.member_outcome import MemberOutcome
from hfta_nb.engine.eager.mutable_values import same_value
from hfta_nb.engine.eager.tolerance import allowed_difference, close, largest_value, tolerance_of

_COMPARED = (int, float, complex, str, bytes, bool, type(None), np.ndarray, torch.Generator)
_SENSITIVE = 32.0
"""A member may differ this many times as much as the plain module does when last bits change."""

_LARGEST = ("gradient", "parameter")
"""Kinds of results whose tolerance depends on the largest value of the kind."""


class Pair(NamedTuple):
    """One result in both outcomes.

    Attributes:
        off: the largest difference; None if it is not known yet.
        size: the largest absolute value of the plain module's result.
    """

    key: str
    own: Any
    alone: Any
    off: float | None = None
    size: float | None = None


def differences(together: MemberOutcome, alone: MemberOutcome, must_have: Callable[[str], bool]) -> list[str]:
    """The keys under which two outcomes differ by more than rounding. Values that are not finite alone are skipped.

    Args:
        together: the outcome in the array.
        alone: the outcome of the plain module.
        must_have: True for a key that the array's outcome must have if the plain module's has it.
    """
    pairs = [Pair(k, together.get(k), v) for k, v in alone.items() if k in together or must_have(k)]
    quick = [p for p in pairs if _quick(p)]
    slow = [p for p in pairs if not _quick(p) and _comparable(p.alone) and _comparable(p.own) and _finite(p.alone)]
    seen = [p for p in _measured(quick) if p.size is not None and p.size < float("inf")]
    sizes: dict[str, float] = {}
    for pair in (*seen, *(p for p in slow if isinstance(p.alone, Tensor))):
        kind = pair.key.partition(" ")[0]
        if kind in _LARGEST:
            sizes[kind] = max(sizes.get(kind, 0.0), largest_value(pair.alone) if pair.size is None else pair.size)
    off = []
    for pair in (*seen, *slow):
        largest = sizes.get(pair.key.partition(" ")[0])
        if pair.off is None:
            alike_ = alike(pair.own, pair.alone, largest)
        else:
            alike_ = pair.off <= allowed_difference(pair.alone.dtype, pair.size if largest is None else largest)  # type: ignore[arg-type]
        if not alike_:
            off.append(pair.key)
    order = {key: i for i, key in enumerate(alone)}
    return sorted(off, key=order.__getitem__)


def sensitive(own: Any, alone: Any, nudged: Any) -> bool:
    """True if the plain module's own value differs as much when the last bits of its parameters change.

    Args:
        own: the member's value.
        alone: the plain module's value.
        nudged: that value after last bits have changed; see `PlainRun.nudged_outcome`.
    """
    if not (isinstance(own, Tensor) and isinstance(alone, Tensor) and isinstance(nudged, Tensor)):
        return not alike(nudged, alone, None)
    if not alone.is_floating_point() or not own.shape == alone.shape == nudged.shape:
        return not alike(nudged, alone, None)
    if not _finite(own):  # where the plain module's value is finite
        return not _finite(nudged)
    return largest_value(own - alone) <= _SENSITIVE * largest_value(nudged - alone)


def mismatch(member: int, key: str, together: MemberOutcome, alone: MemberOutcome, path: str | None) -> Mismatch:
    """The error for a member whose outcomes differ.

    Args:
        member: its number.
        key: of the first difference.
        together, alone: the outcomes.
        path: of the submodule where they begin to differ; None if it is not known.
    """
    place = f" from `{path}` on" if path else ""
    told = words(together.get(key), alone.get(key))
    far = f" ({told})" if told else ""
    return Mismatch(f"member {member} comes to another {key} than alone{place}{far}", path)


def words(own: Any, alone: Any) -> str:
    """The size of a difference in words; empty if the values are not numbers."""
    if not isinstance(own, Tensor) or not isinstance(alone, Tensor) or own.shape != alone.shape:
        return ""
    if not alone.is_floating_point():
        return ""
    if not _finite(own):
        return f"not finite where values alone reach {largest_value(alone):.2g}"
    return f"off by {largest_value(own - alone):.2g} where values reach {largest_value(alone):.2g}"


def _quick(pair: Pair) -> bool:
    """True if the two can be compared together with other pairs, by few kernels."""
    a, b = pair.own, pair.alone
    return (
        isinstance(a, Tensor)
        and isinstance(b, Tensor)
        and a.dtype == b.dtype
        and b.dtype in (torch.float32, torch.float64)
        and a.shape == b.shape
        and a.device == b.device
        and b.numel() > 0
        and a.layout is torch.strided
        and b.layout is torch.strided
    )


def _measured(pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs with their differences and sizes."""
    kinds: dict[Any, list[Pair]] = {}
    for pair in pairs:
        kinds.setdefault((pair.alone.dtype, pair.alone.device), []).append(pair)
    found = []
    for group in kinds.values():
        own, alone = [p.own.detach() for p in group], [p.alone.detach() for p in group]
        away = torch._foreach_sub(own, alone)
        torch._foreach_abs_(away)  # the norm of order infinity takes four times as long
        largest = [*torch._foreach_max(away), *torch._foreach_max(torch._foreach_abs(alone))]
        values = torch.stack(largest).tolist()
        for i, pair in enumerate(group):
            found.append(pair._replace(off=values[i], size=values[len(group) + i]))
    return found


def alike(own: Any, alone: Any, largest: float | None) -> bool:
    """True if two results are equal up to rounding, for values as large as `largest`."""
    if isinstance(alone, Tensor) and isinstance(own, Tensor):
        return close(own.detach(), alone.detach(), largest_value(alone) if largest is None else largest)
    if own is None or alone is None:  # a gradient of zero may be None
        value = alone if own is None else own
        return value is None or (isinstance(value, Tensor) and not value.any())
    if isinstance(alone, list | tuple) and isinstance(own, list | tuple):
        return len(own) == len(alone) and all(alike(a, b, None) for a, b in zip(own, alone, strict=True))
    if isinstance(alone, dict) and isinstance(own, dict):
        return own.keys() == alone.keys() and all(alike(own[k], alone[k], None) for k in alone)
    if isinstance(alone, float) and isinstance(own, float):
        return own == alone or abs(own - alone) <= tolerance_of(torch.float32) * max(abs(alone), 1e-3)
    return same_value(own, alone)


def _comparable(value: Any, depth: int = 0) -> bool:
    if isinstance(value, Tensor):
        return value.layout is torch.strided and not value.is_quantized
    if isinstance(value, list | tuple | dict):
        inner = value.values() if isinstance(value, dict) else value
        return depth < 4 and len(value) < 1000 and all(_comparable(v, depth + 1) for v in inner)
    return isinstance(value, _COMPARED)


def _finite(value: Any) -> bool:
    return not isinstance(value, Tensor) or not value.is_floating_point() or bool(value.isfinite().all())
