"""The cache of programs: entries are recorded, replayed, refused and discarded in the same way for all kinds of
calls."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from hfta_nb.engine.array import FusedArray
from hfta_nb.engine.members.scratch import Scratch
from hfta_nb.engine.replay.array_call import RESULTS
from hfta_nb.engine.replay.record import Recorder
from tests.contract.replay import ENTRIES, MEMBERS, REPLAYED, TIGHT, forget, loss_of_all, mlp, notes, pair, same
from tests.contract.serial import loss_of

Form = Callable[[FusedArray, Tensor], Any]
FORMS: dict[str, Form] = {
    what: lambda array, x, entry=ENTRIES[what]: entry(array, loss_of, x, x[:, :3])  # type: ignore[misc]
    for what in ("backward", "array(x)", "without gradients")
}


def _same_calls(form: Form, arrays: tuple[FusedArray, FusedArray], x: Tensor, times: int) -> None:
    for _ in range(times):
        torch.testing.assert_close(*[form(a, x) for a in arrays], **TIGHT)
        same(*arrays)


@pytest.mark.parametrize("what", FORMS)
def test_a_call_that_is_recorded_without_enough_memory_runs_eagerly(
    what: str, x: Tensor, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays, enter, left = pair(mlp, device), Recorder.__enter__, [1]

    def fails(self: Recorder) -> Any:
        if left:
            left.pop()
            raise torch.OutOfMemoryError("injected")
        return enter(self)

    monkeypatch.setattr(Recorder, "__enter__", fails)
    _same_calls(FORMS[what], arrays, x, 4)
    assert notes(arrays[0], what) == "not recorded: there is not enough memory to record it"
    _same_calls(FORMS[what], arrays, x[:4], 4)  # another signature
    assert REPLAYED in notes(arrays[0], what).split("; ")


@pytest.mark.parametrize("what", FORMS)
def test_the_oldest_signature_is_forgotten_and_recorded_anew(what: str, x: Tensor, device: torch.device) -> None:
    arrays = pair(mlp, device)
    _same_calls(FORMS[what], arrays, x, 4)
    assert notes(arrays[0], what) == REPLAYED
    for size in range(2, 11):
        FORMS[what](arrays[0], x.repeat(2, 1)[:size])
        FORMS[what](arrays[1], x.repeat(2, 1)[:size])
    assert notes(arrays[0], what) == ""
    _same_calls(FORMS[what], arrays, x, 4)
    assert notes(arrays[0], what) == REPLAYED


@pytest.mark.parametrize("what", ["backward", "without gradients"])
def test_some_members_of_a_replayed_array_are_recorded_once(what: str, x: Tensor, device: torch.device) -> None:
    form, arrays = FORMS[what], pair(mlp, device)
    _same_calls(form, arrays, x, 3)
    parts = (arrays[0].select([0, 2]), arrays[1].select([0, 2]))
    _same_calls(form, parts, x, 1)
    assert notes(parts[0], what) == "recorded"
    _same_calls(form, parts, x, 3)
    _same_calls(form, parts, x[:4], 1)  # of which nothing is known
    calls = parts[0]._calls
    entries = calls.steps if what == "backward" else calls.caches[RESULTS]
    assert [entry.ready for entry in entries] == [True, False]


def _buffers(array: FusedArray) -> dict[int, Tensor]:
    """The memory for intermediate values of all programs, each buffer once."""
    programs = [p for cache in array._calls.caches.values() for p in cache.programs()]
    return {slot.data_ptr(): slot for program in programs for slot in program.slots}


def _size(array: FusedArray) -> int:
    return sum(slot.numel() for slot in _buffers(array).values())


@pytest.mark.parametrize("block", [MEMBERS, 1])
def test_programs_share_memory_with_others_that_run_before_or_after(
    block: int, x: Tensor, device: torch.device
) -> None:
    arrays, large = pair(mlp, device, block=block), x.repeat(16, 1)
    _same_calls(FORMS["backward"], arrays, large, 4)
    alone = _size(arrays[0])
    for _ in range(4):  # in turn, so that each finds what another has left there
        for size in (len(large), len(large) // 2, 5):
            _same_calls(FORMS["backward"], arrays, large[:size], 1)
            _same_calls(FORMS["without gradients"], arrays, large[:size], 1)
    assert _size(arrays[0]) < 1.2 * alone
    ends = [weakref.ref(slot) for slot in _buffers(arrays[0]).values()]
    arrays[0]._calls.clear()
    gc.collect()
    assert not any(end() is not None for end in ends)


def test_memory_of_another_device_is_not_shared() -> None:
    here, there = torch.empty(4), torch.empty(4, device="meta")
    scratch = Scratch()
    scratch.add([here, there, here])
    assert [buffer is here for buffer in scratch.buffers(torch.device("cpu"))] == [True]


def test_the_halves_of_a_program_keep_their_memory(x: Tensor, device: torch.device) -> None:
    """Other calls run between the forward and the backward."""
    array, other = pair(mlp, device)
    for number in range(5):
        sums = []
        for each in (array, other):
            forget(each)
            out = each(x)
            for _ in range(2):
                each.evaluate(loss_of, x, x[:, :3])
                with torch.no_grad():
                    each(x * number)
            sums.append(loss_of_all(out))
            sums[-1].backward()
        torch.testing.assert_close(*sums, **TIGHT)
        same(array, other)
    assert REPLAYED in notes(array)
