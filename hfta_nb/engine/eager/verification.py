"""Compares members of an array with their plain modules, the first time that the array makes a kind of call.

One member is compared; of members of unlike architecture, one of each. A kind of call is `array(x)`, `array.backward`
or an evaluation, in train or eval mode, for inputs of certain dtypes and shapes. The plain module makes the same call
alone: outputs, gradients, buffers, parameters, attributes and random streams must be equal. If something differs, the
submodule where the difference begins runs member by member from then on (at true sizes, if members are padded), and
the call is repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isnan
from typing import Any

import torch
from torch import Tensor, nn

from hfta_nb.engine.comparison import Difference
from hfta_nb.engine.eager.blocks import leaf_blocks
from hfta_nb.engine.eager.call_inputs import Inputs
from hfta_nb.engine.eager.caller_backward import CallerBackward, Repeat, warn_of_failure, without_effects
from hfta_nb.engine.eager.compare_outcomes import differences, mismatch
from hfta_nb.engine.eager.divergence import first_divergence, rows_of
from hfta_nb.engine.eager.frozen_in_forward import learning_kept
from hfta_nb.engine.eager.functions_in_backward import BackwardChangeError
from hfta_nb.engine.eager.member_gradients import MemberGradients
from hfta_nb.engine.eager.member_outcome import (
    BUFFER,
    INPUT_GRADIENT,
    PARAMETER,
    Computation,
    MemberOutcome,
    attribute_outcome,
    differentiable,
    result_outcome,
    stream_outcome,
    submodule_of,
)
from hfta_nb.engine.eager.plain_copies import plain_member
from hfta_nb.engine.eager.plain_run import PlainRun
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.eager.user_warnings import warn
from hfta_nb.errors import out_of_memory

VERIFY_MODES = ("first", "always", "never")
"""When calls are verified."""


def compared_members(state: ArrayState) -> list[int]:
    """The members that are compared: one, or one of each architecture; members that have diverged are left out."""
    architectures = state.engine.architectures
    if architectures is None:
        return [len(state) - 1]  # the skeleton is a copy of the first one and has its attributes
    found = (next((i for i in reversed(group) if _finite(state, i)), None) for group in architectures.groups())
    return [member for member in found if member is not None]


def _finite(state: ArrayState, member: int) -> bool:
    return all(bool(p.isfinite().all()) for p in state.parameters_of(member).values())


class Verification:
    """The verification of one call; created before the call.

    Args:
        state: of the array.
        restore: puts back what the call changes.
        inputs: of the call.
        computation: what the call computes.
        later: gradients may be compared in the caller's backward; see `CallerBackward`.
    """

    def __init__(
        self,
        state: ArrayState,
        restore: Callable[[], None],
        inputs: Inputs,
        computation: Computation,
        later: bool = False,
    ) -> None:
        self.state = state
        chosen = compared_members(state)
        later = later and len(chosen) == 1
        self._members = [MemberVerification(state, restore, inputs, computation, later, member) for member in chosen]
        state.engine.observed = {one.member: one.gradients for one in self._members} if computation.backward else {}

    @property
    def later(self) -> bool:
        """After `check`, whether gradients have to be compared in the caller's backward."""
        return any(one.later for one in self._members)

    def over(self) -> None:
        """Stop observing the array."""
        self.state.engine.observed = {}

    def check(self, result: Any) -> bool:
        """Compare the members' outcomes with those of their plain modules.

        Args:
            result: what the call has returned.

        Returns:
            True if the call has changed buffers or attributes: then the next call may take another path.

        Raises:
            Mismatch: a member's outcome differs from the plain module's.
            Exception: the backward of the result fails with the array's current settings.
        """
        self.over()
        changed = [one.check(result) for one in self._members]
        return any(changed)

    def leave(self) -> None:
        """Do without the comparison of gradients in the caller's backward."""
        for one in self._members:
            one.later = False

    def in_callers_backward(self, result: Any, repeat: Repeat, compared: Callable[[], None]) -> Any:
        """The result as the caller gets it, whose backward compares gradients; see `CallerBackward`."""
        (one,) = self._members
        return CallerBackward(repeat, one.member, result, one.plain_run, compared).attached(result)


