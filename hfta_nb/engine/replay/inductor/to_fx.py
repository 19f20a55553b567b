"""Converts recorded calls to a `torch.fx` graph; views become view operations if their strides allow it.

The graph writes to its inputs what the calls write to existing memory, running statistics of batch norm included, and
each gradient to its destination. A compiler computes them in place.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, fx

from hfta_nb.engine.replay.dynamic_call import Fetch
from hfta_nb.engine.replay.inductor.view_chain import view_chain
from hfta_nb.engine.replay.trace import BufferView, Instruction, NotRecordableError, address, places, with_views

_aten = torch.ops.aten


class Graph:
    """Calls as a graph, whose outputs are `results`.

    Args:
        calls: in order; batch norms in the form of `norms.said`.
        there: tensors of storages that exist before all calls of the step, or are constant.
        made: whole storages that the preceding draws have created.
        results: the requested results.
        gradients: sources and destinations; no destination shares memory with another or with what the calls read.

    Attributes:
        module: the graph.
        inputs: tensors, or functions that return them. Those that the graph writes to share no memory.

    Raises:
        NotRecordableError: a view of memory cannot be expressed, or a gradient's memory is read.
    """

    def __init__(
        self,
        calls: Sequence[Instruction],
        there: Mapping[int, Tensor],
        made: Mapping[int, BufferView],
        results: Sequence[BufferView],
        gradients: Sequence[tuple[BufferView, Tensor]] = (),
    ) -> None:
        if {address(t) for t in there.values()} & {address(buffer) for _, buffer in gradients}:
            raise NotRecordableError("it reads the memory of its gradients")
        self.inputs: list[Tensor | Fetch] = []
        self._there, self._made, self._graph = there, made, fx.Graph()
        self._bases: dict[int, tuple[fx.Node, BufferView]] = {}
        self._given: dict[BufferView, fx.Node] = {}
        self._written = {s for c in calls for s in c.writes}
        sources = [place for place, _ in gradients]
        self._take([*(p for c in calls for p in _touched(c)), *results, *sources])
        destinations = [self._placeholder(buffer) for _, buffer in gradients]
        for call in calls:
            self._call(call)
        for place, node in zip(sources, destinations, strict=True):
            self._graph.call_function(_aten.copy_.default, (node, self._read(place)))
        self._graph.output(tuple(self._read(p) for p in results))
        self.module = fx.GraphModule(torch.nn.Module(), self._graph)

    def geometry(self, given: Tensor | Fetch) -> BufferView:
        """The geometry of an input."""
        if isinstance(given, Fetch):
            return self._made[given.storage]
        return BufferView(0, tuple(given.shape), given.stride(), int(given.storage_offset()), given.dtype)

    # Inputs.

    def _take(self, wanted: Sequence[BufferView]) -> None:
        """Placeholders for values that the calls do not create; they come first in a graph."""
        seen: dict[int, list[BufferView]] = {}
        for place in dict.fromkeys(wanted):
            seen.setdefault(place.storage, []).append(place)
        for storage, found in seen.items():
            if storage in self._made:
                self._bases[storage] = self._placeholder(Fetch(storage, None)), self._made[storage]
            elif storage in self._there:
                tensor = self._there[storage]
                if storage in self._written and not _apart(found, tensor):
                    whole = _whole(storage, tensor)
                    self._bases[storage] = self._placeholder(_view(tensor, whole)), whole
                else:
                    self._given.update({part: self._placeholder(_view(tensor, part)) for part in found})

    def _placeholder(self, value: Tensor | Fetch) -> fx.Node:
        self.inputs.append(value)
        return self._graph.placeholder(f"input{len(self.inputs)}")

    # Calls.

    def _call(self, call: Instruction) -> None:
        args, kwargs = with_views((tuple(call.args), call.kwargs), self._read)
        node = self._graph.call_function(call.function, args, kwargs)
        several = len(call.function._schema.returns) > 1
        listed = len(call.results) > 1 and not several
        for number, place in enumerate(call.results):
            if place is not None and place.storage in call.makes and place.storage not in self._bases:
                part = self._graph.call_function(operator.getitem, (node, number)) if several or listed else node
                self._bases[place.storage] = part, place

    def _read(self, place: BufferView) -> fx.Node:
        if place in self._given:
            return self._given[place]
        if place.storage not in self._bases:
            raise NotRecordableError("a result that no call made")
        node, base = self._bases[place.storage]
        if place.dtype != base.dtype:
            raise NotRecordableError("memory seen as another type")
        return self._seen_as(node, base, place)

    def _seen_as(self, node: fx.Node, base: BufferView, place: BufferView) -> fx.Node:
        """`place` as a view of `base`, by operations that the compiler can analyse, if possible."""
        chain = view_chain(base, place)
        if chain is None:
            chain = [(_aten.as_strided.default, (list(place.size), list(place.stride), place.offset))]
        for function, args in chain:
            if function is _aten.view.default and place.storage not in self._written:
                function = _aten.reshape.default  # right with any strides, which a compiler may choose otherwise
            node = self._graph.call_function(function, (node, *args))
        return node


def _touched(call: Instruction) -> list[BufferView]:
    return [*places((call.args, call.kwargs)), *(r for r in call.results if r is not None)]


def _whole(storage: int, tensor: Tensor) -> BufferView:
    length = tensor.untyped_storage().nbytes() // tensor.element_size()
    return BufferView(storage, (length,), (1,), 0, tensor.dtype)


def _apart(views: Sequence[BufferView], tensor: Tensor) -> bool:
    """True if no entry of the memory belongs to two of these views, or twice to one."""
    if any(v.dtype != tensor.dtype for v in views):
        return False
    entries = torch.arange(_whole(0, tensor).size[0])
    touched = torch.cat([_view(entries, view).reshape(-1) for view in views])
    return bool((touched.bincount() < 2).all())


def _view(tensor: Tensor, place: BufferView) -> Tensor:
    return torch.as_strided(tensor.detach(), place.size, place.stride, place.offset)
