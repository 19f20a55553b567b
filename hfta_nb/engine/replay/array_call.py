"""A call of an array as data: what it computes, of what, and which of the three kinds it is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from hfta_nb.engine.eager.block_results import concatenate
from hfta_nb.engine.eager.blocks import graph_blocks, leaf_blocks
from hfta_nb.engine.eager.call_inputs import Inputs
from hfta_nb.engine.eager.engine import Block, Call
from hfta_nb.engine.eager.foreign_leaves import Owned, check_leaves
from hfta_nb.engine.eager.gradients import Gradients, function_call, loss_call
from hfta_nb.engine.eager.member_outcome import Computation, differentiable
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.members.identity import identity
from hfta_nb.engine.replay.signature import form


@dataclass(frozen=True, eq=False)
class CallKind:
    """A kind of calls; each has a cache of programs, and a schedule.

    Attributes:
        name: of the kind.
        title: for people.
        code: the code that calls of the kind run.
        returning: what of it returns the results.
    """

    name: str
    title: str
    code: str
    returning: str


BACKWARD = CallKind("backward", "backward", "the model or the loss", "the loss")
"""`FusedArray.backward`, which differentiates."""
FORWARD = CallKind("forward", "array(x)", "the model", "the model")
"""``array(x)`` with gradients, whose backward is the caller's."""
RESULTS = CallKind("results", "without gradients", "the model or the function", "it")
"""`FusedArray.evaluate`, and ``array(x)`` without gradients."""


class ArrayCall:
    """One call of an array.

    Args:
        state: of the array.
        kind: of the call.
        given: the arguments: of the model alone, or, with a `function`, the model's input and the target.
        function: of one member's output and the target; None for ``array(x)``.
        has_aux, scale, only: see `FusedArray.backward`.
        compute: without a `function`: the output of a module for its part of `given`.
        plain: the flattened arguments, if they are known to be tensors alone.

    Attributes:
        tensors: the arguments, if they are tensors alone.
    """

    __slots__ = ("_compute", "_inputs", "function", "given", "has_aux", "kind", "only", "scale", "state", "tensors")

    def __init__(
        self,
        state: ArrayState,
        kind: CallKind,
        given: Any,
        function: Callable[..., Any] | None = None,
        *,
        has_aux: bool = False,
        scale: Tensor | None = None,
        only: Collection[str] | None = None,
        compute: Callable[[nn.Module, Any], Any] | None = None,
        plain: Inputs | None = None,
    ) -> None:
        self.state, self.kind, self.given, self.function = state, kind, given, function
        self.has_aux, self.scale, self.only = has_aux, scale, only
        self._compute, self._inputs = compute, plain
        self.tensors: tuple[Tensor, ...] | None = None if plain is None else plain.leaves
        if function is not None and isinstance(given[0], Tensor) and isinstance(given[1], Tensor):
            self.tensors = given

    def of(self, given: Any) -> ArrayCall:
        """The same call of other arguments."""
        more = {"has_aux": self.has_aux, "scale": self.scale, "only": self.only, "compute": self._compute}
        return ArrayCall(self.state, self.kind, given, self.function, **more)  # type: ignore[arg-type]

    @property
    def inputs(self) -> Inputs:
        """The arguments, flattened.

        Raises:
            FusionError: one has another number of members.
        """
        if self._inputs is None:
            self._inputs = Inputs.of(self.given, len(self.state))
        return self._inputs

    @property
    def leaves(self) -> tuple[Any, ...]:
        """The leaves of the arguments."""
        return self.inputs.leaves if self.tensors is None else self.tensors

    @property
    def name(self) -> str:
        """The name of what is called."""
        if self.kind is BACKWARD:
            return "backward"
        return "forward" if self.function is None else "evaluate"

    @property
    def functions(self) -> tuple[Any, ...]:
        """The functions that are called beside the model."""
        return self.state.called if self.function is None else (self.function,)

    def signature(self, parameters: Sequence[nn.Parameter]) -> tuple[Any, ...]:
        """What distinguishes calls of this kind, besides the state of the array and torch's settings.

        Args:
            parameters: of the array.

        Raises:
            NotRecordableError: an input has unknown properties, or requires a gradient in a `backward`.
        """
        scale = None if self.scale is None else (self.scale.dtype, self.scale.device)
        only = None if self.only is None else tuple(self.only)
        learning = None if self.kind is RESULTS else tuple(p.requires_grad for p in parameters)
        given = form(self.given, grads=self.kind is not BACKWARD)
        return self.name, identity(self.function), given, self.has_aux, scale, only, learning

    # What is computed.

    def of_member(self) -> Call:
        """What is computed for a member, from its module and the leaves of its arguments."""
        if self.kind is BACKWARD:
            return loss_call(self.state, self.function, self.inputs, self.has_aux)  # type: ignore[arg-type]
        if self.function is not None:
            return function_call(self.state, self.function, self.inputs)
        compute, inputs = self._compute, self.inputs
        assert compute is not None  # a call has a function, or this
        return lambda module, leaves: compute(module, inputs.structure(leaves))

    def computation(self) -> Computation:
        """The same, in the form in which members are compared with their plain modules."""
        return Computation(self.of_member(), self.kind is BACKWARD, self.scale, self.only, self.functions)

    def blocks(self) -> list[Block]:
        """The blocks of members in which it runs."""
        return graph_blocks(self.state) if self.function is None else leaf_blocks(self.state)

    def eagerly(self, inputs: Inputs) -> Any:
        """The result of every member; of a `backward`, the gradients, losses and auxiliary results."""
        if self.kind is not BACKWARD:
            return self.outputs(inputs, self.blocks())
        gradients = Gradients(self.state, inputs, scale=self.scale, only=self.only)
        return gradients, gradients.of(self.of_member(), self.blocks())

    def outputs(self, inputs: Inputs, blocks: Sequence[Block]) -> Any:
        """Every member's output, computed eagerly.

        Raises:
            FusionError: it depends on a tensor that requires a gradient and belongs to no array.
        """
        state, call = self.state, self.of_member()
        own = Owned([*state.tensors.parameters(), *(v for v in inputs.leaves if isinstance(v, Tensor))])
        result = concatenate([state.engine.run(block, call, inputs) for block in blocks])
        check_leaves(differentiable(result), own, (state.skeleton, *state.functions.called))
        return result
