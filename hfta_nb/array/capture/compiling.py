"""A recorded step compiled by `torch.compile`'s compiler, which gets the kernels that it called as one graph to fuse.

There is nothing to trace: the recording is a list of kernel calls. It becomes a `torch.fx` graph, views written as
views where that can be told from their strides, and the compiler sees no Python, no `vmap` and no autograd.
"""

from __future__ import annotations

import hashlib
import operator
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from hfta_nb.array.capture.record import Call, NotRecordableError, Place, places

_aten = torch.ops.aten


@dataclass(frozen=True)
class Source:
    """What a program was made of.

    Attributes:
        calls: in order.
        there: tensors of storages that are there before, or hold what never changes.
        outputs: what is returned.
        gradients: what goes where.
        device: of all tensors.
    """

    calls: Sequence[Call]
    there: Mapping[int, Tensor]
    outputs: Sequence[Place]
    gradients: Sequence[tuple[Place, Tensor]]
    device: torch.device

    def digest(self) -> str:
        """The same for steps that make the same calls."""
        told = [(str(c.function), c.args, c.kwargs, c.results) for c in self.calls]
        return hashlib.sha256(repr(told).encode()).hexdigest()[:16]


def why_not(source: Source, device: torch.device) -> str:
    """Why a step can't be compiled; empty where it can."""
    if any(call.draws for call in source.calls):
        return "it draws random numbers, which is left to each member's own stream"
    hidden = next((c for c in source.calls if "batch_norm" in c.function._schema.name), None)
    if hidden is not None:
        return "its batch norm writes running statistics without saying so"
    if device.type == "cpu" and not any(map(shutil.which, ("g++", "clang++", "c++", "cl"))):
        return "there is no C++ compiler"
    if device.type == "cuda" and not torch.utils._triton.has_triton():
        return "there is no Triton"
    return ""


class Compiled:
    """A compiled program.

    Args:
        source: of the program.

    Raises:
        NotRecordableError: it can't be written as a graph.
        Exception: the compiler's own.
    """

    def __init__(self, source: Source) -> None:
        graph, self._inputs = graph_of(source)
        import torch._inductor as inductor  # it takes seconds

        with torch.no_grad(), inductor.config.patch(compile_threads=1):  # no processes that outlive this
            self._run = inductor.compile(graph, list(self._inputs))
        self._outputs, self._rooms = len(source.outputs), [room for _, room in source.gradients]

    @torch.no_grad()
    def run(self) -> list[Tensor]:
        """Compute; the results are copies, the gradients are where they go."""
        found: Any = self._run(*self._inputs)
        torch._foreach_copy_(self._rooms, list(found[self._outputs :]))
        return [v.clone() for v in found[: self._outputs]]


def graph_of(source: Source) -> tuple[fx.GraphModule, list[Tensor]]:
    """The calls as a graph, and its inputs.

    Raises:
        NotRecordableError: a view of memory that can't be written as one.
    """
    return _Writer(source).write()


