"""Optimizers that know nothing of arrays, on an array's parameters: whether members stay apart is found out by trying.

Where an update is elementwise, a parameter ``[M, *shape]`` trains as M parameters ``[*shape]`` would. Where it uses
norms or statistics of a parameter, the number of its axes, sums over all parameters, or random numbers, it does not.
Before its first step, a copy of the optimizer trains small tensors of some members together, and copies of it train two
of them alone.
"""

from __future__ import annotations

import copy
import functools
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from hfta_nb.engine.comparison import compare
from hfta_nb.engine.eager.contexts import not_compiled
from hfta_nb.engine.eager.ownership import owner_of
from hfta_nb.engine.members.generators import streams_apart
from hfta_nb.errors import ArrayWarning, OptimError
from hfta_nb.errors.caught_warnings import caught_warnings

ALONE = 2
"""Members that are tried alone."""

STEPS = 8
"""In the later half, gradients point in one direction and are large, so that rules that adapt to both are tried."""

LARGE = 1e3
LONGEST = 256
"""Sides of the tensors that are tried: what rules that begin at 128 entries look at is still there."""

MOST = 2**20
"""Entries of a tensor that is tried, all members together."""

_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
_TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}

_known: weakref.WeakKeyDictionary[Optimizer, tuple[int, tuple[Any, ...]]] = weakref.WeakKeyDictionary()
"""By optimizer, how many parameters it had when it was tried, and the arrays that they belong to."""


def cure(optimizer: type) -> str:
    """What to use in place of a class of optimizers."""
    name = optimizer.__name__
    if getattr(torch.optim, name, None) is optimizer:
        return f"use hfta_nb.optim.{name}(array, ...), whose hyperparameters are one value, or one per member"
    return f"use hfta_nb.optim.ByMember({name}, array, ...), each argument one value, or one per member"


@not_compiled
def before_step(optimizer: Optimizer, args: Any, kwargs: Mapping[str, Any]) -> None:
    """Called by torch before each step of any optimizer.

    Raises:
        OptimError: it has parameters of an array, and what it does for one member depends on another; or it takes a
            gradient that a member does not have for zero.
    """
    count = sum([len(group["params"]) for group in optimizer.param_groups])
    known = _known.get(optimizer)
    if known is None or known[0] != count:
        found = [owner_of(p) for group in optimizer.param_groups for p in group["params"]]
        arrays: dict[int, Any] = {id(one[0]): one[0] for one in found if one is not None}
        if arrays:
            _judge(optimizer, len(args) > 1 or "closure" in kwargs, max(map(len, arrays.values())))
        known = _known[optimizer] = count, tuple(weakref.ref(a) for a in arrays.values())
    for reference in known[1]:
        array = reference()
        if array is not None and array.missing_grads:
            _check_missing(optimizer, array)


def _check_missing(optimizer: Optimizer, array: Any) -> None:
    for group in optimizer.param_groups:
        for p in group["params"]:
            found = owner_of(p)
            missing: dict[str, Any] = array.missing_grads
            members = missing.get(found[1]) if found is not None and found[0] is array else None
            if members and p.grad is not None:
                raise OptimError(
                    f"takes the gradient that members {sorted(members)} do not have for zero",
                    where=f"{type(optimizer).__name__}, {found[1]}" if found else "",
                    accepted="an optimizer that leaves such parameters alone, as a member's own would",
                    remedy=cure(type(optimizer)),
                )


def _judge(optimizer: Optimizer, closure: bool, members: int) -> None:
    """Try an optimizer.

    Raises:
        OptimError: members would not train as alone.
    """
    kind = type(optimizer)
    where = f"{kind.__name__} on the parameters of an array"
    device = next((p.device for g in optimizer.param_groups for p in g["params"]), torch.device("cpu"))
    try:
        with streams_apart(device), caught_warnings():
            warnings.simplefilter("ignore")
            alone = [_Trial(optimizer, i, closure, members) for i in range(min(ALONE, members))]
            apart = [trial.run() for trial in alone]
    except Exception as error:
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        text = f"{where}: whether members stay apart could not be found out by trying ({reason}); if its update is not"
        warnings.warn(f"{text} elementwise, {cure(kind)}", ArrayWarning, stacklevel=4)
        return
    try:
        with streams_apart(device), caught_warnings():
            warnings.simplefilter("ignore")
            together = _Trial(optimizer, None, closure, members).run()
        why = "members do not train as they would alone" if _differ(together, apart) else ""
    except Exception as error:
        why = f"it fails with a member axis ({(str(error).strip() or repr(error)).splitlines()[0]})"
    if why:
        raise OptimError(
            f"takes all members for one model: {why}",
            where=where,
            accepted="an optimizer whose update is elementwise, without norms, statistics, random numbers or a look at "
            "the number of axes",
            remedy=cure(kind),
        )


