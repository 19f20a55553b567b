"""Comparing one member of an array with the plain module alone, the first time that the array does something.

No list of what models do is ever complete. So the first call of each kind (`array(x)`, `array.backward`, evaluation; in
train and eval mode; for inputs of other dtypes or numbers of axes) is made by the plain module as well, for one member:
outputs, gradients, buffers, parameters, attributes and random streams must be the same. What differs makes the array
run the submodule where it begins member by member, and the call is made again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hfta_nb.eager.attributes import AttributeKey, tracked_attributes
from hfta_nb.eager.autograd_nodes import nodes, own_function
from hfta_nb.eager.blocks import leaf_blocks
from hfta_nb.eager.compare_outcomes import Outcome, alike, differences, words
from hfta_nb.eager.divergence import Mismatch, first_divergence, rows_of
from hfta_nb.eager.engine import Block, Call, Inputs
from hfta_nb.eager.plain_copies import plain_member
from hfta_nb.eager.state import ArrayState
from hfta_nb.eager.tolerance import largest_value
from hfta_nb.members import process_streams
from hfta_nb.members.tree import flatten
from hfta_nb.rules.autocast import uncast

VERIFY_MODES = ("first", "always", "never")
"""When calls are verified."""

_INPUT = "gradient of input "
_FEW, _LONG_S = 3, 3e-3
"""Blocks of more members whose plain module takes longer than this are not differentiated as a whole."""
_SENSITIVE = 32.0
"""How many times as far as the plain module comes, when the last bits of its parameters change, a member may be off."""


@dataclass(frozen=True)
class Computation:
    """What a call of an array computes.

    Attributes:
        call: for a member, from the module and the leaves of its inputs: the output, or with `backward` the loss, an
            auxiliary result beside it.
        backward: whether the loss is differentiated.
        scale: ``[M]``, times which losses are differentiated.
        only: names of the parameters by which they are; None for all.
    """

    call: Call
    backward: bool = False
    scale: Tensor | None = None
    only: Collection[str] | None = None


class Verification:
    """One call that is verified; made before the call.

    Args:
        state: of the array whose call it is.
        restore: puts back what the call changes.
        inputs: of the call.
        computation: what it computes.
    """

    def __init__(
        self, state: ArrayState, restore: Callable[[], None], inputs: Inputs, computation: Computation
    ) -> None:
        self.state, self.restore, self.computation = state, restore, computation
        # The last one: the skeleton was a copy of the first, whose attributes it has.
        self.member = len(state) - 1
        self.inputs = inputs
        self.leaves = _own_leaves(inputs.member(self.member))
        self.plain = plain_member(state, self.member)
        self.streams = dict(state.generators.states[self.member])
        self.process_state = process_streams.stream_states()
        self.gradients: dict[str, Tensor | None] = {}
        self._parameters = [arena.data[self.member].clone() for arena in state.arenas]
        self._before = [arena.data[self.member].clone() for arena in state.buffer_arenas]
        self._nudged: Outcome | None = None
        self._alone_s = 0.0
        wanted = any(p.requires_grad for p in state.tensors.parameters()) or bool(inputs.grad_leaves())
        self._learns = torch.is_grad_enabled() and wanted
        state.engine.observed = (self.member, self.gradients) if computation.backward else None
        state.engine.blocks_run = [] if self._learns and not computation.backward else None

    def over(self) -> None:
        """Let the array be observed no more."""
        self.state.engine.observed = self.state.engine.blocks_run = None

    def check(self, result: Any) -> bool:
        """Compare.

        Args:
            result: what the call has returned.

        Returns:
            Whether the call has changed buffers or attributes, so that the next one may do something else.

        Raises:
            Mismatch: the member came to something else than alone.
            Exception: the backward of what the call returned can't be done as the array runs now.
        """
        state = self.state
        ran = state.engine.blocks_run
        self.over()
        together = self._together(result)
        changed = self._changed()
        begin = time.perf_counter()
        try:
            alone = self._alone(self.plain)
        except Exception:  # alone it fails: there is nothing to compare with
            return False
        self._alone_s = time.perf_counter() - begin
        if ran:
            together |= self._differentiated(ran)
        if self._parameters_kept():
            alone = {k: v for k, v in alone.items() if not k.startswith("parameter ")}
        off = self._different(together, alone)
        if off:
            self.restore()
            path = self._first_divergence(off)
            self.restore()
            place = f" from `{path}` on" if path else ""
            told = words(off[0], together.get(off[0]), alone.get(off[0]))
            far = f" ({told})" if told else ""
            raise Mismatch(f"member {self.member} comes to another {off[0]} than alone{place}{far}", path)
        return changed

    def _changed(self) -> bool:
        """Whether the call has changed what the member holds."""
        rows = [arena.data[self.member] for arena in self.state.buffer_arenas]
        same = len(rows) == len(self._before) and all(map(torch.equal, rows, self._before))
        return not same or bool(self.state.engine.attributes.values or self.state.engine.resized_buffers)

    # What the call came to.

    def _together(self, result: Any) -> Outcome:
        if self.computation.backward:
            result = result[1]
        found = _results(result, self.member)
        found |= {f"gradient of {name}": grad for name, grad in self.gradients.items()}
        return found | self._left()

    def _left(self) -> Outcome:
        state, m = self.state, self.member
        found: Outcome = {}
        for kind, arenas in (("parameter", state.arenas), ("buffer", state.buffer_arenas)):
            for arena in arenas:
                row = arena.data[m].clone()
                for span in arena.spans:
                    found[f"{kind} {span.name}"] = row[span.start : span.stop].view(span.shape)
        found |= {f"buffer {k}": rows[m] for k, rows in state.engine.resized_buffers.items() if m in rows}
        found |= {f"stream of random numbers ({k})": v for k, v in state.generators.states[m].items()}
        attributes = state.engine.attributes.of(m)
        return found | {_attribute(place): value for place, value in attributes.items()}

    # What it comes to alone.

    def _alone(self, plain: nn.Module) -> Outcome:
        """The same by the plain module."""
        generators, changes = self.state.generators, dict[AttributeKey, Any]()
        leaves = _own_leaves(self.leaves)
        now, now_process = list(generators.states), process_streams.stream_states()
        generators.keep(self.member, self.streams)
        process_streams.set_stream_states(self.process_state)
        slots = self.state.slots
        try:
            with generators.member(self.member), tracked_attributes(plain, slots, {}, changes, deep=True, keep=True):
                found = self._computed(plain, leaves)
            streams = generators.states[self.member]
        finally:
            generators.states = now
            process_streams.set_stream_states(now_process)
        found |= {f"buffer {k}": v.detach() for k, v in plain.named_buffers() if k in slots.buffers}
        found |= {f"parameter {k}": v.detach() for k, v in plain.named_parameters()}
        found |= {f"stream of random numbers ({k})": v for k, v in streams.items()}
        return found | {_attribute(place): value for place, value in changes.items()}

    def _parameters_kept(self) -> bool:
        """Whether neither of the two has written to a parameter, as few models do."""
        before: dict[str, Tensor] = {}
        for arena, row in zip(self.state.arenas, self._parameters, strict=True):
            if not torch.equal(arena.data[self.member], row):
                return False
            before |= {span.name: row[span.start : span.stop] for span in arena.spans}
        own = {name: p.detach().flatten() for name, p in self.plain.named_parameters()}
        return own.keys() == before.keys() and all(torch.equal(own[name], before[name]) for name in own)

    def _computed(self, plain: nn.Module, leaves: list[Any]) -> Outcome:
        computation = self.computation
        result = computation.call(plain, leaves)
        found = _results(result, None)
        outputs = _differentiable(result)
        if computation.backward:
            loss = result[0]
            scale = computation.scale
            total = loss if scale is None else loss * scale[self.member].to(loss)
        elif torch.is_grad_enabled() and outputs:
            total = _weighed(outputs)
        else:
            return found
        with uncast():
            torch.autograd.backward(total)
        for name, p in plain.named_parameters():
            if p.requires_grad and (computation.only is None or name in computation.only):
                found[f"gradient of {name}"] = p.grad
        given = {id(v): v for v in leaves if isinstance(v, Tensor) and v.requires_grad}
        found |= {_input(i): v.grad for i, v in enumerate(given.values())}
        return found

    def _differentiated(self, ran: Sequence[tuple[Block, Inputs, Any]]) -> Outcome:
        """Gradients of what the member came to; the caller's own backward comes later.

        Args:
            ran: the blocks that were run, with their inputs and what they gave.
        """
        found = [one for one in ran if one[0].start <= self.member < one[0].stop]
        if not found:
            return {}
        block, inputs, result = found[-1]
        row = self.member - block.start
        outputs = [v[row] for v in _differentiable(result)]
        if not outputs:
            return {}
        total = _weighed(outputs)
        # A backward through all members of a block takes longer than a call of two, where kernels take the time.
        many = block.stop - block.start > _FEW and self._alone_s > _LONG_S
        if many or any(map(own_function, nodes([total]))):
            return self._again()
        names = [name for name, p in block.parameters.items() if p.requires_grad]
        with uncast():
            wanted = [*(block.parameters[name] for name in names), *inputs.grad_leaves()]
            grads = torch.autograd.grad(total, wanted, retain_graph=True, allow_unused=True)
        return self._noted(names, grads, inputs, None if block.single else row)

    def _noted(self, names: Sequence[str], grads: Sequence[Tensor | None], inputs: Inputs, row: int | None) -> Outcome:
        own = [g if row is None or g is None else g[row] for g in grads[: len(names)]]
        found: Outcome = {f"gradient of {name}": g for name, g in zip(names, own, strict=True)}
        given = inputs.of_member(grads[len(names) :], self.member)
        return found | {_input(i): grad for i, grad in enumerate(given)}

    def _again(self) -> Outcome:
        """The same by a call of its own: custom functions may change what the module holds in their backward."""
        after = self.state.snapshot()
        self.restore()
        try:
            return self._graph()
        finally:
            after()

    def _graph(self) -> Outcome:
        """Gradients by autograd, of a block around the member whose tensors are its own."""
        state, m = self.state, self.member
        single = state.settings.block_size == 1
        start = m if single else max(0, m - 1)

        def part(tensor: Tensor) -> Tensor:
            rows = tensor.detach()[m] if single else tensor.detach()[start : m + 1]
            return rows.clone().requires_grad_(tensor.requires_grad)

        parameters = {name: part(p) for name, p in state.tensors.named_parameters()}
        buffers = {name: part(b) for name, b in state.tensors.named_buffers()}
        inputs = Inputs(tuple(_own_leaves(self.inputs.leaves)), self.inputs.per_member, self.inputs.rebuild, True)
        result = state.engine.run(Block(start, m + 1, single, parameters, buffers), self.computation.call, inputs)
        row = 0 if single else m - start
        if not _differentiable(result):
            return {}
        total = _weighed([v[row] for v in _differentiable(result)])
        with uncast():
            torch.autograd.backward(total)
        names = [name for name, p in parameters.items() if p.requires_grad]
        grads = [parameters[name].grad for name in names] + [v.grad for v in inputs.grad_leaves()]
        return self._noted(names, grads, inputs, None if single else row)

    # Comparing.

    def _different(self, together: Outcome, alone: Outcome) -> list[str]:
        """Everything in which they differ."""
        off = differences(together, alone, self._must_have)
        return [key for key in off if not self._sensitive(key, together.get(key), alone[key])]

    def _must_have(self, key: str) -> bool:
        """Whether what the plain module has must be there for the member; of `array(x)`, gradients come later."""
        return not key.startswith("gradient") or (self.computation.backward and not key.startswith(_INPUT))

    def _sensitive(self, key: str, own: Any, alone: Any) -> bool:
        """Whether the plain module itself comes to something as far off when its last bits change."""
        if self._nudged is None:
            after = self.state.snapshot()
            self.restore()
            nudged = plain_member(self.state, self.member)
            after()
            generator = torch.Generator().manual_seed(0)
            with torch.no_grad():
                for p in nudged.parameters():
                    if p.is_floating_point():
                        signs = torch.randint(0, 2, p.shape, generator=generator).to(p) * 2 - 1
                        p.mul_(1 + torch.finfo(p.dtype).eps * signs)
            self._nudged = self._alone(nudged)
        other = self._nudged.get(key)
        if not (isinstance(own, Tensor) and isinstance(alone, Tensor) and isinstance(other, Tensor)):
            return not alike(other, alone, None)
        if not alone.is_floating_point() or not own.shape == alone.shape == other.shape:
            return not alike(other, alone, None)
        return largest_value(own - alone) <= _SENSITIVE * largest_value(other - alone)

    def _first_divergence(self, off: list[str]) -> str | None:
        """The submodule from which on they differ."""
        state, m = self.state, self.member
        if state.settings.block_size == 1:
            return None

        def together() -> None:
            block = next(b for b in leaf_blocks(state) if b.start <= m < b.stop)
            state.engine.run(block, self.computation.call, self.inputs.watched())

        def alone() -> None:
            self._alone(plain)

        plain = plain_member(state, m)
        skeleton, own = (dict(module.named_modules()) for module in (state.skeleton, plain))
        path = first_divergence(skeleton, together, lambda: own, alone, rows_of(m))
        if path is None:
            kinds = ("gradient", "buffer", "parameter", "attribute")
            owners = [_owner(key) for key in off if key.startswith(kinds) and not key.startswith(_INPUT)]
            path = owners[-1] if owners else None
        return path


def _results(result: Any, member: int | None) -> Outcome:
    """The leaves of a result; of all members, those of one."""
    found: Outcome = {}
    for i, leaf in enumerate(flatten(result)[0]):
        if isinstance(leaf, Tensor):
            leaf = (leaf if member is None else leaf[member]).detach().clone()
        found[f"result {i}"] = leaf
    return found


def _differentiable(result: Any) -> list[Tensor]:
    return [v for v in flatten(result)[0] if isinstance(v, Tensor) and v.requires_grad]


def _weighed(outputs: list[Tensor]) -> Tensor:
    """One number whose gradient says something of every entry of the outputs."""
    generator = torch.Generator().manual_seed(0)
    terms = []
    for v in outputs:
        weights = torch.randn(v.shape, generator=generator, dtype=torch.float32).to(v.device, v.dtype)
        terms.append((v * weights).sum().abs() if v.is_complex() else (v * weights).sum())
    return torch.stack([t.to(terms[0].dtype) for t in terms]).sum()


def _own_leaves(leaves: Any) -> list[Any]:
    """Copies of the tensors; of one that is there twice, one."""
    made: dict[int, Tensor] = {}
    for v in leaves:
        if isinstance(v, Tensor) and id(v) not in made:
            made[id(v)] = v.detach().clone().requires_grad_(v.requires_grad)
    return [made[id(v)] if isinstance(v, Tensor) else v for v in leaves]


def _input(number: int) -> str:
    """The key of the gradient of an input."""
    return f"{_INPUT}{number}"


def _attribute(place: AttributeKey) -> str:
    return f"attribute {'.'.join(filter(None, place))}"


def _owner(key: str) -> str:
    """The path of the submodule that a parameter, buffer or attribute is of."""
    return key.rpartition(" ")[2].rpartition(".")[0]
