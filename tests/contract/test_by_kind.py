"""Each member's rows are computed with its own activation, which may change after the call was recorded."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hfta_nb.engine.rules import by_kind as module
from hfta_nb.engine.rules.by_kind import BINDINGS, by_kind, name_of

KINDS: list[nn.Module] = [nn.ReLU(), nn.GELU(), nn.Tanh(), nn.SiLU()]
NAMES = ",".join(map(name_of, KINDS))


def chosen(of: list[int]) -> list[torch.Tensor]:
    return [torch.tensor([number == kind for number in of]) for kind in range(len(KINDS))]


@pytest.mark.parametrize("of", [[0, 1, 2, 3, 0], [1, 1, 0, 0, 3], [2, 2, 2, 2, 2], [1, 0, 3, 1, 2]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_members_have_their_own_activations(of: list[int], dtype: torch.dtype) -> None:
    x = torch.randn(len(of), 6, 3, generator=torch.Generator().manual_seed(0)).to(dtype)
    x[1, 0] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    given, alone = x.clone().requires_grad_(), x.clone().requires_grad_()
    out = by_kind(given, chosen(of), NAMES)
    each = torch.stack([KINDS[kind](row) for kind, row in zip(of, alone, strict=True)])
    torch.testing.assert_close(out, each, equal_nan=True)
    weight = torch.linspace(-1, 1, x.numel()).view(x.shape).to(dtype)
    (out * weight).sum().backward()
    (each * weight).sum().backward()
    torch.testing.assert_close(given.grad, alone.grad, equal_nan=True)


def test_a_bound_call_reads_the_kinds_that_there_are_now() -> None:
    x, out, own = torch.linspace(-2, 2, 12).view(3, 4), torch.empty(3, 4), chosen([0, 0, 1])
    call = BINDINGS[torch.ops.hfta_nb.by_kind.default].bound((x, own, NAMES), {"out": out})
    for of in ([0, 0, 1], [1, 2, 0], [1, 2, 0]):
        for column, now in zip(own, chosen(of), strict=True):
            column.copy_(now)
        call()
        torch.testing.assert_close(out, torch.stack([KINDS[k](row) for k, row in zip(of, x, strict=True)]))


def test_a_kernel_that_is_prepared_anew_is_called_once_for_members_nearby() -> None:
    names = ["gelu", "relu", "gelu", "tanh", "tanh", "gelu", "relu"]
    near, far = module._runs(names, 1), module._runs(names, 2)
    others = [("relu", slice(1, 2)), ("tanh", slice(3, 5)), ("relu", slice(6, 7))]
    assert near == [("gelu", slice(0, 3)), ("gelu", slice(5, 6)), *others]
    assert far == [("gelu", slice(0, 6)), *others]  # the others overwrite their rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_the_operators_are_what_compilers_take_them_for(dtype: torch.dtype) -> None:
    """Their schemas and shapes; by the shapes a graph is compiled in which they are."""
    x, grad, own = torch.randn(5, 6, 3).to(dtype), torch.randn(5, 6, 3).to(dtype), chosen([0, 1, 1, 3, 2])
    looks = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.hfta_nb.by_kind.default, (x, own, NAMES), test_utils=looks)
    torch.library.opcheck(torch.ops.hfta_nb.by_kind_backward.default, (grad, x, own, NAMES), test_utils=looks)


def test_modules_that_do_more_have_no_name() -> None:
    watched = nn.ReLU()
    watched.register_forward_hook(lambda module, args, out: None)
    others = [nn.ReLU(inplace=True), nn.GELU("tanh"), nn.SiLU(inplace=True), nn.ELU(), watched]
    assert not any(map(name_of, others))
