"""Torch's own list of its module classes, with sample inputs, so that classes of a newer torch are tested
automatically.

Source: `torch.testing._internal.common_modules.module_db`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from tests.contract.zoo.agree import Sample
from tests.contract.zoo.internal import thawed

with thawed():
    from torch.testing._internal.common_modules import module_db

KINDS: list[Any] = list(module_db)


def samples(kind: Any, dtype: torch.dtype, device: torch.device, training: bool, most: int) -> list[Any]:
    """The kind's samples, at most so many, spread evenly over the list: some kinds have hundreds."""
    torch.manual_seed(0)
    options = {"device": device, "dtype": dtype, "requires_grad": True, "training": training}
    found = kind.module_inputs_func(kind, **options)
    return found if len(found) <= most else [found[i * len(found) // most] for i in range(most)]


def members(
    build: Callable[[], nn.Module], count: int, dtype: torch.dtype, device: torch.device, training: bool
) -> list[nn.Module]:
    """Plain modules with values of their own: also where the kind begins with ones and zeros."""
    modules = []
    for i in range(count):
        torch.manual_seed(10 + i)
        module = build().to(device).to(dtype).train(training)
        with torch.no_grad():
            for p in module.parameters():
                if not is_lazy(p):
                    p.add_(0.1 * torch.rand_like(p))
            for b in module.buffers():
                if not is_lazy(b) and b.is_floating_point():
                    b.copy_(0.9 * b + 0.1 * torch.rand_like(b))  # what lies in [0, 1] stays there
        modules.append(module)
    return modules


def builder(kind: Any, sample: Any) -> Callable[[], nn.Module]:
    """Makes a plain module of the sample, each from arguments of its own."""

    def build() -> nn.Module:
        given = copy.deepcopy(sample.constructor_input)
        return kind.module_cls(*given.args, **given.kwargs)

    return build


def inputs(sample: Any) -> Sample:
    return Sample(tuple(sample.forward_input.args), dict(sample.forward_input.kwargs))


def modes(kind: Any) -> Iterator[bool]:
    """Training, and evaluation where it differs."""
    yield True
    if kind.train_and_eval_differ:
        yield False
