"""Block-wise differentiation of an array, and delivery of its gradients."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hfta_nb.engine.broadcasts import called
from hfta_nb.engine.eager.autograd_nodes import nodes, own_function
from hfta_nb.engine.eager.block_results import concatenate
from hfta_nb.engine.eager.call_inputs import Inputs
from hfta_nb.engine.eager.current_member import current
from hfta_nb.engine.eager.differentiate import add_to_grad, hooks_later
from hfta_nb.engine.eager.engine import Block, Call
from hfta_nb.engine.eager.foreign_leaves import Owned, check_leaves
from hfta_nb.engine.eager.frozen_prefix import Featured, call_featured
from hfta_nb.engine.eager.functions_in_backward import unchanged
from hfta_nb.engine.eager.learning_buffers import check_apart
from hfta_nb.engine.eager.returned_numbers import as_tensors, is_number
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.members.held_losses import of_member, unseen
from hfta_nb.engine.members.tree import tensor_map
from hfta_nb.engine.members.views import narrowed
from hfta_nb.engine.rules.autocast import uncast
from hfta_nb.errors import FusionError


class Arguments(NamedTuple):
    """Inputs, and keywords that are not part of the data.

    Attributes:
        given: inputs as `call_module` accepts them.
        keywords: by name.
    """

    given: Any
    keywords: Mapping[str, Any]


def call_module(module: nn.Module, given: Any) -> Any:
    """Call with a tuple of positional inputs, a dict of keyword inputs, one input, `Featured` ones, or `Arguments`."""
    if isinstance(given, Featured):
        return call_featured(call_module, module, given)
    inputs, named = given if isinstance(given, Arguments) else (given, {})
    with unseen(module):
        if isinstance(inputs, tuple):
            return module(*inputs, **named)
        return module(**inputs, **named) if isinstance(inputs, dict) else module(inputs, **named)


def target_of(function: Callable[..., Any], y: Any) -> Any:
    """The target; if the loss has settings per member (`hfta_nb.losses`), together with each member's settings.

    Raises:
        FusionError: the loss or metric is not a function, or a class of modules, which has to be instantiated.
    """
    if not callable(function) or (isinstance(function, type) and issubclass(function, nn.Module)):
        raise FusionError(
            "not a function of one member's output and the target",
            where="loss or metric",
            got=function.__name__ if isinstance(function, type) else type(function).__name__,
            accepted="for example torch.nn.functional.cross_entropy or torch.nn.CrossEntropyLoss(), before the input",
        )
    make = getattr(function, "target_per_member", None)
    return y if make is None else make(y)


def loss_call(state: ArrayState, loss_fn: Callable[..., Any], inputs: Inputs, has_aux: bool) -> Call:
    """The computation of `FusedArray.backward` for a member: its loss and auxiliary result.

    Args:
        state: of the array.
        loss_fn: computes the loss from one member's output and the target; with `has_aux`, the loss and any tree.
        inputs: the arguments of the model and the target.
        has_aux: whether `loss_fn` returns an auxiliary result.
    """
    evaluated = _evaluated(state, loss_fn, inputs)

    def call(module: nn.Module, leaves: list[Any]) -> Any:
        result = evaluated(module, leaves)
        loss, aux = result if has_aux else (result, None)
        loss = scalar(loss)
        return loss, as_tensors(aux, loss.device)

    return call


def function_call(state: ArrayState, function: Callable[..., Any], inputs: Inputs) -> Call:
    """The computation of `FusedArray.evaluate` for a member: what a function makes of its output and the target."""
    evaluated, device = _evaluated(state, function, inputs), state.generators.device

    def call(module: nn.Module, leaves: list[Any]) -> Any:
        return as_tensors(evaluated(module, leaves), device)

    return call


def _evaluated(state: ArrayState, function: Callable[..., Any], inputs: Inputs) -> Call:
    """What a function makes of a member's output and the target, as it returns it."""
    watching = function not in state.met

    def call(module: nn.Module, leaves: list[Any]) -> Any:
        given, target = inputs.structure(leaves)
        own, output = of_member(function, module), call_module(module, given)
        with unseen(module), current(module, state, watching):
            return called(own, output, target, key=function)

    return call


