"""The fused training array.

Source: horizontal fusion of HFTA (Wang et al., MLSys 2021), by `torch.func` instead of by hand-written layers.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hfta_nb.array import laying, surgery, threads
from hfta_nb.array.across.blueprint import Blueprint
from hfta_nb.array.across.padding import Padding
from hfta_nb.array.adjusting import Adjustable
from hfta_nb.array.answers import Answering
from hfta_nb.array.arena import Arena
from hfta_nb.array.attempt import attempt, gradient_probe
from hfta_nb.array.blocks import Blocks
from hfta_nb.array.capture import calls
from hfta_nb.array.capture.deferred import settled
from hfta_nb.array.capture.forward import CapturedForwards
from hfta_nb.array.capture.results import CapturedResults
from hfta_nb.array.capture.steps import Asked, CapturedSteps
from hfta_nb.array.engine import Inputs
from hfta_nb.array.explaining import shown, table
from hfta_nb.array.fallback import Settings
from hfta_nb.array.generators import MemberGenerators
from hfta_nb.array.gradients import Gradients, call_module, target_of
from hfta_nb.array.own_losses import OwnLosses, loss_call
from hfta_nb.array.owners import Follower
from hfta_nb.array.saving import Savable
from hfta_nb.array.self_tuning import SelfTuning
from hfta_nb.array.slots import Slots
from hfta_nb.array.tuning import apart, tune
from hfta_nb.array.verifying import Computation
from hfta_nb.errors import FusionError

if TYPE_CHECKING:
    import pandas


class FusedArray(Adjustable, Answering, Savable):
    """M modules in one; made by `fuse`.

    Parameters, buffers and `state_dict` carry the plain module's names, each tensor with a leading member axis M.
    `train`, `eval`, `to` and `requires_grad_` do what they do on a plain module.

    Attributes:
        generators: the members' random streams.
        arenas: the flat tensors ``[M, P]`` under the parameters, one per dtype.
        buffer_arenas: the same under the buffers.
        missing_grads: parameter to the members whose loss did not depend on it in the last `backward`; their rows of
            `.grad` are zero, where alone `.grad` would be None.
        step_notes: how whole training steps run, where something is to be told of that.
        followers: optimizers and the like, whose state moves along with the members.
        padding: clears the gradients of what is not owned.
        owned: where members differ in architecture: parameter or buffer to which entries are the members' own, bool
            ``[M, *shape]``. The others are padding: zero, with a gradient of zero.
    """

    def __init__(
        self,
        skeleton: nn.Module,
        parameters: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        generators: MemberGenerators,
        *,
        pending: Sequence[nn.Module] = (),
        blueprint: Blueprint | None = None,
    ) -> None:
        super().__init__()
        self.generators = generators
        self.arenas: list[Arena] = []
        self.buffer_arenas: list[Arena] = []
        self.followers: weakref.WeakSet[Follower] = weakref.WeakSet()
        self.missing_grads: dict[str, list[int]] = {}
        self.step_notes: list[str] = []
        self.settings = Settings(len(generators))
        self._proven: set[tuple[Any, ...]] = set()
        self._verified: dict[tuple[Any, ...], int] = {}
        self._blocks = Blocks(self)
        self._steps = CapturedSteps(self)
        self._forwards, self._results = CapturedForwards(self), CapturedResults(self)
        self._losses, self._tuning = OwnLosses(self), SelfTuning(self)
        object.__setattr__(self, "_pending", list(pending))
        self._take(skeleton, parameters, buffers, blueprint)

    _skeleton: nn.Module
    _slots: Slots
    padding: Padding
    owned: dict[str, Tensor]
    _pending: list[nn.Module]

    def _take(
        self,
        skeleton: nn.Module,
        parameters: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        blueprint: Blueprint | None = None,
    ) -> None:
        laying.take(self, skeleton, parameters, buffers, blueprint)

    def __len__(self) -> int:
        return len(self.generators)

    def __repr__(self) -> str:
        return f"FusedArray of {len(self)} x {type(self._skeleton).__name__}"

    # Calling.

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Every member's output.

        Args:
            args, kwargs: the plain module's inputs. A tensor is shared by all members; `per_member(tensor)` holds
                one input per member in its first axis.

        Returns:
            What the plain module returns, each tensor with a leading member axis M.

        Raises:
            FusionError: a `per_member` input has another number of members.
        """
        return self._tuning.forward(args, kwargs, partial(self._forward, args, kwargs))

    def _forward(self, args: Any, kwargs: Any) -> Any:
        plain = not kwargs and all(isinstance(v, Tensor) for v in args)
        if plain:
            again = calls.again(self, args)
            if again is not None:
                return again
        given = args if plain else (args, kwargs)
        inputs = Inputs.positional(args) if plain else Inputs.of(given, len(self))

        def call(module: nn.Module, leaves: list[Any]) -> Any:
            given, named = inputs.structure(leaves)
            return module(*given, **named)

        with threads.scope(self.settings.threads):
            return calls.forward(self, given, inputs, call, args if plain else (), follow=True)

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
        """Forward, loss and backward, in blocks of `block_size` members; accumulates into `.grad`.

        The gradient of a parameter's row i is that of member i's loss alone. The gradient of a shared input is the
        sum over members.

        Args:
            loss_fn: from ONE member's output and `y` to its loss, a scalar.
            x: the input; a tuple for several positional inputs, a dict for keyword inputs.
            y: the target, or any tree of tensors. Tensors in `x` and `y` may be `per_member`.
            has_aux: `loss_fn` returns ``(loss, aux)``.
            scale: ``[M]``; the gradients are those of ``scale[i] * loss[i]``, the losses returned are unscaled.
            only: names of the parameters that get gradients; all without.

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
        asked = Asked(loss_fn, (x, target_of(loss_fn, y)), has_aux, scale, only)
        self.flush()
        losses, aux = self._tuning.backward(asked, partial(self._backward, asked))
        return (losses, aux) if has_aux else losses

    def _backward(self, asked: Asked) -> tuple[Tensor, Any]:
        with threads.scope(self.settings.threads):
            return self._stepped(asked)

    def _stepped(self, asked: Asked) -> tuple[Tensor, Any]:
        again = self._steps.again(asked)
        if again is not None:
            return again
        loss_fn, given, has_aux, scale, only = asked
        seen = self._steps.find(asked)
        replayed = None if seen is None else self._steps.replay(seen, asked)
        if replayed is not None:
            return replayed
        inputs = Inputs.of(given, len(self))
        settled(inputs.leaves)
        call = loss_call(loss_fn, inputs, has_aux)

        def run(inputs: Inputs) -> Any:
            gradients = Gradients(self, inputs, scale=scale, only=only)
            return gradients, gradients.of(call, self._blocks.leaves())

        recorded = None if seen is None else self._steps.recorder(seen, asked, call)
        probe = gradient_probe(self, call, scale, only)
        computation = Computation(call, True, scale, only)
        gradients, (losses, aux) = attempt(self, "backward", inputs, recorded or run, probe, computation)
        gradients.deliver()
        return losses, aux

    def losses(self, loss_fn: Callable[..., Any], output: Any, y: Any = None) -> Tensor:
        """Every member's loss of an output that is there already: the split form of `backward`.

        As fast as `backward` where ``losses(loss_fn, array(x), y).sum().backward()`` is all that is done, step by step:
        such calls are put off and are one `backward`. Else autograd's own work is added.

        Args:
            loss_fn: from ONE member's output and `y` to its loss, a scalar.
            output: what ``array(x)`` has returned, or something of the same members made from that: its tensors have
                a leading member axis.
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
        return self._losses(loss_fn, output, y)

    @torch.no_grad()
    def evaluate(self, function: Callable[..., Any], x: Any, y: Any = None) -> Any:
        """Per member, ``function(output, y)`` without gradients, in blocks of `block_size` members.

        Args:
            function: from ONE member's output and `y` to any tree of tensors: a loss, metrics.
            x, y: as for `backward`.

        Returns:
            The tree, each tensor with a leading M.
        """
        given = x, target_of(function, y)
        inputs = Inputs.of(given, len(self))

        def call(module: nn.Module, leaves: list[Any]) -> Any:
            given, target = inputs.structure(leaves)
            return function(call_module(module, given), target)

        def run() -> Any:
            with threads.scope(self.settings.threads):
                return calls.evaluate(self, function, given, inputs, call)

        self.flush()
        return self._tuning.results(function, given, run)

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

        A `backward` with the same arguments afterwards finds the step recorded already.

        Args:
            loss_fn, x, y, has_aux, only: as for `backward`.
            budget_s: about how long to take, in seconds.

        Returns:
            Seconds of one `backward` per block size tried (the least); nothing where only one is possible.
        """
        inputs = Inputs.of((x, target_of(loss_fn, y)), len(self))
        if inputs.grad_leaves():
            x, y = apart((x, y))
        with self._tuning.by_tune():
            return tune(self, inputs, partial(self.backward, loss_fn, x, y, has_aux=has_aux, only=only), budget_s)

    def box(self, index: int, name: str) -> tuple[int, ...] | None:
        """A member's true shape of a parameter; None if its architecture has no such parameter."""
        if self.engine.across is None:
            return tuple(self.get_parameter(name).shape[1:])
        return self.engine.across.boxes(index % len(self)).get(name)

    def waste(self) -> float:
        """The share of the parameters that is padding; 0 where all members are of one architecture."""
        return 0.0 if self.engine.across is None else self.engine.across.blueprint.waste()

    def arena_of(self, name: str) -> Arena:
        """The arena in which a parameter lies."""
        return next(a for a in self.arenas if any(s.name == name for s in a.spans))

    def explain(self) -> pandas.DataFrame:
        """How each function that the model has called so far is fused, one row per function.

        Returns:
            Columns ``function`` and ``how``: "vmap", or the rule that took over. A first row tells of the array as a
            whole where it does not run as one call.
        """
        return table(self)

    def _repr_html_(self) -> str:
        return shown(self)

    def flush(self) -> None:
        """Compute what `array(x)` and `losses` have left to the backward; nothing where nothing waits."""
        if self._forwards.postponed is not None:
            self._forwards.flush()

    # Members.

    def select(self, indices: Sequence[int]) -> FusedArray:
        """A new array of these members, in this order, each with its random streams.

        Raises:
            FusionError: the list is empty or holds a number that is not a member.
        """
        return surgery.select(self, indices)

    def load_member(self, index: int, state_dict: Mapping[str, Tensor], *, strict: bool = True) -> None:
        """Put a plain module's state into a member, in place; its optimizer state begins anew.

        Raises:
            IndexError: there is no such member.
            FusionError: keys, shapes or dtypes are not the member's. Nothing has changed then.
        """
        surgery.load_member(self, index, state_dict, strict)

    def copy_member(self, src: int, dst: int) -> None:
        """Make member `dst` the same as `src`, in place, with its random streams and the state of its optimizer,
        lr scheduler and gradient scaler.

        Raises:
            IndexError: there is no such member.
        """
        surgery.copy_member(self, src, dst)

    def __deepcopy__(self, memo: dict[int, Any]) -> FusedArray:
        memo[id(self)] = other = surgery.twin(self)
        return other

    # What nn.Module does, done to the whole.

    def train(self, mode: bool = True) -> FusedArray:
        self.flush()
        super().train(mode)
        for module in (self._skeleton, *self._pending):
            module.train(mode)
        return self

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> FusedArray:
        self.flush()
        if self._pending:
            for module in self._pending:
                module._apply(fn, recurse)  # type: ignore[no-untyped-call]
        else:
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
            self._build_arenas()
        device = next((t.device for t in [*self.parameters(), *self.buffers()]), self.generators.device)
        self.generators.to(device)
        return self

    # Within.

    def _build_arenas(self) -> None:
        laying.build(self)

    def _install(self) -> None:
        """Put in place what runs instead of submodules."""
        laying.install(self)
