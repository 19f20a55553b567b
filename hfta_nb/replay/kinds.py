"""Kinds of calls: what tells one from another, and what is known of each."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from hfta_nb.eager.engine import Inputs
from hfta_nb.eager.state import ArrayState
from hfta_nb.kernels.strategy import precision
from hfta_nb.kernels.strategy.measuring import Choice
from hfta_nb.members.per_member import PerMember
from hfta_nb.members.threads import at_hand
from hfta_nb.members.tree import Rebuild, unflatten
from hfta_nb.replay.layouts import Layout
from hfta_nb.replay.program import Program
from hfta_nb.replay.reads import Reads
from hfta_nb.replay.record import NotRecordableError, Place, Recorder, Recording

_MOST = 8
"""Kinds of calls that are kept: a batch of another size is another kind."""


S = TypeVar("S", bound="Seen")


@dataclass
class Seen:
    """What is known of one kind of call.

    Attributes:
        alive: what the kind is told by the address of, so that nothing else gets that.
        calls: so far.
        reason: why it is not replayed; empty where it is or may be yet.
        inputs: memory that stands for the inputs while replaying.
        first: the earlier of two recordings.
        reads: what the model's code can see.
        rebuild, leaves: how the results are put together; `TENSOR` stands for a tensor.
        choices: of kernels, in what is replayed.
        program: to be run, once there is one.
        layout: of images, where there was a choice.
        block_size: how many members run at once.
        threads: what it runs on.
    """

    alive: tuple[Any, ...]
    calls: int = 0
    reason: str = ""
    inputs: Inputs | None = None
    first: Recording | None = None
    reads: Reads | None = None
    rebuild: Rebuild | None = None
    leaves: list[Any] = field(default_factory=list)
    choices: Sequence[Choice] = ()
    program: Program | None = None
    layout: Layout | None = None
    block_size: int = 0
    threads: str = ""

    @property
    def ready(self) -> bool:
        """Whether it can be replayed."""
        return self.program is not None

    def drop(self) -> None:
        """Forget what was made to replay it."""
        self.first, self.reads, self.program, self.layout = None, None, None, None

    def refuse(self, reason: str, forget: bool = False) -> None:
        """Don't replay it, for this reason; with `forget`, record it anew."""
        self.drop()
        self.calls = 1
        self.reason = "" if forget else reason.splitlines()[0]

    def fill(self, leaves: Sequence[Any]) -> None:
        """Copy the leaves of the inputs to where the program reads them."""
        assert self.inputs is not None  # made before the first recording
        for room, value in zip(self.inputs.leaves, leaves, strict=True):
            if isinstance(room, Tensor):
                room.copy_(value.detach() if value.requires_grad else value)

    def told(self, results: Sequence[Tensor]) -> Any:
        """The results as the call returns them."""
        assert self.rebuild is not None  # known since the recording
        left = iter(results)
        return unflatten(self.rebuild, [next(left) if v is TENSOR else v for v in self.leaves])

    def agrees(self, recording: Recording, reads: Reads, told: list[Any]) -> bool:
        """Keep the first recording; of the second whether it is like the first."""
        if recording.constants and reads.makes_tensors:
            self.refuse("a tensor is made of numbers that may be values of others")
            return False
        if self.first is None:
            recording.forget_made()
            self.first, self.reads, self.leaves = recording, reads, told
            return False
        if not self.first.like(recording) or told != self.leaves:
            self.refuse("two calls are not alike")
            return False
        self.first = None
        for i in recording.constants:  # what the model has made may go on to the caller
            recording.held[i] = recording.held[i].clone()
        return True


class Kinds(Generic[S]):
    """What is known, by kind of call; the oldest kind is forgotten for a new one.

    Attributes:
        closed: why no kind of call was replayed when last asked; empty where some may be.
    """

    def __init__(self) -> None:
        self._seen: dict[Any, S] = {}
        self.closed = ""

    def __iter__(self) -> Iterator[S]:
        return iter(self._seen.values())

    def clear(self) -> None:
        """Forget all."""
        self.keep(lambda _: False)

    def keep(self, wanted: Callable[[S], bool]) -> None:
        """Forget the others."""
        for key, seen in list(self._seen.items()):
            if not wanted(seen):
                seen.drop()
                del self._seen[key]

    def of(self, key: Any, new: Callable[[], S]) -> S:
        """The one of this key; what `new` makes if there is none yet."""
        seen = self._seen.get(key)
        if seen is None:
            while len(self._seen) >= _MOST:
                self._seen.pop(next(iter(self._seen))).drop()
            seen = self._seen[key] = new()
        return seen

    def choices(self) -> list[Choice]:
        """Of kernels that can be computed in several ways, in what is replayed."""
        return [c for s in self._seen.values() if s.ready for c in s.choices]

    def layouts(self) -> list[str]:
        """Of images in what is replayed, each once."""
        return list(dict.fromkeys(str(s.layout) for s in self._seen.values() if s.ready and s.layout is not None))

    def open(self, state: ArrayState) -> bool:
        """Whether calls of this array may be replayed, as things are."""
        self.closed = _closed(state)
        return state.capture and not (self.closed or state.pending or watched())

    def notes(self) -> list[str]:
        """How calls run, each way once."""
        ways = [f"not replayed: {self.closed}"] if self.closed else []
        ways += ["replayed from a recording" for s in self._seen.values() if s.ready]
        ways += [f"not replayed: {s.reason}" for s in self._seen.values() if s.reason]
        return list(dict.fromkeys(ways))


