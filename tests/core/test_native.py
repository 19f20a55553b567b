"""Kernels in C: where they are compiled, kept and disabled, and compared with torch's on one and two threads."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.kernels.native import alive, background, build, recurrent
from tests.core.compiled import NEEDS_COMPILER, misread
from tests.training import train

pytestmark = pytest.mark.usefixtures("libraries_anew")

KILLED_AT_FIRST = """#!/bin/sh
[ -e {killed} ] && exec {compiler} "$@"
touch {killed}
kill -9 $PPID
"""


@NEEDS_COMPILER
def test_a_library_is_compiled_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What first asks for it waits: with it results round otherwise."""
    monkeypatch.setenv("HFTA_NB_CACHE", str(tmp_path / "kept"))
    monkeypatch.delenv("HFTA_NB_NATIVE", raising=False)
    assert build.library("lstm") is not None
    (kept,) = (tmp_path / "kept").glob("*.so")
    assert kept.name.startswith("lstm-")
    written = kept.stat().st_mtime_ns
    build._loaded.clear()
    assert build.library("lstm") is not None
    assert kept.stat().st_mtime_ns == written


def test_nobody_waits_for_a_compiler_that_has_ended(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    background.wait_for(tmp_path / "lstm.so")  # never started
    making = tmp_path / "lstm.making"
    making.mkdir()
    with background._opened(making) as file:
        assert background._claimed(file)
        timer = threading.Timer(0.7, making.rmdir)
        timer.start()
        background.wait_for(tmp_path / "lstm.so")  # it failed
        timer.join()
    assert caplog.text.count("once on this machine") <= 1  # once in a process
    making.mkdir()
    background.wait_for(tmp_path / "lstm.so")  # it was killed


def test_on_a_disk_without_locks_a_compiler_that_was_started_long_ago_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "no locks here")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    making = tmp_path / "lstm.making"
    making.mkdir()
    with background._opened(making) as file:
        assert background._claimed(file, new=True)
        assert not background._claimed(file)
        os.utime(making, (0, 0))
        assert background._claimed(file)


@NEEDS_COMPILER
def test_a_compiler_that_was_killed_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HFTA_NB_CACHE", str(tmp_path / "kept"))
    monkeypatch.delenv("HFTA_NB_NATIVE", raising=False)
    compiler, killed = tmp_path / "cc", tmp_path / "killed"
    compiler.write_text(KILLED_AT_FIRST.format(killed=killed, compiler=build._compiler("")))
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    assert build.library("adam") is not None
    assert killed.exists()


@NEEDS_COMPILER
def test_all_can_be_compiled_before_anything_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HFTA_NB_CACHE", str(tmp_path / "kept"))
    monkeypatch.delenv("HFTA_NB_NATIVE", raising=False)
    made = build.make_all()
    assert "lstm" in made
    assert {kept.name.split("-")[0] for kept in (tmp_path / "kept").glob("*.so")} == set(made)
    assert all(build.library(name) is not None for name in made)


@NEEDS_COMPILER
def test_nothing_is_kept_where_the_cache_is_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HFTA_NB_CACHE", "off")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with build.compiling():
        assert build.library("lstm") is not None
    assert build.library("lstm") is not None  # as long as the process lives
    assert not list(tmp_path.iterdir())


def test_without_a_compiler_there_is_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    with build.compiling():
        assert build.library("lstm") is None
    assert not recurrent.usable(torch.zeros(1), torch.zeros(1, 16))


def test_a_compiler_that_fails_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    with build.compiling():
        assert build.library("lstm") is None


