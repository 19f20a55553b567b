"""Torch's optimizers are what they are without torch's compiler: in numbers, hooks, and what a person puts around."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from hfta_nb.optim.without_compiler import without_compiler

_NEITHER = {"Optimizer", "SparseAdam"}  # the latter takes no dense gradients
KINDS = [getattr(torch.optim, name) for name in sorted({*torch.optim.__all__} - _NEITHER) if name[0].isupper()]


def _trained(kind: Any) -> tuple[list[torch.Tensor], Any]:
    torch.manual_seed(0)
    weight, x = nn.Parameter(torch.randn(4, 3)), torch.randn(5, 4)
    optimizer = kind([weight], lr=0.1)
    for _ in range(3):

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = (x @ weight).square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        optimizer.load_state_dict(optimizer.state_dict())
    state = optimizer.state[weight]
    return [weight.detach(), *(v for v in state.values() if isinstance(v, torch.Tensor))], optimizer


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_steps_are_torchs(kind: Any) -> None:
    (numbers, own), (others, known) = _trained(without_compiler(kind)), _trained(kind)
    assert isinstance(own, kind)
    assert repr(own) == repr(known)
    assert len(numbers) == len(others)
    assert all(torch.equal(a, b) for a, b in zip(numbers, others, strict=True))
    assert not any(v.requires_grad for v in numbers)


def test_hooks_of_all_optimizers_run() -> None:
    seen: list[Any] = []
    hook = register_optimizer_step_post_hook(lambda optimizer, *_: seen.append(optimizer))
    try:
        own = _trained(without_compiler(torch.optim.SGD))[1]
    finally:
        hook.remove()
    assert seen == [own] * 3


def test_what_a_person_puts_around_a_method_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def counted(name: str) -> None:
        theirs = getattr(torch.optim.SGD, name)

        @functools.wraps(theirs)
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return theirs(*args, **kwargs)

        monkeypatch.setattr(torch.optim.SGD, name, call)

    counted("step")
    counted("zero_grad")
    _trained(without_compiler(torch.optim.SGD))
    assert calls == ["step", "zero_grad"] * 3
