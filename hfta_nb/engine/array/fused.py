"""The fused training array.

Source: horizontal fusion of HFTA (Wang et al., MLSys 2021), by `torch.func` instead of by hand-written layers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hfta_nb.engine.array import fused_losses, surgery, tensor_storage
from hfta_nb.engine.array.answers import Answering
from hfta_nb.engine.array.array_settings import Adjustable
from hfta_nb.engine.array.explaining import Explained
from hfta_nb.engine.array.lazy import materialise
from hfta_nb.engine.array.own_losses import OwnLosses
from hfta_nb.engine.array.saving import Savable
from hfta_nb.engine.array.schedule_tuner import detached_inputs, tune
from hfta_nb.engine.array.self_tuning import SelfTuning
from hfta_nb.engine.eager.call_inputs import Inputs
from hfta_nb.engine.eager.contexts import not_compiled, own_execution
from hfta_nb.engine.eager.gradients import target_of
from hfta_nb.engine.eager.hooks_in_backward import warn_of_hooks, with_hooks
from hfta_nb.engine.eager.ownership import set_owner
from hfta_nb.engine.eager.replaced_tensors import Placement
from hfta_nb.engine.eager.retry import RetryHelpers
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.members.arena import Arena, is_held_once
from hfta_nb.engine.members.held_losses import unseen
from hfta_nb.engine.padded.runtime import architectures_of
from hfta_nb.engine.replay.array_call import BACKWARD, RESULTS, ArrayCall
from hfta_nb.engine.replay.calls import Calls
from hfta_nb.errors import FusionError
from hfta_nb.errors.border import FLAG, NAMES, TRUTH, instance, refuse_nested, takes


class FusedArray(Adjustable, Answering, Explained, Savable):
    """M modules in one; created by `fuse`.

    Parameters, buffers and `state_dict` have the plain module's names, each tensor with a leading member axis M.
    `train`, `eval`, `to` and `requires_grad_` work as on a plain module.

    Attributes:
        generators: the members' random streams.
        arenas: the flat tensors ``[M, P]`` that store the parameters, one per dtype, except for frozen ones that are
            equal in all members and held once.
        buffer_arenas: the same for the buffers.
        missing_grads: by parameter, the members whose loss did not depend on it in the last `backward`, or whose output
            did not before the last step of an optimizer. Their rows of `.grad` are zero; in a plain module, `.grad`
            would be None.
        step_notes: remarks about how whole training steps run.
        followers: optimizers and other objects whose state moves along with the members.

    Args:
        state: the state of the array.
    """

    def __init__(self, state: ArrayState) -> None:
        super().__init__()
        self._state = state
        self.generators, self.followers, self.missing_grads = state.generators, state.followers, state.missing_grads
        self.step_notes: list[str] = []
        separate = partial(tensor_storage.separate, state)
        helpers = RetryHelpers(self._materialise, partial(surgery.member, state), self._regrow, separate)
        self._calls = Calls(state, helpers)
        self._losses, self._tuning = OwnLosses(self._calls), SelfTuning(self._calls)
        state.laid = self._laid
        self._taken()
        self._built = True

    arenas: list[Arena]
    buffer_arenas: list[Arena]

    @property
    def _skeleton(self) -> nn.Module:
        return self._state.skeleton

    def __len__(self) -> int:
        return len(self.generators)

    def __repr__(self) -> str:
        return f"FusedArray of {len(self)} x {type(self._skeleton).__name__}"

    # Calls.

    @own_execution
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Every member's output.

        Args:
            args, kwargs: the plain module's inputs. A tensor is shared by all members, and its gradient is the sum
                over members; `per_member(tensor)` holds one input per member in its first axis.

        Returns:
            The plain module's output, each tensor with a leading member axis M.

        Raises:
            FusionError: a `per_member` input has another number of members.
            TransformError: within a transform of `torch.func`.
        """
        given = self.take_over()
        plain = not kwargs and all(isinstance(v, Tensor) for v in args)
        inputs = Inputs.positional(args) if plain else None
        try:
            result = self._tuning.run(self._calls.forward((args, kwargs), _call_of, inputs))
        except RecursionError:
            refuse_nested(FusionError, {**dict(enumerate(args)), **kwargs})
            raise
        if given and self._placement is not None:  # the caller's buffers get what the call has written to the array's
            self._placement.copy_to(given)
        return result

    @not_compiled
    @takes(FusionError, has_aux=FLAG, scale=instance(Tensor, "a tensor [M]").or_none,
           only=NAMES.or_none)  # fmt: skip
    def backward(
        self,
        loss_fn: Callable[..., Any],
        x: Any,
        y: Any = None,
        *,
        has_aux: bool = False,
        scale: Tensor | None = None,
        only: Collection[str] | None = None,
    ) -> Tensor | tuple[Tensor, Any]:
        """Run forward, loss and backward in blocks of `block_size` members; accumulate into `.grad`.

        The gradient of a parameter's row i is that of member i's loss alone. The gradient of a shared input is the
        sum over members.

        Args:
            loss_fn: computes a scalar loss from ONE member's output and `y`; or an array of losses with parameters.
            x: the input; a tuple for several positional inputs, a dict for keyword inputs.
            y: the target, or any tree of tensors. Tensors in `x` and `y` may be `per_member`.
            has_aux: `loss_fn` returns ``(loss, aux)``; numbers in aux become tensors ``[M]``.
            scale: ``[M]``; the gradients are those of ``scale[i] * loss[i]``, the returned losses are unscaled.
            only: names of the parameters that get gradients; all by default.

        Returns:
            The losses ``[M]``, detached; with `has_aux`, ``(losses, aux)`` with a leading M on aux's tensors.

        Raises:
            FusionError: the loss is not a scalar or depends on no parameter, or a `per_member` input has another
                number of members.

        Example:
            >>> from hfta_nb import fuse
            >>> array = fuse([nn.Linear(4, 2) for _ in range(3)])
            >>> x, y = torch.zeros(5, 4), torch.zeros(5, dtype=torch.long)
            >>> array.backward(nn.functional.cross_entropy, x, y).shape
            torch.Size([3])
        """
        if scale is not None and scale.shape != (len(self),):
            raise FusionError(
                "not one factor per member", where="scale", got=list(scale.shape), accepted=f"[{len(self)}]"
            )
        self.take_over()
        if isinstance(loss_fn, FusedArray):
            return fused_losses.backward(self, loss_fn, x, y, has_aux, scale, only)
        warn_of_hooks(self, self._state.settings)
        given = x, target_of(loss_fn, y)
        call = ArrayCall(self._state, BACKWARD, given, loss_fn, has_aux=has_aux, scale=scale, only=only)
        losses, aux = with_hooks(self._calls.steps.parameters, partial(self._tuning.run, call))
        return (losses, aux) if has_aux else losses

    @own_execution
    @takes(FusionError)
    def losses(self, loss_fn: Callable[..., Any], output: Any, y: Any = None) -> Tensor:
        """Every member's loss for an existing output: the split form of `backward`.

        Use it to add terms to the loss, or to use the output for more than the loss. `backward` is faster: it runs
        members block by block, which ``array(x)`` cannot, and needs no autograd graph.

        Args:
            loss_fn: computes a scalar loss from ONE member's output and `y`; or an array of losses, as for `backward`.
            output: the result of ``array(x)``, or a tree computed from it whose tensors have a leading member axis.
            y: the target, or any tree of tensors, which may be `per_member`.

        Returns:
            The losses ``[M]``, part of the autograd graph of `output`.

        Raises:
            FusionError: a loss is not a scalar, or a tensor has another number of members.

        Example:
            >>> from hfta_nb import fuse
            >>> array = fuse([nn.Linear(4, 2) for _ in range(3)])
            >>> losses = array.losses(nn.functional.mse_loss, array(torch.zeros(5, 4)), torch.ones(5, 2))
            >>> losses.sum().backward()
            >>> losses.shape, array.get_parameter("bias").grad.shape
            (torch.Size([3]), torch.Size([3, 2]))
        """
        if isinstance(loss_fn, FusedArray):
            return fused_losses.computed(self, loss_fn, output, y)[0]
        return self._losses(loss_fn, output, y)

    @own_execution
    @takes(FusionError)
    @torch.no_grad()
    def evaluate(self, function: Callable[..., Any], x: Any, y: Any = None) -> Any:
        """Compute ``function(output, y)`` for each member without gradients, in blocks of `block_size` members.

        Args:
            function: computes any tree of tensors and numbers (a loss, metrics) from ONE member's output and `y`.
            x, y: as for `backward`.

        Returns:
            The tree, each tensor with a leading M. Numbers of Python and NumPy become tensors ``[M]``.

        Raises:
            FusionError: members differ in what is neither a tensor nor a number, or in the shapes of tensors.
        """
        if isinstance(function, FusedArray):
            return fused_losses.evaluated(self, function, x, y)
        self.take_over()
        return self._tuning.run(ArrayCall(self._state, RESULTS, (x, target_of(function, y)), function))

    def tune(
        self,
        loss_fn: Callable[..., Any],
        x: Any,
        y: Any = None,
        *,
        budget_s: float = 0.5,
        has_aux: bool = False,
        only: Collection[str] | None = None,
    ) -> dict[int, float]:
        """Time `backward` on these inputs and set `block_size` to the fastest; nothing else changes.

        A later `backward` with the same arguments replays the step that was recorded here.

        Args:
            loss_fn, x, y, has_aux, only: as for `backward`.
            budget_s: the approximate duration, in seconds.

        Returns:
            The shortest time of one `backward` in seconds, by block size; empty if only one block size is possible.
        """
        if isinstance(loss_fn, FusedArray):
            return {}
        inputs = Inputs.of((x, target_of(loss_fn, y)), len(self))
        if inputs.grad_leaves():
            x, y = detached_inputs((x, y))
        with self._tuning.by_tune():
            step = partial(self.backward, loss_fn, x, y, has_aux=has_aux, only=only)
            return tune(self._calls, inputs, step, budget_s)

    # Members.

    def select(self, indices: Sequence[int]) -> FusedArray:
        """A new array of these members, in this order, each with its random streams.

        Raises:
            FusionError: the list is empty or holds a number that is not a member, or truth values for other than all.
        """
        other = FusedArray(surgery.select(self._state, indices, self._tuning.home.block_size))
        other._calls.learn(self._calls)
        return other

    @takes(FusionError, strict=TRUTH)
    def load_member(self, index: int, state_dict: Mapping[str, Tensor], *, strict: bool = True) -> None:
        """Load a plain module's state into a member, in place; reset the member's optimizer state.

        Raises:
            IndexError: there is no such member.
            FusionError: keys, shapes or dtypes differ from the member's. Then nothing is changed.
        """
        surgery.load_member(self._state, index, state_dict, strict)

    def copy_member(self, src: int, dst: int) -> None:
        """Copy member `src` to member `dst`, in place, with its random streams and the state of its optimizer, lr
        scheduler and gradient scaler.

        Raises:
            IndexError: there is no such member.
        """
        surgery.copy_member(self._state, src, dst)

    def __deepcopy__(self, memo: dict[int, Any]) -> FusedArray:
        # Parameters are views of the arenas, which copying one by one would separate.
        memo[id(self)] = other = self.select(range(len(self)))
        for p, q in zip(self._state.tensors.parameters(), other._state.tensors.parameters(), strict=True):
            q.grad = None if p.grad is None else p.grad.clone()
        return other

    # Methods of nn.Module, applied to the arenas.

    @takes(FusionError, mode=FLAG)
    def train(self, mode: bool = True) -> FusedArray:
        with unseen(self._skeleton):
            super().train(mode)
        for module in (self._skeleton, *self._state.pending):
            with unseen(module):
                module.train(mode)
        architectures = architectures_of(self._state)
        if architectures is not None:  # now, not by the next call: what a call changes can't be recorded
            architectures.copy_flags()
        return self

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> FusedArray:
        if self._state.pending:
            for module in self._state.pending:
                module._apply(fn, recurse)  # type: ignore[no-untyped-call]
        else:
            # What is held once stays so: torch's conversions copy an expanded tensor in full.
            super()._apply(  # type: ignore[no-untyped-call]
                lambda t: fn(t[:1]).expand(t.shape) if is_held_once(t) else fn(t), recurse
            )
            tensor_storage.build(self._state)
            self._laid()
        self.generators.to(next((t.device for t in [*self.parameters(), *self.buffers()]), self.generators.device))
        return self

    # Internal.

    def _regrow(self) -> None:
        tensor_storage.resize_buffers(self._state)
        self._laid()

    def _materialise(self, inputs: Inputs) -> None:
        """Give members with lazy modules their shapes from a first input."""
        materialise(self._state, inputs)
        self._taken()

    def _taken(self) -> None:
        """Take over the containers of the skeleton, so that names and flags are those of the plain module."""
        # The skeleton is one plain module: calls go through it with a member's tensors in place.
        tensor_storage.show_members(self, self._state)
        self.training = self._skeleton.training
        self._laid()

    def _laid(self) -> None:
        """Register the tensors' new locations, and discard recordings of the old ones."""
        state = self._state
        self.arenas, self.buffer_arenas = state.arenas, state.buffer_arenas  # read by each step of an optimizer
        if not state.pending:
            for name, parameter in state.tensors.named_parameters():
                set_owner(parameter, self, name)
        self._placement = None if state.pending else Placement(state)
        self._calls.clear()
        self._losses.clear()

    def settle_missing(self) -> None:
        """Bring `missing_grads` up to date; steps of optimizers do this first."""
        if self._state.unsettled:
            self._state.settle_missing()

    def take_over(self) -> list[Tensor | None]:
        """Take over the values of tensors that were put in place of the array's (``p.data = ...``), which discards
        recordings of calls, and clear padding that the caller wrote to. Calls and steps of optimizers do this first.

        Returns:
            The buffers among them, None for each that is still the array's; empty if nothing was put in place.

        Raises:
            FusionError: such a tensor has another shape, dtype or device.
        """
        if self._placement is None:
            return []
        if self._state.owned and self._placement.written():
            self._state.padding.clear_values(self._state.slots.current())
        if not self._placement.moved():
            return []
        given = self._placement.check()
        tensor_storage.build(self._state)
        self._laid()
        return given


def _call_of(module: nn.Module, given: Any) -> Any:
    """The output of a member's module for its part of an array's arguments."""
    args, kwargs = given
    with unseen(module):
        return module(*args, **kwargs)
