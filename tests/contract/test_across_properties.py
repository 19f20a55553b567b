"""Random members of different architectures: fused equals serial."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import hfta_nb as hfta
from tests.contract.across_rows import Causal, Encoder, Residual, Separable, mlp
from tests.contract.serial import loss_of, target_for, train_alone
from tests.contract.test_properties import explored

_sizes = st.integers(1, 7)
_activations = st.sampled_from([nn.ReLU, nn.Tanh, nn.GELU, nn.Sigmoid, nn.Softplus, nn.PReLU, nn.SiLU, nn.ELU])
_norms = st.sampled_from([None, nn.LayerNorm, nn.RMSNorm])
_mlps = st.fixed_dictionaries(
    {
        "widths": st.lists(_sizes, min_size=1, max_size=3),
        "act": _activations,
        "norm": _norms,
        "p": st.sampled_from([0.0, 0.2, 0.5]),
    }
)
_heads = st.integers(1, 4)
_families = st.one_of(
    st.tuples(st.just(mlp), st.lists(_mlps, min_size=2, max_size=5)),
    st.tuples(
        st.just(Residual),
        st.lists(st.fixed_dictionaries({"width": _sizes, "depth": st.integers(1, 3)}), min_size=2, max_size=4),
    ),
    st.tuples(
        st.just(Separable),
        st.lists(
            st.fixed_dictionaries({"width": st.sampled_from([2, 4, 6]), "squeeze": st.integers(1, 3)}),
            min_size=2,
            max_size=4,
        ),
    ),
    st.tuples(
        st.just(Causal),
        st.lists(
            st.builds(lambda h, d: {"width": 2 * h * d, "heads": h}, _heads, st.integers(1, 3)), min_size=2, max_size=4
        ),
    ),
    st.tuples(
        st.just(Encoder),
        st.lists(
            st.builds(
                lambda h, d, inner, layers: {"width": h * d, "heads": h, "inner": inner, "layers": layers},
                *(_heads, st.integers(1, 3), _sizes, st.integers(1, 2)),
            ),
            min_size=2,
            max_size=3,
        ),
    ),
)
_INPUTS = {mlp: (5,), Residual: (2, 8, 8), Separable: (2, 8, 8), Encoder: (4, 3)}


@pytest.mark.long
@settings(explored, max_examples=30)
@given(family=_families, block=st.integers(2, 5))
def test_fused_equals_serial(family: tuple[Any, list[dict[str, Any]]], block: int) -> None:
    build, knobs = family
    modules = []
    for i, own in enumerate(knobs):
        torch.manual_seed(10 + i)
        modules.append(build(**own).double())
    torch.manual_seed(0)
    shape = _INPUTS.get(build)
    x = torch.randint(0, 7, (6, 4)) if shape is None else torch.randn(6, *shape, dtype=torch.float64)
    y = target_for(modules[0], x)
    seeds = list(range(50, 50 + len(modules)))
    array = hfta.fuse(modules, seeds)
    array.block_size = min(block, len(modules))
    # Plain SGD: it makes nothing of the rounding of gradients that are exactly zero.
    optimizer = hfta.optim.SGD(array, lr=0.01, momentum=0.9)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        losses.append(array.backward(loss_of, x, y))
        optimizer.step()
    for i, module in enumerate(modules):
        own = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
        alone = train_alone(module, seeds[i], 3, x, y, own)
        torch.testing.assert_close(
            torch.stack([v[i] for v in losses]), losses[0].new_tensor(alone), atol=1e-9, rtol=1e-9
        )
        back = array[i].state_dict()
        for name, value in module.state_dict().items():
            torch.testing.assert_close(back[name], value, atol=1e-9, rtol=1e-9, msg=lambda m, n=name: f"{n}: {m}")
    for name, own_entries in array.owned.items():
        value = (dict(array.named_parameters()) | dict(array.named_buffers()))[name].detach()
        assert not value[~own_entries].any(), name
