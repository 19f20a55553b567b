"""Comparing one member of an array with the plain module alone, the first time that the array does something.

No list of what models do is ever complete. So the first call of each kind (`array(x)`, `array.backward`, evaluation; in
train and eval mode; for inputs of other dtypes or numbers of axes) is made by the plain module as well, for one member:
outputs, gradients, buffers, parameters, attributes and random streams must be the same. What differs makes the array
run the submodule where it begins member by member, and the call is made again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hfta_nb.eager.attributes import Place, taken_off
from hfta_nb.eager.blocks import leaf_blocks
from hfta_nb.eager.closeness import close, size, tolerance_of
from hfta_nb.eager.engine import Block, Call, Inputs
from hfta_nb.eager.held import same
from hfta_nb.eager.parting import Mismatch, parting, rows_of
from hfta_nb.eager.state import ArrayState
from hfta_nb.members.tree import flatten
from hfta_nb.rules.autocast import uncast

WAYS = ("first", "always", "never")
"""When calls are verified."""

Found = dict[str, Any]
"""What a call comes to for a member, by what it is: tensors, and other values that can be compared."""

_SENSITIVE = 32.0
"""How many times as far as the plain module comes, when the last bits of its parameters change, a member may be off."""

_COMPARED = (int, float, complex, str, bytes, bool, type(None), np.ndarray, torch.Generator)


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
        take: takes a member out as the plain module.
        inputs: of the call.
        computation: what it computes.
    """

    def __init__(
        self, state: ArrayState, take: Callable[[int], nn.Module], inputs: Inputs, computation: Computation
    ) -> None:
        self.state, self.take, self.computation = state, take, computation
        # The last one: the skeleton was a copy of the first, whose attributes it has.
        self.member = len(state) - 1
        self.inputs = inputs
        self.leaves = _own_leaves(inputs.member(self.member))
        self.plain = take(self.member)
        self.streams = dict(state.generators.states[self.member])
        self.outside = _outside_streams()
        self.restore = state.snapshot()
        self.gradients: dict[str, Tensor | None] = {}
        self._nudged: Found | None = None
        self._gradients: Found | None = None
        state.engine.observed = (self.member, self.gradients) if computation.backward else None

    def prepare(self) -> None:
        """Compute gradients of `array(x)`, whose own backward comes later; before the call, which leaves no traces.

        Raises:
            Exception: the backward can't be done as the array runs now.
        """
        wanted = any(p.requires_grad for p in self.state.tensors.parameters())
        if self.computation.backward or not torch.is_grad_enabled() or not wanted:
            return
        try:
            self._gradients = self._graph()
        finally:
            self.restore()

    def check(self, result: Any) -> bool:
        """Compare.

        Args:
            result: what the call has returned.

        Returns:
            Whether the call has changed buffers or attributes, so that the next one may do something else.

        Raises:
            Mismatch: the member came to something else than alone.
        """
        state = self.state
        state.engine.observed = None
        together = self._together(result)
        try:
            alone = self._alone(self.plain)
        except Exception:  # alone it fails: there is nothing to compare with
            return False
        off = self._different(together, alone)
        if self._gradients is not None:
            off += self._different(self._gradients, {k: v for k, v in alone.items() if k.startswith("gradient")})
        if off:
            self.restore()
            path = self._parting(off)
            self.restore()
            place = f" from `{path}` on" if path else ""
            raise Mismatch(f"member {self.member} comes to another {off[0]} than alone{place}", path)
        return bool(state.buffer_arenas or state.engine.attributes.values)

    # What the call came to.

    def _together(self, result: Any) -> Found:
        if self.computation.backward:
            result = result[1]
        found = _results(result, self.member)
        found |= {f"gradient of {name}": grad for name, grad in self.gradients.items()}
        return found | self._left()

    def _left(self) -> Found:
        state, m = self.state, self.member
        found: Found = {f"buffer {k}": v[m].clone() for k, v in state.tensors.named_buffers()}
        found |= {f"buffer {k}": rows[m] for k, rows in state.engine.outgrown.items() if m in rows}
        found |= {f"parameter {k}": v.detach()[m].clone() for k, v in state.tensors.named_parameters()}
        found |= {f"stream of random numbers ({k})": v for k, v in state.generators.states[m].items()}
        attributes = state.engine.attributes.of(m)
        return found | {_attribute(place): value for place, value in attributes.items()}

    # What it comes to alone.

    def _alone(self, plain: nn.Module) -> Found:
        """The same by the plain module."""
        generators, changes = self.state.generators, dict[Place, Any]()
        leaves = _own_leaves(self.leaves)
        now, outside = list(generators.states), _outside_streams()
        generators.keep(self.member, self.streams)
        _set_outside(self.outside)
        slots = self.state.slots
        try:
            with generators.member(self.member), taken_off(plain, slots, {}, changes, deep=True, keep=True):
                found = self._computed(plain, leaves)
            streams = generators.states[self.member]
        finally:
            generators.states = now
            _set_outside(outside)
        found |= {f"buffer {k}": v.detach().clone() for k, v in plain.named_buffers() if k in slots.buffers}
        found |= {f"parameter {k}": v.detach() for k, v in plain.named_parameters()}
        found |= {f"stream of random numbers ({k})": v for k, v in streams.items()}
        return found | {_attribute(place): value for place, value in changes.items()}

    def _computed(self, plain: nn.Module, leaves: list[Any]) -> Found:
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
        return found

    def _graph(self) -> Found:
        """Gradients of `array(x)` by autograd, of a block around the member."""
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
        grads = {name: p.grad for name, p in parameters.items() if p.requires_grad}
        return {f"gradient of {name}": grad if single or grad is None else grad[row] for name, grad in grads.items()}

    # Comparing.

    def _different(self, together: Found, alone: Found) -> list[str]:
        """Everything in which they differ."""
        sizes = {"gradient": 0.0, "parameter": 0.0}
        for key, value in alone.items():
            kind = key.partition(" ")[0]
            if kind in sizes and isinstance(value, Tensor) and _finite(value):
                sizes[kind] = max(sizes[kind], size(value))
        off = [
            key
            for key, value in alone.items()
            if (key in together or self._must_have(key))
            and _comparable(value)
            and _comparable(together.get(key))
            and _finite(value)
            and not _alike(together.get(key), value, sizes.get(key.partition(" ")[0]))
        ]
        return [key for key in off if not self._sensitive(key, together.get(key), alone[key])]

    def _must_have(self, key: str) -> bool:
        """Whether what the plain module has must be there for the member; of `array(x)`, gradients come later."""
        return not key.startswith("gradient") or self.computation.backward

    def _sensitive(self, key: str, own: Any, alone: Any) -> bool:
        """Whether the plain module itself comes to something as far off when its last bits change."""
        if self._nudged is None:
            after = self.state.snapshot()
            self.restore()
            nudged = self.take(self.member)
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
            return not _alike(other, alone, None)
        if not alone.is_floating_point() or not own.shape == alone.shape == other.shape:
            return not _alike(other, alone, None)
        return size(own - alone) <= _SENSITIVE * size(other - alone)

    def _parting(self, off: list[str]) -> str | None:
        """The submodule from which on they differ."""
        state, m = self.state, self.member
        if state.settings.block_size == 1:
            return None

        def together() -> None:
            block = next(b for b in leaf_blocks(state) if b.start <= m < b.stop)
            state.engine.run(block, self.computation.call, self.inputs.watched())

        def alone() -> None:
            self._alone(plain)

        plain = self.take(m)
        skeleton, own = (dict(module.named_modules()) for module in (state.skeleton, plain))
        path = parting(skeleton, together, lambda: own, alone, rows_of(m))
        if path is None:
            owners = [_owner(key) for key in off if key.startswith(("gradient", "buffer", "parameter", "attribute"))]
            path = owners[-1] if owners else None
        return path


