"""A variant under trial when a process ended is not tried again; everything else is kept, and no files are left
behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from hfta_nb.engine.kernels.strategy import autotune, timing_cache
from hfta_nb.engine.kernels.strategy.kernel_variants import PLAIN, KernelVariant, Operand, same
from hfta_nb.engine.kernels.strategy.times import Kept
from hfta_nb.engine.kernels.strategy.variant_trials import killed, take_up, trying, under_trial

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")
KILLER = """
import os, signal, torch
from hfta_nb.engine.kernels.strategy import autotune
from hfta_nb.engine.kernels.strategy.kernel_variants import KernelVariant, Operand
torch.set_num_threads(1)
def deadly(function):
    return lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGSEGV)
x = Operand((4,), (1,), torch.float32)
abs = torch.ops.aten.abs.default
autotune.choose(abs, abs, [x], {}, torch.device("cpu"), [KernelVariant("deadly", deadly)])
"""


def test_a_way_that_ends_its_process_is_not_tried_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HFTA_NB_CACHE", str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", KILLER], cwd=ROOT) as process:
        assert process.wait() == -signal.SIGSEGV
    assert under_trial(tmp_path, process.pid) == '"deadly" (aten.abs.default)'
    assert under_trial(tmp_path, os.getpid()) == ""
    assert len(list(tmp_path.iterdir())) == 1

    def deadly(function: object) -> object:
        raise AssertionError("tried again")

    x, function = Operand((4,), (1,), torch.float32), torch.ops.aten.abs.default
    ways = [KernelVariant("deadly", deadly), KernelVariant("other", same)]  # type: ignore[arg-type]
    for _ in range(2):
        timing_cache._kept.cache_clear()
        choice = autotune.choose(function, function, [x], {}, CPU, ways)
        assert choice is not None
        assert set(choice.seconds) == {PLAIN, "other"}
        assert not [path for path in tmp_path.glob("*.trial") if f".{os.getpid()}." not in path.name]
    timing_cache._kept.cache_clear()


def _under_trial(folder: Path) -> str:
    return under_trial(folder, os.getpid())


def test_the_innermost_trial_is_noted_as_long_as_it_lasts(tmp_path: Path) -> None:
    known = Kept(tmp_path / "times.json", {})

    def fails() -> None:
        with trying(known, "product", "fast"):
            assert _under_trial(tmp_path) == '"fast" (product)'
            raise ValueError("not this")

    with trying(known, "step", "turned"):
        with pytest.raises(ValueError, match="not this"):
            fails()
        assert _under_trial(tmp_path) == '"turned" (step)'
    assert _under_trial(tmp_path) == ""
    with trying(known, "a longer name than any", "turned"), trying(known, "step", "fast"):
        assert _under_trial(tmp_path) == '"fast" (step)'


def test_what_a_living_process_tries_and_what_is_damaged_is_left_alone(tmp_path: Path) -> None:
    known = Kept(tmp_path / "times.json", {})
    (tmp_path / "times.123456789.trial").write_text('["step", "turned"]')
    (tmp_path / "times.123456788.trial").write_text("[1")
    (tmp_path / "others.123456787.trial").write_text('["step", "fast"]')
    with trying(known, "step", "own"):
        take_up(known)
    assert killed(known, "step", "turned")
    assert not killed(known, "step", "own")
    assert killed(Kept(tmp_path / "times.json", {}), "step", "turned")
    assert {path.name for path in tmp_path.glob("*.123*")} == {"others.123456787.trial"}


HOLDER = """
import fcntl, os, sys
file = os.open(sys.argv[1], os.O_RDWR)
fcntl.lockf(file, fcntl.LOCK_EX)
print(flush=True)
sys.stdin.read()
"""


def test_what_another_living_process_tries_is_left_to_it(tmp_path: Path) -> None:
    known, journal = Kept(tmp_path / "times.json", {}), tmp_path / "times.123456789.trial"
    journal.write_text('["step", "turned"]')
    command = [sys.executable, "-c", HOLDER, str(journal)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        take_up(known)
        assert not killed(known, "step", "turned")
        process.stdin.close()
    take_up(known)
    assert killed(known, "step", "turned")


def test_what_was_tried_to_the_end_stands_when_a_process_is_killed_later(of_own_folder: list[KernelVariant]) -> None:
    x, function = Operand((4,), (1,), torch.float32), torch.ops.aten.abs.default
    before = autotune.choose(function, function, [x], {}, CPU, of_own_folder)
    known = timing_cache.kept(CPU)
    known.put("ended a process: other of aten.abs.default", {"other": None})
    assert killed(known, "aten.abs.default", "other")
    after = autotune.choose(function, function, [x], {}, CPU, of_own_folder)
    assert before is not None
    assert after is not None
    assert (after.seconds, after.chosen) == (before.seconds, before.chosen)
    another = autotune.choose(function, function, [Operand((5,), (1,), torch.float32)], {}, CPU, of_own_folder)
    assert another is not None
    assert set(another.seconds) == {PLAIN}


@pytest.fixture
def of_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[KernelVariant]]:
    """Variants, of which nothing is known in a folder of one's own."""
    monkeypatch.setenv("HFTA_NB_CACHE", str(tmp_path))
    timing_cache._kept.cache_clear()
    yield [KernelVariant("other", same)]
    timing_cache._kept.cache_clear()


def test_without_a_place_nothing_is_noted() -> None:
    with trying(Kept(None, {}), "step", "turned"):
        take_up(Kept(None, {}))
    assert not killed(Kept(None, {}), "step", "turned")
