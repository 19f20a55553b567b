"""Runs a submodule member by member where `vmap` fails."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from hfta_nb.engine.eager.attributes import AttributeKey, tracked_attributes
from hfta_nb.engine.eager.frozen_prefix import has_given_parts
from hfta_nb.engine.eager.intercept import Handler
from hfta_nb.engine.eager.member_modules import MemberModules, restore_storage
from hfta_nb.engine.eager.model_hooks import hooked, writing_classes
from hfta_nb.engine.eager.unused import note_usage
from hfta_nb.engine.members.tensor_slots import TensorSlots
from hfta_nb.engine.members.tree import flatten, unflatten, versions
from hfta_nb.engine.rules.member_by_member import joined
from hfta_nb.engine.rules.rule_mode import Context, Disagreement, SharedWrite
from hfta_nb.errors import MemberError
from hfta_nb.errors.user_frames import described

_MOST = 2_000
"""So many characters of another error's message are told: torch lists all back ends of an operator."""


def path_of(error: BaseException, root: nn.Module) -> str | None:
    """The innermost submodule of `root` whose call raised the error; None if it was raised elsewhere."""
    paths = {id(m): name for name, m in root.named_modules()}
    found = None
    for frame in _frames(error.__traceback__):
        if frame.f_code.co_name == "_call_impl":
            found = paths.get(id(frame.f_locals.get("self")), found)
    return found


def _frames(trace: TracebackType | None) -> Iterator[Any]:
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def member_error(error: Exception, member: int, root: nn.Module, within: str = "") -> MemberError:
    """The error of a member's own code, with the member and the submodule that raised it."""
    inner = path_of(error, root)
    path = ".".join(p for p in (within, inner or "") if p)
    place = f"`{path}`" if path else "the model's own forward" if inner is not None else _outside(error)
    text, line = str(error).strip()[:_MOST] or "no message", described(error, sys._getframe(1) if within else None)
    what = f"{type(error).__name__}: " + (f"{text.rstrip('.')}; {line}" if line else text)
    remedy = "does the model's forward return its result?" if inner is None and "'NoneType'" in text else ""
    return MemberError(what, where=f"member {member}, {place}", remedy=remedy).of(member, within or None)


def _outside(error: BaseException) -> str:
    """The origin of an error that no module's forward raised."""
    names = (str(frame.f_globals.get("__name__")) for frame in _frames(error.__traceback__))
    return "the backward pass" if any(name.startswith("torch.autograd") for name in names) else "the loss or metric"