def scalar(loss: Any) -> Tensor:
    """Check that a member's loss is one number.

    Raises:
        FusionError: it is not.
    """
    if is_number(loss):
        raise FusionError(
            "the loss of a member is a number without a gradient",
            where="loss_fn",
            got=loss,
            accepted="a scalar tensor that depends on the output",
            remedy="compute it with torch alone: no .item(), float() or .numpy(); what only measures is a metric",
        )
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise FusionError(
            "the loss of a member must be a scalar tensor",
            where="loss_fn",
            got=f"a tensor {list(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__,
            remedy="take the mean, or add the parts up; with has_aux=True, array.backward takes (loss, anything else)",
        )
    return loss.reshape(()) if loss.ndim else loss


def _with_own(parameters: Sequence[Tensor], grads: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Add what a backward inside the model has put into ``.grad`` of a block's parameters, and reset it there."""
    found = list(grads)
    for i, tensor in enumerate(parameters):
        if tensor.is_leaf and tensor.grad is not None:
            before = found[i]
            found[i] = tensor.grad if before is None else before + tensor.grad
            tensor.grad = None
    return found


def _tensors(leaves: Sequence[Any]) -> list[Tensor]:
    return [v for v in leaves if isinstance(v, Tensor)]


def _by_backward(total: Tensor, wanted: Sequence[Tensor]) -> list[Tensor | None]:
    """Like `torch.autograd.grad`, by `Tensor.backward`, as checkpoints may require; `wanted` must be leaves."""
    before = [t.grad for t in wanted]
    for tensor in wanted:
        tensor.grad = None
    try:
        torch.autograd.backward(total)
        return [t.grad for t in wanted]
    finally:
        for tensor, grad in zip(wanted, before, strict=True):
            tensor.grad = grad


class Gradients:
    """The gradients of one `backward`: computed block by block, written into the arena, then delivered to `.grad`.

    Args:
        state: of the array.
        inputs: of this call.
        scale: ``[M]``, factors of the members' losses for differentiation.
        only: names of the parameters to differentiate by; None for all.
    """

    def __init__(
        self,
        state: ArrayState,
        inputs: Inputs,
        *,
        scale: Tensor | None = None,
        only: Collection[str] | None = None,
    ) -> None:
        self.state, self.inputs, self.scale = state, inputs, scale
        self.only = only
        self.functions = (state.skeleton, *state.functions.called)
        self.parameters = dict(state.tensors.named_parameters())
        self.fresh = {name for name, p in self.parameters.items() if p.grad is None}
        self.received: dict[str, list[Block]] = {}
        self.sparse: dict[str, list[Tensor]] = {}  # gradients by block, of parameters that have none yet
        self.changed: list[tuple[Tensor, Tensor]] = []
        self.given = inputs.grad_leaves()  # now: the model may call `requires_grad_` on its inputs
        self.upstream: list[Tensor | None] = [None] * len(self.given)

    def of(self, call: Call, blocks: Sequence[Block]) -> tuple[Tensor, Any]:
        """Losses ``[M]`` and auxiliary results, detached."""
        try:
            return self._of(call, blocks)
        except BaseException:
            self.undo()
            raise

    def _of(self, call: Call, blocks: Sequence[Block]) -> tuple[Tensor, Any]:
        results = []
        self.state.engine.usage.clear()
        for block in blocks:
            graphs = {b.grad_fn: name for name, b in block.buffers.items() if b.grad_fn is not None}
            losses, aux = self.state.engine.run(block, call, self.inputs)
            check_apart(losses, graphs)
            names = [name for name, p in block.parameters.items() if p.requires_grad and self._wants(name)]
            wanted = [block.parameters[name] for name in names] + self.given
            check_leaves([losses], Owned([*block.parameters.values(), *_tensors(self.inputs.leaves)]), self.functions)
            if not wanted or not losses.requires_grad:
                raise FusionError("the loss depends on nothing that requires a gradient", where="backward")
            weights = None if self.scale is None else self.scale[block.start : block.stop].to(losses)
            total = losses.sum() if weights is None else (losses * weights).sum()
            with uncast(), unchanged(self.state.functions), hooks_later(self.given):
                self._observe_inputs(block, losses if weights is None else losses * weights)
                alone = block.single or bool(self.state.engine.one_by_one)
                own = self.state.engine.as_plain or any(map(own_function, nodes([total])))
                if alone and own and all(t.is_leaf for t in wanted):
                    grads = _by_backward(total, wanted)
                else:
                    grads = list(torch.autograd.grad(total, wanted, allow_unused=True))
            grads = _with_own(wanted[: len(names)], grads)
            self._observe(block, names, grads)
            self._take(block, names, grads)
            results.append((losses.detach(), tensor_map(Tensor.detach, aux)))
        return concatenate(results)  # type: ignore[no-any-return]

    def undo(self) -> None:
        """Undo additions to existing gradients."""
        for rows, before in reversed(self.changed):
            rows.copy_(before)
        self.changed.clear()

    def _wants(self, name: str) -> bool:
        return self.only is None or name in self.only

    def _observe_inputs(self, block: Block, losses: Tensor) -> None:
        """Record the observed members' part of the gradients of inputs, which are sums over members."""
        observed, leaves = self.state.engine.observed, self.inputs.grad_leaves()
        here = [member for member in observed if block.start <= member < block.stop]
        if not leaves or not here or any(map(own_function, nodes([losses]))):
            return
        for member in here:
            loss = losses[member - block.start]
            grads = torch.autograd.grad(loss, leaves, retain_graph=True, allow_unused=True)
            own = self.inputs.of_member(grads, member)
            observed[member] |= {f"input {i}": grad for i, grad in enumerate(own)}

    def _observe(self, block: Block, names: list[str], grads: Sequence[Tensor | None]) -> None:
        """Record the gradients of the members that are compared with their plain modules."""
        for member, kept in self.state.engine.observed.items():
            if block.start <= member < block.stop:
                row = member - block.start
                own = [grad if grad is None or block.single else grad[row] for grad in grads[: len(names)]]
                own = [g.to_dense() if g is not None and g.is_sparse else g for g in own]
                kept |= self.state.own(member, dict(zip(names, own, strict=True)))

    def _take(self, block: Block, names: list[str], grads: Sequence[Tensor | None]) -> None:
        fresh_to, fresh_from = [], []
        for name, grad in zip(names, grads[: len(names)], strict=True):
            if grad is None:
                continue
            self.received.setdefault(name, []).append(block)
            if grad.is_sparse and name in self.state.engine.sparse:
                self.sparse.setdefault(name, []).append(grad.unsqueeze(0) if block.single else grad)
                continue
            grad = grad.to_dense() if grad.is_sparse else grad
            if name in self.fresh:
                fresh_to.append(block.grad_rows[name])
                fresh_from.append(grad)
            else:
                old = self.parameters[name].grad
                assert old is not None  # otherwise it would be in `fresh`
                rows = old[block.start] if block.single else old[block.start : block.stop]
                rows = narrowed(rows, grad.shape, 0)
                self.changed.append((rows, rows.clone()))
                rows.add_(grad)
        if fresh_to:
            torch._foreach_copy_(fresh_to, fresh_from)
        for i, grad in enumerate(grads[len(names) :]):
            before = self.upstream[i]
            self.upstream[i] = grad if before is None or grad is None else before + grad

    def deliver(self) -> None:
        """Set `.grad`, and continue the backward into the inputs' graphs."""
        members = len(self.state)
        missing = self.state.missing_grads
        for name in [n for n in missing if n in self.fresh]:
            del missing[name]
        unused = self.state.engine.usage.unused()
        for name, blocks in self.received.items():
            if name in self.sparse:
                self._deliver_sparse(name)
                continue
            have = {i for b in blocks for i in range(b.start, b.stop)} - set(unused.get(name, ()))
            if name not in self.fresh:  # accumulated: a member without a gradient may have one now
                still = [i for i in missing.pop(name, ()) if i not in have]
                missing.update({name: still} if still else {})
                continue
            if not have:
                continue
            view = self.state.arena_of(name).grad_view(name)
            architectures = self.state.engine.architectures
            if architectures is not None and len(have) < members:
                have |= set(architectures.lacking(name))  # the gradient of a parameter that they lack is zero
            if len(have) < members:
                lacking = [i for i in range(members) if i not in have]
                view[lacking] = 0
                missing[name] = lacking
            self.parameters[name].grad = view
        self.state.clear_padding([name for name in self.received if name not in self.sparse])
        pairs = [(x, g) for x, g in zip(self.given, self.upstream, strict=True) if g is not None]
        if pairs:
            add_to_grad([x for x, _ in pairs], [g for _, g in pairs])

    def _deliver_sparse(self, name: str) -> None:
        """Set ``.grad`` of a parameter to a sparse tensor ``[M, rows, ...]``, or add it there.

        Raises:
            FusionError: some blocks have no gradient of it, or a dense one.
        """
        parts, parameter = self.sparse[name], self.parameters[name]
        if sum(len(part) for part in parts) != len(self.state):
            raise FusionError("members' gradients are sparse and dense", where=name, remedy="leave out sparse=True")
        grad = parts[0] if len(parts) == 1 else torch.cat(parts)
        parameter.grad = grad if parameter.grad is None else parameter.grad + grad
