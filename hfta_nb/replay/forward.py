"""`array(x)` with gradients, recorded with its backward and replayed: the loss between them is the caller's own.

Two calls run as ever but for being recorded; then a gradient of random numbers is sent back through what the model has
computed, to record the backward too. The graph that the caller gets is autograd's and as it would be without.
Replayed, a call is one node of the graph: its forward runs the first half of the program, its backward the second.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hfta_nb.eager.blocks import graph_blocks
from hfta_nb.eager.engine import Inputs
from hfta_nb.eager.state import ArrayState
from hfta_nb.kernels.cuda_graphs import capturing
from hfta_nb.kernels.strategy.measuring import Choice
from hfta_nb.members.tree import Rebuild
from hfta_nb.replay.check import Before, failure
from hfta_nb.replay.deferred import Watched, settled
from hfta_nb.replay.halves_layout import lay
from hfta_nb.replay.kinds import Kinds, form, reads_of, settings, state_of
from hfta_nb.replay.node import Run, Ticket, attached
from hfta_nb.replay.postponed import Postponed, Whole
from hfta_nb.replay.reads import UnclearError
from hfta_nb.replay.record import NotRecordableError
from hfta_nb.replay.recorded import RecordedForward
from hfta_nb.replay.seen_forward import SeenForward

_SETTINGS = 6
"""The place of torch's settings in what `state_of` tells."""


