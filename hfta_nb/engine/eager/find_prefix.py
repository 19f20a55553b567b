"""Finds the frozen prefix of a model: follows one forward of a plain module, kernel by kernel.

An output belongs to the prefix if it is computed from the inputs, frozen parameters and buffers that the forward leaves
as they are, without random numbers.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from hfta_nb.engine.eager.frozen_prefix import Forward, Output, Prefix
from hfta_nb.engine.eager.intercept import forwards_replaced
from hfta_nb.engine.members.tree import flatten

WORTH = 32
"""Floating-point operations that each number of the features must save: with fewer, reading them takes as long."""

TRIES = 8
OWN = ""
"""The mark of what depends on more than a sample."""

_NONE: frozenset[str] = frozenset()


def find_prefix(
    module: nn.Module,
    call: Callable[[nn.Module, Any], Any],
    given: Any,
    samples: int,
    among: Sequence[str] | None = None,
) -> Prefix | str:
    """The frozen prefix of a plain module, as its forward shows it; or why there is none.

    Args:
        module: plain, in train or eval mode. Its forward runs, and may draw random numbers.
        call: calls it with copies of inputs.
        given: its inputs.
        samples: in them, the first axis; at least 2.
        among: paths of the only submodules that may belong to it; all without.
    """
    paths = [p for p, inner in module.named_modules() if p and not isinstance(inner, torch.jit.ScriptModule)]
    left = set(paths if among is None else among)
    for _ in range(TRIES):
        watch = _Watch(module, samples, left)
        with forwards_replaced(module, {path: partial(watch.around, path) for path in paths}), watch:
            result = call(module, given)
        watch.use(leaf for leaf in flatten(result)[0] if isinstance(leaf, Tensor))
        entangled = watch.entangled()
        if not entangled:
            return watch.found()
        left -= entangled
    return "the outputs of its frozen submodules are used in too many places"


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows a forward, kernel by kernel: which tensors depend on more than the samples.

    Each storage has marks: `OWN`, or the paths of the submodules whose outputs it was computed from.

    Args:
        module: whose forward runs.
        samples: in the call.
        among: paths that may belong to the prefix.
    """

    def __init__(self, module: nn.Module, samples: int, among: Collection[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._samples, self._among = samples, among
        self._marks: dict[int, frozenset[str]] = {}
        self._alive: list[Any] = []  # storages, in the order in which they were first seen
        self._seen: dict[int, int] = {}  # the place of each in that order
        self._writes: list[int] = []  # the places of those that were written to
        self._names: dict[int, set[str]] = {}
        for name, tensor in (*module.named_parameters(remove_duplicate=False), *module.named_buffers()):
            key = self._key(tensor)
            self._marks[key] |= {OWN} if tensor.requires_grad else _NONE
            self._names.setdefault(key, set()).add(name)
        self._within: list[str] = []  # the submodules that run now
        self._calls: Counter[str] = Counter()
        self._impure: set[str] = set()
        self._outputs: dict[str, Output] = {}
        self._used: set[str] = set()
        self._reads: set[str] = set()
        self._rewritten: set[str] = set()
        self._flops: Counter[str] = Counter()
        self._why = ""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler here, which takes a second

    def _key(self, tensor: Tensor) -> int:
        storage = tensor.untyped_storage()
        key: int = storage._cdata
        if key not in self._marks:
            self._marks[key] = _NONE
            self._seen[key] = len(self._alive)
            self._alive.append(storage)  # a number must not be given to a second storage
        return key

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        keys = [self._key(tensor) for tensor in _tensors((args, kwargs))]
        marks = _NONE.union(*(self._marks[key] for key in keys))
        if _draws(func, args, kwargs):
            marks |= {OWN}
            self._spoil("draws random numbers")
        result = func(*args, **kwargs)
        made = _tensors(result)
        if OWN in marks or not made:  # without a tensor it is a value that the model's code reads
            self._used |= marks - {OWN}
        if OWN not in marks:
            self._reads.update(*(self._names.get(key, ()) for key in keys))
        for tensor in _written(func, args, kwargs):
            key = self._key(tensor)
            self._rewritten |= self._marks[key] - {OWN}
            self._writes.append(self._seen[key])
            if key in self._names:
                marks |= {OWN}
                self._spoil("changes a parameter or buffer")
            made.append(tensor)
        for tensor in made:
            key = self._key(tensor)
            self._marks[key] |= marks
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self._flops.update(dict.fromkeys(self._within, int(count(*args, **kwargs, out_val=result))))
        return result

    def _spoil(self, why: str) -> None:
        """What runs now has effects that are a member's own."""
        if not self._why and self._within:
            self._why = f"`{self._within[-1]}` {why}"
        self._impure.update(self._within)

    def use(self, tensors: Iterable[Tensor]) -> None:
        """The model returns these."""
        for tensor in tensors:
            self._used |= self._marks[self._key(tensor)] - {OWN}

    def around(self, path: str, module: nn.Module) -> Forward:
        """A `forward` of a submodule that is followed."""
        forward = module.forward

        def run(*args: Any, **kwargs: Any) -> Any:
            self._calls[path] += 1
            before, known, used, written = _attributes(module), len(self._alive), set(self._used), len(self._writes)
            self._within.append(path)
            try:
                if _is_recomputed():
                    self._spoil("runs within torch.utils.checkpoint")
                result = forward(*args, **kwargs)
                if _attributes(module) != before:
                    self._spoil("sets attributes")
                if any(place < known for place in self._writes[written:]):
                    self._impure.add(path)  # it writes into what it is given
            finally:
                self._within.pop()
            if path in self._among and self._belongs(path, module, result, known):
                self._used = used  # what was used within is not needed where the output is known
            return result

        return run

    def _belongs(self, path: str, module: nn.Module, result: Any, known: int) -> bool:
        """Whether the submodule that returns this belongs to the prefix so far; its output is marked then.

        Args:
            known: how many storages there were before the call.
        """
        leaves, rebuild = flatten(result)
        tensors = _tensors(result)
        keys = [self._key(tensor) for tensor in tensors]
        fresh = {storage._cdata for storage in self._alive[known:]}
        hooked = any(m._forward_hooks or m._forward_pre_hooks for m in module.modules())
        if (
            not tensors
            or (path in self._impure or hooked or self._calls[path] > 1)
            or not all(t.ndim and t.shape[0] == self._samples and t.layout is torch.strided for t in tensors)
            or not all(isinstance(leaf, Tensor | bool | int | float | str | None) for leaf in leaves)
            or not fresh.issuperset(keys)
            or any(OWN in self._marks[key] for key in keys)
        ):
            return False
        kinds = tuple((tuple(t.shape[1:]), t.dtype) for t in tensors)
        self._outputs[path] = Output(tuple(... if isinstance(v, Tensor) else v for v in leaves), rebuild, kinds)
        self._marks.update(dict.fromkeys(keys, frozenset({path})))
        return True

    def _outer(self) -> dict[str, Output]:
        """The submodules of the prefix that are in no other one of it."""
        return {p: o for p, o in self._outputs.items() if not any(p.startswith(f"{q}.") for q in self._outputs)}

    def entangled(self) -> set[str]:
        """Submodules whose outputs are not all that the rest of the model sees of them."""
        inside = self._used - self._outer().keys()
        around = {p for p in self._outputs for q in inside if q.startswith(f"{p}.")}
        return around | {path for path in self._outputs if self._calls[path] > 1}

    def found(self) -> Prefix | str:
        """What there is after the forward."""
        outer = self._outer()
        kept = {path: output for path, output in outer.items() if path in self._used}
        skipped = {path: output for path, output in outer.items() if path not in kept}
        found = Prefix(kept, skipped, tuple(sorted(self._reads)), frozenset(self._rewritten))
        flops = sum(self._flops[path] for path in found.paths)
        if not kept or flops < WORTH * self._samples * found.sample_numbers:
            why = f": {self._why}" if self._why else ""
            return f"too little of the model depends on samples and frozen parameters alone{why}"
        return found


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in flatten(tree)[0] if isinstance(leaf, Tensor)]


def _draws(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a kernel draws random numbers; attention does if it has dropout."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    rates = [value for name, value in _given(func, args, kwargs) if name.name == "dropout_p"]
    return any(rates) if any(a.name == "dropout_p" for a in func._schema.arguments) else True


def _given(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """The arguments of a kernel, as its schema describes them, with their values."""
    known = func._schema.arguments
    return [*zip(known, args, strict=False), *((a, kwargs[a.name]) for a in known if a.name in kwargs)]


def _written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """What a kernel writes to."""
    if not func._schema.is_mutable:
        return []
    return _tensors([value for a, value in _given(func, args, kwargs) if a.is_write])


def _attributes(module: nn.Module) -> dict[str, int]:
    """The attributes of a module, but for its tensors and submodules, by identity."""
    tables = ("_parameters", "_buffers", "_modules", "forward")
    return {name: id(value) for name, value in module.__dict__.items() if name not in tables}


def _is_recomputed() -> bool:
    """Whether a caller is `torch.utils.checkpoint`, which calls again in the backward."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch.utils.checkpoint":
            return True
        frame = frame.f_back
    return False