class _Writer:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.graph = fx.Graph()
        self.inputs: list[Tensor] = []
        self.bases: dict[int, tuple[fx.Node, Place]] = {}
        self.given: dict[Place, fx.Node] = {}
        self.written = {s for c in source.calls for s in c.writes}
        wanted = [p for c in source.calls for p in places((c.args, c.kwargs))]
        wanted += [*source.outputs, *(p for p, _ in source.gradients)]
        for place in dict.fromkeys(wanted):  # placeholders come first in a graph
            if place.storage in source.there:
                self._input(place)

    def write(self) -> tuple[fx.GraphModule, list[Tensor]]:
        for call in self.source.calls:
            self._call(call)
        results = [self._read(p) for p in [*self.source.outputs, *(p for p, _ in self.source.gradients)]]
        self.graph.output(tuple(results))
        return fx.GraphModule(torch.nn.Module(), self.graph), self.inputs

    def _input(self, place: Place) -> None:
        tensor = self.source.there[place.storage].detach()
        if place.storage in self.written:  # one input for all views of it
            if place.storage in self.bases:
                return
            whole = tensor.untyped_storage().nbytes() // tensor.element_size()
            place = Place(place.storage, (whole,), (1,), 0, tensor.dtype)
        node = self.graph.placeholder(f"input{len(self.inputs)}")
        self.inputs.append(_view(tensor, place))
        if place.storage in self.written:
            self.bases[place.storage] = node, place
        else:
            self.given[place] = node

    def _call(self, call: Call) -> None:
        args, kwargs = self._resolved(call.args), self._resolved(call.kwargs)
        node = self.graph.call_function(call.function, tuple(args), kwargs)
        several = len(call.function._schema.returns) > 1
        listed = len(call.results) > 1 and not several
        for number, place in enumerate(call.results):
            if place is not None and place.storage in call.makes and place.storage not in self.bases:
                part = self.graph.call_function(operator.getitem, (node, number)) if several or listed else node
                self.bases[place.storage] = part, place

    def _resolved(self, tree: Any) -> Any:
        if isinstance(tree, Place):
            return self._read(tree)
        if isinstance(tree, list | tuple):
            return [self._resolved(v) for v in tree]
        if isinstance(tree, dict):
            return {k: self._resolved(v) for k, v in tree.items()}
        return tree

    def _read(self, place: Place) -> fx.Node:
        if place in self.given:
            return self.given[place]
        if place.storage not in self.bases:
            raise NotRecordableError("a result that no call made")
        node, base = self.bases[place.storage]
        if place.dtype != base.dtype:
            raise NotRecordableError("memory seen as another type")
        return self._seen_as(node, base, place)

    def _seen_as(self, node: fx.Node, base: Place, place: Place) -> fx.Node:
        """`place` as a view of `base`, in words that the compiler can see through, where there are such."""
        call = self.graph.call_function
        if (base.size, base.stride, base.offset) == (place.size, place.stride, place.offset):
            return node
        wide = [
            i for i, (size, stride) in enumerate(zip(place.size, place.stride, strict=True)) if not stride and size > 1
        ]
        size = tuple(s for i, s in enumerate(place.size) if i not in wide)
        stride = tuple(s for i, s in enumerate(place.stride) if i not in wide)
        found = None
        if base.offset == place.offset:
            order = _order(base, size, stride)
            if order is not None:
                found = call(_aten.permute.default, (node, order))
            elif _dense(base.size, base.stride) and _dense(size, stride) and _count(size) == _count(base.size):
                found = call(_aten.view.default, (node, list(size)))
        if found is None:
            return call(_aten.as_strided.default, (node, list(place.size), list(place.stride), place.offset))
        for axis in wide:
            found = call(_aten.unsqueeze.default, (found, axis))
        return call(_aten.expand.default, (found, list(place.size))) if wide else found


def _view(tensor: Tensor, place: Place) -> Tensor:
    return torch.as_strided(tensor, place.size, place.stride, place.offset)


def _order(base: Place, size: Sequence[int], stride: Sequence[int]) -> list[int] | None:
    """The axes of `base` in the order of this view, if it is the whole in another order."""
    left = list(range(len(base.size)))
    order: list[int] = []
    if len(size) != len(left):
        return None
    for length, step in zip(size, stride, strict=True):
        axis = next((a for a in left if base.size[a] == length and (base.stride[a] == step or length == 1)), None)
        if axis is None:
            return None
        order.append(axis)
        left.remove(axis)
    return order


def _dense(size: Sequence[int], stride: Sequence[int]) -> bool:
    step = 1
    for length, given in zip(reversed(size), reversed(stride), strict=True):
        if length != 1 and given != step:
            return False
        step *= length
    return True


def _count(size: Sequence[int]) -> int:
    count = 1
    for length in size:
        count *= length
    return count
