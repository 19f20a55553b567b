"""Threads beside each other: each has the numbers that it has alone."""

from __future__ import annotations

import random
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.kernels.strategy import matmul_precision
from hfta_nb.engine.members import process_streams
from hfta_nb.engine.members.own_draws import drawing_from
from hfta_nb.engine.members.process_streams import ProcessStreams, one_thread, set_stream_states, stream_states
from hfta_nb.errors.caught_warnings import caught_warnings
from hfta_nb.models.recipes.preserve_rng import apart, neutral, preserve_rng


def together(*functions: Callable[[], Any]) -> list[Any]:
    """What the functions return, each in a thread of its own."""
    found: dict[int, Any] = {}
    barrier = threading.Barrier(len(functions))

    def run(place: int) -> None:
        barrier.wait()
        found[place] = functions[place]()

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[i] for i in range(len(functions))]


@contextmanager
def busy(*draws: Callable[[], Any]) -> Iterator[list[Any]]:
    """A thread that draws all the time, and what it has drawn."""
    found, began, over = list[Any](), threading.Event(), threading.Event()

    def run() -> None:
        while not over.is_set():
            found.extend(draw() for draw in draws)
            began.set()

    thread = threading.Thread(target=run)
    thread.start()
    began.wait()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def dropped(seed: int, steps: int = 12) -> list[Tensor]:
    """The losses of a loop over an array with dropout, recorded and replayed."""
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(6, 5, generator=generator), torch.randint(3, (6,), generator=generator)
    modules = [nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.4), nn.Linear(8, 3)) for _ in range(3)]
    for number, p in enumerate(p for module in modules for p in module.parameters()):
        nn.init.uniform_(p, -0.3, 0.3, generator=torch.Generator().manual_seed(number))
    array = hfta.fuse(modules, [seed, seed + 1, seed + 2])
    array.block_size = 3
    losses = []
    for _ in range(steps):
        array.zero_grad()
        losses.append(array.backward(nn.functional.cross_entropy, x, y))
    return losses


def test_arrays_in_threads_draw_what_they_draw_alone() -> None:
    seeds = (1, 7, 20)
    expected = [dropped(seed) for seed in seeds]
    state = torch.get_rng_state()
    with busy(lambda: torch.rand(10)):
        found = together(*(lambda seed=seed: dropped(seed) for seed in seeds))  # type: ignore[misc]
    assert [list(map(torch.equal, a, b)) for a, b in zip(found, expected, strict=True)] == [[True] * 12] * 3
    torch.set_rng_state(state)


# Python's and NumPy's streams.


FUNCTIONS: dict[str, Callable[[], Any]] = {
    "random": lambda: random.random(),  # looked up at each call
    "shuffle": lambda: random.sample(range(9), 9),
    "numpy": lambda: np.random.rand(3).tolist(),
    "numpy, an alias": lambda: float(np.random.sample()),
    "numpy, choice": lambda: int(np.random.choice(9)),
}


def _seed() -> None:
    random.seed(3)
    np.random.seed(3)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_other_threads_go_on_with_the_numbers_of_before(name: str) -> None:
    draw = FUNCTIONS[name]
    _seed()
    alone = [draw() for _ in range(20)]
    _seed()
    with busy(draw) as found:
        for _ in range(20):
            with one_thread():
                outer = stream_states()
                _seed()
                assert [draw() for _ in range(20)] == alone
                set_stream_states(outer)
            torch.zeros(100).sum()
    _seed()
    assert found == [draw() for _ in found]


@pytest.fixture
def undrawn() -> None:
    """As if no other thread had drawn from Python's and NumPy's streams before."""
    process_streams._Process.calls = 0
    process_streams._install(False)


