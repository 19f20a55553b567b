"""The recorder, a `TorchDispatchMode` that sees every kernel below autograd and `vmap`, and writes a trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hfta_nb.engine.members.generators import State, current_state
from hfta_nb.engine.members.own_draws import given_generator, own_generator, same, takes_generator, without_generator
from hfta_nb.engine.replay.out_variants import SHAPE_ONLY
from hfta_nb.engine.replay.storage_refs import Addresses
from hfta_nb.engine.replay.trace import LEAVES, BufferView, Instruction, NotRecordableError, Trace, address, places

_READS_VALUES = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
_SET = torch.ops.aten.set_.source_Storage_storage_offset, torch.ops.aten.set_.source_Storage
_VIEWS_AND_CHECKS = {"aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero", "aten::item"}


class _Facts(NamedTuple):
    """Properties of an overload, from its schema.

    Attributes:
        reads: its result, or the shape of its result, depends on values.
        seeded: it may draw random numbers.
        writes: arguments that it writes to, by position and by name.
        shape_only: its result depends on the shapes of its arguments alone.
    """

    name: str
    reads: bool
    seeded: bool
    writes: tuple[tuple[int, str], ...]
    shape_only: bool


_known: dict[int, tuple[Any, _Facts]] = {}
"""Overloads with their facts, by id: torch computes the hash of an overload in Python."""


def _facts(func: Any) -> _Facts:
    found = _known.get(id(func))
    if found is None:
        found = _known[id(func)] = func, _looked_up(func)
    return found[1]


def _looked_up(func: Any) -> _Facts:
    schema, tags = func._schema, func.tags
    written = enumerate(a.name if a.alias_info is not None and a.alias_info.is_write else "" for a in schema.arguments)
    return _Facts(
        schema.name,
        any(tag in tags for tag in _READS_VALUES),
        torch.Tag.nondeterministic_seeded in tags or takes_generator(func),
        tuple((i, name) for i, name in written if name),
        func in SHAPE_ONLY,
    )


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records every kernel in `trace` within the context.

    Args:
        device: all tensors must be on it.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device
        self.trace = Trace()
        self._numbers: dict[int, int] = {}
        self._addresses = Addresses()
        self._empty: dict[torch.device, Tensor] = {}
        self._quiet = 0
        self._member: int | None = None
        self._state: State | None = None

    def __enter__(self) -> Recorder:
        torch.clear_autocast_cache()  # a weight that was cast before would look like a constant
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch imports its compiler here, which takes a second

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, facts = kwargs or {}, _facts(func)
        if func in _SET and self._created(args[0]):
            return func(*args, **kwargs)  # a new tensor becomes a view: cuDNN looks so at the weights of a layer
        if not facts.seeded:
            out = func(*args, **kwargs)
            self._seen(func, facts, args, kwargs, out, False)
            return out
        before = current_state(self.device)
        out = func(*args, **kwargs)
        after = current_state(self.device)
        draws = not _equal(before, after)  # attention may draw, and does not without dropout
        if draws and self._state is not None and not _equal(before, self._state):
            self.trace.reason = self.trace.reason or "the model sets the state of the random generator"
        self._state = after if draws else self._state
        own, given = own_generator(), given_generator(args, kwargs)
        if own is not None and given is not None and same(given, own):
            func, args, kwargs = without_generator(func, args, kwargs)  # the instruction has the member instead
            facts = _facts(func)
        self._seen(func, facts, args, kwargs, out, draws)
        return out

    def _seen(self, func: Any, facts: _Facts, args: Any, kwargs: Any, out: Any, draws: bool) -> None:
        if not self._quiet and not self.trace.reason:
            try:
                self._note(func, facts, args, kwargs, out, draws)
            except NotRecordableError as error:
                self.trace.reason = str(error)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing within the context."""
        self._quiet += 1
        try:
            yield
        finally:
            self._quiet -= 1

    def cut(self) -> None:
        """Assign further calls to the second half."""
        self.trace.cut = len(self.trace.calls)

    def member(self, index: int | None) -> None:
        """Assign further random numbers to this member."""
        self._member = index
        self._state = current_state(self.device)

    def place(self, tensor: Tensor) -> BufferView:
        """The view of a tensor; an unknown storage counts as existing before.

        Raises:
            NotRecordableError: it is not a plain tensor on the device.
        """
        number = self._numbers.get(address(tensor))
        if number is None:
            number = self._number(tensor)
            self.trace.outside.add(number)
        return _place(tensor, number)

    def known(self, tensor: Tensor) -> int | None:
        """The number of a tensor's storage, if it was recorded."""
        return self._numbers.get(address(tensor))

    def _created(self, tensor: Tensor) -> bool:
        """True if a recorded call has created the tensor's storage, so that no object of the model refers to it."""
        number, trace = self.known(tensor), self.trace
        return number is not None and number not in trace.outside | trace.given | trace.constants

    def _number(self, tensor: Tensor) -> int:
        if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
            raise NotRecordableError(f"a tensor of type {type(tensor).__name__}, {tensor.layout}")
        if tensor.device.type != self.device.type and tensor.numel() > 1:
            raise NotRecordableError(f"tensors on {tensor.device} and {self.device}")
        number = self._numbers[address(tensor)] = len(self.trace.held)
        self._addresses.keep(tensor.untyped_storage())
        self.trace.held.append(tensor)
        self.trace.sizes.append(tensor.untyped_storage().nbytes())
        return number

    def _release(self, number: int) -> None:
        """Release a storage, so that its memory is free once the step no longer needs it."""
        tensor = self.trace.held[number]
        empty = self._empty.get(tensor.device)
        if empty is None:
            empty = self._empty[tensor.device] = tensor.new_empty(0)
        self.trace.held[number] = empty
        self.trace.lasting.discard(number)

    def _note(self, func: Any, facts: _Facts, args: Any, kwargs: Any, out: Any, draws: bool) -> None:
        name, reads, _, written, shape_only = facts
        if name == "aten::lift_fresh" and self.known(args[0]) is None:
            self.trace.constants.add(self.place(args[0]).storage)
            return
        if name in _VIEWS_AND_CHECKS or (reads and not _by_number(name, args)):
            raise NotRecordableError(f"{name.removeprefix('aten::')} reads a value into Python")
        if not written and isinstance(out, Tensor) and not draws and self.known(out) is not None:
            return  # a view
        read: list[int] = []
        given, named = self._placed(args, read), self._placed(kwargs, read) if kwargs else {}
        writes: set[int] = set()
        for i, argument in written:
            value = given[i] if i < len(given) else named.get(argument)
            writes.update(p.storage for p in places([value]))
        if writes & self.trace.constants:
            raise NotRecordableError("a constant that the model makes is written to")
        results: list[BufferView | None] = []
        makes: list[int] = []
        numbers = self._numbers
        for storage in writes & self.trace.lasting:
            self._release(storage)
        # The result may be created once for all steps; see `liveness.constant`.
        lasting = (
            not draws and not writes and "empty" not in name and (shape_only or self.trace.lasting.issuperset(read))
        )
        for tensor in _flat(out):
            if not isinstance(tensor, Tensor):
                results.append(None)
                continue
            number = numbers.get(address(tensor))
            if number is None:
                number = self._number(tensor)
                makes.append(number)
                self.trace.lasting.add(number)
                if not lasting:
                    self._release(number)
            elif writes:
                self.trace.sizes[number] = tensor.untyped_storage().nbytes()
            results.append(_place(tensor, number))
        if draws and self._member is None:
            raise NotRecordableError(f"{name.removeprefix('aten::')} draws random numbers that are no member's")
        if not makes and not writes and any(r is not None for r in results) and not draws:
            return  # a view
        member = self._member if draws else None
        call = Instruction(func, given, named, tuple(results), tuple(makes), frozenset(writes), member, draws)
        call.read = frozenset(read)
        self.trace.calls.append(call)

    def _placed(self, tree: Any, read: list[int]) -> Any:
        """A tree of arguments with places of tensors, whose storages are added to `read`."""
        if type(tree) in LEAVES:
            return tree
        if isinstance(tree, Tensor):
            if tree.is_conj() or tree.is_neg():
                raise NotRecordableError("a lazily conjugated tensor")
            place = self.place(tree)
            read.append(place.storage)
            return place
        if isinstance(tree, list | tuple):
            made = [self._placed(v, read) for v in tree]
            return made if isinstance(tree, list) or type(tree) is not tuple else tuple(made)
        if isinstance(tree, dict):
            return {k: self._placed(v, read) for k, v in tree.items()}
        if isinstance(tree, torch.Generator):
            raise NotRecordableError("a generator of the model's own")
        return tree


def _by_number(name: str, args: Sequence[Any]) -> bool:
    """True if entries are selected by integer indices, so that their number is known, and not by a mask."""
    if name not in ("aten::index", "aten::_unsafe_index"):
        return False
    return all(i is None or i.dtype in (torch.int64, torch.int32) for i in args[1])


def _equal(a: State, b: State) -> bool:
    return all(torch.equal(v, b[k]) for k, v in a.items())


def _flat(out: Any) -> list[Any]:
    if isinstance(out, list | tuple):
        return [v for part in out for v in _flat(part)]
    return [out]


def _place(tensor: Tensor, number: int) -> BufferView:
    return BufferView(number, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), tensor.dtype)
