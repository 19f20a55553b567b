"""Reading of sizes, and moving of entries."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.padded.member_numbers import Varied, value_of, vary
from hfta_nb.engine.padded.mode import PaddedMode, Rule, varied
from hfta_nb.engine.padded.rules.elementwise import named
from hfta_nb.engine.padded.rules.packing import packed
from hfta_nb.engine.padded.tags import Counts, Tag, box, full, sizes, tag_of, tagged


def _shape(mode: PaddedMode, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    x = args[0]
    found = function(*args, **kwargs)
    true = sizes(x.shape, tag_of(x))
    if isinstance(found, int):
        return true[args[1] if len(args) > 1 else kwargs["dim"]]
    return torch.Size(true)


def _length(mode: PaddedMode, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return sizes(args[0].shape, tag_of(args[0]))[0]


def _numel(mode: PaddedMode, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    x = args[0]
    return vary([math.prod(box(x.shape, tag_of(x), row)) for row in range(mode.context.members)])


def _plain(mode: PaddedMode, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The rule for properties that do not depend on sizes."""
    return function(*args, **kwargs)


def _same(mode: PaddedMode, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return mode.result(function(*args, **kwargs), tag_of(args[0]))


def _ints(args: Any) -> list[int]:
    found = args[0] if len(args) == 1 and isinstance(args[0], list | tuple) else args
    return list(found)


def _permute(mode: PaddedMode, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    if kwargs or varied(args[1:]):
        return NotImplemented
    tag = full(args[0])
    return mode.result(function(*args), [tag[d] for d in _ints(args[1:])])


def _transpose(mode: PaddedMode, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    if kwargs:
        return NotImplemented
    tag = list(full(args[0]))
    a, b = args[1:] if len(args) == 3 else (-2, -1)
    if len(tag) > 1:
        tag[a], tag[b] = tag[b], tag[a]
    return mode.result(function(*args), tag)


def _unsqueeze(mode: PaddedMode, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    if kwargs:
        return NotImplemented
    tag = list(full(args[0]))
    d = args[1] % (len(tag) + 1)
    return mode.result(function(*args), [*tag[:d], None, *tag[d:]])


def _squeeze(mode: PaddedMode, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    x = args[0]
    if kwargs or len(args) != 2 or not isinstance(args[1], int):
        return NotImplemented
    tag, d = full(x), args[1] % x.ndim
    out = function(*args)
    return mode.result(out, tag if out.ndim == x.ndim else (*tag[:d], *tag[d + 1 :]))


def _reshape(mode: PaddedMode, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    x = args[0]
    wanted = _ints(args[1:]) if len(args) > 1 else list(kwargs.get("shape", ()))
    if not all(isinstance(n, int) for n in wanted):
        return NotImplemented  # a view with another dtype
    return _reshaped(mode, x, wanted)


def _flatten(mode: PaddedMode, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    given = dict(zip(("input", "start_dim", "end_dim"), args, strict=False)) | kwargs
    x = given["input"]
    if x.ndim == 0:
        return NotImplemented
    start, end = given.get("start_dim", 0) % x.ndim, given.get("end_dim", -1) % x.ndim
    true = sizes(x.shape, tag_of(x))
    return _reshaped(mode, x, [*true[:start], math.prod(true[start : end + 1]), *true[end + 1 :]])


def _unflatten(mode: PaddedMode, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    if kwargs or len(args) != 3 or not isinstance(args[1], int):
        return NotImplemented
    x, dim, into = args
    true, d = sizes(x.shape, tag_of(x)), dim % x.ndim
    if -1 in [n for n in into if type(n) is int]:
        known = math.prod(n for n in into if not (type(n) is int and n == -1))
        into = [true[d] // known if type(n) is int and n == -1 else n for n in into]
    return _reshaped(mode, x, [*true[:d], *into, *true[d + 1 :]])


def _reshaped(mode: PaddedMode, x: Tensor, wanted: Sequence[Any]) -> Any:
    """Reshape without moving entries if every member's entries stay the first along each dimension, otherwise with
    it."""
    members = mode.context.members
    before = [box(x.shape, tag_of(x), row) for row in range(members)]
    found = [_inferred([value_of(n, row) for n in wanted], before[row]) for row in range(members)]
    after = [a for a in found if a is not None]
    if len(after) < members:
        return NotImplemented
    padded = [max(n) for n in zip(*after, strict=True)]
    if math.prod(padded) == math.prod(x.shape) and _stays(x.shape, before, padded, after):
        return tagged(x.reshape(padded), list(zip(*after, strict=True)))
    return packed(mode, x, [tuple(a) for a in after])


def _stays(
    shape: Sequence[int], before: Sequence[Sequence[int]], padded: Sequence[int], after: Sequence[Sequence[int]]
) -> bool:
    """True if the padded tensor can be reshaped without moving entries."""
    for (i, j), (k, m) in _segments(list(shape), list(padded)):
        for own, new in zip(before, after, strict=True):
            leads = _leads(shape[i:j], own[i:j]) and _leads(padded[k:m], new[k:m])
            if not leads or math.prod(own[i:j]) != math.prod(new[k:m]):
                return False
    return True


def _inferred(wanted: list[int], before: Sequence[int]) -> list[int] | None:
    total = math.prod(before)
    if -1 in wanted:
        known = math.prod(n for n in wanted if n != -1)
        wanted = [total // known if n == -1 and known else n for n in wanted]
    return wanted if math.prod(wanted) == total else None


def _leads(padded: Sequence[int], own: Sequence[int]) -> bool:
    """True if a member's entries stay the first ones when these dimensions are merged."""
    real = [d for d, n in enumerate(padded) if n != 1]
    return all(own[d] == padded[d] for d in real[1:])


def _segments(a: list[int], b: list[int]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Pairs of the shortest ranges of dimensions that hold the same entries before and after."""
    found = []
    i = k = 0
    while i < len(a) or k < len(b):
        j, m = i, k
        left = right = 1
        if j < len(a):
            left, j = a[j], j + 1
        if m < len(b):
            right, m = b[m], m + 1
        while left != right:
            if (left < right and j < len(a)) or m >= len(b):
                left, j = left * a[j], j + 1
            else:
                right, m = right * b[m], m + 1
        found.append(((i, j), (k, m)))
        i, k = j, m
    return found


def _expand(mode: PaddedMode, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    x, wanted = args[0], _ints(args[1:])
    tag = full(x)
    new = len(wanted) - x.ndim
    out: list[Counts | None] = []
    plain = []
    for d, n in enumerate(wanted):
        own = tag[d - new] if d >= new else None
        if own is not None:
            if not (n.values == own if isinstance(n, Varied) else n == -1):
                return NotImplemented
            plain.append(-1)
        elif type(n) is not int:
            return NotImplemented  # zeros would have to follow
        else:
            plain.append(n)
        out.append(own)
    return mode.result(x.expand(plain), out)


def _unpadded(tag: Tag, dim: int) -> bool:
    return tag[dim] is None


def _unbind(mode: PaddedMode, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    given = dict(zip(("input", "dim"), args, strict=False)) | kwargs
    x, dim = given["input"], given.get("dim", 0)
    if not _unpadded(full(x), dim):
        return NotImplemented
    tag, d = full(x), dim % x.ndim
    return tuple(mode.result(part, (*tag[:d], *tag[d + 1 :])) for part in function(*args, **kwargs))


def _stack(mode: PaddedMode, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    tensors, dim = args[0], args[1] if len(args) > 1 else kwargs.get("dim", 0)
    tags = [full(t) for t in tensors]
    if varied(dim) or any(t != tags[0] for t in tags):
        return NotImplemented
    d = dim % (len(tags[0]) + 1)
    return mode.result(function(*args, **kwargs), (*tags[0][:d], None, *tags[0][d:]))


def _index(mode: PaddedMode, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    x, index = args
    parts = index if isinstance(index, tuple) else (index,)
    kinds = (int, slice, type(None), type(...))
    if varied(parts) or not all(isinstance(p, kinds) and not isinstance(p, bool) for p in parts):
        return NotImplemented
    tag = list(full(x))
    out: list[Counts | None] = []
    used = sum(isinstance(p, int | slice) for p in parts)
    for part in parts:
        if part is None:
            out.append(None)
        elif part is ...:
            out += tag[: len(tag) - used]
            tag = tag[len(tag) - used :]
        else:
            own = tag.pop(0)
            used -= 1
            if own is not None and part != slice(None):
                return NotImplemented
            if isinstance(part, slice):
                out.append(own)
    return mode.result(function(x, index), [*out, *tag])


def _select(mode: PaddedMode, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    if kwargs or len(args) != 3 or varied(args[1:]) or full(args[0])[args[1]] is not None:
        return NotImplemented
    tag, d = full(args[0]), args[1] % args[0].ndim
    return mode.result(function(*args), (*tag[:d], *tag[d + 1 :]))


_SAID = (
    *(Tensor.dim, Tensor.is_floating_point, Tensor.is_complex, Tensor.is_contiguous, Tensor.get_device),
    *(Tensor.element_size, Tensor.ndimension, torch.is_floating_point, torch.is_complex, torch.is_tensor),
    *(Tensor.is_pinned, Tensor.data_ptr, Tensor.__hash__, Tensor.register_hook, Tensor.stride),
)
_GET: Callable[[str], Any] = lambda name: getattr(Tensor, name).__get__  # noqa: E731

RULES: dict[object, Rule] = {
    **dict.fromkeys([_GET("shape"), Tensor.size], _shape),
    Tensor.__len__: _length,
    **dict.fromkeys(named("numel", "nelement"), _numel),
    **dict.fromkeys(_SAID, _plain),
    _GET("data"): _same,
    **dict.fromkeys([_GET("mT"), _GET("T")], _transpose),
    **dict.fromkeys(named("permute"), _permute),
    **dict.fromkeys(named("transpose", "swapaxes", "swapdims", "t"), _transpose),
    **dict.fromkeys(named("unsqueeze"), _unsqueeze),
    **dict.fromkeys(named("squeeze"), _squeeze),
    **dict.fromkeys(named("reshape", "view"), _reshape),
    **dict.fromkeys(named("flatten"), _flatten),
    **dict.fromkeys(named("unflatten"), _unflatten),
    Tensor.expand: _expand,
    **dict.fromkeys(named("unbind"), _unbind),
    torch.stack: _stack,
    Tensor.__getitem__: _index,
    **dict.fromkeys(named("select"), _select),
}
