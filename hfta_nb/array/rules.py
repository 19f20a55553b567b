"""Operator rules: what runs instead of `vmap`'s own rule for a function that a model calls.

`RULES` maps the function to a rule ``rule(context, function, args, kwargs)``. A `TorchFunctionMode` around
the vmapped call looks every function up there. Rules here: whatever draws random numbers runs member by
member, each with its own generators, so that a member draws what it would have drawn alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from hfta_nb.array.generators import MemberGenerators
from hfta_nb.errors import FusionError


@dataclass
class Context:
    """What a rule may need to know of the array it works for.

    Attributes:
        members: M of this call (a block of the array, or all of it).
        first: number of the first of them in the array.
        generators: of the whole array.
        token: a tensor ``[M]`` under `vmap`, so that a call without batched inputs is batched all the same.
        used: function name to how it was fused, for `FusedArray.explain`; filled while `recording`.
    """

    members: int
    first: int
    generators: MemberGenerators
    token: Tensor
    used: dict[str, str]
    recording: bool = False


Rule = Callable[[Context, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
RULES: dict[Callable[..., Any], Rule] = {}


class RuleMode(TorchFunctionMode):
    """Sends every function that the model calls to its rule, where it has one."""

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.context = context

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        rule = RULES.get(func)
        if self.context.recording:
            self.context.used.setdefault(function_name(func), "vmap")
        if rule is None:
            return func(*args, **(kwargs or {}))
        return rule(self.context, func, args, kwargs or {})


class _MemberByMember(torch.autograd.Function):
    """Calls a function once per member; differentiable, as `vmap` below works on plain tensors."""

    @staticmethod
    def forward(call: _Call, token: Tensor, *tensors: Tensor) -> Any:
        raise FusionError("a rule ran outside of an array")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        raise FusionError("a rule ran outside of an array")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], call: _Call, token: Tensor, *tensors: Tensor) -> Any:
        dims = in_dims[2:]
        results = []
        with call.context.generators.borrowed():
            for i in range(info.batch_size):
                inputs = [t if d is None else t.select(d, i) for t, d in zip(tensors, dims, strict=True)]
                call.context.generators.enter(call.context.first + i)
                results.append(call.run(inputs))
                call.context.generators.leave(call.context.first + i)
        stacked = tuple(torch.stack(values) for values in zip(*results, strict=True))
        return stacked, (0,) * len(stacked)


class _Call:
    """A function with its arguments taken apart into tensors and the rest."""

    def __init__(self, context: Context, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        self.context, self.function = context, function
        leaves, self.spec = pytree.tree_flatten((args, kwargs))
        self.tensors = [v for v in leaves if isinstance(v, Tensor)]
        self.leaves = leaves
        self.out_leaves: list[Any] = []
        self.out_spec: Any = None

    def run(self, tensors: list[Tensor]) -> list[Tensor]:
        left = iter(tensors)
        leaves = [next(left) if isinstance(v, Tensor) else v for v in self.leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        self.out_leaves, self.out_spec = pytree.tree_flatten(self.function(*args, **kwargs))
        return [v for v in self.out_leaves if isinstance(v, Tensor)]

    def __call__(self) -> Any:
        stacked = iter(_MemberByMember.apply(self, self.context.token, *self.tensors))  # type: ignore[no-untyped-call]
        leaves = [next(stacked) if isinstance(v, Tensor) else v for v in self.out_leaves]
        return pytree.tree_unflatten(leaves, self.out_spec)


def member_by_member(context: Context, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call `function` once per member, with the member's slices and the member's generators."""
    context.used[function_name(function)] = "member by member, each with its own random numbers"
    return _Call(context, function, args, kwargs)()


def _random_in_place(context: Context, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    target = args[0]
    if not torch._C._functorch.is_batchedtensor(target):
        # M different draws can't go into one shared tensor.
        raise FusionError(
            "draws into a tensor that the members share",
            where=function_name(function),
            remedy="the array falls back to running its members one after another",
        )
    target.copy_(member_by_member(context, function, args, kwargs))
    return target


def _dropout(context: Context, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    names = ("input", "p", "training")
    given = dict(zip(names, args, strict=False)) | kwargs
    default_training = function not in (torch.dropout, torch.alpha_dropout, torch.feature_dropout)
    if not given.get("training", given.get("train", default_training)):
        return function(*args, **kwargs)
    return member_by_member(context, function, args, kwargs)


def _when(position: int, name: str, default: float) -> Rule:
    """Random only where an argument (a dropout probability) is not zero."""

    def rule(context: Context, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        value = args[position] if len(args) > position else kwargs.get(name, default)
        return member_by_member(context, function, args, kwargs) if value else function(*args, **kwargs)

    return rule


def function_name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", function))


_DROPOUTS = (
    *(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout),
    *(torch.dropout, torch.alpha_dropout, torch.feature_dropout, torch.feature_alpha_dropout),
)
_RANDOM = (
    *(torch.rand, torch.randn, torch.randint, torch.randperm, torch.normal, torch.bernoulli, torch.poisson),
    *(torch.rand_like, torch.randn_like, torch.randint_like, torch.multinomial, torch.binomial),
    *(Tensor.bernoulli, Tensor.multinomial, F.gumbel_softmax, F.rrelu, torch.rrelu),
    *(F.fractional_max_pool2d, F.fractional_max_pool3d),
    *(F.fractional_max_pool2d_with_indices, F.fractional_max_pool3d_with_indices),
)
_IN_PLACE = (
    *(Tensor.bernoulli_, Tensor.uniform_, Tensor.normal_, Tensor.exponential_, Tensor.geometric_),
    *(Tensor.log_normal_, Tensor.cauchy_, Tensor.random_),
)
RULES |= dict.fromkeys(_DROPOUTS, _dropout)
RULES |= dict.fromkeys(_RANDOM, member_by_member)
RULES |= dict.fromkeys(_IN_PLACE, _random_in_place)
RULES[F.scaled_dot_product_attention] = _when(4, "dropout_p", 0.0)
RULES[F.multi_head_attention_forward] = _when(10, "dropout_p", 0.0)