@NEEDS_COMPILER
@pytest.mark.parametrize("variable", [build.MARCH, build.FLAGS])
def test_what_it_is_compiled_for_is_part_of_its_name(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HFTA_NB_CACHE", str(tmp_path))
    monkeypatch.delenv("HFTA_NB_NATIVE", raising=False)
    values = {build.MARCH: platform.machine().replace("_", "-"), build.FLAGS: "-O1 -DHFTA_NO_SHUFFLE"}
    with build.compiling():
        assert build.library("adam") is not None
        monkeypatch.setenv(variable, values[variable].replace("aarch64", "armv8-a"))
        assert build.library("adam") is not None
    assert len(list(tmp_path.glob("adam-*.so"))) == 2


@NEEDS_COMPILER
def test_a_processor_that_the_compiler_does_not_know_gives_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(build.MARCH, "nonesuch")
    with build.compiling():
        assert build.library("adam") is None
    monkeypatch.delenv(build.MARCH)
    with build.compiling():
        assert build.library("adam") is not None


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HFTA_NB_NATIVE", "off")
    with build.compiling():
        assert build.library("lstm") is None


class _Last(nn.Module):
    def __init__(self, wide: int = 32) -> None:
        super().__init__()
        self.inner, self.last = nn.LSTM(8, wide, batch_first=True), nn.Linear(wide, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.inner(x)[0][:, -1])  # type: ignore[no-any-return]


def _trained(threads: int, members: int = 5, samples: int = 7, wide: int = 32) -> list[Tensor]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        torch.manual_seed(0)
        array = hfta.fuse([_Last(wide) for _ in range(members)])
        array.block_size = members
        batch = torch.randn(samples, 6, 8), torch.randint(0, 3, (samples,))
        losses = train(array, [batch] * 6)  # of which the last are replayed
        return [*losses, *(p.detach().clone() for p in array.parameters())]
    finally:
        torch.set_num_threads(before)


@NEEDS_COMPILER
@pytest.mark.usefixtures("width")
def test_training_is_that_of_torch_s_kernels_on_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    with build.compiling():
        one, two = _trained(1), _trained(2)
    assert recurrent.usable(torch.zeros(1), torch.zeros(1, 32))
    monkeypatch.setenv("HFTA_NB_NATIVE", "off")
    plain = _trained(1)
    for a, b, c in zip(one, two, plain, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(a, c, atol=1e-6, rtol=1e-5)


@NEEDS_COMPILER
@pytest.mark.usefixtures("width")
def test_threads_share_the_samples_of_a_member() -> None:
    with build.compiling():
        trained = [(_trained(1, 1, samples, 128), _trained(2, 1, samples, 128)) for samples in (7, 32, 43)]
        assert recurrent.usable(torch.zeros(1), torch.zeros(1, 32))
    for one, several in trained:
        assert torch.equal(one[0], several[0])  # before anything was learnt
        for a, b in zip(one, several, strict=True):
            torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


@NEEDS_COMPILER
@pytest.mark.usefixtures("width")
def test_numbers_beyond_the_range_of_exp(monkeypatch: pytest.MonkeyPatch) -> None:
    """Saturated gates are what torch's are, and a NaN or an infinity stays with its sample."""
    torch.manual_seed(0)
    modules = [nn.LSTM(4, 16) for _ in range(2)]
    array = hfta.fuse(modules)
    array.block_size = 2
    x = torch.randn(3, 6, 4)
    x[:, 1] *= 1e4
    x[:, 2] *= -1e30
    x[1, 3], x[1, 4] = float("nan"), float("inf")
    with build.compiling():
        out, _ = array(x)
    for i, module in enumerate(modules):
        torch.testing.assert_close(out[i], module.double()(x.double())[0].float(), equal_nan=True, atol=1e-5, rtol=1e-5)


@NEEDS_COMPILER
def test_tuning_compiles_and_a_step_does_not() -> None:
    array = hfta.fuse([_Last() for _ in range(3)])
    array.block_size = 3
    x, y = torch.randn(7, 6, 8), torch.randint(0, 3, (7,))
    array.backward(nn.functional.cross_entropy, x, y)
    assert not recurrent.usable(torch.zeros(1), torch.zeros(1, 32))
    array.tune(nn.functional.cross_entropy, x, y, budget_s=0.01)
    assert recurrent.usable(torch.zeros(1), torch.zeros(1, 32))


@NEEDS_COMPILER
def test_a_library_with_wrong_numbers_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    misread("lstm", "1.0f - g * g", "1.0f - g", tmp_path, monkeypatch)
    with build.compiling():
        assert not recurrent.usable(torch.zeros(1), torch.zeros(1, 32))


REFUSING = """#!/bin/sh
for out; do :; done
case " $* " in *" -march=native "*)
    echo 'float hfta_alive(void) { __builtin_trap(); }' | exec "$REAL_CC" -shared -fPIC -x c - -o "$out" ;;
esac
exec "$REAL_CC" "$@"
"""
"""A compiler that takes the processor for one with instructions that it does not have."""


@NEEDS_COMPILER
@pytest.mark.parametrize("kept", [True, False])
def test_a_library_that_the_processor_can_not_run_is_not_kept(
    kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text(REFUSING)
    compiler.chmod(0o755)
    monkeypatch.setenv("REAL_CC", build._compiler("") or "")
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setenv("HFTA_NB_CACHE", str(tmp_path / "kept") if kept else "off")
    monkeypatch.delenv("HFTA_NB_NATIVE", raising=False)
    with build.compiling():
        found = build.library("norm")
    assert found is not None
    assert hasattr(found, "hfta_norm")


def test_a_library_that_can_not_be_tried_is_not_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not alive.alive(tmp_path / "none.so")
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    assert not alive.alive(tmp_path / "none.so")


@pytest.mark.parametrize("off", [True, False])
def test_what_explains_an_array_says_that_there_are_no_kernels(off: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if off:
        monkeypatch.setenv("HFTA_NB_NATIVE", "off")
    else:
        monkeypatch.delenv("HFTA_NB_NATIVE", raising=False)
        monkeypatch.setenv("PATH", "")
        monkeypatch.delenv("CC", raising=False)
    array = hfta.fuse([nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten()) for _ in range(2)])
    [said] = [how for how in array.explain()["how"] if how.startswith("slower than it could be")]
    assert ("HFTA_NB_NATIVE=off" in said) == off
    assert ("no C compiler" in said) == (not off)