def one_by_one(root: nn.Module, path: str, known: dict[Any, MemberModules]) -> Handler:
    """A handler that runs the submodule at `path` once per member, as a plain module; `known` gets the copies of it."""
    slots = TensorSlots(root.get_submodule(path))
    names = _own_names(root, path, slots)
    modules = known[path] = MemberModules(root.get_submodule(path))

    def handler(
        context: Context, module: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        _see_parts(context, module)
        leaves, rebuild = flatten((args, kwargs))
        batched = [isinstance(v, Tensor) and context.batched(v) for v in leaves]
        state = slots.current()
        with context.outside():
            tensors = {name: context.stacked(t) for name, t in state.items()}
            stacked = [context.stacked(v) if b else v for v, b in zip(leaves, batched, strict=True)]
            results, news = [], []
            changed, began = set[str](), context.process_streams.here()
            with context.generators.borrowed():
                for i, index in enumerate(context.indices):
                    # Each member gets a copy of shared tensors; its version shows if the module writes into it.
                    own = [_of_member(v, b, i) for v, b in zip(stacked, batched, strict=True)]
                    given, named = unflatten(rebuild, own)
                    before = versions(own)
                    row = {name: t.select(0, i) for name, t in tensors.items()}
                    storages = {name: row[name].data for name in slots.parameters}
                    alone, places = modules.of(index)
                    attributes = _below(context.attributes.of(index), path)
                    changes: dict[AttributeKey, Any] = {}
                    places.put(row)  # before attributes are tracked, which lists of parameters are
                    context.generators.enter(index)
                    try:
                        with (
                            context.process_streams.turn(began),
                            tracked_attributes(
                                alone, places, attributes, changes, deep=context.watching, keep=True, prefix=path
                            ),
                        ):
                            result = alone.forward(*given, **named)
                            new = places.replaced(row)
                            restore_storage(row, storages)
                    except Exception as error:
                        raise member_error(error, index, alone, path) from error
                    finally:
                        context.generators.leave(index)
                    for b, version, now in zip(batched, before, versions(own), strict=True):
                        if not b and now != version:
                            raise SharedWrite(f"{path} writes into a tensor that the members share")
                    note_usage(context.usage, index, result, {names[n]: t for n, t in row.items() if n in names})
                    results.append(result)
                    news.append({**row, **new})
                    changed |= new.keys()
                    changes = {(".".join(filter(None, (path, inner))), k): v for (inner, k), v in changes.items()}
                    context.attributes.keep(index, changes)
            kept = {n: context.wrapped(torch.stack([r[n] for r in news])) for n in changed}
            out = joined(context, results)
        slots.replace(kept)
        return out

    return handler


def _see_parts(context: Context, module: nn.Module) -> None:
    """Check that within a submodule that runs member by member no hook or class may keep what it sees, and that no
    output is known already.

    Raises:
        Disagreement: one may, or is; then the whole model runs member by member.
    """
    if has_given_parts(module):
        raise Disagreement("outputs within a submodule that runs member by member are known already")
    if context.keeping and any(inner is not module for inner in hooked(module)):
        raise Disagreement("a hook keeps values within a submodule that runs member by member")
    if context.keeping and writing_classes([module]):
        raise Disagreement("a class keeps values of a submodule that runs member by member")


def _below(attributes: Mapping[AttributeKey, Any], path: str) -> dict[AttributeKey, Any]:
    """The attributes of a submodule and of the submodules in it, with relative paths."""
    if not path:
        return dict(attributes)
    return {
        (inner.removeprefix(path).removeprefix("."), name): value
        for (inner, name), value in attributes.items()
        if inner == path or inner.startswith(f"{path}.")
    }


def _own_names(root: nn.Module, path: str, slots: TensorSlots) -> dict[str, str]:
    """Parameters that only the submodule uses: from the name in it to the name in `root`."""
    whole = TensorSlots(root)
    places, within = whole.counts(), slots.counts()
    pairs = {n: f"{path}.{n}" if path else n for n in slots.parameters}
    return {n: full for n, full in pairs.items() if places.get(full) == within[n]}


def _of_member(value: Any, batched: bool, index: int) -> Any:
    if batched:
        return value.select(0, index)
    return value.clone() if isinstance(value, Tensor) else value


_ATTENTION = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)


def attention_handlers(root: nn.Module, known: dict[Any, MemberModules]) -> dict[str, Handler]:
    """Handlers for torch's attention modules, which compute masked rows differently without gradients.

    Torch's fast path gives padded rows other values. Only a plain module can take it, so with a mask members run one by
    one.
    """
    found: dict[str, Handler] = {}
    for path, module in root.named_modules():
        inside = any(path.startswith(f"{outer}.") or not outer for outer in found)
        if isinstance(module, _ATTENTION) and not inside:
            found[path] = _fast_path(inspect.signature(module.forward), one_by_one(root, path, known))
    return found


def _fast_path(signature: inspect.Signature, alone: Handler) -> Handler:
    def handler(
        context: Context, module: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        masked = any("mask" in name and value is not None for name, value in given.items())
        learns = torch.is_grad_enabled() and any(p.requires_grad for p in module.parameters())
        if module.training or learns or not masked:
            return forward(*args, **kwargs)
        return alone(context, module, forward, args, kwargs)

    return handler
