"""Compares an array's call with every member's plain module, run alone.

Compared are the results (any tree), the gradients of parameters and inputs, and the buffers afterwards. The comparison
does not depend on the module.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.array import FusedArray, PerMember
from hfta_nb.engine.members.generators import current_state, seeded_state, set_state
from hfta_nb.engine.members.tree import flatten, unflatten

SEEDS = (101, 102, 103)
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-4}


@dataclass(frozen=True)
class Sample:
    """Inputs of a module: positional and by name, trees of tensors and whatever else."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    def to(self, device: torch.device, dtype: torch.dtype) -> Sample:
        """Elsewhere, and floating tensors in another precision."""
        values, rebuild = flatten((self.args, self.kwargs))
        moved = [v.to(device, dtype if v.is_floating_point() else None) if isinstance(v, Tensor) else v for v in values]
        return Sample(*unflatten(rebuild, moved))


def score(output: Any) -> Tensor:
    """A scalar that every floating number of an output tells in; weights are the same for members and array."""
    total = None
    for value in flatten(output)[0]:
        if isinstance(value, Tensor) and value.is_floating_point():
            weights = torch.linspace(0.5, 1.5, value.numel(), dtype=value.dtype, device=value.device)
            part = (value * weights.view(value.shape)).sum()
            total = part if total is None else total + part
    assert total is not None, "an output without floating numbers"
    return total


def same_tree(fused: Any, alone: Any, index: int, tolerance: float, what: str) -> None:
    """Row `index` of the array's output is the member's: tensors, and all the rest."""
    got, expected = flatten(fused)[0], flatten(alone)[0]
    assert len(got) == len(expected), what
    for u, v in zip(got, expected, strict=True):
        if isinstance(v, Tensor):
            same_tensor(u[index], v, tolerance, what)
        else:
            assert u == v, what


def same_tensor(fused: Tensor, alone: Tensor, tolerance: float, what: str) -> None:
    """Equal in dtype, shape and, to rounding, values; not-a-numbers in the same places."""
    if alone.dtype == torch.float32:  # so do some models in part, whatever their own dtype
        tolerance = max(tolerance, 1e-5)
    if alone.is_cuda:  # sums of atomic additions, in another order each time
        tolerance = max(tolerance, 1e-7)
    options: Any = {"atol": tolerance, "rtol": tolerance, "equal_nan": True}
    torch.testing.assert_close(fused.detach(), alone.detach(), **options, msg=lambda text: f"{what}: {text}")


def same_state(array: FusedArray, modules: Sequence[nn.Module], tolerance: float, *, grads: bool = True) -> None:
    """Parameters, their gradients, and buffers."""
    parameters, buffers = dict(array.named_parameters()), dict(array.named_buffers())
    for i, module in enumerate(modules):
        assert list(parameters) == [name for name, _ in module.named_parameters()]
        for name, p in module.named_parameters():
            same_tensor(parameters[name][i], p, tolerance, f"member {i}, {name}")
            if not grads:
                continue
            fused = parameters[name].grad
            if p.grad is None:
                lacking = array.missing_grads.get(name, [])
                assert fused is None or (i in lacking and not fused[i].any()), f"gradient of {name}"
            else:
                assert fused is not None, f"no gradient of {name}"
                same_tensor(fused[i], p.grad, tolerance, f"member {i}, gradient of {name}")
        for name, b in module.named_buffers():
            same_tensor(buffers[name][i], b, tolerance, f"member {i}, buffer {name}")


class Leaves:
    """A sample taken apart: its leaves, and which of them take part in differentiation."""

    def __init__(self, sample: Sample) -> None:
        self.values, self._rebuild = flatten((sample.args, sample.kwargs))
        self.learn = [isinstance(v, Tensor) and v.requires_grad for v in self.values]

    def fresh(self) -> list[Any]:
        """Leaves without history."""
        return [v.detach().clone().requires_grad_(w) if w else v for v, w in zip(self.values, self.learn, strict=True)]

    def given(self, values: list[Any]) -> tuple[Any, Any]:
        """``args, kwargs`` of copies, as the model may write into what it is given."""
        return unflatten(self._rebuild, [_copied(v) for v in values])


def _copied(value: Any) -> Any:
    if isinstance(value, PerMember):
        return hfta.per_member(value.value.clone())
    return value.clone() if isinstance(value, Tensor) else value


