"""Random numbers that a thread draws from a generator of its own: the same numbers, and no others are touched."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hfta_nb.engine.members import own_draws
from hfta_nb.engine.members.own_draws import drawing_from, generator_here, turn_to

x = torch.linspace(-2, 2, 48).view(2, 4, 6)
whole = torch.full((5,), 9.0)


class _Rates(nn.Module):
    def forward(self, y: Tensor) -> Tensor:
        return torch.rand_like(y) + y


def _vmapped(function: Callable[[Tensor], Tensor], randomness: str = "different") -> Tensor:
    return torch.func.vmap(function, randomness=randomness)(torch.ones(3, 4))


class _Noisy(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(y: Tensor) -> Tensor:
        return y + torch.rand_like(y)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        return None

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


def _checkpointed() -> Tensor:
    y = x.clone().requires_grad_()
    torch.utils.checkpoint.checkpoint(F.dropout, y, use_reentrant=False).sum().backward()
    return y.grad  # type: ignore[return-value]


def _forked() -> Tensor:
    with torch.random.fork_rng(devices=[]):
        first = torch.rand(3)
    return first + torch.rand(3)


def _seeded() -> Tensor:
    torch.manual_seed(5)
    return torch.rand(3) + torch.initial_seed()


def _put_back() -> Tensor:
    state = torch.get_rng_state()
    first = torch.rand(3)
    torch.set_rng_state(state)
    return torch.cat([first, torch.rand(3)])


DRAWS: dict[str, Callable[[], Any]] = {
    "rand": lambda: torch.rand(5),
    "rand, out": lambda: torch.rand(5, out=torch.empty(5)),
    "randn": lambda: torch.randn(500),
    "randn, complex": lambda: torch.randn(5, dtype=torch.complex64),
    "randn, bfloat16": lambda: torch.randn(5, dtype=torch.bfloat16),
    "randn, out": lambda: torch.randn(5, out=torch.empty(5)),
    "randint": lambda: torch.randint(9, (7,)),
    "randint from": lambda: torch.randint(3, 9, (7,)),
    "randperm": lambda: torch.randperm(99),
    "like": lambda: torch.rand_like(x) + torch.randn_like(x) + torch.randint_like(x, 9) + torch.randint_like(x, 2, 9),
    "normal": lambda: torch.normal(0.0, 1.0, (5,)) + torch.normal(whole, 1.0) + torch.normal(whole, whole),
    "bernoulli": lambda: torch.bernoulli(x.sigmoid()) + x.clone().bernoulli_(x.sigmoid()),
    "multinomial": lambda: torch.multinomial(x[0].sigmoid(), 3),
    "poisson": lambda: torch.poisson(x.exp()),
    "binomial": lambda: torch.binomial(whole, torch.full((5,), 0.3)),
    "gamma": lambda: torch.distributions.Gamma(whole, whole).sample((2,)),
    "dirichlet": lambda: torch.distributions.Dirichlet(whole).sample((2,)),
    "in place": lambda: sum(
        (getattr(x.clone(), name)() for name in ("random_", "exponential_", "cauchy_", "log_normal_", "uniform_")),
        x.clone().geometric_(0.3),
    ),
    "dropout": lambda: F.dropout(x, 0.3) + F.alpha_dropout(x, 0.3) + F.dropout1d(x, 0.3),
    "native dropout": lambda: torch.native_dropout(x, 0.3, True)[0],
    "rrelu": lambda: F.rrelu(x, training=True),
    "pooling": lambda: F.fractional_max_pool2d(x, 2, 3),
    "gumbel": lambda: F.gumbel_softmax(x),
    "attention": lambda: F.scaled_dot_product_attention(x, x, x, dropout_p=0.3),
    "a layer": lambda: nn.TransformerEncoderLayer(6, 2)(x).detach(),
    "recurrent layers": lambda: nn.LSTM(6, 8, 2, dropout=0.5)(x)[0].detach(),
    "initialising": lambda: nn.init.orthogonal_(nn.init.trunc_normal_(torch.empty(5, 5))),
    "vmap": lambda: _vmapped(lambda y: F.dropout(y) + torch.rand(4) + torch.rand_like(y) + torch.randperm(4)),
    "vmap, the same": lambda: _vmapped(lambda y: y + torch.rand(4), "same"),
    "vmap, a function of one's own": lambda: _vmapped(_Noisy.apply),
    "a condition": lambda: torch.func.vmap(lambda y: torch.cond(y.sum() > 0, torch.sin, torch.cos, (y,)))(x),
    "a script": lambda: torch.jit.script(_Rates())(x),
    "checkpoint": _checkpointed,
    "fork_rng": _forked,
    "manual_seed": _seeded,
    "set_rng_state": _put_back,
    "the default generator, given": lambda: torch.rand(3, generator=torch.default_generator),
    "a generator of its own": lambda: torch.rand(3, generator=torch.Generator().manual_seed(2)),
}


@pytest.mark.filterwarnings("ignore:.*jit")
@pytest.mark.parametrize("draw", DRAWS.values(), ids=list(DRAWS))
def test_the_numbers_are_those_of_the_default_generator(draw: Callable[[], Tensor]) -> None:
    torch.manual_seed(3)
    expected, after = draw(), torch.get_rng_state()
    torch.manual_seed(4)
    before, own = torch.get_rng_state(), torch.Generator().manual_seed(3)
    with drawing_from(own):
        found = draw()
    assert torch.equal(found, expected)
    assert torch.equal(own.get_state(), after)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.random.default_generator is torch._C.default_generator  # type: ignore[attr-defined]


def test_every_operator_that_draws_on_a_cpu_is_known() -> None:
    """A version of torch may have new ones. Those that take no generator call others, or draw on a GPU."""
    drawing = {
        str(s.name).removeprefix("aten::")
        for s in torch._C._jit_get_all_schemas()
        if s.name.startswith("aten::") and any(a.name == "generator" for a in s.arguments)
    }
    others = {"_fused_dropout", "normal_functional", "rrelu", "rrelu_", "_no_grad_normal_", "_no_grad_uniform_"}
    here = {name for name in drawing if hasattr(torch.ops.aten, name)}
    assert here - set(own_draws.DRAWING) <= others  # a GPU's, and those that call the known ones


def test_another_thread_draws_as_if_nothing_were() -> None:
    torch.manual_seed(1)
    expected = [torch.rand(4) for _ in range(200)]
    torch.manual_seed(1)
    own, found, here = torch.Generator().manual_seed(2), list[Tensor](), list[Tensor]()
    other = threading.Thread(target=lambda: found.extend(torch.rand(4) for _ in range(200)))
    with drawing_from(own):
        other.start()
        here.extend(torch.rand(4) for _ in range(200))
        other.join()
    alone = torch.Generator().manual_seed(2)
    assert all(map(torch.equal, found, expected))
    assert all(torch.equal(y, torch.rand(4, generator=alone)) for y in here)


def test_contexts_are_nested() -> None:
    first, second = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    assert generator_here() is torch.default_generator
    with drawing_from(first):
        with drawing_from(None):
            assert generator_here() is first
            turn_to(second)
            assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(2)))
            turn_to(None)
            assert generator_here() is first
        with pytest.raises(KeyError), drawing_from(second):
            raise KeyError
        assert generator_here() is first
    assert generator_here() is torch.default_generator