def _results(result: Any, member: int | None) -> Found:
    """The leaves of a result; of all members, those of one."""
    found: Found = {}
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
    return [v.detach().clone().requires_grad_(v.requires_grad) if isinstance(v, Tensor) else v for v in leaves]


def _attribute(place: Place) -> str:
    return f"attribute {'.'.join(filter(None, place))}"


def _owner(key: str) -> str:
    """The path of the submodule that a parameter, buffer or attribute is of."""
    return key.rpartition(" ")[2].rpartition(".")[0]


def _comparable(value: Any, depth: int = 0) -> bool:
    if isinstance(value, Tensor):
        return value.layout is torch.strided and not value.is_quantized
    if isinstance(value, list | tuple | dict):
        inner = value.values() if isinstance(value, dict) else value
        return depth < 4 and len(value) < 1000 and all(_comparable(v, depth + 1) for v in inner)
    return isinstance(value, _COMPARED)


def _finite(value: Any) -> bool:
    return not isinstance(value, Tensor) or not value.is_floating_point() or bool(value.isfinite().all())


def _alike(own: Any, alone: Any, largest: float | None) -> bool:
    if isinstance(alone, Tensor) and isinstance(own, Tensor):
        return close(own.detach(), alone.detach(), size(alone) if largest is None else largest)
    if own is None or alone is None:  # a gradient of zero is none
        value = alone if own is None else own
        return value is None or (isinstance(value, Tensor) and not value.any())
    if isinstance(alone, list | tuple) and isinstance(own, list | tuple):
        return len(own) == len(alone) and all(_alike(a, b, None) for a, b in zip(own, alone, strict=True))
    if isinstance(alone, dict) and isinstance(own, dict):
        return own.keys() == alone.keys() and all(_alike(own[k], alone[k], None) for k in alone)
    if isinstance(alone, float) and isinstance(own, float):
        return own == alone or abs(own - alone) <= tolerance_of(torch.float32) * max(abs(alone), 1e-3)
    return same(own, alone)


# Random streams beside torch's default ones.

Outside = tuple[Any, Any]


def _outside_streams() -> Outside:
    return random.getstate(), np.random.get_state()


def _set_outside(streams: Outside) -> None:
    random.setstate(streams[0])
    np.random.set_state(streams[1])
