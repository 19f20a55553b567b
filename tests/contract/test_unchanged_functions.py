"""What functions reach is found once, and again when anything has changed that it depends on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from hfta_nb.engine.eager import function_states
from hfta_nb.engine.eager.function_states import FunctionStates
from hfta_nb.engine.eager.reach import Reach


def counts(held: dict[str, int]) -> Callable[[], None]:
    def count() -> None:
        held["n"] += 1

    return count


class Held:
    """An object as a loss: what it refers to may be changed between two calls."""

    def __init__(self) -> None:
        self.helper: Callable[[], object] = int
        self.parts: list[Any] = []
        self.inner = nn.Sequential(nn.Identity())
        self.weight = torch.ones(2)

    def __call__(self) -> object:
        helper(self)
        self.helper()
        self.inner(torch.zeros(1))
        return [part() for part in self.parts], self.method()

    def method(self) -> object:
        return None


def helper(_loss: Held) -> object:
    return None


def by_attribute(loss: Held, count: Callable[[], None], _patch: pytest.MonkeyPatch) -> None:
    loss.helper = count


def by_list(loss: Held, count: Callable[[], None], _patch: pytest.MonkeyPatch) -> None:
    loss.parts.append(count)


def by_method(_loss: Held, count: Callable[[], None], patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Held, "method", lambda _self: count())


def by_global(_loss: Held, count: Callable[[], None], patch: pytest.MonkeyPatch) -> None:
    patch.setitem(globals(), "helper", lambda _loss: count())


def by_code(_loss: Held, count: Callable[[], None], patch: pytest.MonkeyPatch) -> None:
    patch.setattr(helper, "__defaults__", (None,))
    patch.setitem(globals(), "count_it", count)
    patch.setattr(helper, "__code__", (lambda _loss: count_it()).__code__)  # type: ignore[name-defined]  # noqa: F821


def by_hook(loss: Held, count: Callable[[], None], _patch: pytest.MonkeyPatch) -> None:
    loss.inner[0].register_forward_hook(lambda *_: count())


def by_child(loss: Held, count: Callable[[], None], _patch: pytest.MonkeyPatch) -> None:
    class Counting(nn.Module):
        def forward(self, x: Any) -> Any:
            count()
            return x

    loss.inner[0] = Counting()


CHANGES = [by_attribute, by_list, by_method, by_global, by_code, by_hook, by_child]


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The functions of every search."""
    found: list[tuple[Any, ...]] = []

    def search(functions: tuple[Any, ...], *args: Any) -> Reach:
        found.append(functions)
        return Reach(functions, *args)

    monkeypatch.setattr(function_states, "Reach", search)
    return found


def calls(states: FunctionStates, function: Callable[[], object], times: int) -> None:
    for _ in range(times):
        with states.of_one((function,)):
            function()


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_between_two_calls_is_seen_by_the_next(
    change: Callable[[Held, Any, pytest.MonkeyPatch], None],
    searches: list[tuple[Any, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states, loss, held = FunctionStates(1, shows=False), Held(), {"n": 0}
    calls(states, loss, 5)
    assert len(searches) == 1
    change(loss, counts(held), monkeypatch)
    calls(states, loss, 3)
    assert held["n"] == 0  # what was there before is as it was
    assert [value for (_, name), [value] in states.values.values.items() if name == "n"] == [3]


def test_a_tensor_that_a_call_changes_after_others_have_not_is_refused() -> None:
    states, loss = FunctionStates(1, shows=False), Held()
    calls(states, loss, 3)

    def write() -> None:
        with states.of_one((loss,)):
            loss()
            loss.weight.mul_(2)

    with pytest.raises(function_states.FusionError, match="weight"):
        write()


def test_what_a_call_changes_after_others_have_not_is_kept() -> None:
    states, loss = FunctionStates(1, shows=False), Held()
    calls(states, loss, 3)
    for _ in range(2):
        with states.of_one((loss,)):
            loss.parts.append(int)
    assert not loss.parts
    with states.of_one((loss,)):
        assert loss.parts == [int, int]
