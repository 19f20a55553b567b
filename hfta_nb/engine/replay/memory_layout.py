"""The memory of a program: slots that storages share, and destinations of gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hfta_nb.engine.replay.dynamic_call import Fetch
from hfta_nb.engine.replay.liveness import fitting
from hfta_nb.engine.replay.out_variants import KERNELS
from hfta_nb.engine.replay.trace import BufferView, Instruction, Trace, places


class MemoryLayout:
    """Assigns memory to the storages of a program, in the order of its calls.

    Args:
        trace: of the step.
        calls: of the program.
        half: how many of them belong to the first of two halves.
        gradients: sources and destinations.
        fixed: storages that existed before, or are constant.
        last: by storage, the index of the last call that needs it.
        exact: the bits of each result must be those of the recorded call.
        shared: memory of other programs, which do not run at the same time.

    Attributes:
        slots: memory that storages share.
        free: slots that may be reused; each branch has a separate list.
        bound: by storage, the memory at a gradient's destination, and the view of the result that is written there.
    """

    def __init__(
        self,
        trace: Trace,
        calls: Sequence[Instruction],
        half: int,
        gradients: Sequence[tuple[BufferView, Tensor]],
        fixed: set[int],
        last: Mapping[int, int],
        exact: bool = False,
        shared: Sequence[Tensor] = (),
    ) -> None:
        self._trace, self._calls, self._half, self._gradients = trace, calls, half, gradients
        self._exact = exact
        self._fixed, self._last = fixed, last
        self._bases = {r.storage: r for c in reversed(calls) for r in c.results if r and r.storage in c.makes}
        self._tensors: dict[BufferView, Tensor] = {}
        self._slot_of: dict[int, int] = {}
        self.bound: dict[int, tuple[Tensor, BufferView]] = {}
        self.slots: list[Tensor] = [*shared]
        self.free = [*range(len(shared))]
        self._shared, self._used = len(shared), set[int]()

    def destinations(self) -> set[BufferView]:
        """Bind results to the destinations of gradients, if they fit; returns those gradients."""
        makers = {s: c for c in self._calls[self._half :] for s in c.makes}  # the arena is written in the second half
        count: dict[int, int] = {}
        for place, _ in self._gradients:
            count[place.storage] = count.get(place.storage, 0) + 1
        views: dict[int, set[BufferView]] = {}
        for call in self._calls:
            for place in places((call.args, call.kwargs)):
                views.setdefault(place.storage, set()).add(place)
        written = set()
        for place, buffer in self._gradients:
            maker = makers.get(place.storage)
            kernel = None if maker is None else KERNELS.get(maker.function)
            if maker is None or kernel is None or count[place.storage] > 1:
                continue
            out = maker.results[0]
            if out is None:
                continue
            others = views.get(place.storage, set()) - {out, place}
            rows = {_row(out, i): i for i in range(out.size[0])} if others and out.size else {}
            if not others <= rows.keys():
                continue
            room_of_out = fitting(buffer, place, out, kernel.pointwise if self._exact else kernel.anywhere)
            if room_of_out is not None:
                self.bound[place.storage] = room_of_out, out
                self._tensors[out], self._tensors[place] = room_of_out, buffer
                self._tensors.update({row: room_of_out[rows[row]] for row in others})
                written.add(place)
        return written

    def tensor(self, place: BufferView) -> Tensor | Fetch:
        """The tensor of a view, or what fetches it from the tensors of a run."""
        known = self._tensors.get(place)
        if known is not None:
            return known
        if place.storage in self._fixed:
            storage = self._trace.held[place.storage].untyped_storage()
        elif place.storage in self._slot_of:
            storage = self.slots[self._slot_of[place.storage]].untyped_storage()
        else:
            base = self._bases[place.storage]
            return Fetch(place.storage, None if base == place else place)
        made = torch.empty(0, dtype=place.dtype, device=self._trace.held[place.storage].device)
        tensor = made.set_(storage, place.offset, place.size, place.stride)
        if place.storage in self._fixed:
            self._tensors[place] = tensor
        return tensor

    def assign(self, i: int, call: Instruction, storage: int, pointwise: bool) -> None:
        """Assign a slot to a storage that the call creates."""
        need = self._trace.sizes[storage]
        out = next(r for r in call.results if r is not None and r.storage == storage)
        if pointwise:
            for place in places(call.args):
                dies = self._last[place.storage] == i and place.storage in self._slot_of
                if dies and place[1:] == out[1:] and self._alone(call, place):
                    self._slot_of[storage] = self._slot_of.pop(place.storage)
                    return
        most = max(4 * need, 4096)
        large = [
            k
            for k in self.free
            if need <= self.slots[k].numel() and (k < self._shared or self.slots[k].numel() <= most)
        ]
        if large:
            slot = min(large, key=lambda k: self.slots[k].numel())
            self.free.remove(slot)
        else:
            slot = len(self.slots)
            device = self._trace.held[storage].device
            self.slots.append(torch.empty(max(need, 1), dtype=torch.uint8, device=device))
        self._slot_of[storage] = slot
        self._used.add(slot)

    def used(self) -> list[Tensor]:
        """The slots that storages have."""
        return [self.slots[k] for k in sorted(self._used)]

    @staticmethod
    def _alone(call: Instruction, place: BufferView) -> bool:
        return all(p == place for p in places((call.args, call.kwargs)) if p.storage == place.storage)

    def release(self, i: int) -> None:
        """Free the slots of storages that no call after `i` needs."""
        for storage, slot in list(self._slot_of.items()):
            if self._last[storage] == i:
                self.free.append(slot)
                del self._slot_of[storage]


def _row(place: BufferView, i: int) -> BufferView:
    """The view of the entry `i` of the first axis."""
    return place._replace(size=place.size[1:], stride=place.stride[1:], offset=place.offset + i * place.stride[0])