class _Trial:
    """A copy of an optimizer over small tensors.

    Args:
        optimizer: that is copied, with its hyperparameters and attributes.
        member: whose parameters it has; None for those of several members together.
        closure: whether its steps are given a closure.
        members: of the array.
    """

    def __init__(self, optimizer: Optimizer, member: int | None, closure: bool, members: int) -> None:
        self.member, self.closure, self.members = member, closure, members
        self.params: dict[tuple[Any, ...], nn.Parameter] = {}
        own = {name: value for name, value in vars(optimizer).items() if name not in ("step", *_HOOKS)}
        kept = [t for name, value in own.items() if name not in ("state", "param_groups") for t in _tensors(value)]
        memo: dict[int, Any] = {}
        for k, group in enumerate(optimizer.param_groups):
            for p in group["params"]:
                # Of parameters of one shape one will do, unless the optimizer has tensors of its own.
                shape = tuple(min(side, LONGEST) for side in p.shape)
                key = k, shape, p.dtype, p.device, id(p) if kept else None
                apart = owner_of(p) is None  # a parameter of something else
                if key not in self.params:
                    own_part = self._part(p.detach().unsqueeze(0) if apart else p.detach())
                    self.params[key] = nn.Parameter(own_part.clone(), p.requires_grad)
                memo[id(p)] = self.params[key]
                for value in [*_tensors(optimizer.state.get(p)), *kept]:
                    if value.shape == p.shape:
                        memo[id(value)] = self._part(value.unsqueeze(0) if apart else value).clone()
        self.made: Any = object.__new__(type(optimizer))
        memo[id(optimizer)] = self.made
        vars(self.made).update(copy.deepcopy(own, memo))
        vars(self.made).update({name: {} for name in _HOOKS})
        for group in self.made.param_groups:
            group["params"][:] = list(dict.fromkeys(group["params"]))
            if group.get("lr") == 0:  # a warm-up begins there
                group["lr"] = 0.01
        self._begin()

    def _part(self, value: Tensor) -> Tensor:
        """The first entries along each axis; of one member, or of several."""
        row = value[0][tuple(slice(LONGEST) for _ in value.shape[1:])]
        if self.member is not None:
            return row
        rows = max(min(ALONE, self.members), min(self.members, LONGEST, MOST // max(1, row.numel())))
        return row.expand(rows, *row.shape)

    @torch.no_grad()
    def _begin(self) -> None:
        for number, p in enumerate(self.params.values()):
            p.copy_(self._numbers(p, number, 0.5))

    def _numbers(self, like: Tensor, seed: int, scale: float) -> Tensor:
        """Random numbers, much larger for the second member."""
        rows, shape = (range(len(like)), like.shape[1:]) if self.member is None else ([self.member], like.shape)
        kind = like.dtype if like.is_complex() else torch.float64
        seeds = [torch.Generator().manual_seed(1000 * seed + i) for i in rows]
        sizes = [scale * 7 ** (i % 2) for i in rows]
        found = torch.stack([
            torch.randn(shape, generator=own, dtype=kind) * size for own, size in zip(seeds, sizes, strict=True)
        ])  # fmt: skip
        return (found if self.member is None else found[0]).to(like)

    def run(self) -> list[Tensor]:
        """The parameters after each step, as changes of what they were at first."""
        first = [p.detach().clone() for p in self.params.values()]
        step, found = type(self.made).step, []
        for number in range(STEPS):
            self._evaluated(number)
            step(self.made, *([lambda n=number: self._evaluated(n)] if self.closure else []))
            found += [p.detach() - old for p, old in zip(self.params.values(), first, strict=True)]
        return found

    def _evaluated(self, number: int) -> Tensor:
        """Put gradients in place, of a loss that has no minimum in common; returns the loss."""
        total = torch.zeros(())
        for place, p in enumerate(self.params.values()):
            if p.requires_grad:
                late = 2 * number >= STEPS
                grad = self._numbers(p, 1000 * (STEPS if late else number + 1) + place, LARGE if late else 1.0)
                total = total + (grad * p.detach()).abs().sum().cpu()
                p.grad = grad + 0.1 * p.detach()
        return total


def _tensors(tree: Any) -> Iterator[Tensor]:
    """What is no parameter."""
    if isinstance(tree, Tensor):
        if not isinstance(tree, nn.Parameter):
            yield tree
    elif isinstance(tree, Mapping):
        for value in tree.values():
            yield from _tensors(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _tensors(value)


def _differ(together: Sequence[Tensor], apart: Sequence[Sequence[Tensor]]) -> bool:
    found = {str(i): value[: len(apart)] for i, value in enumerate(together)}
    expected = {str(i): torch.stack(rows) for i, rows in enumerate(zip(*apart, strict=True))}
    return bool(compare(found, expected, lambda t: _TOLERANCES.get(t.dtype, 0.05), members=len(apart)))


def _telling_of_axes(make: Callable[..., None]) -> Callable[..., None]:
    """The constructor of an optimizer of matrices, whose error on an array's parameters says what to use."""

    @functools.wraps(make)
    def user_warnings(self: Optimizer, *args: Any, **kwargs: Any) -> None:
        try:
            make(self, *args, **kwargs)
        except ValueError as error:
            held = [p for group in getattr(self, "param_groups", ()) for p in group["params"]]
            refused = next((p for p in held if p.ndim != 2 and owner_of(p) is not None), None)
            if refused is None:
                raise
            raise OptimError(
                "takes matrices, and a parameter of an array has the member axis before its own",
                where=f"torch.optim.{type(self).__name__}",
                got=list(refused.shape),
                accepted="the parameters of one module",
                remedy=f"{cure(type(self))}, of matrices: [p for p in array.parameters() if p.dim() == 3]",
            ) from error

    return user_warnings


if hasattr(torch.optim, "Muon"):
    torch.optim.Muon.__init__ = _telling_of_axes(torch.optim.Muon.__init__)  # type: ignore[method-assign]

_watching: Callable[[], None] = register_optimizer_step_pre_hook(before_step).remove
"""Ends it."""