def _closed(state: ArrayState) -> str:
    """What of the array itself keeps its calls from being replayed."""
    if state.settings.private:
        return "the model writes into tensors that members share"
    return "the model sets attributes on itself" if state.engine.attributes.values else ""


def reads_of(state: ArrayState, functions: tuple[Any, ...]) -> Reads:
    """What the code of the model, or of each architecture among its members, and these functions can read.

    Raises:
        UnclearError: with what can't be seen through.
    """
    across = state.engine.across
    if across is None:
        return Reads(state.skeleton, functions)
    set_anew: dict[int, tuple[str, ...]] = {}
    for site in across.sites:
        set_anew[id(site.module)] = (*set_anew.get(id(site.module), ()), site.name)
    values = tuple(value for site in across.sites for value in site.values.values())
    return Reads(state.skeleton, (*functions, *across.templates, *values), set_anew)


def state_of(state: ArrayState) -> tuple[Any, ...]:
    """What makes calls with equal inputs different kinds."""
    how = state.settings
    side_by_side = at_hand() if how.threads == "blocks" else 0
    float32 = precision.float32(state.generators.device)
    training = state.skeleton.training
    return how.block_size, how.threads, side_by_side, how.fast_rng, training, float32, settings()


def rooms_for(inputs: Inputs) -> Inputs:
    """Inputs of the same form in memory that stays."""
    return replace(inputs, leaves=tuple(room_like(v) for v in inputs.leaves))


def outputs_of(recorder: Recorder, leaves: Sequence[Any], what: str) -> tuple[list[Place], list[Any], str]:
    """Where the tensors among the results lie, the results with `TENSOR` for these, and what is wrong with them."""
    outputs: list[Place] = []
    reason = ""
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            try:
                outputs.append(recorder.place(leaf))
            except NotRecordableError as error:
                reason = reason or str(error)
        elif not (leaf is None or isinstance(leaf, bool | int | float | str)):
            reason = reason or f"{what} returns a {type(leaf).__name__}"
    return outputs, [TENSOR if isinstance(v, Tensor) else v for v in leaves], reason


TENSOR = object()


def identity(function: Any) -> Any:
    """The same for functions that are the same but for having been made twice, as a lambda in a loop is."""
    if isinstance(function, types.FunctionType) and not function.__kwdefaults__:
        cells = tuple(id(c.cell_contents) for c in function.__closure__ or ())
        return id(function.__code__), id(function.__globals__), cells, tuple(map(id, function.__defaults__ or ()))
    if isinstance(function, types.MethodType):
        return id(function.__func__), id(function.__self__)
    return id(function)


def form(tree: Any, *, grads: bool = False) -> Any:
    """The structure of inputs, and of tensors what kernels and code depend on.

    Args:
        tree: the inputs.
        grads: a tensor may require a gradient.

    Raises:
        NotRecordableError: there is something among them on which more may depend.
    """
    if isinstance(tree, Tensor):
        wants = tree.requires_grad
        plain = type(tree) in (Tensor, nn.Parameter) and tree.layout is torch.strided
        # What was made in inference mode has no count of its changes, and can't be saved for a backward.
        if not plain or (wants and not grads) or (tree.is_inference() and torch.is_grad_enabled()):
            raise NotRecordableError("an input of another sort")
        return tree.shape, tree.stride(), tree.dtype, tree.device, wants
    if type(tree) in (tuple, list) or (isinstance(tree, tuple) and hasattr(tree, "_fields")):
        return type(tree), tuple(form(v, grads=grads) for v in tree)
    if type(tree) is dict:
        return dict, tuple((k, form(v, grads=grads)) for k, v in tree.items())
    if isinstance(tree, PerMember):
        return PerMember, form(tree.value, grads=grads)
    if tree is None or isinstance(tree, bool | int | float | str):
        return type(tree), tree
    raise NotRecordableError("an input of another sort")


def room_like(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    room = torch.empty_like(value, requires_grad=False)
    return room if room.stride() == value.stride() else torch.empty(value.shape, dtype=value.dtype, device=value.device)


def watched() -> bool:
    """Whether somebody looks on who would miss something: a mode around the call, or autograd's anomaly mode."""
    return bool(
        torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or torch.is_anomaly_enabled()
        or torch._C._functorch.maybe_current_level()
        or torch.autograd.forward_ad._current_level >= 0
        or torch._C._autograd._top_saved_tensors_default_hooks(True)
    )


def settings() -> tuple[Any, ...]:
    """Torch's settings on which kernels and ways through a model depend."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch._C._is_any_autocast_enabled()
        and tuple((torch.is_autocast_enabled(k), torch.get_autocast_dtype(k)) for k in ("cpu", "cuda")),
        torch._C._get_deterministic_algorithms(),  # what torch's own properties ask, in a tenth of the time
        torch._C._get_mkldnn_enabled(),
        precision.get(),
        torch._C._get_cudnn_enabled(),
    )