def check_shared(modules: Sequence[nn.Module], sample: Sample, tolerance: float) -> FusedArray:
    """All members get the same inputs; `array(x)`, then autograd. An input's gradient is the sum over members."""
    array = hfta.fuse(modules, SEEDS[: len(modules)])
    leaves = Leaves(sample)
    mine, theirs = leaves.fresh(), leaves.fresh()
    args, kwargs = leaves.given(mine)
    fused = array(*args, **kwargs)
    alone = []
    for seed, module in zip(SEEDS, modules, strict=False):
        args, kwargs = leaves.given(theirs)
        torch.manual_seed(seed)
        alone.append(module(*args, **kwargs))
    for i, out in enumerate(alone):
        same_tree(fused, out, i, tolerance, f"output of member {i}")
    if any(isinstance(v, Tensor) and v.requires_grad for v in flatten(alone[0])[0]):
        sum(score(row_of(fused, i)) for i in range(len(alone))).backward()
        for out in alone:
            score(out).backward()
    for u, v, w in zip(mine, theirs, leaves.learn, strict=True):
        if w:
            same_grad(u.grad, v.grad, len(alone) * tolerance, "gradient of an input")
    same_state(array, modules, tolerance)
    return array


def check_per_member(modules: Sequence[nn.Module], sample: Sample, tolerance: float) -> FusedArray:
    """Every member gets inputs of its own; `array.backward`. Needs something to differentiate by."""
    array = hfta.fuse(modules, SEEDS[: len(modules)])
    leaves = Leaves(sample)
    own = [_stacked(v, len(modules), w) for v, w in zip(leaves.values, leaves.learn, strict=True)]
    marked = [hfta.per_member(v) if isinstance(v, Tensor) else v for v in own]
    args, kwargs = leaves.given(marked)
    given = inspect.signature(modules[0].forward).bind(*args, **kwargs).arguments if kwargs else args
    losses = array.backward(lambda output, _: score(output), given)
    for i, (seed, module) in enumerate(zip(SEEDS, modules, strict=False)):
        rows = [v.detach()[i].clone() if isinstance(v, Tensor) else v for v in own]
        theirs = [v.requires_grad_() if w else v for v, w in zip(rows, leaves.learn, strict=True)]
        args, kwargs = leaves.given(theirs)
        torch.manual_seed(seed)
        loss = score(module(*args, **kwargs))
        loss.backward()
        same_tensor(losses[i], loss, tolerance, f"loss of member {i}")
        for u, v, w in zip(own, theirs, leaves.learn, strict=True):
            if w:
                grad = None if u.grad is None else u.grad[i]
                same_grad(grad, v.grad, tolerance, f"gradient of an input of member {i}")
    same_state(array, modules, tolerance)
    return array


def _stacked(value: Any, members: int, learn: bool) -> Any:
    """A tensor of every member's own: other numbers where they are differentiated, else the same (labels, masks)."""
    if not isinstance(value, Tensor):
        return value
    stacked = torch.stack([value.detach() * (1 - 0.1 * i) if learn else value for i in range(members)])
    return stacked.requires_grad_(learn)


def check_without_gradients(modules: Sequence[nn.Module], sample: Sample, tolerance: float) -> FusedArray:
    """Evaluation mode, under `no_grad`."""
    array = hfta.fuse(modules, SEEDS[: len(modules)]).eval()
    leaves = Leaves(sample)
    with torch.no_grad():
        args, kwargs = leaves.given(leaves.fresh())
        fused = array(*args, **kwargs)
        for i, (seed, module) in enumerate(zip(SEEDS, modules, strict=False)):
            args, kwargs = leaves.given(leaves.fresh())
            torch.manual_seed(seed)
            same_tree(fused, module.eval()(*args, **kwargs), i, tolerance, f"output of member {i}")
    same_state(array, modules, tolerance, grads=False)
    return array


def check_autocast(modules: Sequence[nn.Module], sample: Sample, device: torch.device) -> None:
    """Under autocast to bfloat16 every output has the dtype that the plain module gives it; values agree roughly."""
    array = hfta.fuse(modules, SEEDS[: len(modules)])
    leaves = Leaves(sample)
    args, kwargs = leaves.given(leaves.fresh())
    with torch.autocast(device.type, dtype=torch.bfloat16):
        fused = array(*args, **kwargs)
        for i, (seed, module) in enumerate(zip(SEEDS, modules, strict=False)):
            args, kwargs = leaves.given(leaves.fresh())
            torch.manual_seed(seed)
            got, expected = flatten(fused)[0], flatten(module(*args, **kwargs))[0]
            for u, v in zip(got, expected, strict=True):
                if isinstance(v, Tensor):
                    assert u.dtype == v.dtype, f"output of member {i}"
                    torch.testing.assert_close(u[i].detach(), v.detach(), atol=4e-2, rtol=4e-2, equal_nan=True)
    if any(isinstance(v, Tensor) and v.requires_grad for v in flatten(fused)[0]):
        score(fused).backward()
    for name, p in array.named_parameters():
        assert p.grad is None or p.grad.dtype == p.dtype, name