def test_functions_are_the_true_ones_where_no_other_thread_draws(
    undrawn: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def functions() -> list[Any]:
        return [{**vars(module)} for module in (random, np.random)]

    before = functions()
    with busy(lambda: torch.rand(3)):
        with one_thread():
            assert functions() != before
        assert functions() == before
    with busy(lambda: random.random()):
        with one_thread():
            time.sleep(0.1)
        assert functions() != before
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    with one_thread():
        assert functions() == before


def test_a_thread_that_draws_seldom_changes_nothing(undrawn: None) -> None:
    _seed()
    alone, other = random.random(), list[float]()
    expected = [random.random(), np.random.rand()]
    inside, over = threading.Event(), threading.Event()

    def once() -> None:
        inside.wait()
        other.extend([random.random(), np.random.rand()])
        over.set()

    _seed()
    assert random.random() == alone
    thread = threading.Thread(target=once)
    thread.start()
    with one_thread():
        outer = stream_states()
        _seed()
        inside.set()
        assert not over.wait(0.2)
        assert random.random() == alone
        set_stream_states(outer)
    thread.join()
    assert other == expected


def test_what_the_context_waits_for_is_not_held_up(undrawn: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_streams, "_WAIT_S", 0.05)
    ready = threading.Event()
    thread = threading.Thread(target=lambda: (ready.wait(), random.random()))
    thread.start()
    with one_thread():
        before = stream_states()
        ready.set()
        thread.join(30)
        assert not thread.is_alive()
        assert process_streams.unchanged(before)


def test_a_model_does_not_draw_because_another_thread_does() -> None:
    streams = ProcessStreams()
    with busy(lambda: random.random(), lambda: np.random.rand()):
        for _ in range(50):
            streams.begin(watching=True)
            with streams.turn():
                torch.zeros(100).sum()
            streams.end()
    assert not streams.drawn


def test_a_second_thread_waits() -> None:
    def counted() -> list[float]:
        with one_thread():
            outer = stream_states()
            _seed()
            found = []
            for _ in range(200):
                found.append(random.random())
                torch.zeros(10).sum()
            set_stream_states(outer)
        return found

    assert len(set(map(tuple, together(*[counted] * 4)))) == 1


# Settings.


@contextmanager
def _float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def _device() -> Iterator[None]:
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


SETTINGS: dict[str, Callable[[], Any]] = {
    "float64": _float64,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "default device": _device,
    "device": lambda: torch.device("meta"),
}


def _told() -> tuple[Any, ...]:
    modes = torch.is_autocast_enabled("cpu"), torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    return (*modes, torch.get_default_dtype(), torch.empty(1).device, torch.get_num_threads())


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_the_caller_are_neither_inherited_nor_changed(name: str) -> None:
    def events() -> Iterator[tuple[Any, ...]]:
        while True:
            yield _told()

    plain = _told()
    with SETTINGS[name]():
        given, run = _told(), apart(events())
        assert given != plain
        for _ in range(2):
            assert next(run) == plain
            assert _told() == given
        with preserve_rng():
            assert _told() == plain
        assert _told() == given
    assert _told() == plain


def test_settings_of_the_process_are_restored_by_the_last_thread() -> None:
    began, ended = threading.Barrier(2), threading.Barrier(2)

    def first() -> torch.dtype:
        with neutral():
            began.wait()
        there = torch.get_default_dtype()
        ended.wait()
        return there

    def last() -> torch.dtype:
        with neutral():
            began.wait()
            ended.wait()
        return torch.get_default_dtype()

    with _float64():
        assert together(first, last) == [torch.float32, torch.float64]


def test_a_default_dtype_that_another_thread_sets_is_told_and_holds_afterwards() -> None:
    true = torch.set_default_dtype

    def outside() -> torch.dtype:
        with pytest.warns(hfta.errors.ArrayWarning, match="name the dtype where you make tensors"):
            torch.set_default_dtype(torch.float64)
        return torch.get_default_dtype()

    try:
        with neutral():
            assert together(outside) == [torch.float32]
            with neutral():
                torch.set_default_dtype(torch.float16)  # a model's own
                assert torch.get_default_dtype() == torch.float16
            assert torch.get_default_dtype() == torch.float32
        assert torch.get_default_dtype() == torch.float64
        assert torch.set_default_dtype is true
    finally:
        true(torch.float32)


@pytest.mark.skipif(not matmul_precision.can_switch(), reason="no other products here")
def test_products_of_other_threads_do_not_change() -> None:
    before, began, ended = matmul_precision.get(), threading.Barrier(2), threading.Barrier(2)

    def switches() -> list[str]:
        with matmul_precision.switching():
            matmul_precision.switch(matmul_precision.ONEDNN)()
            began.wait()
            ended.wait()
            matmul_precision.switch(before)()
        return [torch.backends.mkldnn.matmul.fp32_precision]

    def beside() -> list[str]:
        began.wait()
        found = [matmul_precision.get()]  # not what is set for a moment
        ended.wait()
        with drawing_from(torch.Generator()):  # waits
            found.append(torch.backends.mkldnn.matmul.fp32_precision)
        return found

    assert together(switches, beside) == [[before], [before, before]]
    inside, left = threading.Barrier(2), threading.Barrier(2)

    def within() -> None:
        with drawing_from(torch.Generator()):
            inside.wait()
            left.wait()

    def leaves() -> str:
        inside.wait()
        with matmul_precision.switching():
            matmul_precision.switch(matmul_precision.ONEDNN)()
            found: str = torch.backends.mkldnn.matmul.fp32_precision
        left.wait()
        return found

    assert together(within, leaves) == [None, before]


def test_filters_of_warnings_are_what_they_were() -> None:
    """Threads that look at torch's warnings at the same time leave the caller's filters as they were."""
    before, ready = list(warnings.filters), threading.Barrier(4, timeout=60)

    def one() -> None:
        ready.wait()
        for i in range(50):
            with caught_warnings(record=bool(i % 2)):
                warnings.simplefilter("ignore")
                time.sleep(1e-4)

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(warnings.filters) == before


def test_warnings_are_caught_in_one_place() -> None:
    root = Path(hfta.__file__).parent
    found = [path.name for path in root.rglob("*.py") if "warnings.catch_warnings(" in path.read_text("utf-8")]
    assert found == ["caught_warnings.py"]
