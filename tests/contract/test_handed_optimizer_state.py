"""State and hooks of optimizers of others: kept, moved with members, read and saved as by torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hfta_nb as hfta
from hfta_nb.errors import ArrayWarning, OptimError
from tests.contract.handed_optimizers import (
    LRS,
    SEEDS,
    Lamb,
    Lion,
    Remembering,
    X,
    Y,
    assert_member,
    build,
    fused,
    train,
    trained_alone,
)


def test_what_a_class_keeps_goes_with_its_member() -> None:
    """By `member_state`, as a study's checkpoints do it, and in `state_dict` where the class has a form of its own."""
    array = fused()
    optimizer = hfta.optim.ByMember(Remembering, array, lr=LRS)
    train(array, optimizer, steps=3)
    optimizer.state[next(array.parameters())]["noted"] = torch.zeros(3, 5, 4)  # what belongs to no parameter stays
    states = {i: optimizer.member_state(i) for i in range(3)}
    again = hfta.optim.ByMember(Remembering, array, lr=LRS)
    again.load_members(states)
    train(array, again, steps=5)
    for i, seed in enumerate(SEEDS):
        assert_member(
            array, i, trained_alone(build, seed, lambda m, i=i: Remembering(m.parameters(), LRS[i]), X, Y, "steps")[0]
        )


class Unsaved(Lion):
    """Keeps something in an array of NumPy's, which no state holds."""

    def step(self, closure: Any = None) -> None:
        self.seen = np.zeros(3)
        super().step(closure)


def test_a_state_that_lacks_something_says_so() -> None:
    array = fused()
    optimizer = hfta.optim.ByMember(Unsaved, array)
    train(array, optimizer, steps=1)
    with pytest.warns(ArrayWarning, match=r"ByMember\(Unsaved\): the state does not hold \['seen'\]"):
        optimizer.state_dict()


def test_the_state_of_another_class_is_refused() -> None:
    array = fused()
    saved = hfta.optim.ByMember(Lion, array).state_dict()
    with pytest.raises(OptimError, match=r"ByMember\(Lamb\): the state of another optimizer; got 'ByMember\(Lion\)'"):
        hfta.optim.ByMember(Lamb, array).load_state_dict(saved)


@pytest.mark.parametrize("kind", ["SGD", "Adafactor", "ByMember"])
def test_hooks_around_steps_are_called_as_by_torch(kind: str) -> None:
    array, told = fused(), []
    optimizer: Any = hfta.optim.ByMember(Lion, array) if kind == "ByMember" else getattr(hfta.optim, kind)(array)

    def halve(_: Any, args: Any, kwargs: Any) -> None:
        for p in array.parameters():
            p.grad.mul_(0.5)

    handles = [optimizer.register_step_pre_hook(halve), optimizer.register_step_post_hook(lambda *a: told.append(a))]
    train(array, optimizer, steps=8)
    assert told == [(optimizer, (optimizer,), {})] * 8
    make = Lion if kind == "ByMember" else getattr(torch.optim, kind)
    for i, seed in enumerate(SEEDS):

        def hooked(module: nn.Module) -> Any:
            alone = make(module.parameters())
            alone.register_step_pre_hook(lambda *_: [p.grad.mul_(0.5) for p in module.parameters()] and None)
            return alone

        assert_member(array, i, trained_alone(build, seed, hooked, X, Y, "steps")[0])
    for handle in handles:
        handle.remove()
    train(array, optimizer, steps=1)
    assert len(told) == 8


def test_hooks_around_saving() -> None:
    optimizer, told = hfta.optim.SGD(fused()), list[str]()
    optimizer.register_state_dict_pre_hook(lambda o: told.append("saved"))
    optimizer.register_state_dict_post_hook(lambda o, state: {**state, "more": 1})
    optimizer.register_load_state_dict_pre_hook(lambda o, state: {k: v for k, v in state.items() if k != "more"})
    optimizer.register_load_state_dict_post_hook(lambda o: told.append("loaded"))
    saved = optimizer.state_dict()
    assert saved["more"] == 1
    optimizer.load_state_dict(saved)
    assert told == ["saved", "loaded"]
    with pytest.raises(OptimError, match="SGD, hook before step: not a function"):
        optimizer.register_step_pre_hook(3)


@pytest.mark.parametrize(
    ("ours", "theirs", "settings"),
    [
        (hfta.optim.Adam, torch.optim.Adam, {"amsgrad": True}),
        (hfta.optim.SGD, torch.optim.SGD, {"momentum": 0.9}),
        (hfta.optim.SGD, torch.optim.SGD, {}),
        (hfta.optim.ASGD, torch.optim.ASGD, {}),
        (hfta.optim.Rprop, torch.optim.Rprop, {}),
        (hfta.optim.Adafactor, torch.optim.Adafactor, {}),
        (lambda array, lr, **s: hfta.optim.ByMember(Lamb, array, lr=lr), Lamb, {}),
    ],
    ids=["Adam", "SGD", "plain SGD", "ASGD", "Rprop", "Adafactor", "ByMember"],
)
def test_the_state_reads_as_torch_s(ours: Any, theirs: Any, settings: dict[str, Any]) -> None:
    array = fused()
    optimizer = ours(array, lr=LRS, **settings)
    assert not optimizer.state
    train(array, optimizer, steps=3)
    for i, seed in enumerate(SEEDS):
        make = lambda m, i=i: theirs(m.parameters(), lr=LRS[i], **settings)  # noqa: E731
        module, _, alone = trained_alone(build, seed, make, X, Y, "steps", 3)
        for p, q in zip(module.parameters(), array.parameters(), strict=True):
            expected = {k: v for k, v in alone.state.get(p, {}).items() if v is not None}
            found = optimizer.state.get(q, {})
            assert found.keys() == expected.keys()
            for key, value in expected.items():
                torch.testing.assert_close(
                    found[key][i], torch.as_tensor(value), rtol=1e-7, atol=1e-10, check_dtype=False
                )
    if ours is hfta.optim.Adam:  # what is written there counts
        p = next(array.parameters())
        optimizer.state[p]["exp_avg"].zero_()
        assert not optimizer.state_of(0)["state"][0]["exp_avg"].any()