class MemberVerification:
    """The verification of one member's part of a call.

    Args:
        state, restore, inputs, computation, later: see `Verification`.
        member: its number.

    Attributes:
        later: after `check`, whether gradients have to be compared in the caller's backward.
        gradients: of the member's parameters and inputs; filled by the call if it differentiates.
    """

    def __init__(
        self,
        state: ArrayState,
        restore: Callable[[], None],
        inputs: Inputs,
        computation: Computation,
        later: bool,
        member: int,
    ) -> None:
        self.state, self.restore, self.computation, self.member = state, restore, computation, member
        self.inputs = inputs
        self.plain_run = PlainRun(state, self.member, inputs, computation)
        self.gradients: dict[str, Tensor | None] = {}
        self._before = [arena.data[self.member].clone() for arena in state.buffer_arenas]
        wanted = any(p.requires_grad for p in state.tensors.parameters()) or bool(inputs.grad_leaves())
        self._differentiated = torch.is_grad_enabled() and wanted and not computation.backward
        self.later = later and self._differentiated

    def check(self, result: Any) -> bool:
        """See `Verification.check`."""
        together = self._together(result)
        changed = self._changed()
        # A buffer with a gradient shares the graph of the result, which a backward of ours would free.
        self.later = self.later and not self.state.engine.learning and without_effects(self.state, result)
        with learning_kept(self.plain_run.parameters):
            try:
                alone = self.plain_run.outcome(differentiate=not self.later)
            except Exception as error:
                self.later = False
                self._plain_fails(error)
                return False
        graph = self.plain_run.graph
        self.later = self.later and graph is not None and len(graph.outputs) == len(differentiable(result))
        if self._differentiated and not self.later:
            alone |= self.plain_run.gradients()
            of_member = MemberGradients(self.state, self.restore, self.inputs, self.computation, self.member)
            together |= of_member.outcome()
        if any(key.startswith(PARAMETER) for key in alone):
            together |= {f"{PARAMETER}{name}": p.clone() for name, p in self.state.parameters_of(self.member).items()}
        off = differences(together, alone, self._must_have)
        if off and self._varies(off, alone):
            return changed
        off = off and differences(together, alone, self._must_have, self._nudged)
        if off:
            self.restore()
            path = self._first_divergence([one.name for one in off])
            self.restore()
            raise mismatch(self.member, off[0], path)
        return changed

    def _plain_fails(self, error: Exception) -> None:
        """Tell, once, that the plain module raises where the array does not, so that nothing can be compared.

        An output that can't be differentiated is no reason: the caller of the array may not want to.
        """
        if out_of_memory(error) or isinstance(error, BackwardChangeError):
            raise error
        if self.computation.backward or not self.plain_run.answered:
            warn_of_failure(self.state, self.member, error)

    def _changed(self) -> bool:
        """True if the call has changed state that the member holds."""
        rows = [arena.data[self.member] for arena in self.state.buffer_arenas]
        same = len(rows) == len(self._before) and all(map(torch.equal, rows, self._before))
        return not same or bool(
            self.state.engine.attributes.values
            or self.state.functions.values.values
            or self.state.engine.resized_buffers
        )

    def _together(self, result: Any) -> MemberOutcome:
        """The member's outcome in the array's call."""
        found = result_outcome(result[1] if self.computation.backward else result, self.member)
        found |= {f"gradient of {name}": grad for name, grad in self.gradients.items()}
        return found | self._member_state()

    def _member_state(self) -> MemberOutcome:
        """Buffers, random streams and attributes that the member has after the call."""
        state, m = self.state, self.member
        buffers: dict[str, Tensor] = {}
        for arena in state.buffer_arenas:
            row = arena.data[m].clone()
            buffers |= {span.name: row[span.start : span.stop].view(span.shape) for span in arena.spans}
        buffers = state.own(m, buffers)
        buffers |= {k: rows[m] for k, rows in state.engine.resized_buffers.items() if m in rows}
        found: MemberOutcome = {f"{BUFFER}{name}": value for name, value in buffers.items()}
        found |= state.functions.outcome(state.functions.of(m))
        return found | stream_outcome(state.generators.states[m]) | attribute_outcome(state.engine.attributes.of(m))

    def _must_have(self, key: str) -> bool:
        """True if the member must have what the plain module has; gradients of `array(x)` are computed later."""
        return not key.startswith("gradient") or (self.computation.backward and not key.startswith(INPUT_GRADIENT))

    def _nudged(self, number: int) -> MemberOutcome:
        """The outcome of the plain module when the last bits of its parameters change."""
        return self.plain_run.nudged_outcome(self._as_before(), number, differentiate=not self.later)

    def _varies(self, off: list[Difference], alone: MemberOutcome) -> bool:
        """True, and told once, if the plain module comes to another value each time, so that nothing can be compared.

        It depends on what nobody can find and put back: a file, a clock, memory of another library.
        """
        names = {one.name for one in off if not isnan(one.off)}  # an attribute may well be the time
        again = self.plain_run.outcome_of(self._as_before()) if names else {}
        expected = {key: value for key, value in alone.items() if key in again}
        varying = [one.name for one in differences(again, expected, self._must_have) if one.name in names]
        if varying:
            note = (
                f"member {self.member}'s {varying[0]} is another one each time that the same call is repeated alone, "
                "so it can't be compared: the model or the loss depends on something beside its inputs, its own state "
                "and the random streams of torch, Python and NumPy, of which members have one together, not each its "
                "own; keep it in an attribute, a closure or a container of Python"
            )
            if self.state.settings.remark(note):
                warn(f"{note}; see explain()")
        return bool(varying)

    def _as_before(self) -> nn.Module:
        """The member alone, as it was before the call."""
        after = self.state.snapshot(every=True)
        self.restore()
        plain = plain_member(self.state, self.member)
        after()
        return plain

    def _first_divergence(self, off: list[str]) -> str | None:
        """The path of the submodule where the difference begins; None if it is not known, or can't run by itself."""
        state, m = self.state, self.member
        architectures = state.engine.architectures
        if state.settings.block_size == 1 or (architectures is not None and architectures.separate_reason):
            return None

        def together() -> None:
            block = next(b for b in leaf_blocks(state) if b.start <= m < b.stop)
            state.engine.run(block, self.computation.call, self.inputs.apart())

        def alone() -> None:
            self.plain_run.outcome_of(plain)

        plain = plain_member(state, m)
        here = dict(plain.named_modules())
        paths = {path: path for path in here} if architectures is None else architectures.paths(m)
        own = {paths[path]: module for path, module in here.items() if path in paths}
        rows = rows_of(m) if architectures is None else architectures.rows(m)
        path = first_divergence(dict(state.skeleton.named_modules()), together, lambda: own, alone, rows)
        if path is None:
            kinds = ("gradient", "buffer", "parameter", "attribute")
            known = [key for key in off if key.startswith(kinds) and not key.startswith(INPUT_GRADIENT)]
            owners = [submodule_of(key.partition("[")[0]) for key in known]
            path = paths.get(owners[-1]) if owners else None
        return path