def check_low_inputs(modules: Sequence[nn.Module], sample: Sample, device: torch.device) -> None:
    """Under autocast, inputs of bfloat16, as further inside a model: outputs have the dtypes of the plain module."""
    moved = sample.to(device, torch.bfloat16)
    values, rebuild = flatten((moved.args, moved.kwargs))
    values = [v.detach() if isinstance(v, Tensor) else v for v in values]
    low = Sample(*unflatten(rebuild, values))
    with torch.autocast(device.type, dtype=torch.bfloat16):
        torch.manual_seed(SEEDS[0])
        try:
            expected = flatten(modules[0](*low.args, **low.kwargs))[0]
        except (RuntimeError, NotImplementedError):  # torch has no such kernel, or mixes no such dtypes
            return
        floating = [isinstance(v, Tensor) and v.is_floating_point() for v in values]
        pairs = zip(values, floating, strict=True)
        own = [hfta.per_member(torch.stack([v] * len(modules))) if f else v for v, f in pairs]
        args, kwargs = unflatten(rebuild, own)
        got = flatten(hfta.fuse(modules, SEEDS[: len(modules)])(*args, **kwargs))[0]
    for u, v in zip(got, expected, strict=True):
        assert not isinstance(v, Tensor) or u.dtype == v.dtype


def row_of(tree: Any, index: int) -> Any:
    """One member's part of an array's output."""
    leaves, rebuild = flatten(tree)
    return unflatten(rebuild, [v[index] if isinstance(v, Tensor) else v for v in leaves])


def same_grad(fused: Tensor | None, alone: Tensor | None, tolerance: float, what: str) -> None:
    """Equal, or both None: zero and None are told apart, as optimizers do."""
    assert (fused is None) == (alone is None), f"{what}: {fused} and {alone}"
    if fused is not None and alone is not None:
        same_tensor(fused, alone, tolerance, what)


def loss_of(output: Any, _: Any = None) -> Tensor:
    """The model's own loss where it gives one in its own precision, else the mean of the squares of what it gives."""
    values = [v for v in flatten(output)[0] if isinstance(v, Tensor) and v.is_floating_point()]
    loss = getattr(output, "loss", None)
    widest = max(values, key=lambda v: v.element_size()).dtype
    if isinstance(loss, Tensor) and loss.dtype == widest:
        return loss
    # Causal language models compute theirs in float32, whatever they are in themselves.
    return torch.stack([(v**2).mean() for v in values if v.dtype == widest]).sum()


def check_training(modules: Sequence[nn.Module], sample: Sample, tolerance: float, steps: int = 3) -> FusedArray:
    """Steps of an optimizer in training mode: losses, gradients and buffers after the first, and all after the last.

    SGD, as Adam makes something of the rounding of gradients that are exactly zero (a bias before batch norm).
    """
    array = hfta.fuse(modules, SEEDS[: len(modules)])
    optimizer = hfta.optim.SGD(array, lr=[0.01 * (i + 1) for i in range(len(modules))], momentum=0.9)
    leaves = Leaves(sample)
    alone = [torch.optim.SGD(m.parameters(), lr=0.01 * (i + 1), momentum=0.9) for i, m in enumerate(modules)]
    device = next(modules[0].parameters()).device
    streams = [seeded_state(s, device) for s in SEEDS]
    for step in range(steps):
        optimizer.zero_grad()
        args, kwargs = leaves.given(leaves.values)
        losses = array.backward(loss_of, {**_bound(modules[0], args), **kwargs})
        for i, module in enumerate(modules):
            alone[i].zero_grad()
            args, kwargs = leaves.given(leaves.values)
            set_state(streams[i], device)
            loss = loss_of(module(*args, **kwargs))
            loss.backward()
            streams[i] = current_state(device)
            same_tensor(losses[i], loss, tolerance, f"loss of member {i}")
        if step == 0:
            same_state(array, modules, tolerance)
        optimizer.step()
        for one in alone:
            one.step()
    same_state(array, modules, tolerance, grads=False)
    return array


def _bound(module: nn.Module, args: tuple[Any, ...]) -> dict[str, Any]:
    """Positional inputs by their names."""
    return dict(inspect.signature(module.forward).bind_partial(*args).arguments)