class CapturedForwards:
    """The forwards of an array with gradients, by kind.

    Attributes:
        at_once: record the first call of a kind already, as such calls were made before.
        waiting: record and replay nothing for now.
        following: calls may be put off.
        last: what the last call that was replayed looked like, and its kind; None where that can't be told quickly.
        postponed: calls that are to be made up for before anything else.
        whole: runs calls that were put off as one step; of an array whose calls are.
    """

    whole: Whole

    def __init__(self, state: ArrayState) -> None:
        self.state = state
        self.at_once, self.waiting, self.following = False, False, True
        self._kinds: Kinds[SeenForward] = Kinds()
        self._parameters: list[nn.Parameter] = []
        self._names: dict[int, tuple[str, nn.Parameter]] = {}
        self._outstanding: weakref.ref[Ticket] | None = None
        self.last: tuple[list[Any], SeenForward] | None = None
        self.postponed: Postponed | None = None

    def clear(self) -> None:
        """Forget all; wanted after the array's tensors have moved, or it runs in another way."""
        self._kinds.clear()
        self._parameters, self._names, self.last = [], {}, None

    def keep(self, block_size: int, threads: str) -> None:
        """Forget what is of other block sizes, or runs on other threads."""
        self.last = None
        self._kinds.keep(lambda seen: (seen.block_size, seen.threads) == (block_size, threads))

    def choices(self) -> list[Choice]:
        """Of kernels that can be computed in several ways, in what is replayed."""
        return self._kinds.choices()

    def layouts(self) -> list[str]:
        """Of images in what is replayed, each once."""
        return self._kinds.layouts()

    def notes(self) -> list[str]:
        """How calls run, each way once."""
        return self._kinds.notes()

    def postpones(self) -> bool:
        """Whether calls of some kind are put off until the backward."""
        return any(seen.habit.sure for seen in self._kinds)

    def learns(self, inputs: Inputs) -> bool:
        """Whether a gradient may be asked for."""
        if not self._parameters:
            self._parameters = list(self.state.tensors.parameters())
        wanted = any(p.requires_grad for p in self._parameters) or bool(inputs.grad_leaves())
        return wanted and torch.is_grad_enabled()

    def learning(self) -> bool:
        """Whether gradients of parameters may be asked for."""
        if not self._parameters:
            self._parameters = list(self.state.tensors.parameters())
        return torch.is_grad_enabled() and any(p.requires_grad for p in self._parameters)

    def names_of(self, inputs: Sequence[Tensor]) -> tuple[str, ...]:
        """Of parameters that learn; none where one of the tensors is anything else, or is there twice."""
        if not self._names:
            self._names = {id(p): (name, p) for name, p in self.state.tensors.named_parameters()}
        found = [self._names.get(id(v)) for v in inputs]
        names = tuple(one[0] for one in found if one is not None and one[1].requires_grad)
        return names if len(set(names)) == len(found) else ()

    def find(self, given: Any) -> SeenForward | None:
        """What is known of this kind of call; None where it is to run as ever."""
        if not self._kinds.open(self.state) or self.waiting:
            return None
        try:
            wants = tuple(p.requires_grad for p in self._parameters)
            key = form(given, grads=True), *state_of(self.state), wants
        except NotRecordableError:
            return None
        how = self.state.settings
        seen = self._kinds.of(key, lambda: SeenForward((), block_size=how.block_size, threads=how.threads))
        return None if seen.reason else seen

    # Replaying.

    def again(
        self, tensors: Sequence[Tensor], per_member: tuple[bool, ...], rebuild: Rebuild, run: Run, follow: bool = False
    ) -> Any:
        """The output of a call like the last one that was replayed, found out in few steps; None where it is another.

        Args:
            tensors: the inputs, none of which is marked as per member.
            per_member: which of them are.
            rebuild: from these to the arguments.
            run: computes the outputs as ever.
            follow: see what the caller does with the output, and put the call off if that is known.
        """
        settled(tensors)
        last = self.last
        if last is None or self.waiting or not torch.is_grad_enabled() or not self._kinds.open(self.state):
            return None
        like = self._like(tensors)
        if like != last[0] or last[1].made is None:
            return None
        found = self.output(last[1], Inputs(tuple(tensors), per_member, rebuild), run, follow, like[_SETTINGS])
        return None if found is None else found[0]

    def output(
        self, seen: SeenForward, inputs: Inputs, run: Run, follow: bool, how: tuple[Any, ...] | None = None
    ) -> tuple[Any] | None:
        """The output in a tuple, replayed or put off; None if this call must run as ever.

        Args:
            seen: the kind of call.
            inputs: of the call.
            run: computes the outputs as ever.
            follow: see what the caller does with the output, and put the call off if that is known.
            how: torch's settings, where they are known.
        """
        follow = follow and self.following and seen.made is not None and seen.made.postponable and not seen.habit.over
        if follow and seen.habit.sure and not self.outstanding() and seen.habit.holds(seen):
            return (Postponed(self, seen, inputs, run, how or settings()).output(),)
        replayed = self.replay(seen, inputs, run)
        if replayed is None or not follow:
            return replayed
        return (Watched(self, seen.habit).output(replayed[0]),)

    def flush(self) -> None:
        """Make up for calls that were put off."""
        if self.postponed is not None:
            self.postponed.settle() if self.postponed.wanted() else self.postponed.discard()

    def outstanding(self) -> bool:
        """Whether a backward is to come that needs what lies in memory."""
        before = None if self._outstanding is None else self._outstanding()
        return before is not None and not before.spent

    def _holds(self, seen: SeenForward) -> bool:
        """Whether the model is as it was recorded; else the kind is forgotten."""
        if seen.reads is not None and seen.reads.hold():
            return True
        seen.refuse("the model has changed since it was recorded", forget=True)
        self.state.verified.clear()
        return False

    def remember(self, seen: SeenForward, tensors: Sequence[Tensor]) -> None:
        """Note that a call with these inputs was replayed as of this kind, and gave one tensor."""
        alone = (
            seen.made is not None and seen.made.alone and len(seen.inputs.leaves if seen.inputs else ()) == len(tensors)
        )
        self.last = (self._like(tensors), seen) if alone else None

    def _like(self, tensors: Sequence[Tensor]) -> list[Any]:
        """What tells kinds of calls apart, where all inputs are tensors."""
        found: list[Any] = [*state_of(self.state), *[p.requires_grad for p in self._parameters]]
        for t in tensors:
            found += (type(t), t.shape, t.stride(), t.dtype, t.device, t.requires_grad, t.layout, t.is_inference())
        return found

    def replay(self, seen: SeenForward, inputs: Inputs, run: Run) -> tuple[Any] | None:
        """The outputs in a tuple; None if this call must run as ever."""
        made = seen.made
        if made is None:
            return None
        if self.outstanding():
            return None
        if not self._holds(seen):
            return None
        seen.fill(inputs.leaves)
        start = Before(self.state) if made.changes else None
        try:
            outputs = made.halves.forward()
        except BaseException as error:
            if capturing(self.state.generators.device):
                raise
            if start is not None:
                start.put_back()
            if not isinstance(error, Exception):
                raise
            seen.refuse(failure(error))
            return None
        ticket = Ticket(self.state, seen, inputs, run, start)
        self._outstanding = weakref.ref(ticket)
        roots = (*made.learning, *inputs.grad_leaves())
        if made.alone:
            return attached(ticket, (outputs[0],), *roots)  # type: ignore[return-value]
        kinds = made.differentiable
        left = iter(attached(ticket, tuple(t for t, d in zip(outputs, kinds, strict=True) if d), *roots))
        return (seen.told([next(left) if d else t for t, d in zip(outputs, kinds, strict=True)]),)

    # Recording.

    def recorder(self, seen: SeenForward, run: Run) -> Callable[[Inputs], Any] | None:
        """What does as `run` does and records it; None where this call is not to be recorded."""
        seen.calls += 1
        if (seen.calls == 1 and not self.at_once) or seen.ready:
            return None

        def recorded(inputs: Inputs) -> Any:
            if not inputs.copied:  # else the array has just found another way to run
                try:
                    reads = reads_of(self.state, ())
                except UnclearError as error:
                    seen.refuse(str(error))
                else:
                    call = RecordedForward(self.state, seen, inputs, run)
                    result = call.result(reads)
                    lay(call)
                    return result
            return run(inputs, graph_blocks(self.state))

        return recorded
