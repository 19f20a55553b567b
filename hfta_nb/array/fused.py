"""The fused training array.

Source: horizontal fusion of HFTA (Wang et al., MLSys 2021), by `torch.func` instead of by hand-written layers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hfta_nb.array.arena import Arena
from hfta_nb.array.compare import check_members
from hfta_nb.array.engine import Block, Call, Engine, Inputs, concatenate, snapshot
from hfta_nb.array.generators import MemberGenerators
from hfta_nb.array.gradients import Gradients, call_module, tune_block_size
from hfta_nb.array.slots import Slots
from hfta_nb.errors import FusionError

if TYPE_CHECKING:
    import pandas


def fuse(modules: Sequence[nn.Module], seeds: Sequence[int] | None = None) -> FusedArray:
    """Fuse plain modules into one array that computes all of them.

    Args:
        modules: M plain modules with the same operators and shapes. They are copied, not changed.
        seeds: one per member, for the random numbers (dropout masks, ...) that it will draw: it draws what
            ``torch.manual_seed(seed)`` and the plain module would. Without, seeds are drawn from torch's
            default generator.

    Returns:
        The array; ``array(x)`` has a leading member axis M on every output.

    Raises:
        FusionError: the list is empty, holds something else than modules or one module twice, or two of them
            differ in more than the values of their tensors.

    Example:
        >>> array = fuse([nn.Linear(4, 2) for _ in range(3)])
        >>> array(torch.zeros(5, 4)).shape
        torch.Size([3, 5, 2])
    """
    members = list(modules)
    check_members(members, seeds)
    first = members[0]
    states = [dict(m.named_parameters()) for m in members]
    buffers = [dict(m.named_buffers()) for m in members]
    with torch.no_grad():
        parameters = {k: torch.stack([s[k] for s in states]) for k in states[0]}
        stacked = {k: torch.stack([b[k] for b in buffers]) for k in buffers[0]}
    device = next((t.device for t in [*parameters.values(), *stacked.values()]), torch.device("cpu"))
    if seeds is None:
        seeds = torch.randint(2**62, (len(members),)).tolist()
    generators = MemberGenerators.seeded(seeds, device)
    return FusedArray(copy.deepcopy(first), parameters, stacked, generators)


class FusedArray(nn.Module):
    """M modules in one; made by `fuse`.

    Parameters, buffers and `state_dict` carry the plain module's names, each tensor with a leading member axis M.
    `train`, `eval`, `to` and `requires_grad_` do what they do on a plain module.

    Attributes:
        generators: the members' random streams.
        arenas: the flat tensors ``[M, P]`` under the parameters, one per dtype.
        block_size: how many members run at once: all (the default), or fewer where a smaller block is faster
            (`tune` finds out), down to one at a time.
        missing_grads: parameter to the members whose loss did not depend on it in the last `backward`; their rows of
            `.grad` are zero, where alone `.grad` would be None.
        notes: why the array does not run as one call, where it does not.
    """

    def __init__(
        self,
        skeleton: nn.Module,
        parameters: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        generators: MemberGenerators,
    ) -> None:
        super().__init__()
        slots = Slots(skeleton)
        trainable = {name: p.requires_grad for name, p in skeleton.named_parameters()}
        own = {k: nn.Parameter(v.detach(), requires_grad=trainable[k]) for k, v in parameters.items()}
        slots.replace({**own, **buffers})
        # The skeleton is one plain module: calls go through it with a member's tensors in place. Its own
        # containers serve as the array's, so that names, flags and movements are those of the plain module.
        for name in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            object.__setattr__(self, name, getattr(skeleton, name))
        object.__setattr__(self, "_skeleton", skeleton)
        object.__setattr__(self, "_slots", slots)
        self.generators = generators
        self.training = skeleton.training
        self.block_size = len(generators)
        self.notes: list[str] = []
        self.arenas: list[Arena] = []
        self.missing_grads: dict[str, list[int]] = {}
        self._leaf_blocks: dict[tuple[int, int], Block] = {}
        self._proven: set[tuple[str, bool, bool]] = set()
        self.engine = Engine(slots, generators, {})
        self._build_arenas()

    _skeleton: nn.Module
    _slots: Slots

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
        inputs = Inputs.of((args, kwargs), len(self))

        def call(leaves: list[Any]) -> Any:
            given, named = inputs.structure(leaves)
            return self._skeleton(*given, **named)

        def run() -> Any:
            return concatenate([self.engine.run(block, call, inputs) for block in self._graph_blocks()])

        self._prove("forward", run)
        return run()

    def backward(
        self, loss_fn: Callable[..., Any], x: Any, y: Any = None, *, has_aux: bool = False
    ) -> Tensor | tuple[Tensor, Any]:
        """Forward, loss and backward, in blocks of `block_size` members; accumulates into `.grad`.

        The gradient of a parameter's row i is that of member i's loss alone. The gradient of a shared input is the
        sum over members.

        Args:
            loss_fn: from ONE member's output and `y` to its loss, a scalar.
            x: the input; a tuple for several positional inputs, a dict for keyword inputs.
            y: the target, or any tree of tensors. Tensors in `x` and `y` may be `per_member`.
            has_aux: `loss_fn` returns ``(loss, aux)``.

        Returns:
            The losses ``[M]``, detached; with `has_aux`, ``(losses, aux)`` with a leading M on aux's tensors.

        Raises:
            FusionError: the loss is not a scalar or depends on no parameter, or a `per_member` input has another
                number of members.

        Example:
            >>> array = fuse([nn.Linear(4, 2) for _ in range(3)])
            >>> x, y = torch.zeros(5, 4), torch.zeros(5, dtype=torch.long)
            >>> array.backward(nn.functional.cross_entropy, x, y).shape
            torch.Size([3])
        """
        inputs = Inputs.of((x, y), len(self))
        call = self._loss_call(loss_fn, inputs, has_aux)
        self._prove("backward", lambda: Gradients(self, inputs, keep=False).of(call, self._blocks()))
        gradients = Gradients(self, inputs)
        losses, aux = gradients.of(call, self._blocks())
        gradients.deliver()
        return (losses, aux) if has_aux else losses

    def _loss_call(self, loss_fn: Callable[..., Any], inputs: Inputs, has_aux: bool) -> Call:
        def call(leaves: list[Any]) -> Any:
            given, target = inputs.structure(leaves)
            result = loss_fn(call_module(self._skeleton, given), target)
            loss, aux = result if has_aux else (result, None)
            if not isinstance(loss, Tensor) or loss.ndim:
                raise FusionError("the loss of a member must be a scalar tensor", where="loss_fn", got=loss)
            return loss, aux

        return call

    @torch.no_grad()
    def evaluate(self, function: Callable[..., Any], x: Any, y: Any = None) -> Any:
        """Per member, ``function(output, y)`` without gradients, in blocks of `block_size` members.

        Args:
            function: from ONE member's output and `y` to any tree of tensors: a loss, metrics.
            x, y: as for `backward`.

        Returns:
            The tree, each tensor with a leading M.
        """
        inputs = Inputs.of((x, y), len(self))

        def call(leaves: list[Any]) -> Any:
            given, target = inputs.structure(leaves)
            return function(call_module(self._skeleton, given), target)

        def run() -> Any:
            return concatenate([self.engine.run(block, call, inputs) for block in self._blocks()])

        self._prove("evaluate", run)
        return run()

    def tune(self, loss_fn: Callable[..., Any], x: Any, y: Any = None, *, budget_s: float = 0.5) -> dict[int, float]:
        """Time `backward` on these inputs and set `block_size` to the fastest; nothing else changes.

        Args:
            loss_fn, x, y: as for `backward`.
            budget_s: about how long to take, in seconds.

        Returns:
            Seconds of one `backward` per block size tried (the median); nothing where only one is possible.
        """
        inputs = Inputs.of((x, y), len(self))
        call = self._loss_call(loss_fn, inputs, has_aux=False)

        def run() -> None:
            Gradients(self, inputs, keep=False).of(call, self._blocks())

        self._prove("backward", run)
        if self.block_size == 1:
            return {}
        return tune_block_size(self, run, budget_s)

    def arena_of(self, name: str) -> Arena:
        """The arena in which a parameter lies."""
        return next(a for a in self.arenas if any(s.name == name for s in a.spans))

    def explain(self) -> pandas.DataFrame:
        """How each function that the model has called so far is fused, one row per function.

        Returns:
            Columns ``function`` and ``how``: "vmap", or the rule that took over. A first row tells of the array as a
            whole where it does not run as one call.
        """
        import pandas

        rows = [("the whole array", note) for note in self.notes]
        if self.block_size < len(self):
            rows.append(("the whole array", f"in blocks of {self.block_size} of {len(self)} members"))
        rows += sorted(self.engine.used.items())
        return pandas.DataFrame(rows, columns=["function", "how"])

    # Members.

    def __getitem__(self, index: int) -> nn.Module:
        """Member `index` as a plain module: same class, same `state_dict` keys, a detached copy.

        Raises:
            IndexError: there is no such member.
        """
        if not -len(self) <= index < len(self):
            raise IndexError(f"member {index} of an array of {len(self)}")
        tensors: dict[str, Tensor] = {k: v.detach()[index].clone() for k, v in self.named_buffers()}
        for name, p in self.named_parameters():
            tensors[name] = nn.Parameter(p.detach()[index].clone(), requires_grad=p.requires_grad)
        with self._slots.filled(tensors):
            return copy.deepcopy(self._skeleton)

    def select(self, indices: Sequence[int]) -> FusedArray:
        """A new array of these members, in this order, each with its random streams.

        Raises:
            FusionError: the list is empty or holds a number that is not a member.
        """
        chosen = list(indices)
        if not chosen or not all(0 <= i < len(self) for i in chosen):
            raise FusionError("not members of this array", got=chosen, accepted=f"some of 0 to {len(self) - 1}")
        return self._of(chosen)

    def __deepcopy__(self, memo: dict[int, Any]) -> FusedArray:
        # Parameters are views of the arenas, which copying one by one would take apart.
        other = self._of(list(range(len(self))))
        for p, q in zip(self.parameters(), other.parameters(), strict=True):
            q.grad = None if p.grad is None else p.grad.clone()
        memo[id(self)] = other
        return other

    def _of(self, chosen: list[int]) -> FusedArray:
        parameters = {k: v.detach()[chosen] for k, v in self.named_parameters()}
        buffers = {k: v[chosen] for k, v in self.named_buffers()}
        skeleton = self[chosen[0]]
        array = FusedArray(skeleton, parameters, buffers, self.generators.select(chosen))
        array.block_size = len(chosen) if self.block_size == len(self) else min(self.block_size, len(chosen))
        array.notes, array._proven = list(self.notes), set(self._proven)
        return array

    # What nn.Module does, done to the whole.

    def train(self, mode: bool = True) -> FusedArray:
        super().train(mode)
        self._skeleton.training = mode
        return self

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> FusedArray:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._build_arenas()
        device = next((t.device for t in [*self.parameters(), *self.buffers()]), self.generators.device)
        self.generators.to(device)
        return self

    # Within.

    def _build_arenas(self) -> None:
        kinds: dict[torch.dtype, dict[str, Tensor]] = {}
        named = dict(self.named_parameters())
        for name, p in named.items():
            kinds.setdefault(p.dtype, {})[name] = p.detach()
        self.arenas = [Arena.of(group) for group in kinds.values()]
        for arena in self.arenas:
            for span in arena.spans:
                named[span.name].data = arena.view(span.name)
        self._leaf_blocks.clear()

    def _blocks(self) -> list[Block]:
        """Blocks whose parameters are leaves over the arena's memory: what `backward` differentiates by."""
        size = self.block_size
        return [self._leaf_block(i, min(i + size, len(self))) for i in range(0, len(self), size)]

    def _leaf_block(self, start: int, stop: int) -> Block:
        named = dict(self.named_parameters())
        block = self._leaf_blocks.get((start, stop))
        if block is not None and all(block.parameters[k].requires_grad == p.requires_grad for k, p in named.items()):
            return block
        single = self.block_size == 1
        rows: Any = start if single else slice(start, stop)
        parameters = {k: p.detach()[rows].requires_grad_(p.requires_grad) for k, p in named.items()}
        buffers = {k: b[rows] for k, b in self.named_buffers()}
        grads = {k: self.arena_of(k).grad_view(k)[rows] for k, p in named.items() if p.requires_grad}
        block = Block(start, stop, single, parameters, buffers, grads)
        self._leaf_blocks[start, stop] = block
        return block

    def _graph_blocks(self) -> list[Block]:
        """Blocks whose parameters are part of the autograd graph: what `forward` differentiates through."""
        size, single = self.block_size, self.block_size == 1
        starts = range(0, len(self), size)
        parts = {k: p.unbind(0) if single else torch.split(p, size) for k, p in self.named_parameters()}
        buffers = {k: b.unbind(0) if single else torch.split(b, size) for k, b in self.named_buffers()}
        return [
            Block(
                start,
                min(start + size, len(self)),
                single,
                {k: v[i] for k, v in parts.items()},
                {k: v[i] for k, v in buffers.items()},
            )
            for i, start in enumerate(starts)
        ]

    def _prove(self, what: str, run: Callable[[], Any]) -> None:
        """See once whether `vmap` can run this; where it can't, run members one after another from now on.

        What can't run alone either raises its own error there.
        """
        key = (what, self.training, torch.is_grad_enabled())
        if key in self._proven or self.block_size == 1:
            return
        restore = snapshot(dict(self.named_buffers()), self.generators)
        self.engine.recording = True
        try:
            run()
        except (RuntimeError, ValueError) as error:
            self.block_size = 1
            self._leaf_blocks.clear()
            self.notes.append(f"one member at a time, as vmap can't run it: {str(error).strip().splitlines()[0]}")
        finally:
            self.engine.recording = False
            restore()
        self._proven.add(key)
