"""Random networks: fused equals serial."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hfta_nb as hfta
from tests.contract.serial import largest, loss_of, make, target_for, train_alone
from tests.contract.zoo.networks import Network, networks

STEPS = 3
CPU = torch.device("cpu")

# A large eps keeps Adam and its kin from making something of the rounding of gradients that are exactly zero.
_OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "nesterov": True},
    "Adam": {"eps": 1e-3, "amsgrad": True},
    "AdamW": {"eps": 1e-3},
    "RMSprop": {"eps": 1e-3, "centered": True},
    "Adagrad": {"eps": 1e-3},
    "NAdam": {"eps": 1e-3},
    "RAdam": {"eps": 1e-3},
    "Adamax": {"eps": 1e-3},
    "Adadelta": {"eps": 1e-3},
    "ASGD": {"t0": 1.0},
}
_optimizers = st.sampled_from(list(_OPTIMIZERS))

explored = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.long
@explored
@given(
    network=networks(),
    members=st.integers(1, 5),
    block=st.integers(1, 5),
    optimizer=_optimizers,
    rates=st.lists(st.sampled_from([1e-3, 3e-3, 1e-2]), min_size=5, max_size=5),
)
def test_fused_equals_serial(network: Network, members: int, block: int, optimizer: str, rates: list[float]) -> None:
    modules = make(network.build, members, torch.float64, CPU)
    torch.manual_seed(0)
    x = network.inputs()
    y = target_for(modules[0].eval(), x)
    seeds = list(range(50, 50 + members))
    for module in modules:
        module.train()
    array = hfta.fuse(modules, seeds)
    array.block_size = min(block, members)
    fused = getattr(hfta.optim, optimizer)(array, lr=rates[:members], **_OPTIMIZERS[optimizer])
    losses = []
    for _ in range(STEPS):
        fused.zero_grad()
        losses.append(array.backward(loss_of, x, y))
        fused.step()
    for i, module in enumerate(modules):
        one = getattr(torch.optim, optimizer)(module.parameters(), lr=rates[i], **_OPTIMIZERS[optimizer])
        alone = train_alone(module, seeds[i], STEPS, x, y, one)
        torch.testing.assert_close(
            torch.stack([v[i] for v in losses]), torch.tensor(alone, dtype=torch.float64), atol=1e-10, rtol=1e-10
        )
    assert largest(array, modules) <= 1e-10


def test_one_channel_per_member() -> None:
    """Found above: torch's batch norm takes a weight whose numbers lie apart for one whose numbers are neighbours."""
    layers = (
        ("linear", (2, 1, False)),
        ("batch norm", (1, 0.1)),
        ("batch norm", (1, 0.1)),
        ("activation", ("ReLU", True)),
    )
    network = Network("vector", (2,), layers)
    test_fused_equals_serial.hypothesis.inner_test(network, 2, 2, "SGD", [1e-3] * 2)


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_masks_follow_the_layout_in_memory(kind: str) -> None:
    """Found above: a dropout mask is drawn in memory order, which after a recurrent layer is not that of the axes."""
    layers = (("recurrent", (kind, 2, 3, 1, False, 0.0)), ("dropout", (0.2,)))
    network = Network("sequence", (4, 2), layers)
    test_fused_equals_serial.hypothesis.inner_test(network, 2, 2, "SGD", [1e-3] * 2)


@explored
@given(network=networks(), members=st.integers(1, 4), block=st.integers(1, 4))
def test_evaluation_equals_serial(network: Network, members: int, block: int) -> None:
    modules = [m.eval() for m in make(network.build, members, torch.float64, CPU)]
    torch.manual_seed(0)
    x = network.inputs()
    array = hfta.fuse(modules, list(range(members)))
    array.block_size = min(block, members)
    with torch.no_grad():
        out = array(x.clone())
        for i, module in enumerate(modules):
            torch.testing.assert_close(out[i], module(x.clone()), atol=1e-10, rtol=1e-10)
