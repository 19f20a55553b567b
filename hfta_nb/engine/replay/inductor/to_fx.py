"""Converts recorded calls to a `torch.fx` graph; views become view operations if their strides allow it.

The graph does not write to its inputs. Values that the calls write to, running statistics of batch norm included, are
inputs with the old value and outputs with the new one. The caller copies them back.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor, fx

from hfta_nb.engine.replay.dynamic_call import Fetch
from hfta_nb.engine.replay.liveness import order
from hfta_nb.engine.replay.trace import BufferView, Instruction, NotRecordableError, places, with_views

_aten = torch.ops.aten


class Graph:
    """Calls as a graph, whose outputs are `results` followed by `written`.

    Args:
        calls: in order; batch norms in the form of `norms.said`.
        there: tensors of storages that exist before all calls of the step, or are constant.
        made: whole storages that the preceding draws have created.
        results: the requested results.

    Attributes:
        module: the graph.
        inputs: tensors, or functions that return them.
        written: existing values that change.

    Raises:
        NotRecordableError: a view of memory cannot be expressed.
    """

    def __init__(
        self,
        calls: Sequence[Instruction],
        there: Mapping[int, Tensor],
        made: Mapping[int, BufferView],
        results: Sequence[BufferView],
    ) -> None:
        self.inputs: list[Tensor | Fetch] = []
        self.written: list[Tensor] = []
        self._there, self._made, self._graph = there, made, fx.Graph()
        self._bases: dict[int, tuple[fx.Node, BufferView]] = {}
        self._given: dict[BufferView, fx.Node] = {}
        self._cells: dict[BufferView, fx.Node] = {}
        changes = {s for c in calls for s in c.changes()}
        self._take([*(p for c in calls for p in _touched(c)), *results], changes)
        for call in calls:
            self._call(call)
        nodes = [self._read(p) for p in results]
        for place, node in self._cells.items():
            self.written.append(_view(there[place.storage], place))
            nodes.append(node)
        self._graph.output(tuple(nodes))
        self.module = fx.GraphModule(torch.nn.Module(), self._graph)

    def example(self, given: Tensor | Fetch) -> Tensor:
        """An example of an input."""
        if isinstance(given, Tensor):
            return given
        base = self._made[given.storage]
        device = next(iter(self._there.values())).device
        return torch.empty_strided(base.size, base.stride, dtype=base.dtype, device=device)

    # Inputs.

    def _take(self, wanted: Sequence[BufferView], changes: Collection[int]) -> None:
        """Placeholders for values that the calls do not create; they come first in a graph."""
        seen: dict[int, list[BufferView]] = {}
        for place in dict.fromkeys(wanted):
            seen.setdefault(place.storage, []).append(place)
        copied: list[tuple[BufferView, fx.Node]] = []
        for storage, found in seen.items():
            if storage in self._made:
                base = self._made[storage]
                node = self._placeholder(Fetch(storage, None))
                self._bases[storage] = node, base
                copied += [(base, node)] if storage in changes else []
            elif storage in self._there:
                parts = found
                if storage in changes and not _apart(found, self._there[storage]):
                    parts = [_whole(storage, self._there[storage])]
                nodes = [self._placeholder(_view(self._there[storage], part)) for part in parts]
                if storage in changes:
                    copied += zip(parts, nodes, strict=True)
                else:
                    self._given.update(zip(parts, nodes, strict=True))
        for place, node in copied:
            node = self._graph.call_function(_aten.clone.default, (node,))
            if place.storage in self._made:
                self._bases[place.storage] = node, place
            else:
                self._cells[place] = node

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
        for known in (self._given, self._cells):
            if place in known:
                return known[place]
        whole = next((p for p in self._cells if p.storage == place.storage), None)
        if whole is not None:
            node, base = self._cells[whole], whole
        elif place.storage in self._bases:
            node, base = self._bases[place.storage]
        else:
            raise NotRecordableError("a result that no call made")
        if place.dtype != base.dtype:
            raise NotRecordableError("memory seen as another type")
        return self._seen_as(node, base, place)

    def _seen_as(self, node: fx.Node, base: BufferView, place: BufferView) -> fx.Node:
        """`place` as a view of `base`, by operations that the compiler can analyse, if possible."""
        call = self._graph.call_function
        if (base.size, base.stride, base.offset) == (place.size, place.stride, place.offset):
            return node
        wide = [
            i for i, (size, stride) in enumerate(zip(place.size, place.stride, strict=True)) if not stride and size > 1
        ]
        narrow = place.permuted([i for i in range(len(place.size)) if i not in wide])
        found = None
        if base.offset == place.offset:
            axes = order(base, narrow)
            if axes is not None:
                found = call(_aten.permute.default, (node, axes))
            elif math.prod(narrow.size) == math.prod(base.size) and all(p.operand.contiguous for p in (base, narrow)):
                found = call(_aten.view.default, (node, list(narrow.size)))
        if found is None:
            return call(_aten.as_strided.default, (node, list(place.size), list(place.stride), place.offset))
        for axis in wide:
            found = call(_aten.unsqueeze.default, (found, axis))
        return call(_aten.expand.default, (found, list(place.size))) if wide else found


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
