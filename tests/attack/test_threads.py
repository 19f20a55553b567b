"""Studies and loops in threads, beside a user's own that draw all the time: the numbers are those without them."""

from __future__ import annotations

import functools
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hfta_nb as hfta
from tests.core.test_threads import SETTINGS, busy, together

pytestmark = pytest.mark.long

generator = torch.Generator().manual_seed(0)
x = torch.randn(96, 8, generator=generator)
y = (x[:, 0] > 0).long()


def build(hidden: int = 6, rate: float = 0.2) -> nn.Module:
    parts = nn.Linear(8, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Dropout(rate), nn.Linear(hidden, 2)
    return nn.Sequential(*parts)


def numbers(place: Path, seed: int = 1, **more: Any) -> list[list[float]]:
    """What a study finds, a row per member."""
    grid = {"lr": [0.1, 0.03], "rate": [0.1, 0.4], "hidden": [5, 8], "seed": [seed]}
    study = hfta.Study(build, grid, data=(x, y), epochs=2, directory=place, deterministic=True, **more)
    list(study.run())
    table = study.results()
    columns = [c for c in table.columns if "loss" in c or "accuracy" in c]
    assert len(table) == 8
    found: list[list[float]] = table[columns].to_numpy().tolist()
    return found


def _streams() -> tuple[Any, ...]:
    return torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state(legacy=False))


WAYS: dict[str, dict[str, Any]] = {
    "a grid": {},
    "members alone": {"serial": True},
    "a search": {"sampler": "random", "trials": 6},
}


@pytest.mark.parametrize("way", ["a grid", "members alone"])
def test_three_studies(way: str, tmp_path: Path) -> None:
    run = functools.partial(numbers, **WAYS[way])
    expected = [run(tmp_path / f"alone {seed}", seed) for seed in (1, 2, 3)]
    before = _streams()
    found = together(*(functools.partial(run, tmp_path / f"beside {seed}", seed) for seed in (1, 2, 3)))
    assert found == expected
    assert _streams() == before


DRAWS: dict[str, Callable[[], Any]] = {
    "torch": lambda: torch.rand(3).tolist(),
    "torch, seeded": lambda: torch.manual_seed(5) and torch.randint(9, (3,)).tolist(),
    "numpy": lambda: np.random.rand(3).tolist(),
    "python": lambda: [random.random(), random.randrange(9)],
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_study_beside_a_thread_that_draws(name: str, tmp_path: Path) -> None:
    draw = DRAWS[name]
    expected = numbers(tmp_path / "alone")
    torch.manual_seed(7)
    np.random.seed(7)
    random.seed(7)
    with busy(draw) as drawn:
        found = numbers(tmp_path / "beside")
    assert found == expected
    torch.manual_seed(7)
    np.random.seed(7)
    random.seed(7)
    assert len(drawn) > 100
    assert drawn == [draw() for _ in drawn]


@pytest.mark.parametrize("name", SETTINGS)
def test_a_study_under_settings_of_the_caller(name: str, tmp_path: Path) -> None:
    expected = numbers(tmp_path / "outside")
    with SETTINGS[name]():
        assert numbers(tmp_path / "inside") == expected


# Loops of one's own.


def _array(seed: int) -> Any:
    modules = [nn.Sequential(nn.Linear(8, 9), nn.ReLU(), nn.Dropout(0.4), nn.Linear(9, 2)) for _ in range(3)]
    for number, p in enumerate(p for module in modules for p in module.parameters()):
        nn.init.uniform_(p, -0.3, 0.3, generator=torch.Generator().manual_seed(number))
    array = hfta.fuse(modules, [seed, seed + 1, seed + 2])
    array.block_size, array.threads = 3, "one"
    return array


def _backward(array: Any) -> Any:
    return array.backward(nn.functional.cross_entropy, x, y)


def _losses(array: Any) -> Any:
    losses = array.losses(nn.functional.cross_entropy, array(x), y)
    losses.sum().backward()
    return losses.detach()


def _forward(array: Any) -> Any:
    out = array(x)
    out.square().mean().backward()
    return out.detach()


def _reentrant(array: Any) -> Any:
    state = torch.get_rng_state()
    torch.set_rng_state(state)
    return _backward(array)


LOOPS = {"backward": _backward, "losses": _losses, "forward": _forward}


def _looped(step: Callable[[Any], Any], replayed: bool, seed: int) -> list[Tensor]:
    array = _array(seed)
    if not replayed:
        array.capture = False
    found = []
    optimizer = hfta.optim.SGD(array, lr=0.1)
    for _ in range(15):
        optimizer.zero_grad()
        found.append(step(array))
        optimizer.step()
    return found


@pytest.mark.parametrize("replayed", [True, False])
@pytest.mark.parametrize("name", LOOPS)
def test_loops_of_arrays(name: str, replayed: bool) -> None:
    loops = [functools.partial(_looped, LOOPS[name], replayed, seed) for seed in (1, 5, 9)]
    expected = [loop() for loop in loops]
    with busy(*DRAWS.values()):
        found = together(*loops)
    for own, alone in zip(found, expected, strict=True):
        for a, b in zip(own, alone, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)  # kernels are chosen by time


MIXES = 8


@pytest.mark.parametrize("seed", range(MIXES))
def test_mixes(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Studies, loops and threads that draw, in any number."""
    pick = random.Random(seed)
    jobs: list[Callable[[], Any]] = []
    for _ in range(pick.randint(2, 4)):
        if pick.random() < 0.5:
            place = tmp_path_factory.mktemp("mix")
            number, way = pick.randint(1, 3), pick.choice(["a grid", "members alone"])
            jobs.append(lambda place=place, n=number, w=way: numbers(place / str(threading.get_ident()), n, **WAYS[w]))  # type: ignore[misc]
        else:
            loop = functools.partial(_looped, LOOPS[pick.choice(list(LOOPS))], False, pick.randint(1, 9))
            jobs.append(lambda loop=loop: [value.tolist() for value in loop()])  # type: ignore[misc]
    expected = [job() for job in jobs]
    with busy(*pick.sample(list(DRAWS.values()), pick.randint(1, 4))):
        found = together(*jobs)
    assert found == expected
